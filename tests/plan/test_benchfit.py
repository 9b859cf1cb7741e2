"""Alphas and betas from bench files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocenante.bench.options import Options
from rocenante.bench.record import Block, Cell, Report, Row
from rocenante.bench.report_json import document as bench_document
from rocenante.bench.report_json import write_json
from rocenante.plan import costs as closed
from rocenante.plan.benchfit import Sample, fit_samples, read_samples
from rocenante.plan.calibration import Calibration
from rocenante.plan.costs import Costs
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric
from rocenante.plan.sweep import against_bench

SIZES = [8 << bit for bit in range(18)]


def run(backend: str, ranks: int, times: dict[int, float], **config: Any) -> dict[str, Any]:
    """One run in the shape that the bench writes."""
    return {
        "version": 3,
        "config": {"collective": "all_reduce", "backend": backend, "nranks": ranks, **config},
        "results": [
            {"size": size, "out_of_place": {"time": us, "p50_us": us}, "in_place": None}
            for size, us in times.items()
        ],
    }


def write(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(value))
    return path


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"format": "rocenante-bench", "version": 1, "runs": list(runs)}


def measured(costs: Costs, fabric: Fabric) -> list[dict[str, Any]]:
    one_shot = [
        run(
            "rocenante",
            ranks,
            {size: closed.one_shot(costs, ranks, size, fabric) for size in SIZES},
        )
        for ranks in (2, 4, 8)
    ]
    ring = [
        run("nccl", ranks, {size: closed.ring(costs, ranks, size, fabric) for size in SIZES})
        for ranks in (2, 4)
    ]
    return one_shot + ring


def test_what_the_bench_writes_is_read(tmp_path: Path) -> None:
    block = Block("all_reduce", "rocenante", "0", 2, "float32", "sum", 0)
    block.rows = [Row(8, 2, Cell([3.0, 1.0, 2.0], 0), None), Row(16, 4, None, Cell([5.0], 0))]
    options = Options(("all_reduce",), ("rocenante",), (2,), (8, 16))
    report = Report([block], [])
    path = tmp_path / "results.json"
    write_json(path, bench_document(report, options, "now", [[0.0], [0.0]]))
    assert read_samples(path) == [Sample("rocenante", 2, 8, 2.0), Sample("rocenante", 2, 16, 5.0)]


def test_the_communicator_stands_in_for_the_backend(
    tmp_path: Path, calibration: Calibration
) -> None:
    times = {8: 5.0, 1024: 6.0}
    runs = document(run("communicator", 2, times), run("gloo", 2, times))
    fit = fit_samples(calibration.machine.costs, read_samples(write(tmp_path, runs)), Fabric.SWITCH)
    assert {sample.backend for sample in fit.one_shot} == {"communicator"}
    assert len(against_bench(fit.costs, fit.one_shot, Fabric.SWITCH)) == 2


@pytest.mark.parametrize("fabric", [Fabric.SWITCH, Fabric.DIRECT])
def test_known_costs_are_recovered(
    tmp_path: Path, calibration: Calibration, fabric: Fabric
) -> None:
    start = calibration.machine.costs
    truth = replace(
        start,
        exchange_us=31.0,
        post_us=1.5,
        wire_us_per_byte=3e-4,
        step_us=9.0,
        pair_us_per_byte=2e-4,
        ring_us_per_byte=2e-4,
    )
    samples = read_samples(write(tmp_path, document(*measured(truth, fabric))))
    fit = fit_samples(start, samples, fabric)
    for name in ("exchange_us", "post_us", "wire_us_per_byte", "step_us", "ring_us_per_byte"):
        assert getattr(fit.costs, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
    assert fit.costs.pair_us_per_byte == fit.costs.ring_us_per_byte
    assert max(abs(error) for _, error in fit.errors) < 1e-9
    assert {sample.size for sample in fit.one_shot} == {s for s in SIZES if s <= 64 << 10}
    for sample, us in against_bench(fit.costs, fit.one_shot + fit.nccl, fabric):
        assert us == pytest.approx(sample.us)


def test_a_saved_run_is_predicted_at_sizes_that_were_left_out(calibration: Calibration) -> None:
    """Half of the sizes fitted, the others simulated: real times of two ranks on two cores."""
    saved = Path(__file__).parents[2] / "benchmarks" / "results" / "all_reduce.json"
    everything = read_samples(saved)
    for backend in ("rocenante", "communicator"):
        two = [s for s in everything if (s.backend, s.ranks) == (backend, 2) and s.size <= 64 << 10]
        fit = fit_samples(calibration.machine.costs, two[::2], Fabric.SWITCH)
        held_out = against_bench(fit.costs, tuple(two[1::2]), Fabric.SWITCH)
        assert len(held_out) >= 2
        for sample, us in held_out:
            assert us == pytest.approx(sample.us, rel=0.2), (backend, sample)


def test_one_rank_count_keeps_the_post_cost(tmp_path: Path, calibration: Calibration) -> None:
    start = calibration.machine.costs
    truth = replace(start, exchange_us=12.0, wire_us_per_byte=2e-4)
    times = {size: closed.one_shot(truth, 4, size, Fabric.SWITCH) for size in SIZES}
    samples = read_samples(write(tmp_path, document(run("rocenante", 4, times))))
    fit = fit_samples(start, samples, Fabric.SWITCH)
    assert fit.costs.post_us == start.post_us
    assert fit.costs.exchange_us == pytest.approx(12.0, rel=1e-6)
    assert fit.costs.step_us == start.step_us


def test_faster_than_the_built_in_constants_stays_consistent(
    tmp_path: Path, calibration: Calibration
) -> None:
    times = {size: 1.0 + size * 1e-4 for size in SIZES}
    samples = read_samples(write(tmp_path, document(run("rocenante", 2, times))))
    fit = fit_samples(calibration.machine.costs, samples, Fabric.SWITCH)
    costs = fit.costs
    assert min(costs.launch_us, costs.hop_us, costs.exchange_us, costs.wire_us_per_byte) >= 0
    assert closed.one_shot(costs, 2, 8, Fabric.SWITCH) == pytest.approx(1.0, rel=0.05)


def test_a_plain_nccl_tests_file_is_read(tmp_path: Path) -> None:
    single = run("", 4, {8: 30.0, 1024: 31.0})
    del single["config"]["backend"], single["config"]["collective"]
    samples = read_samples(write(tmp_path, single))
    assert [(s.backend, s.ranks, s.size, s.us) for s in samples] == [
        ("nccl", 4, 8, 30.0),
        ("nccl", 4, 1024, 31.0),
    ]


def test_other_collectives_single_ranks_and_empty_messages_are_left_out(tmp_path: Path) -> None:
    other = run("rocenante", 2, {8: 1.0}, collective="all_gather")
    kept = run("rocenante", 2, {0: 1.0, 8: 2.0})
    alone = run("rocenante", 1, {8: 1.0})
    samples = read_samples(write(tmp_path, document(other, kept, alone)))
    assert [(sample.size, sample.us) for sample in samples] == [(8, 2.0)]


def test_in_place_serves_where_out_of_place_is_missing(tmp_path: Path) -> None:
    only = run("rocenante", 2, {8: 1.0})
    only["results"][0].update(out_of_place=None, in_place={"time": 4.0})
    assert read_samples(write(tmp_path, document(only)))[0].us == 4.0


def broken(**change: Any) -> dict[str, Any]:
    value = run("rocenante", 2, {8: 1.0})
    value["results"][0].update(change)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "has no 'runs' with 'config' and 'results'"),
        ({"runs": 3}, "has no 'runs'"),
        ({"runs": [3]}, "has no 'runs'"),
        (document(), "holds no all-reduce of two ranks or more"),
        (document(broken(size=None)), r"results\[0\] is not a bench result"),
        (document(broken(size="many")), r"results\[0\] is not a bench result"),
        (document(broken(out_of_place={})), r"results\[0\] is not a bench result"),
        (document(broken(out_of_place=[1])), r"results\[0\] is not a bench result"),
        (document(broken(out_of_place={"time": -1})), "a time of -1.0 us"),
        ({"config": {"nranks": 2}, "results": [5]}, r"results\[0\] is not a bench result"),
        ({"config": {}, "results": [{"size": 8, "out_of_place": {"time": 1}}]}, "KeyError"),
    ],
)
def test_malformed_results(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read_samples(write(tmp_path, value))


def test_nothing_to_fit(tmp_path: Path, calibration: Calibration) -> None:
    costs = calibration.machine.costs
    gloo = read_samples(write(tmp_path, document(run("gloo", 2, {8: 9.0, 16: 9.0}))))
    with pytest.raises(PlanError, match=r"nothing to fit: .* only gloo"):
        fit_samples(costs, gloo, Fabric.SWITCH)
    single = read_samples(write(tmp_path, document(run("rocenante", 2, {8: 9.0}))))
    with pytest.raises(PlanError, match="at least two sizes"):
        fit_samples(costs, single, Fabric.SWITCH)
