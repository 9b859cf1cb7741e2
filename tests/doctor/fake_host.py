"""Machines that are not there: files as the kernel would show them, and canned commands."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocenante.doctor.checks import run_checks
from rocenante.doctor.facts import Facts, Software, gather
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.host import Host

SOFTWARE = Software(
    versions={"rocenante": "0.1.0", "torch": "2.14.1", "nccl": "2.30.7", "python": "3.11.7"},
    config={"ROCENANTE_TRANSPORT": "auto", "ROCENANTE_IB_HCA": ""},
    must_agree=("ROCENANTE_TRANSPORT",),
)


@dataclass(frozen=True)
class FakeHost(Host):
    """A host below a folder; commands answer from a table, by their first word."""

    answers: dict[str, str] = field(default_factory=dict)
    denied: frozenset[str] = frozenset()

    def run(self, command: Sequence[str], timeout: float = 10.0) -> str | None:
        key = command[2].rpartition(".")[2] if command[0] == sys.executable else command[0]
        return self.answers.get(key)

    def may_use(self, name: str) -> bool:
        return name not in self.denied and self.exists(name)


class Machine:
    """Builds the tree of one machine; every method may be called again to change it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {}
        self.answers = {"probe_gpu": json.dumps({"problem": "no libcuda", "missing": True})}
        self.denied: set[str] = set()
        self.software = SOFTWARE
        self._routes: list[str] = []
        self.write("/proc/sys/kernel/hostname", "spark-1")
        self.write("/proc/sys/kernel/random/boot_id", "a-boot")
        self.kernel("6.11.0-1016-nvidia")
        self.memlock("unlimited")
        self.write("/proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-19")
        self.write("/sys/devices/system/cpu/online", "0-19")
        self.governor("performance")

    def write(self, name: str, text: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def remove(self, name: str) -> None:
        path = self.root / name.lstrip("/")
        for inner in sorted(path.rglob("*"), reverse=True):
            inner.rmdir() if inner.is_dir() and not inner.is_symlink() else inner.unlink()
        path.rmdir() if path.is_dir() else path.unlink()

    def kernel(self, release: str) -> None:
        self.write("/proc/sys/kernel/osrelease", release)

    def memlock(self, limit: str) -> None:
        self.write(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n"
            f"Max locked memory         {limit:<21}{limit:<21}bytes",
        )

    def governor(self, name: str) -> None:
        for cpu in range(20):
            self.write(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", name)

    def nic(
        self,
        device: str,
        interface: str,
        address: str,
        *,
        index: int,
        pci: str,
        guid: str = "a088:c203:00ab:1234",
        mtu: int = 9000,
        rate: str = "200 Gb/sec (4X HDR)",
        lanes: int = 4,
        max_lanes: int = 4,
    ) -> None:
        """One ConnectX-7 function with one port."""
        bus = f"/sys/devices/pci/{pci}"
        for name, text in (
            ("vendor", "0x15b3"),
            ("class", "0x020000"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", str(lanes)),
            ("max_link_width", str(max_lanes)),
            ("numa_node", "-1"),
            ("local_cpulist", "0-19"),
        ):
            self.write(f"{bus}/{name}", text)
        self.write("/sys/bus/pci/drivers/mlx5_core/uevent", "")
        self.link(f"{bus}/driver", "/sys/bus/pci/drivers/mlx5_core")
        self.write(f"{bus}/net/{interface}/dev_port", "0")
        folder = f"/sys/class/infiniband/{device}"
        self.write(f"{folder}/fw_ver", "28.45.4028")
        self.write(f"{folder}/sys_image_guid", guid)
        self.write(f"{folder}/node_desc", "spark-1")
        self.link(f"{folder}/device", bus)
        self.write(f"/sys/class/infiniband_verbs/uverbs{index}/ibdev", device)
        self.write(f"/dev/infiniband/uverbs{index}", "")
        self.write(f"/sys/class/net/{interface}/dev_port", "0")
        self.write(f"/sys/class/net/{interface}/mtu", str(mtu))
        port = f"{folder}/ports/1"
        self.write(f"{port}/rate", rate)
        self.write(f"{port}/link_layer", "Ethernet")
        self.state(device, "4: ACTIVE", "5: LinkUp")
        local = f"fe80:0000:0000:0000:a288:c2ff:feab:{index:04x}"
        self.gid(device, 0, local, "IB/RoCE v1", interface)
        self.gid(device, 1, local, "RoCE v2", interface)
        v4 = int(ipaddress.IPv4Address(address.partition("/")[0]))
        mapped = f"0000:0000:0000:0000:0000:ffff:{v4 >> 16:04x}:{v4 & 0xFFFF:04x}"
        self.gid(device, 2, mapped, "IB/RoCE v1", interface)
        self.gid(device, 3, mapped, "RoCE v2", interface)
        self.gid(device, 4, ":".join(["0000"] * 8), "", "")
        self.counters(device, packet_seq_err=0, out_of_sequence=0, port_xmit_packets=10**9)
        self.route(interface, address)

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(self.root / target.lstrip("/"))

    def state(self, device: str, state: str, physical: str) -> None:
        self.write(f"/sys/class/infiniband/{device}/ports/1/state", state)
        self.write(f"/sys/class/infiniband/{device}/ports/1/phys_state", physical)

    def gid(self, device: str, index: int, text: str, kind: str, interface: str) -> None:
        folder = f"/sys/class/infiniband/{device}/ports/1"
        self.write(f"{folder}/gids/{index}", text)
        self.write(f"{folder}/gid_attrs/types/{index}", kind)
        self.write(f"{folder}/gid_attrs/ndevs/{index}", interface)

    def no_gid(self, device: str, *indices: int) -> None:
        for index in indices:
            self.gid(device, index, ":".join(["0000"] * 8), "", "")

    def counters(self, device: str, **values: int) -> None:
        for name, value in values.items():
            kind = "counters" if name.startswith("port_") else "hw_counters"
            self.write(f"/sys/class/infiniband/{device}/ports/1/{kind}/{name}", str(value))

    def route(self, interface: str, address: str) -> None:
        """The connected route of an interface's address, as in /proc/net/route."""
        network = ipaddress.ip_interface(address).network
        digits = [
            f"{int.from_bytes(part.packed, sys.byteorder):08X}"
            for part in (network.network_address, network.netmask)
        ]
        self._routes = [r for r in self._routes if not r.startswith(f"{interface}\t")]
        self._routes.append(f"{interface}\t{digits[0]}\t00000000\t0001\t0\t0\t0\t{digits[1]}\t0\t0")
        self.write("/proc/self/net/route", "\n".join(["Iface\tDestination", *self._routes]))

    def gpu(self, **attributes: object) -> None:
        self.write("/sys/module/nvidia/version", "580.142")
        self.write("/sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de")
        self.write("/sys/bus/pci/devices/000f:01:00.0/class", "0x030200")
        self.answers["probe_gpu"] = json.dumps({"cuda": "13.0", "gpus": [attributes]})

    def facts(self) -> Facts:
        host = FakeHost(
            self.root, self.environ, answers=self.answers, denied=frozenset(self.denied)
        )
        return gather(host, self.software)


def spark(root: Path) -> Machine:
    """A healthy DGX Spark with one cable: a GB10 and both functions of one ConnectX-7 port."""
    machine = Machine(root)
    machine.nic("rocep1s0f0", "enp1s0f0np0", "10.0.1.1/24", index=0, pci="0000:01:00.0")
    machine.nic("roceP2p1s0f0", "enP2p1s0f0np0", "10.0.2.1/24", index=1, pci="0002:01:00.0")
    machine.gpu(**GB10)
    return machine


GB10: Mapping[str, object] = {
    "name": "NVIDIA GB10",
    "memory_gib": 119.6,
    "integrated": 1,
    "can_map_host_memory": 1,
    "major": 12,
    "minor": 1,
    "host_pointer_for_registered_memory": 1,
    "gpudirect_rdma": 0,
    "dma_buf": 0,
}


def bad(machine: Machine) -> list[Finding]:
    return [f for f in run_checks(machine.facts()) if f.level is not Level.OK]


def the(machine: Machine, check: str, level: Level, subject: str = "") -> Finding:
    """The one finding that is worse than OK."""
    found = bad(machine)
    assert [(f.check, f.level, f.subject) for f in found] == [(check, level, subject)], found
    assert found[0].fix
    assert "\n" not in found[0].why + found[0].fix
    return found[0]


def ok(machine: Machine, check: str) -> str:
    found = [f for f in run_checks(machine.facts()) if f.check == check]
    assert all(f.level is Level.OK for f in found)
    return "\n".join(f"{f.subject}: {f.why}" for f in found)
