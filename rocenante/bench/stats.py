"""Combination of the ranks' samples and their statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Microseconds, except `cv_pct` (standard deviation in percent of the mean)."""

    min_us: float
    max_us: float
    avg_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    stdev_us: float
    cv_pct: float


def slowest(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """Per iteration the slowest rank's time.

    Raises ValueError where ranks report different numbers of iterations: they would not correspond.
    """
    if len({len(times) for times in per_rank}) > 1:
        raise ValueError(f"ranks report {[len(times) for times in per_rank]} iterations")
    return [max(times) for times in zip(*per_rank, strict=True)]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest sample that at least `percent` of all samples do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarise(times_us: Sequence[float]) -> Stats:
    """Statistics of one cell's samples. Raises ValueError without any sample."""
    if not times_us:
        raise ValueError("no samples")
    ordered = sorted(times_us)
    mean = math.fsum(ordered) / len(ordered)
    stdev = math.sqrt(math.fsum((t - mean) ** 2 for t in ordered) / len(ordered))
    return Stats(
        min_us=ordered[0],
        max_us=ordered[-1],
        avg_us=mean,
        p50_us=percentile(ordered, 50),
        p95_us=percentile(ordered, 95),
        p99_us=percentile(ordered, 99),
        stdev_us=stdev,
        cv_pct=100 * stdev / mean if mean > 0 else 0.0,
    )


def bandwidth(size_bytes: int, time_us: float) -> float:
    """GB/s (10^9 bytes) of `size_bytes` in `time_us`."""
    return size_bytes / time_us / 1e3 if time_us > 0 else 0.0
