"""Tokens per second of decoding, prefill and data-parallel training on n nodes."""

from __future__ import annotations

from dataclasses import dataclass

from rocenante.plan import costs as closed
from rocenante.plan.costs import Costs
from rocenante.plan.fabric import Fabric
from rocenante.plan.model import Model

# Counted for one layer of Qwen3.5's gated delta net under NVFP4, all-reduces apart: add and norm,
# quantise, two input projections, convolution, gates, recurrence, gated norm, quantise, output
# projection; add and norm, quantise, gate-up, activation, quantise, down.
KERNELS_PER_LAYER = 16
GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Machine:
    """A node and its network. Times in microseconds."""

    costs: Costs
    kernel_us: float
    """Fixed time of one of the model's kernels: dispatch, ramp-up, drain."""
    read_us_per_byte: float
    """Streaming weights and KV cache during decoding."""
    skew_us: float
    """Standard deviation of a node's arrival at an all-reduce."""
    us_per_flop: float
    """Prefill arithmetic of one node."""


def decode_us(
    machine: Machine,
    model: Model,
    precision: str,
    nodes: int,
    fabric: Fabric,
    backend: str,
    context: float,
    requests: int = 1,
) -> float:
    """Time of one decode step (one token for each of `requests` requests) in microseconds.

    launches + (weights/n + KV cache) / bandwidth + all-reduces (cost + wait for the slowest) +
    logits. `backend` is "nccl", or "rocenante" for one-shot (two-shot where that is cheaper).
    `context` is the tokens that each request has in its KV cache.
    """
    costs = machine.costs
    launches = model.layers * KERNELS_PER_LAYER * machine.kernel_us
    cache = context * requests * model.kv_bytes_per_token / model.kv_shards(nodes)
    reading = (model.read_bytes(precision, requests) / nodes + cache) * machine.read_us_per_byte
    if nodes == 1:
        return launches + reading
    message = model.message_bytes(requests)
    shard = model.logits_shard_bytes(nodes, requests)
    if backend == "rocenante":
        reduce = min(
            closed.one_shot(costs, nodes, message, fabric),
            closed.two_shot(costs, nodes, message, fabric),
        )
        gather = closed.one_shot_all_gather(costs, nodes, shard, fabric)
    else:
        reduce = closed.nccl(costs, nodes, message, fabric)
        gather = closed.nccl_all_gather(costs, nodes, shard, fabric)
    waiting = machine.skew_us * closed.expected_max(nodes)
    return launches + reading + model.all_reduces * (reduce + waiting) + gather


def prefill_us(machine: Machine, model: Model, nodes: int, tokens: int) -> float:
    """Time to prefill `tokens` tokens of one request in microseconds.

    Two operations a weight and token, divided by n, then the all-reduces at NCCL's bulk rate;
    latency is left out (under 1 % of it). Backend and cabling change nothing here.
    """
    arithmetic = 2 * model.active_parameters * tokens * machine.us_per_flop / nodes
    if nodes == 1:
        return arithmetic
    volume = 2 * (nodes - 1) / nodes * model.message_bytes(tokens) * model.all_reduces
    return arithmetic + volume * machine.costs.bulk(nodes)


def training_us(
    costs: Costs, us_per_token: float, parameters: float, tokens: float, nodes: int
) -> float:
    """Time of one data-parallel step in microseconds: arithmetic/n, then a ring over fp32
    gradients that nothing hides. A sharded optimiser's reduce-scatter and all-gather move as much.
    """
    step = tokens * us_per_token / nodes
    if nodes == 1:
        return step
    volume = 2 * (nodes - 1) / nodes * parameters * GRADIENT_BYTES
    return step + volume * costs.bulk(nodes)
