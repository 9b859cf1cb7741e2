"""What the hosts have, held against each other: versions, settings, MTU, addresses, clocks."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator, Mapping

from rocenante.doctor.clock import Skew
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.peer import Peer

_MUST_FIT = ("rocenante", "torch")
TOLERATED_SKEW_S = 0.5
_MAY_DIFFER = ("ROCENANTE_HOST_ID", "ROCENANTE_IB_HCA", "ROCENANTE_LOG")


def compare(peers: dict[int, Peer], skews: list[Skew]) -> list[Finding]:
    """Findings about what differs; OK lines where nothing does."""
    found: list[Finding] = []
    for part in (_versions(peers), _settings(peers), _mtu(peers), _addresses(peers), _gpus(peers)):
        found += part
    return found + list(_clocks(peers, skews))


def _groups(values: Mapping[int, str | None]) -> str:
    """0.1.0 on ranks 0, 2; 0.2.0 on rank 1"""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        ranks[value or "none"].append(rank)
    return "; ".join(
        f"{value} on rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}"
        for value, of in ranks.items()
    )


def _versions(peers: dict[int, Peer]) -> Iterator[Finding]:
    differs = False
    for name in dict.fromkeys(name for peer in peers.values() for name in peer.versions):
        values = {rank: peer.versions.get(name) for rank, peer in peers.items()}
        if len(set(values.values())) > 1:
            differs = True
            yield Finding(
                "versions",
                Level.ERROR if name in _MUST_FIT else Level.WARNING,
                f"{name} differs: {_groups(values)}",
                f"install the same {name} on every host",
                name,
            )
    if not differs:
        same = next(iter(peers.values())).versions
        text = ", ".join(f"{name} {value}" for name, value in same.items() if value)
        yield Finding("versions", Level.OK, f"alike on all ranks: {text}")


def _settings(peers: dict[int, Peer]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for peer in peers.values() for name in peer.config):
        values = {rank: peer.config.get(name) for rank, peer in peers.items() if peer.config}
        if name in _MAY_DIFFER or len(set(values.values())) <= 1:
            continue
        must = any(name in peer.must_agree for peer in peers.values())
        shown = {rank: value or "empty" for rank, value in values.items()}
        yield Finding(
            "same-settings",
            Level.ERROR if must else Level.WARNING,
            f"{name} differs: {_groups(shown)}",
            f"set {name} alike on all ranks (torchrun passes the environment of each host)",
            name,
        )


def _mtu(peers: dict[int, Peer]) -> Iterator[Finding]:
    """Ports of one subnet talk to each other: their MTUs should be alike."""
    by_subnet: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for peer in peers.values():
        for port in peer.ports:
            for way in port.ways:
                if not way.link_local:
                    where = f"{peer.host} {port.name}"
                    by_subnet[way.network][where] = (port.mtu, port.active_mtu)
    for subnet, ports in by_subnet.items():
        if len(set(ports.values())) > 1:
            low = min(ports, key=lambda where: ports[where])
            high = max(ports, key=lambda where: ports[where])
            yield Finding(
                "same-mtu",
                Level.WARNING,
                f"{low} has MTU {ports[low][0]} (RoCE {ports[low][1]}), {high} has "
                f"{ports[high][0]} (RoCE {ports[high][1]})",
                "set the same MTU on every host and on the switch: ip link set <interface> mtu "
                f"{max(mtu for mtu, _ in ports.values())}",
                subnet,
            )


def _addresses(peers: dict[int, Peer]) -> Iterator[Finding]:
    """No address twice, and the same kinds on all hosts."""
    owners: dict[str, set[str]] = defaultdict(set)
    for peer in peers.values():
        for port in peer.ports:
            for way in port.ways:
                owners[way.address].add(f"{peer.identity}/{port.name}")
    for address, ports in owners.items():
        if len(ports) > 1:
            hosts = [p.host for p in peers.values() if any(o.startswith(p.identity) for o in ports)]
            yield Finding(
                "gid-choice",
                Level.ERROR,
                f"{' and '.join(dict.fromkeys(hosts))} both have the address {address}",
                "give each host an address of its own",
                address,
            )
    kinds = {rank: _kinds(peer) for rank, peer in peers.items() if peer.ports}
    if len(set(kinds.values())) > 1:
        yield Finding(
            "gid-choice",
            Level.WARNING,
            f"the hosts have different kinds of RoCE addresses: {_groups(kinds)}",
            "give every RDMA interface of every host an IPv4 address",
        )


def _kinds(peer: Peer) -> str:
    found = set()
    for way in (way for port in peer.ports for way in port.ways):
        version = ipaddress.ip_address(way.address).version
        found.add(f"{'link-local ' if way.link_local else ''}IPv{version}")
    return ", ".join(sorted(found - {"link-local IPv6"} or found))


def _gpus(peers: dict[int, Peer]) -> Iterator[Finding]:
    values = {rank: ", ".join(peer.gpus) or "no GPU" for rank, peer in peers.items()}
    if len(set(values.values())) > 1:
        yield Finding(
            "same-gpus",
            Level.WARNING,
            f"GPUs differ: {_groups(values)}",
            "the slowest decides: use equal hosts, or expect waiting",
        )


def _clocks(peers: dict[int, Peer], skews: list[Skew]) -> Iterator[Finding]:
    for skew in skews:
        apart = (
            f"{skew.offset_s * 1e3:+.1f} ms from rank 0's, give or take {skew.error_s * 1e3:.1f}"
        )
        name = peers[skew.rank].host
        if abs(skew.offset_s) - skew.error_s > TOLERATED_SKEW_S:
            yield Finding(
                "clocks",
                Level.WARNING,
                f"the clock is {apart} ms: logs of the hosts can't be laid side by side",
                f"turn time synchronisation on: timedatectl set-ntp true (on {name})",
                f"rank {skew.rank}",
            )
        else:
            yield Finding("clocks", Level.OK, f"{apart} ms", "", f"rank {skew.rank}")
