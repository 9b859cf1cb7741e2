"""Statistics, bandwidths, and the plan of iterations."""

from __future__ import annotations

import pytest

from rocenante.bench import coordinator, stats
from rocenante.bench.case import Case, bus_factor, count_for
from rocenante.bench.plot import crossovers
from tests.bench.test_bench_options import request


def test_slowest_rank_per_iteration() -> None:
    assert stats.slowest([[1, 5, 2], [3, 4, 9]]) == [3, 5, 9]


def test_ranks_with_different_iterations_do_not_combine() -> None:
    with pytest.raises(ValueError, match="iterations"):
        stats.slowest([[1, 2], [1]])


def test_summary_of_one_to_hundred() -> None:
    summary = stats.summarise([float(value) for value in range(100, 0, -1)])
    assert (summary.min_us, summary.max_us, summary.avg_us) == (1, 100, 50.5)
    assert (summary.p50_us, summary.p95_us, summary.p99_us) == (50, 95, 99)
    assert summary.stdev_us == pytest.approx(28.866, abs=1e-3)
    assert summary.cv_pct == pytest.approx(100 * 28.866 / 50.5, abs=1e-2)


def test_summary_of_one_sample_and_of_none() -> None:
    assert stats.summarise([7.0]).p99_us == 7
    with pytest.raises(ValueError, match="no samples"):
        stats.summarise([])


def test_bandwidth_is_decimal_gigabytes() -> None:
    assert stats.bandwidth(1_000_000, 1000.0) == 1.0


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
    ],
)
def test_bus_factors_at_four_ranks(collective: str, factor: float) -> None:
    assert bus_factor(collective, 4) == factor


def test_counts_are_per_piece_and_never_zero() -> None:
    assert count_for("all_reduce", 1024, "float32", 4) == 256
    assert count_for("all_gather", 1024, "float32", 4) == 64
    assert count_for("all_gather", 8, "float64", 4) == 1
    assert Case("all_gather", 64).total_bytes(4) == 1024


def test_sizes_that_become_equal_are_measured_once() -> None:
    cases = coordinator.cases_of(request(sizes=(8, 16, 32, 64)), "all_gather", 8)
    assert [case.count for case in cases] == [1, 2]


def test_iterations_adapt_within_bounds_and_fill_the_rounds() -> None:
    adaptive = request()
    fast, slow = (coordinator.iterations_for(adaptive, us) for us in (1.0, 1e6))
    assert fast > slow >= coordinator.ROUNDS
    assert fast % coordinator.ROUNDS == slow % coordinator.ROUNDS == 0
    assert coordinator.iterations_for(request(iterations=7), 1.0) == 7


def test_long_blocks_are_cut_into_more_rounds() -> None:
    assert coordinator.rounds_for(100, 10.0) == coordinator.ROUNDS
    assert coordinator.rounds_for(100_000, 1000.0) >= 50


def test_shares_of_the_rounds() -> None:
    assert coordinator.split(10, 4) == [3, 3, 2, 2]
    assert coordinator.split(2, 4) == [1, 1]


def test_crossover_is_found_between_sizes() -> None:
    assert crossovers([1, 4, 16], [4.0, 2.0, 0.5]) == [pytest.approx(8.0)]
    assert crossovers([1, 4], [4.0, 2.0]) == []
