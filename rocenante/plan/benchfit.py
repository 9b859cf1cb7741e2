"""Alphas and betas from a `rocenante bench --json` file (nccl-tests' JSON shape)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rocenante.plan import costs as closed
from rocenante.plan.costs import Costs
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric
from rocenante.plan.model import read_json

# One-shot's range in every configuration; above it the backend may have chosen two-shot.
ONE_SHOT_LIMIT = 64 << 10


@dataclass(frozen=True)
class Sample:
    """One measured all-reduce: median over its calls of the slowest rank."""

    backend: str
    ranks: int
    size: int
    us: float


@dataclass(frozen=True)
class BenchFit:
    """Costs with the measured ones replaced, and the samples that they come from."""

    costs: Costs
    one_shot: tuple[Sample, ...]
    nccl: tuple[Sample, ...]
    errors: tuple[tuple[Sample, float], ...]
    """Each sample and (fitted - measured) / measured."""


def read_samples(path: Path) -> list[Sample]:
    """Return the all-reduce samples of a bench file, or of one run in nccl-tests' own shape.

    Out-of-place times where there are some, else in-place ones. Raises PlanError if the file is
    not one, or holds no all-reduce.
    """
    data = read_json(path)
    runs = data.get("runs", [data])
    if not isinstance(runs, list) or not all(_is_run(run) for run in runs):
        raise PlanError(
            f"{path} has no 'runs' with 'config' and 'results': "
            "is it a file of `rocenante bench --json`?"
        )
    samples = []
    for run in runs:
        config = run["config"]
        if config.get("collective", "all_reduce") != "all_reduce":
            continue
        for index, result in enumerate(run["results"]):
            try:
                sample = _sample(result, config)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise PlanError(
                    f"{path}: results[{index}] is not a bench result "
                    f"({type(error).__name__}: {error})."
                ) from None
            if sample.ranks > 1 and sample.size > 0:
                samples.append(sample)
    if not samples:
        raise PlanError(f"{path} holds no all-reduce of two ranks or more.")
    return samples


def _is_run(run: object) -> bool:
    return (
        isinstance(run, dict)
        and isinstance(run.get("config"), dict)
        and isinstance(run.get("results"), list)
    )


def _sample(result: dict[str, Any], config: dict[str, Any]) -> Sample:
    timing = result.get("out_of_place") or result["in_place"]
    us = float(timing["p50_us"] if "p50_us" in timing else timing["time"])
    if not 0 < us < float("inf"):
        raise ValueError(f"a time of {us} us")
    backend = str(config.get("backend", "nccl"))
    return Sample(backend, int(config["nranks"]), int(result["size"]), us)


def fit_samples(costs: Costs, samples: list[Sample], fabric: Fabric) -> BenchFit:
    """Replace one-shot's and NCCL's parameters by least squares over relative errors.

    One-shot: fixed time, posting (only if several rank counts were measured), wire rate.
    NCCL: step and bulk rate of the ring. Raises PlanError if neither was measured.
    """
    small = [sample for sample in samples if sample.size <= ONE_SHOT_LIMIT]
    # The same all-reduce without torch.distributed's dispatch, if that is all there is.
    one_shot = tuple(s for s in small if s.backend == "rocenante") or tuple(
        s for s in small if s.backend == "communicator"
    )
    nccl = tuple(s for s in samples if s.backend == "nccl")
    if not one_shot and not nccl:
        found = ", ".join(sorted({sample.backend for sample in samples}))
        raise PlanError(
            f"nothing to fit: no rocenante all-reduce up to {ONE_SHOT_LIMIT >> 10} KiB and no "
            f"nccl one, only {found}."
        )
    for chosen in (one_shot, nccl):
        if chosen and len({sample.size for sample in chosen}) < 2:
            raise PlanError(
                f"one size of {chosen[0].backend} gives a latency or a rate, not both: "
                "measure at least two sizes."
            )
    if one_shot:
        costs = _fit_one_shot(costs, one_shot, fabric)
    if nccl:
        costs = _fit_ring(costs, nccl, fabric)
    errors = [(s, closed.one_shot(costs, s.ranks, s.size, fabric) / s.us - 1) for s in one_shot]
    errors += [(s, closed.ring(costs, s.ranks, s.size, fabric) / s.us - 1) for s in nccl]
    return BenchFit(costs, one_shot, nccl, tuple(errors))


def _fit_one_shot(costs: Costs, samples: tuple[Sample, ...], fabric: Fabric) -> Costs:
    """Linear once it is known which of post and wire sets the pace; iterate until that settles."""
    n = np.array([s.ranks for s in samples], dtype=float)
    size = np.array([s.size for s in samples], dtype=float)
    us = np.array([s.us for s in samples])
    traffic = (n + 3) * size * costs.memory_us_per_byte
    several = len({s.ranks for s in samples}) > 1
    post, wire, fixed = costs.post_us, costs.wire_us_per_byte, 0.0
    for _ in range(20):
        paced_by_wire = size * wire > post
        wire_column = size * (1 + (n - 2) * paced_by_wire)
        post_column = 1 + (n - 2) * ~paced_by_wire
        target = us - traffic
        columns = [np.ones_like(size), wire_column]
        if several:
            columns.append(post_column)
        else:
            target = target - post * post_column
        found = _non_negative(np.stack(columns, axis=1), target, us)
        before = (post, wire)
        fixed, wire, post = found[0], found[1], found[2] if several else post
        if np.allclose(before, (post, wire), rtol=1e-9, atol=0):
            break
    launch = min(costs.launch_us, fixed)
    hop = min(costs.hop(fabric), fixed - launch)
    return replace(
        costs,
        launch_us=launch,
        hop_us=hop if fabric is Fabric.SWITCH else costs.hop_us,
        exchange_us=fixed - launch - hop,
        post_us=post,
        wire_us_per_byte=wire,
    )


def _fit_ring(costs: Costs, samples: tuple[Sample, ...], fabric: Fabric) -> Costs:
    n = np.array([s.ranks for s in samples], dtype=float)
    size = np.array([s.size for s in samples], dtype=float)
    us = np.array([s.us for s in samples])
    steps = 2 * (n - 1)
    columns = np.stack([steps, steps * size / n], axis=1)
    step, rate = _non_negative(columns, us - steps * costs.hop(fabric), us)
    return replace(costs, step_us=step, pair_us_per_byte=rate, ring_us_per_byte=rate)


def _non_negative(
    columns: np.ndarray[Any, np.dtype[np.float64]],
    target: np.ndarray[Any, np.dtype[np.float64]],
    scale: np.ndarray[Any, np.dtype[np.float64]],
) -> list[float]:
    """Least squares of (columns x - target) / scale over x >= 0.

    A negative solution loses its most negative column and is solved again.
    """
    kept = list(range(columns.shape[1]))
    result = [0.0] * columns.shape[1]
    while kept:
        weighted = columns[:, kept] / scale[:, None]
        # Seconds per byte and seconds differ by ten orders: equal norms keep the solve accurate.
        norms = np.linalg.norm(weighted, axis=0)
        found = np.linalg.lstsq(weighted / norms, target / scale, rcond=None)[0] / norms
        if found.min() >= 0:
            for index, value in zip(kept, found, strict=True):
                result[index] = float(value)
            break
        kept.pop(int(np.argmin(found * norms)))
    return result
