"""Where one-shot stops paying: the simulator over message sizes and node counts, and its plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rocenante.plan import costs as closed
from rocenante.plan import simulate
from rocenante.plan.benchfit import Sample
from rocenante.plan.costs import Costs
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric

SIZES = tuple(1 << bit for bit in range(10, 23))
REPEATS = 3


@dataclass(frozen=True)
class Point:
    """Mean simulated times of one size and node count in microseconds."""

    nodes: int
    size: int
    one_shot_us: float
    nccl_us: float
    incast: float
    """Factor on one-shot, without skew, if every node posted to its peers in rank order."""

    @property
    def gain(self) -> float:
        return self.nccl_us / self.one_shot_us


def check_sweep(nodes: list[int], fabric: Fabric) -> None:
    """Raise PlanError unless all pairs of 2 to 64 nodes are joined."""
    if min(nodes) < 2:
        raise PlanError("--simulate compares all-reduces, so --nodes starts at 2.")
    if not fabric.joins_all_pairs(max(nodes)):
        raise PlanError(
            "--simulate needs a fabric that joins all pairs, for one-shot sends to every peer: "
            "use --fabric switch (a ring joins all pairs of 3 nodes at most)."
        )


def sweep(
    costs: Costs,
    skew_us: float,
    nodes: list[int],
    fabric: Fabric,
    seed: int,
    sizes: tuple[int, ...] = SIZES,
    repeats: int = REPEATS,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Point]:
    """Simulate every size on every node count, with normally distributed arrivals.

    All algorithms meet the same arrivals. NCCL runs the algorithm with the lower closed form.
    """
    rng = np.random.default_rng(seed)
    points = []
    # A run handles about as many events as there are pairs of nodes.
    total, finished = float(sum(n * n for n in nodes) * len(sizes)), 0.0
    for n in nodes:
        cabling = fabric.at(n)
        arrivals = rng.normal(0.0, skew_us, (repeats, n)).tolist()
        for size in sizes:
            around = closed.ring(costs, n, size, cabling)
            peer = simulate.ring
            if closed.tree(costs, n, size, cabling) < around:
                peer = simulate.tree
            runs = [
                (
                    simulate.one_shot(costs, n, size, cabling, starts),
                    peer(costs, n, size, cabling, starts),
                )
                for starts in arrivals
            ]
            ours, theirs = (float(mean) for mean in np.mean(runs, axis=0))
            together = [0.0] * n
            rank_order = simulate.one_shot(costs, n, size, cabling, together, same_first_peer=True)
            incast = rank_order / simulate.one_shot(costs, n, size, cabling, together)
            points.append(Point(n, size, ours, theirs, incast))
            finished += n * n
            progress(finished / total)
    return points


def break_even(points: list[Point], nodes: int) -> float | None:
    """Size at which one-shot falls behind NCCL, between simulated sizes by log interpolation.

    0.0 if it never leads, None if it leads at every simulated size.
    """
    row = sorted((point for point in points if point.nodes == nodes), key=lambda point: point.size)
    behind = next((index for index, point in enumerate(row) if point.gain < 1), None)
    if behind is None:
        return None
    if behind == 0:
        return 0.0
    low, high = row[behind - 1], row[behind]
    share = np.log(low.gain) / np.log(low.gain / high.gain)
    return float(low.size * (high.size / low.size) ** share)


def against_bench(
    costs: Costs, samples: tuple[Sample, ...], fabric: Fabric
) -> list[tuple[Sample, float]]:
    """Simulate measured one-shot and ring runs; pairs of sample and simulated microseconds."""
    pairs = []
    for sample in samples:
        run = simulate.ring if sample.backend == "nccl" else simulate.one_shot
        starts = [0.0] * sample.ranks
        pairs.append((sample, run(costs, sample.ranks, sample.size, fabric, starts)))
    return pairs


def plot(points: list[Point], costs: Costs, fabric: Fabric, path: Path) -> None:
    """Write gain over NCCL against size and nodes, and where it ends, as an image.

    Raises PlanError if matplotlib is missing or the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise PlanError("the plot needs matplotlib: pip install 'rocenante[bench]'.") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LogNorm

    nodes = sorted({point.nodes for point in points})
    sizes = sorted({point.size for point in points})
    gains = {(point.nodes, point.size): point.gain for point in points}
    grid = np.array([[gains[n, size] for size in sizes] for n in nodes])
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    reach = max(2.0, float(grid.max()), 1 / float(grid.min()))
    image = axes.imshow(
        grid, origin="lower", aspect="auto", cmap="RdBu", norm=LogNorm(1 / reach, reach)
    )
    for row in range(len(nodes)):
        for column in range(len(sizes)):
            gain = grid[row, column]
            colour = "white" if abs(np.log(gain)) > 0.6 * np.log(reach) else "black"
            axes.text(
                column, row, f"{gain:.2g}", ha="center", va="center", fontsize=8, color=colour
            )
    edges: list[tuple[str, str, Sequence[float | None]]] = [
        ("simulated", "k-o", [break_even(points, n) for n in nodes]),
        ("closed form", "k--", [closed.crossover(costs, n, fabric.at(n), "nccl") for n in nodes]),
    ]
    for label, style, ends in edges:
        kept = [
            (np.log2(end / sizes[0]), row)
            for row, end in enumerate(ends)
            if end and end <= sizes[-1]
        ]
        axes.plot(
            [x for x, _ in kept], [y for _, y in kept], style, markersize=4, label=f"end, {label}"
        )
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(-0.5, len(nodes) - 0.5)
    axes.set_xticks(range(len(sizes)), [bytes_text(size) for size in sizes], rotation=45)
    axes.set_yticks(range(len(nodes)), [str(n) for n in nodes])
    axes.set(xlabel="bytes per all-reduce", ylabel="nodes")
    axes.set_title("NCCL's time over one-shot's (above 1: one-shot is faster), simulated")
    figure.legend(loc="outside lower right", fontsize=8, ncols=2)
    colours = figure.colorbar(image, label="NCCL / one-shot")
    colours.ax.minorticks_off()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10) if 1 / reach <= tick <= reach]
    colours.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    try:
        figure.savefig(path, dpi=140)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot write {path}: {error}.") from None
    finally:
        plt.close(figure)


def bytes_text(size: float) -> str:
    """Return a size with a binary unit: 12 KiB, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
