"""Closed-form cost of the all-reduce algorithms: microseconds, bytes, and nothing measured here.

The model is Hockney's (a message costs latency + bytes / bandwidth) with the cost of posting a
message kept apart, as in LogP, and the memory traffic of the reduction added as in Thakur,
Rabenseifner and Gropp (2005). docs/plan.md gives the derivations and the sources.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from rocenante.plan.fabric import Fabric

MAX_CROSSOVER_BYTES = 64 << 20


@dataclass(frozen=True)
class Costs:
    """Parameters of one cluster; times in microseconds, rates in microseconds per byte."""

    launch_us: float
    """Fixed time of the all-reduce's own kernel."""
    exchange_us: float
    """Doorbell, proxy, wire and the wait that sees the signal: one exchange, no bytes."""
    post_us: float
    """Posting one peer's work requests, one after the other."""
    hop_us: float
    """What a switch adds to a message."""
    wire_us_per_byte: float
    """Serialisation of one-shot's messages by the NIC."""
    memory_us_per_byte: float
    """Reading or writing memory on a node."""
    step_us: float
    """One step of NCCL's ring or tree; they cost the same with one rank a node."""
    pair_us_per_byte: float
    """NCCL's bulk rate between two nodes."""
    ring_us_per_byte: float
    """NCCL's bulk rate in a ring of three or more nodes."""

    def hop(self, fabric: Fabric) -> float:
        return self.hop_us if fabric is Fabric.SWITCH else 0.0

    def bulk(self, nodes: int) -> float:
        return self.pair_us_per_byte if nodes == 2 else self.ring_us_per_byte


def exchange(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """Time for every rank to send `size` bytes to each of the others, in microseconds.

    The proxy posts while the NIC sends: the slower of the two sets the pace between the first
    message's post and the last message's serialisation.
    """
    wire = size * costs.wire_us_per_byte
    pace = max(costs.post_us, wire)
    return costs.exchange_us + costs.hop(fabric) + costs.post_us + wire + (nodes - 2) * pace


def one_shot(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """One-shot all-reduce of `size` bytes: one exchange, then every rank reduces everything.

    Memory traffic: stage (read, write), reduce (read n contributions, write the result).
    """
    traffic = (nodes + 3) * size * costs.memory_us_per_byte
    return costs.launch_us + exchange(costs, nodes, size, fabric) + traffic


def two_shot(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """Two-shot all-reduce: a direct reduce-scatter, then a direct all-gather, in one kernel."""
    part = size / nodes
    traffic = (4 * size + (nodes + 1) * part) * costs.memory_us_per_byte
    return costs.launch_us + 2 * exchange(costs, nodes, part, fabric) + traffic


def ring(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """Ring all-reduce: 2(n-1) steps of `size`/n bytes."""
    step = costs.step_us + costs.hop(fabric) + size / nodes * costs.bulk(nodes)
    return 2 * (nodes - 1) * step


def tree(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """Binomial tree: reduce to a root, then broadcast, 2 ceil(log2 n) steps of `size` bytes."""
    step = costs.step_us + costs.hop(fabric) + size * costs.bulk(nodes)
    return 2 * math.ceil(math.log2(nodes)) * step


def nccl(costs: Costs, nodes: int, size: float, fabric: Fabric) -> float:
    """The cheaper of ring and tree where a tree's edges exist, else the ring."""
    around = ring(costs, nodes, size, fabric)
    if not fabric.joins_all_pairs(nodes):
        return around
    return min(around, tree(costs, nodes, size, fabric))


def nccl_all_gather(costs: Costs, nodes: int, shard: float, fabric: Fabric) -> float:
    """Ring all-gather of one `shard` (bytes) a rank: n-1 steps."""
    return (nodes - 1) * (costs.step_us + costs.hop(fabric) + shard * costs.bulk(nodes))


def one_shot_all_gather(costs: Costs, nodes: int, shard: float, fabric: Fabric) -> float:
    """One exchange of one `shard` (bytes) a rank, staged and copied out."""
    traffic = (2 * nodes + 2) * shard * costs.memory_us_per_byte
    return costs.launch_us + exchange(costs, nodes, shard, fabric) + traffic


@functools.cache
def expected_max(nodes: int) -> float:
    """Mean of the largest of `nodes` standard normal values: how long the slowest is waited for."""
    grid, step = np.linspace(-9.0, 9.0, 1801, retstep=True)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in grid])
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    # The mean of the largest is the integral of x n f(x) F(x)^(n-1); both ends are zero.
    return float(np.sum(grid * nodes * density * below ** (nodes - 1)) * step)


def crossover(costs: Costs, nodes: int, fabric: Fabric, against: str) -> int:
    """Largest message in bytes up to which one-shot is no slower than `against`.

    `against` is "nccl" or "two_shot". 0 if one-shot never pays, 64 MiB if it still pays there.
    """
    other = {"nccl": nccl, "two_shot": two_shot}[against]

    def pays(size: int) -> bool:
        return one_shot(costs, nodes, size, fabric) <= other(costs, nodes, size, fabric)

    powers = [1 << bit for bit in range(MAX_CROSSOVER_BYTES.bit_length())]
    low = next((size for size in reversed(powers) if pays(size)), 0)
    if low in (0, MAX_CROSSOVER_BYTES):
        return low
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
