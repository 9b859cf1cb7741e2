"""Closed forms: limits, known values, and agreement with the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rocenante.plan import costs as closed
from rocenante.plan import simulate
from rocenante.plan.calibration import Calibration
from rocenante.plan.costs import Costs
from rocenante.plan.fabric import Fabric
from rocenante.plan.sweep import against_bench, break_even, sweep

ROUND = Costs(
    launch_us=2,
    exchange_us=5,
    post_us=1,
    hop_us=3,
    wire_us_per_byte=0.001,
    memory_us_per_byte=0.0001,
    step_us=7,
    pair_us_per_byte=0.002,
    ring_us_per_byte=0.003,
)


def test_one_shot_by_hand() -> None:
    # Posts pace: 2 + 5 + 3 + 1 + 0.1 + 2 * 1, and 7 times 100 bytes of memory traffic.
    assert closed.one_shot(ROUND, 4, 100, Fabric.SWITCH) == pytest.approx(13.1 + 0.07)
    # The wire paces: 2 + 5 + 1 + 3 * 10, and 7 times 10 000 bytes.
    assert closed.one_shot(ROUND, 4, 10_000, Fabric.DIRECT) == pytest.approx(38 + 7)


def test_ring_and_tree_by_hand() -> None:
    assert closed.ring(ROUND, 4, 1000, Fabric.SWITCH) == pytest.approx(6 * (7 + 3 + 0.75))
    assert closed.ring(ROUND, 2, 1000, Fabric.DIRECT) == pytest.approx(2 * (7 + 1.0))
    assert closed.tree(ROUND, 8, 1000, Fabric.SWITCH) == pytest.approx(6 * (7 + 3 + 3))


def test_nccl_takes_a_tree_only_where_its_edges_exist() -> None:
    assert closed.nccl(ROUND, 8, 8, Fabric.SWITCH) == closed.tree(ROUND, 8, 8, Fabric.SWITCH)
    assert closed.nccl(ROUND, 8, 8, Fabric.RING) == closed.ring(ROUND, 8, 8, Fabric.RING)
    big = 1 << 24
    assert closed.nccl(ROUND, 8, big, Fabric.SWITCH) == closed.ring(ROUND, 8, big, Fabric.SWITCH)


def test_expected_max_of_normals() -> None:
    assert closed.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert closed.expected_max(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert closed.expected_max(3) == pytest.approx(1.5 / math.sqrt(math.pi))
    drawn = np.random.default_rng(1).normal(size=(200_000, 8)).max(axis=1)
    assert closed.expected_max(8) == pytest.approx(float(drawn.mean()), abs=0.01)


@pytest.mark.parametrize("nodes", [4, 8, 16, 64])
@pytest.mark.parametrize("other", ["nccl", "two_shot"])
def test_crossover_is_where_the_curves_meet(
    calibration: Calibration, nodes: int, other: str
) -> None:
    costs = calibration.machine.costs
    end = closed.crossover(costs, nodes, Fabric.SWITCH, other)
    cost = {"nccl": closed.nccl, "two_shot": closed.two_shot}[other]
    assert 0 < end < closed.MAX_CROSSOVER_BYTES
    for size, ahead in ((end, True), (end + 2, False)):
        mine = closed.one_shot(costs, nodes, size, Fabric.SWITCH)
        assert (mine <= cost(costs, nodes, size, Fabric.SWITCH)) is ahead


def test_crossover_falls_with_the_nodes(calibration: Calibration) -> None:
    ends = [
        closed.crossover(calibration.machine.costs, nodes, Fabric.SWITCH, "nccl")
        for nodes in (4, 8, 16, 32, 64)
    ]
    assert ends == sorted(ends, reverse=True)


def test_crossover_without_an_end_or_a_beginning() -> None:
    slow = replace(ROUND, exchange_us=1e9)
    assert closed.crossover(slow, 4, Fabric.SWITCH, "nccl") == 0
    fast = replace(ROUND, wire_us_per_byte=0.0, memory_us_per_byte=0.0)
    assert closed.crossover(fast, 4, Fabric.SWITCH, "nccl") == closed.MAX_CROSSOVER_BYTES


Closed = Callable[[Costs, int, float, Fabric], float]
Simulated = Callable[[Costs, int, float, Fabric, list[float]], float]


@pytest.mark.parametrize("fabric", [Fabric.SWITCH, Fabric.DIRECT])
@pytest.mark.parametrize(
    ("formula", "run", "counts"),
    [
        (closed.one_shot, simulate.one_shot, (2, 3, 5, 8, 17, 64)),
        (closed.two_shot, simulate.two_shot, (2, 3, 5, 8, 17, 64)),
        (closed.ring, simulate.ring, (2, 3, 5, 8, 17, 64)),
        (closed.tree, simulate.tree, (2, 4, 8, 64)),
    ],
)
def test_simulator_meets_the_closed_form_exactly(
    formula: Closed, run: Simulated, counts: tuple[int, ...], fabric: Fabric
) -> None:
    for nodes in counts:
        for size in (1, 900, 1 << 20):
            exact = formula(ROUND, nodes, size, fabric)
            assert run(ROUND, nodes, size, fabric, [0.0] * nodes) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("nodes", [3, 5, 6, 7, 12, 33])
def test_tree_formula_bounds_the_simulator_off_powers_of_two(nodes: int) -> None:
    run = simulate.tree(ROUND, nodes, 8192, Fabric.SWITCH, [0.0] * nodes)
    assert 0.5 * run < run <= closed.tree(ROUND, nodes, 8192, Fabric.SWITCH) * (1 + 1e-9)


def test_incast_queues_at_the_switch() -> None:
    network = simulate.Network(5, Fabric.SWITCH, hop_us=3.0)
    arrivals: list[float] = []
    for source in range(1, 5):
        network.send(0.0, source, 0, 10.0, 1.0, arrivals.append)
    network.run()
    # Post 1, switch 3, then four messages of 10 leave one port in turn.
    assert arrivals == pytest.approx([14, 24, 34, 44])


def test_send_queue_serialises_one_nodes_messages() -> None:
    network = simulate.Network(4, Fabric.DIRECT, hop_us=3.0)
    arrivals: list[float] = []
    for target in (1, 2, 3):
        network.send(0.0, 0, target, 10.0, 1.0, arrivals.append)
    network.run()
    assert arrivals == pytest.approx([11, 21, 31])


def test_starting_with_the_same_peer_costs_incast() -> None:
    starts = [0.0] * 16
    size = 1 << 20
    rotated = simulate.one_shot(ROUND, 16, size, Fabric.SWITCH, starts)
    rank_order = simulate.one_shot(ROUND, 16, size, Fabric.SWITCH, starts, same_first_peer=True)
    assert rank_order > 1.3 * rotated
    # Each port still passes n-1 messages: the factor stays below two.
    assert rank_order < 2 * rotated


@pytest.mark.parametrize("run", [simulate.one_shot, simulate.two_shot])
def test_one_late_node_delays_all(run: Simulated) -> None:
    on_time = run(ROUND, 4, 64, Fabric.SWITCH, [0.0] * 4)
    late = run(ROUND, 4, 64, Fabric.SWITCH, [0.0, 0.0, 500.0, 0.0])
    assert late - on_time == pytest.approx(500, abs=10)


def test_one_late_node_delays_nccl_too() -> None:
    for run, late_steps in ((simulate.ring, 6), (simulate.tree, 3)):
        step = run(ROUND, 2, 0, Fabric.SWITCH, [0.0] * 2) / 2
        # A ring carries the late part all around; a leaf of the tree is one step from the root.
        late = run(ROUND, 4, 0, Fabric.SWITCH, [0.0, 500.0, 0.0, 0.0])
        assert late == pytest.approx(500 + late_steps * step)


def test_wait_for_the_slowest_matches_the_order_statistic() -> None:
    # With nothing but skew and a fixed cost, the mean is skew * E[max] + that cost, exactly.
    bare = replace(ROUND, post_us=0.0, wire_us_per_byte=0.0, memory_us_per_byte=0.0)
    rng = np.random.default_rng(3)
    runs = [
        simulate.one_shot(bare, 8, 64, Fabric.SWITCH, rng.normal(0, 20, 8).tolist())
        for _ in range(1500)
    ]
    exact = 20 * closed.expected_max(8) + closed.one_shot(bare, 8, 64, Fabric.SWITCH)
    error = float(np.std(runs)) / math.sqrt(len(runs))
    assert abs(float(np.mean(runs)) - exact) < 4 * error


def test_sweep_repeats_with_its_seed_and_finds_the_end(calibration: Calibration) -> None:
    machine = calibration.machine
    sizes = (8192, 65536, 262144, 1 << 20)

    def run(seed: int, skew: float) -> list[float]:
        points = sweep(machine.costs, skew, [4, 8], Fabric.SWITCH, seed, sizes, repeats=2)
        return [point.one_shot_us for point in points]

    assert run(1, 20.0) == run(1, 20.0)
    assert run(1, 20.0) != run(2, 20.0)
    still = sweep(machine.costs, 0.0, [8], Fabric.SWITCH, 0, sizes, repeats=1)
    end = break_even(still, 8)
    assert end == pytest.approx(closed.crossover(machine.costs, 8, Fabric.SWITCH, "nccl"), rel=0.15)
    assert break_even([point for point in still if point.size < 100_000], 8) is None
    assert break_even([point for point in still if point.size > 500_000], 8) == 0.0


def test_against_bench_is_empty_without_samples(calibration: Calibration) -> None:
    assert against_bench(calibration.machine.costs, (), Fabric.SWITCH) == []
