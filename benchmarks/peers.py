"""`Communicator` beside Intel MPI and Open MPI, in one interleaved run: ratios and their targets.

    make bench-peers        installs both MPIs and runs this

Numpy buffers on every side, ranks pinned, p50 of the slowest rank. A ratio is ours over the faster
MPI's. The second part sets bfloat16, which MPI does not reduce, beside float32, in turns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from measure import RESULTS, beside_mpi, human, measured
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocenante.bench import machine
from rocenante.bench.case import Case, count_for
from rocenante.bench.options import Options
from rocenante.bench.ratios import Cell, Ratio, ratios, times
from rocenante.bench.report_json import write_json

SIZES = (8, 1 << 10, 10 << 10, 64 << 10, 1 << 20, 16 << 20)
RANKS = (2, 4, 8)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")
TURNS = 3  # of float32 and bfloat16


def target(collective: str, size: int) -> float:
    """The ratio that is aimed at; `size` as requested."""
    if collective != "all_reduce":
        return 1.0
    return 0.8 if size < 1 << 20 else 0.9


def type_requests() -> list[Options]:
    common: dict[str, Any] = {
        "collectives": ("all_reduce",),
        "backends": ("communicator",),
        "ranks": RANKS,
        "sizes": SIZES,
        "pin": True,
        "typical_only": True,
    }
    return [Options(dtype=dtype, **common) for dtype in ("float32", "bfloat16")] * TURNS


def cell_of(collective: str, ranks: int, size: int) -> Cell:
    """The cell of a requested size: a piece has at least one element, a barrier none."""
    case = Case(collective, count_for(collective, size, "float32", ranks))
    return Cell(collective, ranks, "float", case.total_bytes(ranks))


def table(collective: str, found: Mapping[Cell, Ratio]) -> tuple[Table, int, int]:
    """Ratios by ranks and size; how many there are and how many miss their target."""
    sizes = SIZES if collective != "barrier" else (0,)
    shown = Table(title=f"{collective}: ours / best peer", title_justify="left", box=None)
    shown.add_column("ranks", justify="right")
    for size in sizes:
        bound = target(collective, size)
        name = human(size) if collective != "barrier" else ""
        shown.add_column(f"{name}\n<= {bound:g}", justify="right", no_wrap=True)
    cells = misses = 0
    for ranks in RANKS:
        row: list[str | Text] = [str(ranks)]
        for size in sizes:
            ratio = found.get(cell_of(collective, ranks, size))
            if ratio is None:
                row.append("N/A")
                continue
            cells += 1
            missed = ratio.value > target(collective, size)
            misses += missed
            figures = f"{ratio.ours_us:.4g}/{ratio.best_us:.4g} {ratio.best}"
            row.append(
                Text(
                    f"{ratio.value:.2f}{' MISS' if missed else ''}\n{figures}\n",
                    style="red" if missed else "green",
                )
            )
        shown.add_row(*row)
    return shown, cells, misses


def type_table(found: Mapping[Cell, Mapping[str, float]]) -> Table:
    """Time of bfloat16 over that of float32 for the same number of bytes."""
    shown = Table(
        title="all_reduce: bfloat16 / float32, same bytes", title_justify="left", box=None
    )
    shown.add_column("ranks", justify="right")
    for size in SIZES:
        shown.add_column(human(size), justify="right", no_wrap=True)
    for ranks in RANKS:
        row = [str(ranks)]
        for size in SIZES:
            pair = [
                found[Cell("all_reduce", ranks, name, size)]["communicator"]
                for name in ("bfloat16", "float")
            ]
            row.append(f"{pair[0] / pair[1]:.2f}\n{pair[0]:.4g}/{pair[1]:.4g}\n")
        shown.add_row(*row)
    return shown


def main() -> int:
    console = Console(width=150)
    document, notes = measured([beside_mpi(COLLECTIVES, RANKS, SIZES)])
    write_json(RESULTS / "peers.json", document)
    found = ratios(document, "communicator")
    cells = misses = 0
    for collective in COLLECTIVES:
        shown, more, missed = table(collective, found)
        console.print(shown)
        cells, misses = cells + more, misses + missed
    by_type, _ = measured(type_requests())
    write_json(RESULTS / "bfloat16.json", by_type)
    console.print(type_table(times(by_type)))
    console.print(
        f"{cells} cells, {misses} miss their target; {machine.one_line(machine.describe())}"
    )
    for note in notes:
        console.print(f"[yellow]note:[/] {note}")
    return 0 if cells else 1


if __name__ == "__main__":
    sys.exit(main())
