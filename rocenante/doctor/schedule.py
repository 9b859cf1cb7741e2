"""Which pairs measure at the same time: none of them shares a host with another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Pair = tuple[int, int]


def circle(ranks: Sequence[int]) -> list[Pair]:
    """All pairs, in the order of a round-robin tournament: neighbours share no rank."""
    seats: list[int | None] = [*ranks]
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    pairs = []
    for _ in range(len(seats) - 1):
        for one, other in zip(seats[:half], reversed(seats[half:]), strict=True):
            if one is not None and other is not None:
                pairs.append((min(one, other), max(one, other)))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return pairs


def rounds(pairs: Sequence[Pair], host_of: Sequence[Hashable]) -> list[list[Pair]]:
    """The pairs in rounds in which no host has more than one of them."""
    found: list[tuple[set[Hashable], list[Pair]]] = []
    for one, other in pairs:
        hosts = {host_of[one], host_of[other]}
        for busy, members in found:
            if not busy & hosts:
                busy |= hosts
                members.append((one, other))
                break
        else:
            found.append((set(hosts), [(one, other)]))
    return [members for _, members in found]
