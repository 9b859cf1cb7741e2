"""Tensor-parallel greedy decoding on local ranks: tokens/s, and the share of time in collectives.

    python benchmarks/tp_decode.py [--ranks 2] [--hidden 1024 --layers 28 --vocab 8192 --tokens 16]
        [--backends rocenante,gloo] [--rounds 6] [--json FILE] [--plot FILE]

The backends decode in turns, in the same processes, with the same weights. A backend's tokens must
be the same in every round, to the last one; those of different backends are compared, and so are
their logits.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from decoder import Calls, Decoder, Shape
from ranks import COLOURS, document, launch, median, save, turns
from rich.console import Console
from rich.table import Table

from rocenante.bench import machine

FIRST = 1  # the token that decoding begins with


def measure(groups: dict[str, dist.ProcessGroup], given: dict[str, Any]) -> dict[str, Any]:
    """On each rank; every backend's rounds, as rank 0 saw them."""
    shape = Shape(given["hidden"], given["layers"], given["vocab"])
    decoder = Decoder(shape, None, dist.get_rank(), dist.get_world_size())
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in groups}
    tokens: dict[str, list[int]] = {}
    logits: dict[str, torch.Tensor] = {}
    for number, name in enumerate(turns(list(groups), 1 + given["rounds"])):
        decoder.group, decoder.calls = groups[name], Calls()
        dist.barrier()
        start = time.perf_counter()
        got, last = decoder.decode(FIRST, given["tokens"])
        seconds = time.perf_counter() - start
        if tokens.setdefault(name, got) != got or not torch.equal(
            logits.setdefault(name, last), last
        ):
            raise SystemExit(f"{name} decoded other tokens than in the round before")
        if number >= len(groups):  # the first round warms up
            calls = decoder.calls
            rounds[name].append(
                {
                    "seconds": seconds,
                    "collective_seconds": calls.seconds,
                    "collectives": calls.count,
                }
            )
    names = list(groups)
    difference = torch.zeros(1)
    if len(names) > 1:
        difference = (logits[names[0]] - logits[names[-1]]).abs().max().reshape(1)
        dist.all_reduce(difference, dist.ReduceOp.MAX)
    return {
        "rounds": rounds,
        "tokens": tokens,
        "same_tokens": len({tuple(t) for t in tokens.values()}) == 1,
        "largest_difference_of_logits": difference.item(),
    }


def summary(result: dict[str, Any], count: int) -> dict[str, dict[str, float]]:
    return {
        name: {
            "tokens_per_s": count / median([r["seconds"] for r in rounds]),
            "share_in_collectives": median(
                [r["collective_seconds"] / r["seconds"] for r in rounds]
            ),
            "us_per_collective": 1e6
            * median([r["collective_seconds"] / r["collectives"] for r in rounds]),
        }
        for name, rounds in result["rounds"].items()
    }


def ratios(result: dict[str, Any]) -> list[float]:
    """The second backend's time over the first's, round by round."""
    first, second = list(result["rounds"].values())[:2]
    return [b["seconds"] / a["seconds"] for a, b in zip(first, second, strict=True)]


def plot(path: Path, title: str, found: dict[str, dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 2.2 + 0.3 * len(found)), layout="constrained")
    for row, (name, values) in enumerate(found.items()):
        whole = 1e3 / values["tokens_per_s"]
        inside = whole * values["share_in_collectives"]
        colour = COLOURS.get(name, "#444444")
        axis.barh(row, whole - inside, color="#bbbbbb", label="" if row else "the rest")
        axis.barh(row, inside, left=whole - inside, color=colour, label=f"collectives, {name}")
        axis.text(whole, row, f" {values['tokens_per_s']:.1f} tokens/s", va="center", fontsize=9)
    axis.set_yticks(range(len(found)), list(found))
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlabel("ms per token, median")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=16, help="per round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--backends", default="rocenante,gloo")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    given = {k: getattr(options, k) for k in ("hidden", "layers", "vocab", "tokens", "rounds")}
    before = machine.load_average()
    result = launch(options.ranks, options.backends.split(","), measure, given)
    found = summary(result, options.tokens)
    title = f"{options.ranks} ranks, hidden {options.hidden}, {options.layers} layers, float32"
    table = Table(title=title)
    for heading in ("backend", "tokens/s", "in collectives", "µs per collective"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for name, v in found.items():
        table.add_row(
            name,
            f"{v['tokens_per_s']:.2f}",
            f"{v['share_in_collectives']:.1%}",
            f"{v['us_per_collective']:.0f}",
        )
    console = Console()
    console.print(table)
    extra: dict[str, Any] = {}
    if len(found) > 1:
        extra = {"time_ratios": ratios(result), "median_time_ratio": median(ratios(result))}
        console.print(
            f"{' over '.join(list(found)[:2])}: {extra['median_time_ratio']:.2f} times the "
            f"tokens/s; same tokens: {result['same_tokens']}, logits differ by "
            f"{result['largest_difference_of_logits']:.1e} at most"
        )
    if options.json:
        save(options.json, document({**given, "summary": found, **extra, **result}, before))
    if options.plot:
        plot(options.plot, title, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
