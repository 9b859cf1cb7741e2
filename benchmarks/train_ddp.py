"""Data-parallel training of a small GPT on local ranks: tokens/s, speed-up, scaling efficiency.

    python benchmarks/train_ddp.py [--ranks 1,2,4] [--backends rocenante,gloo]
        [--depth 4 --width 256 --rows 2 --length 128] [--rounds 6 --steps 3] [--json F] [--plot F]

Every rank has `rows` sequences a step, so that more ranks do more work. The backends train in
turns, in the same processes, from the same weights on the same data; their losses are compared.
With more ranks than cores efficiency can't exceed cores / ranks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import Gpt
from ranks import COLOURS, document, launch, median, save, turns
from rich.console import Console
from rich.table import Table
from torch.nn import functional as f
from torch.nn.parallel import DistributedDataParallel

from rocenante.bench import machine

VOCAB = 4096


def measure(groups: dict[str, dist.ProcessGroup], given: dict[str, Any]) -> dict[str, Any]:
    """On each rank: seconds of every step by backend, as rank 0 saw them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    models, optimizers, steps = {}, {}, dict.fromkeys(groups, 0)
    for name, group in groups.items():
        torch.manual_seed(0)
        model = Gpt(VOCAB, given["depth"], given["width"], given["heads"])
        models[name] = DistributedDataParallel(model, process_group=group)
        optimizers[name] = torch.optim.AdamW(model.parameters(), 1e-3)
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    losses: dict[str, list[float]] = {name: [] for name in groups}
    for number, name in enumerate(turns(list(groups), 1 + given["rounds"])):
        dist.barrier()
        for _ in range(given["steps"]):
            generator = torch.Generator().manual_seed(ranks * steps[name] + rank)
            shape = (given["rows"], given["length"] + 1)
            tokens = torch.randint(VOCAB // 64, shape, generator=generator)
            start = time.perf_counter()
            logits = models[name](tokens[:, :-1])
            loss = f.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            if number >= len(groups):  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
            losses[name].append(loss.item())
            steps[name] += 1
    weights = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models.values()]
    return {
        "parameters": weights[0].numel(),
        "seconds": seconds,
        "losses": losses,
        "largest_difference_of_weights": (weights[0] - weights[-1]).abs().max().item(),
    }


def summary(runs: dict[int, dict[str, Any]], given: dict[str, Any]) -> list[dict[str, Any]]:
    """Rates by backend and ranks; speed-up over the fewest ranks of the same backend."""
    fewest = min(runs)
    rate = {
        (name, ranks): ranks * given["rows"] * given["length"] / median(seconds)
        for ranks, run in runs.items()
        for name, seconds in run["seconds"].items()
    }
    return [
        {
            "backend": name,
            "ranks": ranks,
            "tokens_per_s": value,
            "speedup": value / rate[name, fewest],
            "efficiency": value / rate[name, fewest] * fewest / ranks,
        }
        for (name, ranks), value in rate.items()
    ]


def plot(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    ranks = sorted({row["ranks"] for row in rows})
    names = list(dict.fromkeys(row["backend"] for row in rows))
    for index, name in enumerate(names):
        mine = [row for row in rows if row["backend"] == name]
        places = [ranks.index(r["ranks"]) + (index - (len(names) - 1) / 2) * 0.36 for r in mine]
        heights = [row["tokens_per_s"] for row in mine]
        axis.bar(places, heights, 0.34, color=COLOURS.get(name, "#444444"), label=name)
        for x, row in zip(places, mine, strict=True):
            axis.text(x, row["tokens_per_s"], f"{row['speedup']:.2f}x", ha="center", va="bottom")
    axis.set_xticks(range(len(ranks)), [str(r) for r in ranks])
    axis.set_xlabel("ranks")
    axis.set_ylabel("tokens/s, median")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--backends", default="rocenante,gloo")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2, help="sequences a rank has in a step")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3, help="in a round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    names = ("depth", "width", "heads", "rows", "length", "rounds", "steps")
    given = {name: getattr(options, name) for name in names}
    before = machine.load_average()
    runs = {
        int(ranks): launch(int(ranks), options.backends.split(","), measure, given)
        for ranks in options.ranks.split(",")
    }
    rows = summary(runs, given)
    size = next(iter(runs.values()))["parameters"]
    title = f"GPT of {size / 1e6:.1f} M parameters, {options.rows} x {options.length} tokens a rank"
    table = Table(title=title)
    for heading in ("ranks", "backend", "tokens/s", "speed-up", "efficiency"):
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for row in rows:
        values = f"{row['tokens_per_s']:.0f}", f"{row['speedup']:.2f}", f"{row['efficiency']:.0%}"
        table.add_row(str(row["ranks"]), row["backend"], *values)
    console = Console()
    console.print(table)
    for ranks, run in runs.items():
        difference = run["largest_difference_of_weights"]
        console.print(f"{ranks} ranks: the backends' weights differ by {difference:.1e} at most")
    if options.json:
        save(options.json, document({**given, "summary": rows, "runs": runs}, before))
    if options.plot:
        plot(options.plot, title, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
