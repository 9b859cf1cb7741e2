"""Pictures of a run: latency against size, and the speed-up over each peer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocenante.bench.record import Block, Report, medians, rivalries

_COLOURS = {
    "rocenante": "#c8102e",
    "communicator": "#e8871e",
    "gloo": "#3b6fb6",
    "mpi": "#2a8c6a",
    "impi": "#2a8c6a",
    "openmpi": "#7a9a01",
    "nccl": "#6b4fa0",
}
_MARKERS = {"rocenante": "o", "communicator": "D", "gloo": "s", "mpi": "^", "nccl": "v"}


def crossovers(sizes: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """Sizes, interpolated on the logarithmic axes, at which the ratio passes through 1."""
    found = []
    for (a, ra), (b, rb) in zip(
        zip(sizes, ratios, strict=True), zip(sizes[1:], ratios[1:], strict=True), strict=False
    ):
        la, lb = math.log(ra), math.log(rb)
        if la * lb < 0:
            part = la / (la - lb)
            found.append(math.exp(math.log(a) + part * (math.log(b) - math.log(a))))
    return found


def size_label(size: float, _position: object = None) -> str:
    """8, 1K, 16M: for the size axis."""
    value = float(size)
    for unit in ("", "K", "M"):
        if value < 1024:
            return f"{value:.3g}{unit}"
        value /= 1024
    return f"{value:.3g}G"


def write_plots(path: Path, report: Report, machine: str) -> list[Path]:
    """One picture per collective; the first at `path`, others with the collective's name appended.

    Returns the files written. Raises ModuleNotFoundError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    by_collective: dict[str, list[tuple[int, list[Block]]]] = {}
    for collective, ranks, blocks in report.comparisons():
        if collective != "barrier":
            by_collective.setdefault(collective, []).append((ranks, blocks))
    written = []
    for index, (collective, panels) in enumerate(by_collective.items()):
        target = path if index == 0 else path.with_stem(f"{path.stem}-{collective}")
        figure = _draw(plt, collective, panels, machine)
        figure.savefig(target, dpi=150)
        plt.close(figure)
        written.append(target)
    return written


def _draw(
    plt: Any, collective: str, panels: Sequence[tuple[int, list[Block]]], machine: str
) -> Any:
    compared = any(rivalries(blocks) for _, blocks in panels)
    rows = 2 if compared else 1
    figure, axes = plt.subplots(
        rows,
        len(panels),
        figsize=(max(6.4, 4.6 * len(panels) + 0.6), 6.6 if compared else 4.4),
        squeeze=False,
        sharex="col",
        sharey="row",
        gridspec_kw={"height_ratios": [3, 2][:rows]},
        layout="constrained",
    )
    block = panels[0][1][0]
    detail = ", ".join(
        part for part in (block.type_name, block.redop if block.redop != "none" else "") if part
    )
    figure.suptitle(f"{collective} ({detail})", fontsize=13, fontweight="bold")
    for column, (ranks, blocks) in enumerate(panels):
        _latency(axes[0][column], ranks, blocks)
        if compared:
            _speedups(axes[1][column], blocks)
        axes[-1][column].set_xlabel("size (bytes)")
    axes[0][0].set_ylabel("latency, p50 (µs)\nthin line: p99")
    if compared:
        axes[1][0].set_ylabel("times faster\nthan the peer")
    figure.supxlabel(f"{machine}; slowest rank", fontsize=7, color="#555555")
    return figure


def _prepare(axis: Any) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(size_label)
    axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")


def _latency(axis: Any, ranks: int, blocks: Sequence[Block]) -> None:
    _prepare(axis)
    axis.set_title(f"{ranks} ranks" if ranks > 1 else "1 rank", fontsize=11)
    for block in blocks:
        cells = [
            (row.size, cell.stats())
            for row in block.rows
            if (cell := block.typical(row)) is not None
        ]
        sizes = [size for size, _ in cells]
        colour = _COLOURS.get(block.backend, "#444444")
        axis.plot(
            sizes,
            [stats.p50_us for _, stats in cells],
            color=colour,
            marker=_MARKERS.get(block.backend, "o"),
            markersize=4,
            linewidth=1.8,
            label=block.backend,
        )
        axis.plot(
            sizes, [stats.p99_us for _, stats in cells], color=colour, linewidth=0.6, alpha=0.6
        )
    axis.legend(frameon=False, fontsize=9, loc="upper left")


def _speedups(axis: Any, blocks: list[Block]) -> None:
    _prepare(axis)
    axis.axhline(1, color="#333333", linewidth=1)
    for subject, peer in rivalries(blocks):
        ours, theirs = medians(subject), medians(peer)
        sizes = sorted(set(ours) & set(theirs))
        ratios = [theirs[size] / ours[size] for size in sizes]
        colour = _COLOURS.get(peer.backend, "#444444")
        label = f"{subject.backend} vs {peer.backend}"
        axis.plot(
            sizes,
            ratios,
            color=colour,
            marker=_MARKERS.get(peer.backend, "o"),
            markersize=3,
            label=label,
        )
        for crossing in crossovers(sizes, ratios):
            axis.axvline(crossing, color=colour, linewidth=0.8, linestyle=":")
            axis.plot([crossing], [1], color=colour, marker="x", markersize=8, markeredgewidth=1.8)
            axis.annotate(
                size_label(crossing),
                (crossing, 1),
                xytext=(4, 6),
                textcoords="offset points",
                fontsize=8,
                color=colour,
            )
    axis.legend(frameon=False, fontsize=8, loc="best")
