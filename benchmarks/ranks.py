"""What the workloads here share: local ranks, rounds in turns, and files of results."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rocenante.bench import machine

COLOURS = {"rocenante": "#c8102e", "gloo": "#3b6fb6"}
Work = Callable[[dict[str, dist.ProcessGroup], Any], Any]


def _rank(
    rank: int, ranks: int, backends: Sequence[str], folder: str, work: Work, given: Any
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = dist.FileStore(f"{folder}/store", ranks)
    limit = timedelta(seconds=300)
    dist.init_process_group(backends[0], store=store, rank=rank, world_size=ranks, timeout=limit)
    groups = {backends[0]: dist.group.WORLD}
    groups |= {b: dist.new_group(backend=b, timeout=limit) for b in backends[1:]}
    result = work(groups, given)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def launch(ranks: int, backends: Sequence[str], work: Work, given: Any) -> Any:
    """work(groups by backend, given) on local ranks, each on one core; rank 0's result."""
    with tempfile.TemporaryDirectory() as folder:
        # Forked: torch is imported already.
        mp.start_processes(
            _rank, (ranks, backends, folder, work, given), ranks, start_method="fork"
        )
        return json.loads(Path(folder, "result.json").read_text())


def turns(names: Sequence[str], rounds: int) -> list[str]:
    """Each name once a round, in reversed order every other round."""
    return [n for r in range(rounds) for n in (names if r % 2 == 0 else reversed(names))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def document(results: dict[str, Any], load_before: list[float]) -> dict[str, Any]:
    return {
        "args": machine.command_line(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "revision": machine.git_revision(),
        "load_average": {"before": load_before, "after": machine.load_average()},
        "niceness": os.nice(0),  # below 0: measured ahead of what else the machine did
        "env": machine.relevant_env(),
        **results,
    }


def save(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
