"""Ratios of saved runs, and `make bench-check`'s judgement of a fresh one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rocenante.bench import report_json
from rocenante.bench.ratios import Cell, Ratio, changes, ratios, regressions
from rocenante.bench.record import Block, Report, Row
from rocenante.bench.record import Cell as Samples
from tests.bench.test_bench_options import request

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import check  # noqa: E402

SMALL, LARGE = Cell("all_reduce", 2, "float", 8), Cell("all_reduce", 2, "float", 1024)


def document(us: Mapping[str, tuple[float, float]], collective: str = "all_reduce") -> Any:
    """A saved run: backend -> p50 of 8 B and of 1 KiB; the other placement takes a second."""
    blocks = []
    for name, (small, large) in us.items():
        rows = []
        for size, value in ((8, small), (1024, large)):
            cells = [Samples([1e6], 0), Samples([value, value / 2, value * 2], 0)]
            if collective == "all_gather":
                cells.reverse()
            rows.append(Row(size, size // 4, *cells))
        blocks.append(Block(collective, name, "1", 2, "float32", "sum", 0, rows))
    return report_json.document(Report(blocks), request(), "", [[0.0], [0.0]])


SAVED = {"communicator": (1.0, 3.0), "impi": (2.0, 4.0), "openmpi": (4.0, 3.0)}


def found(us: Mapping[str, tuple[float, float]]) -> dict[Cell, Ratio]:
    return ratios(document(us), "communicator")


def test_a_ratio_is_to_the_fastest_peer_of_its_cell() -> None:
    result = found({**SAVED, "rocenante": (0.1, 0.1)})
    assert result == {SMALL: Ratio(1.0, 2.0, "impi"), LARGE: Ratio(3.0, 3.0, "openmpi")}
    assert result[SMALL].value == 0.5


def test_collectives_without_an_in_place_form_are_read_out_of_place() -> None:
    result = ratios(document(SAVED, "all_gather"), "communicator")
    assert {cell.size: ratio.value for cell, ratio in result.items()} == {8: 0.5, 1024: 1.0}


def test_cells_without_ours_or_without_a_peer_have_no_ratio() -> None:
    assert found({"communicator": (1.0, 1.0)}) == {}
    assert found({"impi": (1.0, 1.0)}) == {}


@pytest.mark.parametrize(
    ("factor", "worse"), [(0.5, False), (1.0, False), (1.24, False), (1.26, True), (3.0, True)]
)
def test_only_a_ratio_that_grew_by_more_than_a_quarter_is_worse(factor: float, worse: bool) -> None:
    fresh = found({**SAVED, "communicator": (factor, 3.0)})
    bad = regressions(changes(found(SAVED), fresh), 0.25)
    assert [change.cell for change in bad] == ([SMALL] if worse else [])


def test_a_slower_machine_is_not_a_regression() -> None:
    slow = {name: (7 * small, 7 * large) for name, (small, large) in SAVED.items()}
    assert regressions(changes(found(SAVED), found(slow)), 0.25) == []


def test_what_cannot_be_compared_does_not_pass() -> None:
    with pytest.raises(ValueError, match="the fresh run has no cell"):
        changes(found(SAVED), {})
    with pytest.raises(ValueError, match="the saved run has no Cell"):
        changes({SMALL: Ratio(1.0, 2.0, "impi")}, found(SAVED))


def attempts(*values: float) -> check.Measure:
    """Runs in which the small cell's ratio is `values` in turn."""
    left = list(values)
    return lambda: {SMALL: Ratio(left.pop(0), 1.0, "impi")}


def test_a_bad_run_that_does_not_repeat_passes() -> None:
    compared = check.confirmed(found(SAVED), attempts(0.9, 0.55), 3)
    assert [change.fresh for change in compared] == [0.55]
    assert regressions(compared, check.TOLERANCE) == []


def test_a_bad_run_that_repeats_fails() -> None:
    compared = check.confirmed(found(SAVED), attempts(0.9, 0.8, 0.7), 3)
    assert [change.fresh for change in regressions(compared, check.TOLERANCE)] == [0.7]


@pytest.mark.parametrize(("us", "status"), [(1.0, 0), (1.5, 1)])
def test_the_program_compares_files_and_exits_1_if_a_cell_is_worse(
    tmp_path: Path, us: float, status: int
) -> None:
    saved, fresh = tmp_path / "saved.json", tmp_path / "fresh.json"
    saved.write_text(json.dumps(document(SAVED)))
    fresh.write_text(json.dumps(document({**SAVED, "communicator": (us, 3.0)})))
    done = subprocess.run(
        [sys.executable, "benchmarks/check.py", "--saved", saved, "--fresh", fresh],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert f"{status} of 2 cells are more than 25% worse" in done.stdout
