"""The ways between two ranks, as rocenante would choose them (csrc/transport/route.cc)."""

from __future__ import annotations

import ipaddress
import itertools
from dataclasses import dataclass

from rocenante.doctor.peer import Peer, RailPort, Way

SHM = "shared memory"


@dataclass(frozen=True)
class Rail:
    """A port at either end; none for shared memory, or where no two ports fit."""

    low: str  # of the lower rank: rxe0:1
    high: str
    network: str  # the subnet that both are in; "routed" or "link-local"; SHM; or empty: no way

    @property
    def name(self) -> str:
        if not self.low:
            return self.network or "no way"
        devices = self.low if self.low == self.high else f"{self.low} - {self.high}"
        return f"{devices}, {self.network}"


def over_shared_memory(low: Peer, high: Peer) -> bool:
    """Whether rocenante would join the two without RDMA."""
    insists = low.config.get("ROCENANTE_TRANSPORT") == "verbs"
    return low.identity == high.identity and not insists


def rails_between(low: Peer, high: Peer) -> list[Rail]:
    """The best ways between a lower and a higher rank, each port once; one rail at least."""
    if over_shared_memory(low, high):
        return [Rail("", "", SHM)]
    candidates = []
    for (i, one), (j, other) in itertools.product(enumerate(low.ports), enumerate(high.ports)):
        fitness, network = _best(one, other)
        if fitness:
            # Ports in the same place of both lists first: cabled alike, hosts name them alike.
            candidates.append((-fitness, abs(i - j), i, Rail(one.name, other.name, network)))
    candidates.sort(key=lambda c: c[:3])
    chosen: list[Rail] = []
    for fitness, _, _, rail in candidates:
        if fitness != candidates[0][0]:
            break
        if all(rail.low != r.low and rail.high != r.high for r in chosen):
            chosen.append(rail)
    return chosen or [Rail("", "", "")]


def _best(one: RailPort, other: RailPort) -> tuple[int, str]:
    return max((_fitness(a, b) for a in one.ways for b in other.ways), default=(0, ""))


def _fitness(a: Way, b: Way) -> tuple[int, str]:
    """0: they can't reach each other. A shared subnet before routing, IPv4 before IPv6."""
    ipv4 = ipaddress.ip_address(a.address).version == 4
    if a.subnet.version != b.subnet.version or a.link_local != b.link_local:
        return 0, ""
    if a.link_local:
        return 1, "link-local"
    if a.network == b.network:
        return 4 + ipv4, a.network
    return 2 + ipv4, "routed"
