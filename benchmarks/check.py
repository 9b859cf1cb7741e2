"""Whether we have become slower beside our peers: a short run against the saved one, as ratios.

    make bench-check
    python benchmarks/check.py --fresh FILE         compares a saved fresh run, measures nothing

A cell counts as worse when its ratio, ours over the faster MPI's, has grown by more than a quarter,
and does so again when it is measured anew: with more ranks than cores the scheduler has a say in
every run. Exit status 1 if any cell is worse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measure import RESULTS, beside_mpi, human, measured
from rich.console import Console
from rich.table import Table

from rocenante.bench.ratios import Cell, Change, Ratio, changes, ratios, regressions

TOLERANCE = 0.25
ATTEMPTS = 3
SIZES = (8, 10 << 10, 64 << 10)
RANKS = (2, 4)

Measure = Callable[[], Mapping[Cell, Ratio]]


def confirmed(saved: Mapping[Cell, Ratio], measure: Measure, attempts: int) -> list[Change]:
    """Every cell's best ratio of up to `attempts` runs, the worst first; stops as soon as no cell
    is worse than saved."""
    best: dict[Cell, Ratio] = {}
    for _ in range(attempts):
        for cell, ratio in measure().items():
            if cell not in best or ratio.value < best[cell].value:
                best[cell] = ratio
        compared = changes(saved, best)
        if not regressions(compared, TOLERANCE):
            break
    return compared


def short_run() -> Mapping[Cell, Ratio]:
    document, _ = measured([beside_mpi(("all_reduce",), RANKS, SIZES)])
    return ratios(document, "communicator")


def read(path: Path) -> Mapping[Cell, Ratio]:
    document: Mapping[str, Any] = json.loads(path.read_text())
    return ratios(document, "communicator")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare ratios of a short run with saved ones.")
    parser.add_argument("--saved", type=Path, default=RESULTS / "peers.json")
    parser.add_argument("--fresh", type=Path, help="do not measure, take this run")
    arguments = parser.parse_args()
    fresh: Path | None = arguments.fresh
    compared = (
        changes(read(arguments.saved), read(fresh))
        if fresh is not None
        else confirmed(read(arguments.saved), short_run, ATTEMPTS)
    )
    worse = regressions(compared, TOLERANCE)
    table = Table(box=None)
    for name in ("ranks", "size", "saved", "now", "change"):
        table.add_column(name, justify="right")
    for change in compared:
        table.add_row(
            str(change.cell.ranks),
            human(change.cell.size),
            f"{change.saved:.2f}",
            f"{change.fresh:.2f}",
            f"{100 * (change.factor - 1):+.0f} %",
            style="red" if change in worse else None,
        )
    console = Console()
    console.print("all_reduce, ours / the faster MPI")
    console.print(table)
    console.print(f"{len(worse)} of {len(compared)} cells are more than {TOLERANCE:.0%} worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
