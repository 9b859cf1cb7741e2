"""RDMA devices, their ports, their bus and which of them share a card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.rdma import Port

_PHYSICAL_FIX = {
    "Disabled": "turn it on: ip link set {interface} up",
    "Polling": "no signal: plug the cable in at both ends, or turn the other end on",
}


def devices(facts: Facts) -> Iterator[Finding]:
    """Is there any RDMA device?"""
    name = "rdma-devices"
    if not facts.devices:
        yield Finding(
            name,
            Level.WARNING,
            "no RDMA device: ranks of this host alone can be joined, over shared memory",
            "load the card's driver (modprobe mlx5_ib); a ConnectX-7 in a DGX Spark shows none "
            "of its functions without a cable",
        )
        return
    for device in facts.devices:
        firmware = f", firmware {device.firmware}" if device.firmware else ""
        ports = "1 port" if len(device.ports) == 1 else f"{len(device.ports)} ports"
        yield Finding(name, Level.OK, f"{device.driver}{firmware}, {ports}", "", device.name)


def ports(facts: Facts) -> Iterator[Finding]:
    """Is each port up, and Ethernet?"""
    for port in facts.ports:
        if not port.roce:
            yield Finding(
                "ports",
                Level.WARNING if facts.chosen.chooses(port) else Level.OK,
                f"link layer {port.link_layer}: rocenante does not use it, it speaks RoCE",
                f"set the port to Ethernet (mlxconfig LINK_TYPE_P{port.number}=2) or leave it out",
                port.name,
            )
        elif port.active:
            link = f"{port.gigabits:g} Gbit/s" + (f" ({port.width})" if port.width else "")
            on = f" on {port.interface}" if port.interface else ""
            yield Finding("ports", Level.OK, f"active, {link}{on}", "", port.name)
        else:
            yield _down(facts, port)


def _down(facts: Facts, port: Port) -> Finding:
    asked = facts.chosen.chooses(port)
    fix = _PHYSICAL_FIX.get(port.physical, "see: ip link show {interface}, ethtool {interface}")
    interface = port.interface or "<interface>"
    reason = f"{port.state.lower() or 'not active'}, {port.physical or 'state unknown'}"
    return Finding(
        "ports",
        Level.ERROR if asked or not facts.used_ports else Level.WARNING,
        f"the port is {reason}" + (f", and {facts.chosen.variable} asks for it" if asked else ""),
        fix.format(interface=interface),
        port.name,
    )


def pci(facts: Facts) -> Iterable[Finding]:
    """Does the bus run at its width and speed, and is it wide enough for the link?"""
    for device in facts.devices:
        bus = device.pci
        if not bus.address or not bus.width:
            continue
        text = f"PCIe {bus.speed:g} GT/s x{bus.width} ({bus.gigabits:.0f} Gbit/s)"
        slow = bus.width < bus.max_width or bus.speed < bus.max_speed
        link = max((port.gigabits for port in device.ports if port.active), default=0.0)
        if slow:
            yield Finding(
                "pci",
                Level.WARNING,
                f"{text}, but the card can do {bus.max_speed:g} GT/s x{bus.max_width}",
                "move it to a slot with all lanes, or update the BIOS; see lspci -vv (LnkSta)",
                device.name,
            )
        elif link > bus.gigabits:
            yield Finding(
                "pci",
                Level.OK,
                f"{text}: less than the link's {link:g} Gbit/s, so one function can't fill it",
                "",
                device.name,
            )
        else:
            yield Finding("pci", Level.OK, text, "", device.name)


def cards(facts: Facts) -> Iterable[Finding]:
    """Which devices are functions of one card?"""
    by_guid = defaultdict(list)
    for device in facts.devices:
        if device.guid.strip("0:"):
            by_guid[device.guid].append(device)
    for guid, functions in by_guid.items():
        if len(functions) > 1:
            names = ", ".join(device.name for device in functions)
            active = [p for device in functions for p in device.ports if p.active]
            yield Finding(
                "cards",
                Level.OK,
                f"{names} are one card, {len(active)} ports active: together no more than its bus",
                "",
                guid,
            )
