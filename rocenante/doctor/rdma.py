"""RDMA devices and their ports, from sysfs; libibverbs adds what sysfs does not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rocenante.doctor.addresses import Gid, Network, is_address, prefix_of, roce_mtu
from rocenante.doctor.host import Host

INFINIBAND = "/sys/class/infiniband"
_NO_GID = ":".join(["0000"] * 8)
_MAX_GIDS = 256  # as many as rocenante looks at; what is beyond is never in use


@dataclass(frozen=True)
class Pci:
    """How a device hangs on its bus."""

    address: str = ""  # 0000:01:00.0; empty: no PCI device, as Soft-RoCE
    speed: float = 0.0  # GT/s now; 0: not told
    max_speed: float = 0.0
    width: int = 0  # lanes
    max_width: int = 0
    numa: int = -1
    cpus: str = ""  # as 0-9,20

    @property
    def gigabits(self) -> float:
        """What the bus carries in one direction, in Gbit/s, its encoding taken off."""
        coding = 128 / 130 if self.speed >= 8 else 8 / 10
        return self.speed * self.width * coding


@dataclass(frozen=True)
class Port:
    """One port of a device."""

    device: str
    number: int
    state: str  # ACTIVE, DOWN, INIT, ARMED
    physical: str  # LinkUp, Polling, Disabled
    link_layer: str  # Ethernet, InfiniBand
    gigabits: float  # of the link; 0: not told
    width: str  # 4X
    interface: str  # the network interface; empty: in another network namespace, or none
    mtu: int  # the interface's, in bytes; 0: not known
    active_mtu: int  # RoCE's, in bytes; 0: not known
    gids: tuple[Gid, ...]
    counters: Mapping[str, int]
    pci: Pci

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def roce(self) -> bool:
        return self.link_layer == "Ethernet"

    @property
    def roce_v2_gids(self) -> list[Gid]:
        return [gid for gid in self.gids if gid.roce_v2]

    @property
    def usable(self) -> bool:
        """Whether rocenante can use it."""
        return self.active and self.roce and bool(self.roce_v2_gids)

    @property
    def networks(self) -> list[Network]:
        """The subnets that it is in, without the link-local one that every port is in."""
        return sorted(
            {gid.network for gid in self.roce_v2_gids if not gid.link_local},
            key=lambda network: (network.version, int(network.network_address)),
        )


@dataclass(frozen=True)
class Device:
    """One RDMA device."""

    name: str
    driver: str  # mlx5_core; rxe for Soft-RoCE
    firmware: str
    guid: str  # sys_image_guid: alike for all functions of one card
    node: str  # uverbs0; empty: none
    pci: Pci
    ports: tuple[Port, ...] = field(default=())


def read_devices(host: Host, verbs: Mapping[str, Any] | None = None) -> list[Device]:
    """All RDMA devices. `verbs` is what probe_verbs found: device -> port -> attributes."""
    return [_device(host, name, (verbs or {}).get(name, {})) for name in host.names(INFINIBAND)]


def _device(host: Host, name: str, verbs: Mapping[str, Any]) -> Device:
    folder = f"{INFINIBAND}/{name}"
    pci = _pci(host, f"{folder}/device")
    driver = host.target(f"{folder}/device/driver") or host.read(f"{folder}/node_desc") or ""
    return Device(
        name=name,
        driver=driver,
        firmware=host.read(f"{folder}/fw_ver") or "",
        guid=host.read(f"{folder}/sys_image_guid") or "",
        node=_uverbs(host, name),
        pci=pci,
        ports=tuple(
            _port(host, name, int(number), pci, verbs.get(number, {}))
            for number in host.names(f"{folder}/ports")
            if number.isdigit()
        ),
    )


def _uverbs(host: Host, device: str) -> str:
    folder = "/sys/class/infiniband_verbs"
    for name in host.names(folder):
        if host.read(f"{folder}/{name}/ibdev") == device:
            return name
    return ""


def _pci(host: Host, folder: str) -> Pci:
    if not host.exists(f"{folder}/vendor"):
        return Pci()
    return Pci(
        address=host.target(folder) or "",
        speed=_leading(host.read(f"{folder}/current_link_speed")),
        max_speed=_leading(host.read(f"{folder}/max_link_speed")),
        width=host.number(f"{folder}/current_link_width") or 0,
        max_width=host.number(f"{folder}/max_link_width") or 0,
        numa=_or(host.number(f"{folder}/numa_node"), -1),
        cpus=host.read(f"{folder}/local_cpulist") or "",
    )


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _leading(text: str | None) -> float:
    """16.0 of "16.0 GT/s PCIe" """
    found = re.match(r"\d+(\.\d+)?", text or "")
    return float(found[0]) if found else 0.0


def _word(text: str | None) -> str:
    """ACTIVE of "4: ACTIVE" """
    return (text or "").partition(":")[2].strip()


def _port(host: Host, device: str, number: int, pci: Pci, verbs: Mapping[str, Any]) -> Port:
    folder = f"{INFINIBAND}/{device}/ports/{number}"
    rate = host.read(f"{folder}/rate") or ""
    width = re.search(r"\((\d+X)", rate)
    gids, interface = _gids(host, device, folder)
    mtu = host.number(f"/sys/class/net/{interface}/mtu") or 0 if interface else 0
    return Port(
        device=device,
        number=number,
        state=_word(host.read(f"{folder}/state")),
        physical=_word(host.read(f"{folder}/phys_state")),
        link_layer=host.read(f"{folder}/link_layer") or "",
        gigabits=_leading(rate),
        width=width[1] if width else "",
        interface=interface,
        mtu=mtu,
        active_mtu=int(verbs.get("active_mtu", 0)) or roce_mtu(mtu),
        gids=gids,
        counters=read_counters(host, device, number),
        pci=pci,
    )


def _gids(host: Host, device: str, folder: str) -> tuple[tuple[Gid, ...], str]:
    """A port's GIDs, and the name of its network interface."""
    found: list[Gid] = []
    interface = ""
    indices = [n for n in host.names(f"{folder}/gids") if n.isdigit()][:_MAX_GIDS]
    for index in indices:
        text = host.read(f"{folder}/gids/{index}") or _NO_GID
        if text == _NO_GID or not is_address(text):
            continue
        own = host.read(f"{folder}/gid_attrs/ndevs/{index}") or ""
        interface = interface or own
        gid = Gid(int(index), text, host.read(f"{folder}/gid_attrs/types/{index}") or "")
        prefix = prefix_of(host, own, gid.address)
        found.append(Gid(gid.index, gid.text, gid.kind, prefix))
    return tuple(found), interface or _interface(host, device, folder)


def _interface(host: Host, device: str, folder: str) -> str:
    """The interface of a port without a GID."""
    parent = host.read(f"{INFINIBAND}/{device}/parent")  # Soft-RoCE
    if parent:
        return parent
    port = int(folder.rpartition("/")[2]) - 1
    names = host.names(f"{INFINIBAND}/{device}/device/net")
    of_port = [n for n in names if host.number(f"/sys/class/net/{n}/dev_port") == port]
    return next(iter(of_port or names), "")


def read_counters(host: Host, device: str, number: int) -> dict[str, int]:
    """A port's hardware counters by name; empty where there are none."""
    folder = f"{INFINIBAND}/{device}/ports/{number}"
    found = {}
    for kind in ("counters", "hw_counters"):
        for name in host.names(f"{folder}/{kind}"):
            value = host.number(f"{folder}/{kind}/{name}")
            if value is not None:
                found[name] = value
    return found


def all_ports(devices: list[Device]) -> list[Port]:
    return [port for device in devices for port in device.ports]
