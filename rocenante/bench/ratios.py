"""Ratios of a saved run: our time over the best peer's, cell by cell, and how two runs' compare.

A ratio depends much less on the machine, and on what else runs there, than a time does: all
backends of a run take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rocenante.bench.case import NATIVELY_IN_PLACE
from rocenante.bench.options import OURS, base


class Cell(NamedTuple):
    """What was measured; `size` is the larger buffer's in bytes, `type_name` nccl-tests' word."""

    collective: str
    ranks: int
    type_name: str
    size: int


@dataclass(frozen=True)
class Ratio:
    """p50 of the slowest rank in microseconds, ours and the fastest peer's."""

    ours_us: float
    best_us: float
    best: str

    @property
    def value(self) -> float:
        return self.ours_us / self.best_us


def times(document: Mapping[str, Any]) -> dict[Cell, dict[str, float]]:
    """p50 in microseconds by cell and backend, of a document that `rocenante bench --json` wrote.

    The placement is the one that torch.distributed has: in place for all_reduce, broadcast and
    reduce, out of place for the others.
    """
    found: dict[Cell, dict[str, float]] = {}
    for run in document["runs"]:
        config = run["config"]
        collective = config["collective"]
        placement = "in_place" if collective in NATIVELY_IN_PLACE else "out_of_place"
        for row in run["results"]:
            if row[placement] is not None:
                cell = Cell(collective, config["nranks"], row["type"], row["size"])
                found.setdefault(cell, {})[config["backend"]] = row[placement]["p50_us"]
    return found


def ratios(document: Mapping[str, Any], ours: str) -> dict[Cell, Ratio]:
    """The ratio of our backend `ours` to the fastest peer, in every cell that has both."""
    found = {}
    for cell, by_backend in times(document).items():
        peers = {name: us for name, us in by_backend.items() if base(name) not in OURS}
        if ours in by_backend and peers:
            best = min(peers, key=lambda name: peers[name])
            found[cell] = Ratio(by_backend[ours], peers[best], best)
    return found


@dataclass(frozen=True)
class Change:
    """The ratios of one cell in a saved and in a fresh run."""

    cell: Cell
    saved: float
    fresh: float

    @property
    def factor(self) -> float:
        """How many times the saved ratio the fresh one is: above 1 is worse."""
        return self.fresh / self.saved


def changes(saved: Mapping[Cell, Ratio], fresh: Mapping[Cell, Ratio]) -> list[Change]:
    """Every cell of the fresh run, the one that got worst first.

    Raises ValueError when the saved run lacks one of them, or there is none: what is not compared
    must not pass.
    """
    if not fresh:
        raise ValueError("the fresh run has no cell with a result of ours and of a peer")
    missing = [cell for cell in fresh if cell not in saved]
    if missing:
        raise ValueError(f"the saved run has no {missing[0]}")
    found = [Change(cell, saved[cell].value, ratio.value) for cell, ratio in fresh.items()]
    return sorted(found, key=lambda change: -change.factor)


def regressions(compared: Iterable[Change], tolerance: float) -> list[Change]:
    """The cells whose ratio grew by more than `tolerance` (0.25: by a quarter)."""
    return [change for change in compared if change.factor > 1 + tolerance]
