"""Tables in 80 columns and in full width, JSON, CSV and plots."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rocenante.bench import report_json
from rocenante.bench.record import Cell, rivalries
from rocenante.bench.table import FULL_WIDTH, figure, print_block, print_notes, print_summary
from tests.bench.samples import FOUR, SIZES, report
from tests.bench.test_bench_options import request


def printed(width: int, spread: bool = True) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    made = report(FOUR)
    for block in made.blocks:
        print_block(console, block, spread)
    print_summary(console, made)
    print_notes(console, ["nccl is left out: no GPU [here]"])
    return stream.getvalue().splitlines()


def test_nothing_is_cut_or_wrapped_in_80_columns() -> None:
    lines = printed(80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert not [line for line in lines if "…" in line]
    rows = [line.split() for line in lines if line.split()[:2] == ["16777216", "4194304"]]
    assert len(rows) == 8
    assert all(len(row) == 10 for row in rows)
    assert "note: nccl is left out: no GPU [here]" in lines


def test_full_width_has_the_columns_of_nccl_tests() -> None:
    rows = [line.split() for line in printed(FULL_WIDTH, spread=False)]
    [header] = {tuple(row) for row in rows if row[:2] == ["(B)", "(elements)"]}
    assert header[2:5] == ("type", "redop", "root")
    assert header[8] == header[12] == "#wrong"
    row = next(row for row in rows if row[:2] == ["1024", "256"])
    assert row[2:5] == ["float", "sum", "-1"]
    assert row[8] == row[12] == "0"


def test_closing_lines_tell_right_from_wrong() -> None:
    made = report({"gloo": FOUR["gloo"]}, ranks=(2,))
    made.blocks[0].rows[3].in_place = Cell([1.0], 5)
    stream = io.StringIO()
    print_block(Console(file=stream, width=80), made.blocks[0], False)
    assert "# Out of bounds values : 5 FAILED" in stream.getvalue()
    assert "# Out of bounds values : 0 OK" in "\n".join(printed(80))
    assert made.wrong() == 5


def test_speedups_compare_like_with_like() -> None:
    blocks = report(FOUR, ranks=(2,)).blocks
    pairs = {(ours.backend, peer.backend) for ours, peer in rivalries(blocks)}
    assert pairs == {("rocenante", "gloo"), ("communicator", "mpi")}
    alone = [block for block in blocks if block.backend in ("communicator", "gloo")]
    assert [(o.backend, p.backend) for o, p in rivalries(alone)] == [("communicator", "gloo")]


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [(1.234, 8, "1.23"), (123456.78, 8, "123456.8"), (12345.6, 5, "12346")],
)
def test_figures_fit(value: float, width: int, text: str) -> None:
    assert figure(value, width) == text


def test_json_has_the_shape_of_nccl_tests(tmp_path: Path) -> None:
    made = report(FOUR)
    made.blocks[0].rows[0].in_place = None
    target = tmp_path / "out.json"
    content = report_json.document(made, request(), "2026-01-01 00:00:00", [[1.0], [2.0]])
    report_json.write_json(target, content)
    read = json.loads(target.read_text())
    assert {"machine", "versions", "args", "revision", "load_average", "env", "runs"} <= set(read)
    assert {"cpu", "cores", "kernel", "memory_gib"} <= set(read["machine"])
    assert len(read["runs"]) == 8
    run = read["runs"][0]
    assert run["version"] == 3
    assert {"start_time", "args", "env", "nccl_version", "config", "results"} <= set(run)
    assert {"out_of_bounds", "average_bus_bandwidth"} <= set(run)
    row = run["results"][0]
    assert set(row) == {"size", "count", "type", "redop", "root", "out_of_place", "in_place"}
    assert row["in_place"] is None
    cell = row["out_of_place"]
    numbers = {"time", "alg_bw", "bus_bw", "nwrong", "min_us", "max_us", "avg_us", "p50_us"}
    assert set(cell) == numbers | {"p95_us", "p99_us", "stdev_us", "cv_pct", "times_us"}
    assert len(cell["times_us"]) == 4
    assert cell["time"] == cell["p50_us"]


def test_csv_has_a_line_per_measured_cell(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    report_json.write_csv(target, report(FOUR))
    lines = list(csv.DictReader(target.open()))
    assert len(lines) == 8 * len(SIZES) * 2
    assert lines[0]["backend"] == "rocenante"
    assert float(lines[0]["p50_us"]) > 0


def test_one_plot_per_collective(tmp_path: Path) -> None:
    plot = pytest.importorskip("rocenante.bench.plot")
    pytest.importorskip("matplotlib")
    made = report(FOUR)
    other = report(FOUR, ranks=(2,))
    for block in other.blocks:
        block.collective = "all_gather"
    made.blocks += other.blocks
    written = plot.write_plots(tmp_path / "out.png", made, "a machine")
    assert [path.name for path in written] == ["out.png", "out-all_gather.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
