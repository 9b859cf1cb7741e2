"""Switch, ring or direct cables? Told from who shares a subnet with whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from rocenante.doctor.peer import Peer

_DOES = {
    "one host": "Rocenante joins the ranks by shared memory",
    "two hosts": "Rocenante joins the two directly; cable or switch makes no difference to it",
    "switch": "Every rank writes to every other in one step (one-shot)",
    "direct cables": "Every rank writes to every other in one step, each over the cable between "
    "them",
    "ring": "Rocenante needs every pair joined, so it runs on neighbours alone: use NCCL for the "
    "whole ring, or connect a switch",
    "chain": "Rocenante needs every pair joined, so it runs on neighbours alone: use NCCL for the "
    "whole, or connect a switch",
    "mixed": "Rocenante joins the pairs that share a subnet and tries to reach the others by "
    "routing: one-shot works where the matrix below has no gap",
    "none": "Rocenante can't join the hosts: no two of them share a subnet",
}


@dataclass(frozen=True)
class Fabric:
    """What the hosts' subnets look like."""

    shape: str  # a key of the table above
    why: str
    does: str  # what rocenante will do with it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def tell(peers: dict[int, Peer]) -> Fabric:
    """The shape, from hosts and their subnets."""
    subnets: dict[str, dict[str, str]] = {}  # of each host, by identity; the value is its name
    names: dict[str, str] = {}
    for rank in sorted(peers):
        peer = peers[rank]
        names.setdefault(peer.identity, peer.host)
        mine = subnets.setdefault(peer.identity, {})
        for port in peer.ports:
            mine.update({w.network: port.name for w in port.ways if not w.link_local})
    members: dict[str, list[str]] = defaultdict(list)
    for host, mine in subnets.items():
        for network in mine:
            members[network].append(host)
    shape, why = _shape(list(subnets), members, names)
    return Fabric(shape, why, _DOES[shape])


def _shape(
    hosts: list[str], members: dict[str, list[str]], names: dict[str, str]
) -> tuple[str, str]:
    if len(hosts) == 1:
        return "one host", "all ranks are on one host"
    shared = {network: m for network, m in members.items() if len(m) > 1}
    joined = {frozenset(pair) for m in shared.values() for pair in combinations(m, 2)}
    wide = [network for network, m in shared.items() if len(m) == len(hosts)]
    if not joined:
        return "none", "no two hosts share a subnet"
    if len(hosts) == 2:
        return "two hosts", f"they share {', '.join(wide)}"
    if wide:
        return "switch", f"all {len(hosts)} hosts are in {', '.join(wide)}"
    pairs = len(hosts) * (len(hosts) - 1) // 2
    missing = [
        f"{names[a]} - {names[b]}"
        for a, b in combinations(hosts, 2)
        if frozenset((a, b)) not in joined
    ]
    if any(len(m) > 2 for m in shared.values()):
        return "mixed", _some(f"no subnet that all share; without one: {', '.join(missing)}")
    if len(joined) == pairs:
        return "direct cables", f"each of {pairs} pairs has a subnet of its own"
    neighbours = {host: sum(host in pair for pair in joined) for host in hosts}
    if _connected(hosts, joined):
        if set(neighbours.values()) == {2}:
            return "ring", f"each of {len(hosts)} hosts shares a subnet with two others"
        if sorted(neighbours.values()) == [1, 1, *[2] * (len(hosts) - 2)]:
            return "chain", f"the {len(hosts)} hosts share subnets in a line"
    return "mixed", _some(f"pairs without a common subnet: {', '.join(missing)}")


def _connected(hosts: list[str], joined: set[frozenset[str]]) -> bool:
    reached, new = {hosts[0]}, [hosts[0]]
    while new:
        here = new.pop()
        for pair in joined:
            if here in pair:
                (there,) = pair - {here}
                if there not in reached:
                    reached.add(there)
                    new.append(there)
    return len(reached) == len(hosts)


def _some(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[:most].rpartition(",")[0] + " and others"
