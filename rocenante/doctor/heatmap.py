"""The pairs' latency and bandwidth as a heat map: on a terminal, and as an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rocenante.doctor.pairs import Measured
from rocenante.doctor.peer import Peer

# From good to bad, readable on dark and light ground.
_COLOURS = ("#1a9850", "#91cf60", "#fee08b", "#fc8d59", "#d73027")
_FAILED = "#7f00ff"
_WIDEST = 10  # ranks whose figures fit into 80 columns; more get squares without figures

Value = Callable[[Measured, bool], float | None]  # of a pair, from low to high or back


def _latency(one: Measured, up: bool) -> float | None:
    return one.latency_us


def _bandwidth(one: Measured, up: bool) -> float | None:
    return one.up_mib_s if up else one.down_mib_s


# Title, unit, whether less is better, what is shown.
MATRICES: tuple[tuple[str, str, bool, Value], ...] = (
    ("latency, 8 B all-reduce, p50", "µs", True, _latency),
    ("bandwidth, 1 MiB, row sends to column", "MiB/s", False, _bandwidth),
)


class Matrix:
    """One rail's values; the n-th rail of each pair belongs together."""

    def __init__(self, ranks: Sequence[int], measured: Sequence[Measured], rail: int) -> None:
        self.ranks = list(ranks)
        self._of: dict[tuple[int, int], Measured] = {}
        count: dict[tuple[int, int], int] = {}
        for one in measured:
            pair = (one.task.low, one.task.high)
            at = count.get(pair, 0)
            count[pair] = at + 1
            if at == rail:
                self._of[pair] = one
        names = dict.fromkeys(one.task.rail.name for one in self._of.values())
        self.name = next(iter(names)) if len(names) == 1 else f"rail {rail}"

    def at(self, row: int, column: int) -> Measured | None:
        return self._of.get((min(row, column), max(row, column)))

    def values(self, value: Value) -> list[list[float | None]]:
        """By row and column; None on the diagonal, and where nothing was measured."""
        return [
            [value(one, r < c) if r != c and (one := self.at(r, c)) else None for c in self.ranks]
            for r in self.ranks
        ]


def matrices(ranks: Sequence[int], measured: Sequence[Measured]) -> list[Matrix]:
    """One for each rail."""
    pairs = Counter((one.task.low, one.task.high) for one in measured)
    rails = max(pairs.values(), default=0)
    return [Matrix(ranks, measured, rail) for rail in range(rails)]


def badness(value: float, best: float, less_is_better: bool) -> float:
    """0 for the best value, 1 for four times worse or more: by ratio, so that noise stays green."""
    if best <= 0 or value <= 0:
        return 1.0
    ratio = value / best if less_is_better else best / value
    return min((ratio - 1) / 3, 1.0)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"


def _best(rows: Sequence[Sequence[float | None]], less_is_better: bool) -> float:
    known = [value for row in rows for value in row if value is not None]
    return (min if less_is_better else max)(known, default=0.0)


def show(console: Console, peers: dict[int, Peer], measured: Sequence[Measured]) -> None:
    """All matrices, within 80 columns for up to 64 ranks."""
    for matrix in matrices(sorted(peers), measured):
        for title, unit, less, value in MATRICES:
            console.print(f"[bold]{matrix.name}[/]: {title}, {unit}")
            console.print(_drawn(matrix, value, less))


def _drawn(matrix: Matrix, value: Value, less: bool) -> Text:
    rows = matrix.values(value)
    best = _best(rows, less)
    wide = len(matrix.ranks) <= _WIDEST
    text = Text()
    text.append("     " + "".join(f"{r:>7}" if wide else f"{r % 10}" for r in matrix.ranks), "dim")
    for rank, row in zip(matrix.ranks, rows, strict=True):
        text.append(f"\n{rank:>4} ", "dim")
        for column, cell in zip(matrix.ranks, row, strict=True):
            text.append(*_cell(matrix, rank, column, cell, best, less, wide))
    return text


def _cell(
    matrix: Matrix,
    rank: int,
    column: int,
    cell: float | None,
    best: float,
    less: bool,
    wide: bool,
) -> tuple[str, str]:
    if rank == column:
        return ("      -" if wide else "\\", "dim")
    if cell is None:
        tried = matrix.at(rank, column) is not None
        sign = "failed" if tried else "?"
        return (f"{sign:>7}" if wide else sign[0].upper(), f"bold {_FAILED}")
    colour = _COLOURS[round(badness(cell, best, less) * (len(_COLOURS) - 1))]
    return (f" {_figure(cell):>6}", f"black on {colour}") if wide else ("■", colour)


def draw(path: Path, peers: dict[int, Peer], measured: Sequence[Measured]) -> None:
    """The same as an image. Raises OSError or ValueError if it can't be written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    found = matrices(sorted(peers), measured)
    colours = LinearSegmentedColormap.from_list("heat", _COLOURS)
    size = 3.5 + 0.35 * len(peers)
    figure, axes = plt.subplots(
        max(len(found), 1), 2, figsize=(2 * size + 1, size * max(len(found), 1)), squeeze=False
    )
    names = [f"{rank} {peers[rank].host}" for rank in sorted(peers)]
    for row, matrix in zip(axes, found, strict=False):
        for axis, (title, unit, less, value) in zip(row, MATRICES, strict=True):
            rows = matrix.values(value)
            best = _best(rows, less)
            heat = [
                [np.nan if v is None else badness(v, best, less) for v in line] for line in rows
            ]
            axis.set_facecolor("#dddddd")  # shows where there is no figure
            axis.imshow(heat, cmap=colours, vmin=0, vmax=1)
            axis.set_title(f"{matrix.name}\n{title}, {unit}", fontsize=8)
            axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
            axis.set_yticks(range(len(names)), names, fontsize=7)
            for r, line in enumerate(rows):
                for c, cell in enumerate(line):
                    if r != c and len(names) <= 16:
                        text = "failed" if cell is None else _figure(cell)
                        axis.text(c, r, text, ha="center", va="center", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
