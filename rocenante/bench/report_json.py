"""Files for other programs: JSON in the shape of nccl-tests' version 3 per run, and flat CSV."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rocenante.bench import machine
from rocenante.bench.options import Options
from rocenante.bench.record import Block, Cell, Report, Row

NCCL_TESTS_VERSION = 3
FORMAT_VERSION = 1
_NUMBERS = re.compile(r"\[\n\s+([-+.\deE,\s]+?)\s+\]")


def _cell(block: Block, row: Row, cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    algorithm, bus = block.bandwidths(row, cell)
    stats = {name: round(value, 4) for name, value in asdict(cell.stats()).items()}
    return {
        "time": stats["p50_us"],
        "alg_bw": round(algorithm, 6),
        "bus_bw": round(bus, 6),
        "nwrong": cell.wrong,
        **stats,
        "times_us": [round(value, 3) for value in cell.times_us],
    }


def _row(block: Block, row: Row) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": block.type_name,
        "redop": block.redop,
        "root": str(block.root_shown),
        "out_of_place": _cell(block, row, row.out_of_place),
        "in_place": _cell(block, row, row.in_place),
    }


def run_document(block: Block, started: str, options: Options) -> dict[str, Any]:
    """One backend, collective and number of ranks, as readers of nccl-tests' JSON expect it."""
    wrong = block.wrong()
    nccl = block.version.removeprefix("NCCL ") if block.backend == "nccl" else None
    return {
        "version": NCCL_TESTS_VERSION,
        "start_time": started,
        "args": machine.command_line(),
        "env": [f"{name}={value}" for name, value in machine.relevant_env().items()],
        "nccl_version": nccl,
        "config": {
            "collective": block.collective,
            "backend": block.backend,
            "backend_version": block.version,
            "nranks": block.ranks,
            "device": options.device,
            "iterations": options.iterations if options.iterations is not None else "adaptive",
            "warmup_iters": options.warmups if options.warmups is not None else "adaptive",
            "validation": options.check,
            "pinned": options.pin,
            "time_is": "p50 over iterations of the slowest rank's time, us",
        },
        "results": [_row(block, row) for row in block.rows],
        "out_of_bounds": {"count": wrong, "okay": wrong == 0 if wrong is not None else None},
        "average_bus_bandwidth": {"bandwidth": round(block.average_bus_bandwidth(), 6)},
    }


def document(
    report: Report, options: Options, started: str, load: list[list[float]]
) -> dict[str, Any]:
    """The whole run. `load` is the load average before and after."""
    return {
        "format": "rocenante-bench",
        "version": FORMAT_VERSION,
        "start_time": started,
        "args": machine.command_line(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "revision": machine.git_revision(),
        "load_average": {"before": load[0], "after": load[-1]},
        "env": machine.relevant_env(),
        "notes": report.notes,
        "runs": [run_document(block, started, options) for block in report.blocks],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Indented, but with a list of numbers on one line: there are thousands of samples."""
    text = json.dumps(content, indent=1, allow_nan=False)
    path.write_text(_NUMBERS.sub(lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n")


_CSV_COLUMNS = (
    "collective",
    "backend",
    "ranks",
    "size_bytes",
    "count",
    "type",
    "redop",
    "root",
    "placement",
    "iterations",
    "min_us",
    "avg_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "max_us",
    "algbw_gb_s",
    "busbw_gb_s",
    "wrong",
)


def write_csv(path: Path, report: Report) -> None:
    """One line per size, backend and placement."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(_CSV_COLUMNS)
        for block in report.blocks:
            for row in block.rows:
                for placement, cell in (
                    ("out_of_place", row.out_of_place),
                    ("in_place", row.in_place),
                ):
                    if cell is not None:
                        writer.writerow(_csv_row(block, row, placement, cell))


def _csv_row(block: Block, row: Row, placement: str, cell: Cell) -> list[Any]:
    stats = cell.stats()
    times = (stats.min_us, stats.avg_us, stats.p50_us, stats.p95_us, stats.p99_us, stats.max_us)
    return [
        block.collective,
        block.backend,
        block.ranks,
        row.size,
        row.count,
        block.type_name,
        block.redop,
        block.root_shown,
        placement,
        len(cell.times_us),
        *(f"{value:.3f}" for value in times),
        *(f"{value:.6g}" for value in block.bandwidths(row, cell)),
        "" if cell.wrong is None else cell.wrong,
    ]
