"""The parameters of a cluster of DGX Sparks: which are fitted, published, assumed.

Three rows of the published table are read, by id, and no others: a fit cannot depend on a row
that it does not look up. Three decode rates give three parameters, so the fitted rows themselves
are met exactly and say nothing about the quality of the model; the other rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rocenante.plan import costs as closed
from rocenante.plan.costs import Costs
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric
from rocenante.plan.model import Model, load_model
from rocenante.plan.predict import KERNELS_PER_LAYER, Machine, decode_us
from rocenante.plan.published import DecodeRow, Published, load_published, read_data

FITTED_ROWS = ("1", "2-direct", "4-switch")
# No source was found for these two; docs/plan.md shows what other values would change.
LAUNCH_US = 2.0
POST_US = 0.4
# The sizes of decoding: above them the published one-shot figures leave the straight line.
MICROBENCH_LIMIT = 64 << 10


@dataclass(frozen=True)
class Parameter:
    """One number of the model and where it comes from ("fitted", "published" or "assumed")."""

    name: str
    value: float
    unit: str
    origin: str
    source: str


@dataclass(frozen=True)
class Calibration:
    """A calibrated machine and the account of its parameters."""

    machine: Machine
    parameters: tuple[Parameter, ...]
    rows: tuple[str, ...]
    """Ids of the published rows that were fitted to."""


def calibrate(
    published: Published | None = None,
    rows: Sequence[str] = FITTED_ROWS,
    launch_us: float = LAUNCH_US,
) -> Calibration:
    """Fit the machine to a 1-node, a 2-node and a switch row of the published decode table.

    Raises PlanError if the rows leave a parameter negative.
    """
    published = published or load_published()
    single, pair, switch = (published.row(row_id) for row_id in rows)
    model = load_model(published.model)
    costs = _published_costs(read_data("microbench.json"), launch_us)
    us_per_flop, costs = _fit_prefill(published, model, costs, single, pair, switch)
    machine = _fit_decode(published, model, costs, us_per_flop, (single, pair, switch))
    return Calibration(machine, _account(machine, rows), tuple(rows))


def row_us(machine: Machine, published: Published, model: Model, row: DecodeRow) -> float:
    """Predicted time of one token of a published row; the context is the mean over the output."""
    context = published.input_tokens + published.output_tokens / 2
    return decode_us(
        machine, model, published.precision, row.nodes, row.fabric, row.backend, context
    )


def _published_costs(data: dict[str, Any], launch_us: float) -> Costs:
    """Costs with every published and assumed parameter set, and the fitted ones at zero."""
    blank = Costs(
        launch_us=launch_us,
        exchange_us=0.0,
        post_us=POST_US,
        hop_us=0.0,
        wire_us_per_byte=8 / (data["wire"]["gbit_s"] * 1e3),
        memory_us_per_byte=1 / (data["memory_read"]["gb_s"] * 1e3),
        step_us=0.0,
        pair_us_per_byte=0.0,
        ring_us_per_byte=0.0,
    )
    both = data["switch_against_cables"]
    size, cables, switch = both["size"], both["cables"], both["switch"]
    more_peers = closed.one_shot(blank, switch["nodes"], size, Fabric.DIRECT) - closed.one_shot(
        blank, cables["nodes"], size, Fabric.DIRECT
    )
    costs = replace(blank, hop_us=switch["us"] - cables["us"] - more_peers)
    bench = data["one_shot"]
    rest = [
        row["us"] - closed.one_shot(costs, bench["nodes"], row["size"], Fabric.SWITCH)
        for row in bench["rows"]
        if row["size"] <= MICROBENCH_LIMIT
    ]
    return replace(costs, exchange_us=sum(rest) / len(rest))


def _fit_prefill(
    published: Published,
    model: Model,
    costs: Costs,
    single: DecodeRow,
    pair: DecodeRow,
    switch: DecodeRow,
) -> tuple[float, Costs]:
    """Arithmetic rate from the 1-node row, NCCL's two bulk rates from the others."""
    tokens = published.input_tokens

    def microseconds(row: DecodeRow) -> float:
        if row.prefill_tps is None:
            raise PlanError(f"the published row {row.id} has no prefill rate to fit.")
        return tokens / row.prefill_tps * 1e6

    alone = microseconds(single)
    volume = 2 * model.message_bytes(tokens) * model.all_reduces

    def us_per_byte(row: DecodeRow) -> float:
        n = row.nodes
        return (microseconds(row) - alone / n) / (volume * (n - 1) / n)

    us_per_flop = alone / (2 * model.active_parameters * tokens)
    rates = replace(costs, pair_us_per_byte=us_per_byte(pair), ring_us_per_byte=us_per_byte(switch))
    return us_per_flop, rates


def _fit_decode(
    published: Published,
    model: Model,
    costs: Costs,
    us_per_flop: float,
    rows: tuple[DecodeRow, DecodeRow, DecodeRow],
) -> Machine:
    """Solve three decode times for read rate, NCCL step and skew; the model is linear in them."""

    def machine(read: float, step: float, skew: float) -> Machine:
        return Machine(replace(costs, step_us=step), costs.launch_us, read, skew, us_per_flop)

    def times(read: float, step: float, skew: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        tried = machine(read, step, skew)
        return np.array([row_us(tried, published, model, row) for row in rows])

    constant = times(0, 0, 0)
    columns = [times(1, 0, 0), times(0, 1, 0), times(0, 0, 1)]
    slopes = np.stack([column - constant for column in columns], axis=1)
    measured = np.array([1e6 / row.decode_tps for row in rows])
    solution = [float(value) for value in np.linalg.solve(slopes, measured - constant)]
    if min(solution) < 0:
        ids = ", ".join(row.id for row in rows)
        raise PlanError(f"rows {ids} have no solution with positive costs: {solution}.")
    return machine(*solution)


def _account(machine: Machine, rows: Sequence[str]) -> tuple[Parameter, ...]:
    costs = machine.costs
    single, pair, switch = rows
    decode = "decode rows"

    def rate(us_per_byte: float) -> float:
        return 1e-3 / us_per_byte

    return (
        Parameter("memory read rate", rate(machine.read_us_per_byte), "GB/s", "fitted", decode),
        Parameter("NCCL step", costs.step_us, "us", "fitted", decode),
        Parameter("skew of arrivals", machine.skew_us, "us", "fitted", decode),
        Parameter(
            "arithmetic rate", 1e-6 / machine.us_per_flop, "Tflop/s", "fitted", f"prefill {single}"
        ),
        Parameter(
            "NCCL bulk, 2 nodes", rate(costs.pair_us_per_byte), "GB/s", "fitted", f"prefill {pair}"
        ),
        Parameter(
            "NCCL bulk, ring", rate(costs.ring_us_per_byte), "GB/s", "fitted", f"prefill {switch}"
        ),
        Parameter("one-shot exchange", costs.exchange_us, "us", "published", "b12x, 8 and 48 KB"),
        Parameter("switch", costs.hop_us, "us", "published", "b12x, 3 cabled / 4 switched"),
        Parameter("wire", rate(costs.wire_us_per_byte), "GB/s", "published", "ib_write_bw"),
        Parameter("copy rate", rate(costs.memory_us_per_byte), "GB/s", "published", "ds4 #773"),
        Parameter("kernel launch", machine.kernel_us, "us", "assumed", "see docs/plan.md"),
        Parameter("post to one peer", costs.post_us, "us", "assumed", "see docs/plan.md"),
        Parameter("kernels a layer", KERNELS_PER_LAYER, "", "assumed", "counted"),
    )
