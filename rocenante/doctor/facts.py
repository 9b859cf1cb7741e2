"""Everything that the checks look at, gathered once."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import rocenante
from rocenante.doctor import probes
from rocenante.doctor.hca_list import HcaList, chosen_ports
from rocenante.doctor.host import Host
from rocenante.doctor.rdma import Device, Port, all_ports, read_devices


@dataclass(frozen=True)
class Software:
    """Versions, and what rocenante says of itself."""

    versions: dict[str, str | None]  # rocenante, torch, nccl, python
    problem: str = ""  # why the extension can't be loaded
    no_verbs: str = ""  # why rocenante can't use RDMA here
    config: dict[str, str] = field(default_factory=dict)  # ROCENANTE_*: what is in force
    must_agree: tuple[str, ...] = ()  # variables that must be alike on all ranks
    config_problem: str = ""


@dataclass(frozen=True)
class Facts:
    """One host."""

    host: Host
    name: str
    kernel: str
    devices: list[Device]
    gpu: probes.Probe
    verbs: probes.Probe
    software: Software

    @property
    def ports(self) -> list[Port]:
        return all_ports(self.devices)

    @property
    def chosen(self) -> HcaList:
        return chosen_ports(self.host.environ)

    @property
    def used_ports(self) -> list[Port]:
        """The ports that rocenante would use."""
        return [port for port in self.ports if port.usable and self.chosen.allows(port)]

    def as_json(self) -> dict[str, Any]:
        """For people and scripts: see docs/doctor.md."""
        return {
            "host": self.name,
            "kernel": self.kernel,
            "versions": self.software.versions,
            "config": self.software.config,
            "transports": {
                "shm": self.software.problem or "available",
                "verbs": self.software.problem or self.software.no_verbs or "available",
            },
            "gpus": self.gpu.facts.get("gpus", []),
            "cuda_driver": self.gpu.facts.get("cuda"),
            "devices": [_device_json(device) for device in self.devices],
        }


def _device_json(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "driver": device.driver,
        "firmware": device.firmware,
        "guid": device.guid,
        "pci": asdict(device.pci),
        "ports": [_port_json(port) for port in device.ports],
    }


def _port_json(port: Port) -> dict[str, Any]:
    return {
        "number": port.number,
        "state": port.state,
        "physical_state": port.physical,
        "link_layer": port.link_layer,
        "gbit_s": port.gigabits,
        "width": port.width,
        "interface": port.interface,
        "mtu": port.mtu,
        "active_mtu": port.active_mtu,
        "gids": [
            {"index": g.index, "type": g.kind, "address": str(g.address), "network": str(g.network)}
            for g in port.gids
        ],
        "counters": dict(port.counters),
    }


def gather(host: Host, software: Software | None = None) -> Facts:
    """Reads the host. Takes seconds: torch is imported, and drivers are asked."""
    verbs = probes.run_probe(host, "probe_verbs")
    return Facts(
        host=host,
        name=(host.read("/proc/sys/kernel/hostname") or platform.node()),
        kernel=host.read("/proc/sys/kernel/osrelease") or platform.release(),
        devices=read_devices(host, verbs.facts.get("devices")),
        gpu=probes.run_probe(host, "probe_gpu"),
        verbs=verbs,
        software=software or read_software(),
    )


def read_software() -> Software:
    """What is installed in this environment; never raises."""
    info = rocenante.build_info()
    transports = info["transports"]
    assert isinstance(transports, Mapping)
    problem = str(info["problem"] or "")
    config: dict[str, str] = {}
    must_agree: tuple[str, ...] = ()
    config_problem = ""
    if not problem:
        try:
            rows = rocenante.config()
            config = {row.name: row.value for row in rows}
            must_agree = tuple(row.name for row in rows if row.must_agree)
        except rocenante.ConfigError as error:
            config_problem = str(error)
    verbs = str(transports["verbs"])
    return Software(
        versions={
            "rocenante": _text(info["version"]),
            "torch": _text(info["torch"]),
            "nccl": _nccl(),
            "python": platform.python_version(),
        },
        problem=problem,
        no_verbs="" if verbs == "available" or problem else verbs,
        config=config,
        must_agree=must_agree,
        config_problem=config_problem,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _nccl() -> str | None:
    """The NCCL inside torch; None where torch has none."""
    try:
        import torch

        found: object = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (ImportError, AttributeError, RuntimeError, OSError):
        return None
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
