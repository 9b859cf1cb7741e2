"""The results of a plan as plain data: what `--json` prints and what the tables show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rocenante.plan import capacity
from rocenante.plan import costs as closed
from rocenante.plan.calibration import Calibration, row_us
from rocenante.plan.capacity import Groups, Memory, Routed
from rocenante.plan.fabric import Fabric, check_fabric
from rocenante.plan.model import Model, load_model
from rocenante.plan.predict import Machine, decode_us, prefill_us, training_us
from rocenante.plan.published import Published, read_data


@dataclass(frozen=True)
class Workload:
    """What is served: a model at a precision, with `requests` requests of `context` tokens."""

    model: Model
    precision: str
    context: int
    requests: int


@dataclass(frozen=True)
class Prediction:
    """One node count. Rates in tokens/s of all requests; None where one-shot cannot run."""

    nodes: int
    fabric: Fabric
    decode_nccl_tps: float
    decode_one_shot_tps: float | None
    scaling_nccl: float
    scaling_one_shot: float | None
    prefill_tps: float
    message_bytes: int
    one_shot_until_nccl: int | None
    """Largest message that one-shot wins against NCCL; the search ends at 64 MiB."""
    one_shot_until_two_shot: int | None
    memory: Memory

    def as_json(self) -> dict[str, Any]:
        memory = {
            **asdict(self.memory),
            "used_gb": self.memory.used_gb,
            "fits": self.memory.fits,
        }
        return {**asdict(self), "fabric": self.fabric.value, "memory": memory}


@dataclass(frozen=True)
class Check:
    """One published figure beside the model's. `role` is "fitted" or "predicted"."""

    table: str
    row: str
    role: str
    published: float
    model: float

    @property
    def error(self) -> float:
        return self.model / self.published - 1

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error}


def predict(
    machine: Machine, work: Workload, fabric: Fabric, counts: list[int], node_gb: float
) -> list[Prediction]:
    """Predict every node count; scaling is against one node, whether or not the model fits it."""
    communicator_gb = read_data("microbench.json")["nccl_memory"]["gb"]

    def tps(nodes: int, backend: str) -> float:
        step = decode_us(
            machine,
            work.model,
            work.precision,
            nodes,
            fabric.at(nodes),
            backend,
            work.context,
            work.requests,
        )
        return work.requests * 1e6 / step

    single = tps(1, "nccl")
    predictions = []
    for nodes in counts:
        cabling = fabric.at(nodes)
        able = nodes > 1 and fabric.joins_all_pairs(nodes)
        without = tps(nodes, "nccl")
        with_one_shot = tps(nodes, "rocenante") if able else None
        prefill = work.context * 1e6 / prefill_us(machine, work.model, nodes, work.context)
        until = {
            other: closed.crossover(machine.costs, nodes, cabling, other) if able else None
            for other in ("nccl", "two_shot")
        }
        predictions.append(
            Prediction(
                nodes,
                cabling,
                without,
                with_one_shot,
                without / single,
                with_one_shot / single if with_one_shot else None,
                prefill,
                work.model.message_bytes(work.requests),
                until["nccl"],
                until["two_shot"],
                capacity.memory(
                    work.model,
                    work.precision,
                    nodes,
                    work.context,
                    work.requests,
                    node_gb,
                    communicator_gb,
                ),
            )
        )
    return predictions


def routed(
    machine: Machine,
    work: Workload,
    small: Model,
    groups: Groups,
    shares: list[float],
    fabric: Fabric,
) -> list[Routed]:
    """Throughput of replica groups of `work.model` and `small` for each share of the requests."""
    for nodes in (groups.large_nodes, groups.small_nodes):
        check_fabric(fabric, nodes)

    def tps(model: Model, precision: str, nodes: int) -> float:
        backend = "rocenante" if fabric.joins_all_pairs(nodes) else "nccl"
        cabling = fabric.at(nodes)
        step = decode_us(
            machine, model, precision, nodes, cabling, backend, work.context, work.requests
        )
        return work.requests * 1e6 / step

    large_tps = tps(work.model, work.precision, groups.large_nodes)
    small_tps = tps(small, small.precision, groups.small_nodes)
    return [capacity.route(groups, share, large_tps, small_tps) for share in shares]


def check_published(calibration: Calibration, published: Published) -> list[Check]:
    """Every figure of the report beside the model's."""
    machine = calibration.machine
    model = load_model(published.model)
    checks = []
    for row in published.decode:
        role = "fitted" if row.id in calibration.rows else "predicted"
        rate = 1e6 / row_us(machine, published, model, row)
        checks.append(Check("decode", row.id, role, row.decode_tps, rate))
    tokens = published.input_tokens
    for row in published.decode:
        if row.prefill_tps is not None:
            role = "fitted" if row.id in calibration.rows else "predicted"
            rate = tokens * 1e6 / prefill_us(machine, model, row.nodes, tokens)
            checks.append(Check("prefill", row.id, role, row.prefill_tps, rate))
    us_per_token = next(1e6 / tps for nodes, tps in published.training if nodes == 1)
    for nodes, tps in published.training:
        step = training_us(
            machine.costs,
            us_per_token,
            published.training_parameters,
            published.training_tokens,
            nodes,
        )
        role = "fitted" if nodes == 1 else "predicted"
        rate = published.training_tokens * 1e6 / step
        checks.append(Check("training", f"{nodes}", role, tps, rate))
    groups = capacity.parse_groups(published.routing_groups)
    for share, throughput in published.routing:
        # The report does not name the models: the small replicas are taken to keep up.
        gain = capacity.route(groups, share, 1.0, float("inf")).gain
        checks.append(Check("routing", f"{share:g}", "predicted", throughput, gain))
    return checks


def check_memory(published: Published) -> Memory:
    """The report's large model on its nodes, with one request of the report's length."""
    model = load_model(published.memory_model)
    communicator_gb = read_data("microbench.json")["nccl_memory"]["gb"]
    return capacity.memory(
        model,
        "nvfp4",
        published.memory_nodes,
        published.input_tokens,
        1,
        published.memory_gb,
        communicator_gb,
    )
