"""What fits into memory, and what replicas of two models deliver together."""

from __future__ import annotations

from dataclasses import dataclass

from rocenante.plan.errors import PlanError
from rocenante.plan.model import Model

# vLLM's default for gpu_memory_utilization; the rest is the system's and the activations'.
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class Memory:
    """Memory of one node in 1e9 bytes, and whether the model can run."""

    weights_gb: float
    kv_gb: float
    communicator_gb: float
    usable_gb: float
    reason: str
    """Why it does not run, or ""."""

    @property
    def used_gb(self) -> float:
        return self.weights_gb + self.kv_gb + self.communicator_gb

    @property
    def fits(self) -> bool:
        return not self.reason


def memory(
    model: Model,
    precision: str,
    nodes: int,
    context: int,
    requests: int,
    node_gb: float,
    communicator_gb: float,
) -> Memory:
    """Weights and KV cache of tensor parallelism over `nodes` nodes of `node_gb` 1e9 bytes."""
    weights = model.weight_bytes(precision) / nodes / 1e9
    cache = context * requests * model.kv_bytes_per_token / model.kv_shards(nodes) / 1e9
    communicator = communicator_gb if nodes > 1 else 0.0
    usable = node_gb * USABLE_SHARE
    reason = ""
    if model.heads % nodes:
        reason = f"{model.heads} attention heads do not divide by {nodes}"
    elif weights + cache + communicator > usable:
        reason = f"{weights + cache + communicator:.0f} GB a node, {usable:.0f} usable"
    return Memory(weights, cache, communicator, usable, reason)


@dataclass(frozen=True)
class Groups:
    """Replicas of a large and of a small model, each over some nodes."""

    large_replicas: int
    large_nodes: int
    small_replicas: int
    small_nodes: int

    @property
    def nodes(self) -> int:
        return self.large_replicas * self.large_nodes + self.small_replicas * self.small_nodes

    @property
    def large_only_replicas(self) -> int:
        """Replicas of the large model that the same nodes would hold without the small one."""
        return self.nodes // self.large_nodes


@dataclass(frozen=True)
class Routed:
    """Throughput when a share of the requests goes to the large model."""

    share: float
    tps: float
    large_only_tps: float
    bottleneck: str

    @property
    def gain(self) -> float:
        return self.tps / self.large_only_tps


def parse_groups(text: str) -> Groups:
    """Read "3x2+2x1": three 2-node replicas of the large model, two 1-node ones of the small."""
    try:
        (large_replicas, large_nodes), (small_replicas, small_nodes) = (
            [int(number) for number in group.split("x")] for group in text.split("+")
        )
    except ValueError:
        raise PlanError(
            f"--groups takes two groups of replicas x nodes, such as 3x2+2x1, not {text!r}."
        ) from None
    groups = Groups(large_replicas, large_nodes, small_replicas, small_nodes)
    if min(large_replicas, large_nodes, small_replicas, small_nodes) < 1:
        raise PlanError(f"--groups needs at least one replica of one node each, not {text!r}.")
    return groups


def parse_shares(text: str) -> list[float]:
    """Read a list of shares of the requests, each above 0 and at most 1."""
    shares = []
    for part in text.split(","):
        try:
            share = float(part)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise PlanError(
                f"--share is the part of the requests for the large model, above 0 and at most 1, "
                f"not {part.strip()!r}."
            )
        shares.append(share)
    return shares


def route(groups: Groups, share: float, large_tps: float, small_tps: float) -> Routed:
    """Throughput of both groups with `share` of the requests for the large model.

    `large_tps` and `small_tps` are one replica's rates; requests are taken to be equally long.
    The group that saturates first sets the pace: min(L / share, S / (1 - share)).
    """
    large = groups.large_replicas * large_tps / share
    small = groups.small_replicas * small_tps / (1 - share) if share < 1 else float("inf")
    alone = groups.large_only_replicas * large_tps
    return Routed(share, min(large, small), alone, "large" if large <= small else "small")


def small_replica_needed(groups: Groups, share: float) -> float:
    """Rate that one small replica needs, in rates of a large one, for the large to set the pace."""
    return groups.large_replicas / share * (1 - share) / groups.small_replicas
