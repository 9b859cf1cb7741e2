"""MTU, addresses, subnets, lost packets and flow control."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.loss import TOLERATED, lost_packets
from rocenante.doctor.rdma import Port

WANTED_MTU = 4096


def mtu(facts: Facts) -> Iterator[Finding]:
    """Does the interface's MTU leave room for RoCE's largest packets?"""
    for port in _active(facts):
        if not port.active_mtu:
            yield Finding(
                "mtu",
                Level.WARNING,
                f"the MTU can't be told: interface {port.interface or 'unknown'} is not here",
                "in a container: docker run --net=host",
                port.name,
            )
        elif port.active_mtu < WANTED_MTU:
            yield Finding(
                "mtu",
                Level.WARNING,
                f"Ethernet MTU {port.mtu} leaves RoCE {port.active_mtu}: large messages lose a few "
                "percent",
                f"on all hosts and the switch: ip link set {port.interface} mtu 9000",
                port.name,
            )
        else:
            yield Finding("mtu", Level.OK, f"RoCE {port.active_mtu} of {port.mtu}", "", port.name)


def gids(facts: Facts) -> Iterator[Finding]:
    """Has each port a routable RoCE v2 address?"""
    for port in _active(facts):
        on = port.interface or "<interface>"
        found = port.roce_v2_gids
        wide = [gid for gid in found if not gid.link_local]
        if not found:
            yield Finding(
                "gid",
                Level.ERROR,
                "no RoCE v2 address: rocenante can't use the port",
                f"give the interface an address: ip addr add 10.0.1.1/24 dev {on}",
                port.name,
            )
        elif not wide:
            yield Finding(
                "gid",
                Level.WARNING,
                f"only the link-local address {found[0].address}: it reaches a neighbour at best",
                f"give the interface an IPv4 address: ip addr add 10.0.1.1/24 dev {on}",
                port.name,
            )
        else:
            text = ", ".join(f"{g.address}/{g.network.prefixlen} (GID {g.index})" for g in wide)
            yield Finding("gid", Level.OK, text, "", port.name)


def subnets(facts: Facts) -> Iterator[Finding]:
    """Is each rail in a subnet of its own?"""
    told = False
    for first, second in itertools.combinations(_active(facts), 2):
        for one, other in itertools.product(first.networks, second.networks):
            if one.version == other.version and one.overlaps(other):
                told = True
                yield Finding(
                    "subnets",
                    Level.WARNING,
                    f"both rails are in {one}: the kernel may answer for one on the other",
                    f"put {second.interface or second.name} in another subnet, the same one on "
                    "every host for each rail",
                    f"{first.name}, {second.name}",
                )
    in_use = sorted({str(n) for port in _active(facts) for n in port.networks})
    if in_use and not told:
        yield Finding("subnets", Level.OK, f"{len(in_use)}: {', '.join(in_use)}")


def loss(facts: Facts) -> Iterator[Finding]:
    """Do the counters since the driver was loaded tell of lost packets?"""
    for port in facts.ports:
        if not port.counters:
            continue
        found = lost_packets(port.counters)
        if found.given_up or found.share > TOLERATED:
            yield Finding(
                "loss",
                Level.WARNING,
                f"lost packets since the driver was loaded: {found.text}",
                "see whether they grow (rdma statistic show); if so check cables and the switch's "
                "PFC/ECN",
                port.name,
            )
        else:
            text = found.text or f"none in {found.packets} packets"
            yield Finding("loss", Level.OK, f"lost packets: {text}", "", port.name)


def flow_control(facts: Facts) -> Iterator[Finding]:
    """What keeps a full switch from dropping RoCE packets, where the driver tells."""
    for port in _active(facts):
        if not port.interface:
            continue
        states = {
            "PFC": _pfc(facts, port),
            "ECN": _ecn(facts, port),
            "pause": _pause(facts, port),
        }
        known = {name: on for name, on in states.items() if on is not None}
        if not known:
            continue
        text = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in known.items())
        if len(known) == len(states) and not any(known.values()):
            yield Finding(
                "flow-control",
                Level.WARNING,
                f"{text}: through a switch, packets are dropped when ranks send at once",
                f"turn PFC on for RoCE's priority on host and switch, or: ethtool -A "
                f"{port.interface} rx on tx on",
                port.name,
            )
        else:
            yield Finding("flow-control", Level.OK, text, "", port.name)


def _pfc(facts: Facts, port: Port) -> bool | None:
    output = facts.host.run(["dcb", "-j", "pfc", "show", "dev", port.interface], timeout=5)
    try:
        enabled = json.loads(output or "")["prio-pfc"]
        return any(enabled)
    except (ValueError, KeyError, TypeError):
        return None


def _ecn(facts: Facts, port: Port) -> bool | None:
    folder = f"/sys/class/net/{port.interface}/ecn"
    sides = [f"{folder}/{side}/enable" for side in ("roce_np", "roce_rp")]
    values = [facts.host.number(f"{side}/{n}") for side in sides for n in facts.host.names(side)]
    return any(values) if values else None


def _pause(facts: Facts, port: Port) -> bool | None:
    output = facts.host.run(["ethtool", "-a", port.interface], timeout=5)
    found = re.findall(r"^(?:RX|TX):\s+(on|off)", output or "", re.M)
    return "on" in found if found else None


def _active(facts: Facts) -> list[Port]:
    """The ports that could be used; others have been told of by the check of ports."""
    return [p for p in facts.ports if p.active and p.roce and facts.chosen.allows(p)]
