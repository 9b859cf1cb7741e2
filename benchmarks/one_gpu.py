"""Kernel time of all_reduce on one GPU: ranks as threads, eager and as a replayed graph.

python benchmarks/one_gpu.py --json out.json

The floor is a device-to-device copy of the same bytes. All ranks share one GPU and reach each other
through host memory, so this times the kernel and its proxy, not a network. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see tests/gpu/conftest.py

import torch
import torch.distributed as dist

import rocenante
from rocenante.bench import machine

SIZES = [8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20]
WORLDS = [1, 2, 4]
WARM_UP, TURNS, PER_TURN = 10, 20, 10


def timed(stream: torch.cuda.Stream, body: Callable[[], object]) -> list[float]:
    """Microseconds of one `body`, TURNS times, each the mean of PER_TURN in a row."""
    for _ in range(WARM_UP):
        body()
    samples = []
    for _ in range(TURNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        for _ in range(PER_TURN):
            body()
        end.record(stream)
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000 / PER_TURN)
    return samples


def measure(c: rocenante.Communicator) -> list[dict[str, Any]]:
    """One row a size; every result is checked."""
    rows = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for size in SIZES:
            data = torch.zeros(size // 4, device="cuda")
            other = torch.empty_like(data)
            data.fill_(c.rank + 1)
            c.all_reduce(data, out=other, stream=stream)
            stream.synchronize()
            if not other.eq(c.world_size * (c.world_size + 1) / 2).all().item():
                raise SystemExit(f"wrong result: {size} bytes, {c.world_size} ranks, {c.failure}")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                c.all_reduce(data, out=other, stream=stream)
            rows.append(
                {
                    "ranks": c.world_size,
                    "bytes": size,
                    "eager_us": timed(
                        stream, lambda d=data, o=other: c.all_reduce(d, out=o, stream=stream)
                    ),
                    "graph_us": timed(stream, graph.replay),
                    "copy_us": timed(stream, lambda d=data, o=other: o.copy_(d)),
                }
            )
            c.barrier()
    return rows


def run_world(world: int) -> list[dict[str, Any]]:
    """Rank 0's rows."""
    store = dist.HashStore()
    rows: list[list[dict[str, Any]]] = [[] for _ in range(world)]
    errors: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            with rocenante.Communicator(rank, world, store, 60, f"bench{world}") as c:
                rows[rank] = measure(c)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(r,)) for r in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return rows[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="where to write every sample")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing to measure", file=sys.stderr)
        return 1
    rows = [row for world in WORLDS for row in run_world(world)]
    print(f"{'ranks':>5} {'bytes':>9} {'eager':>9} {'graph':>9} {'copy':>9}   p50 in us")
    for row in rows:
        p50 = [statistics.median(row[f"{kind}_us"]) for kind in ("eager", "graph", "copy")]
        cells = " ".join(f"{value:9.2f}" for value in p50)
        print(f"{row['ranks']:>5} {row['bytes']:>9} {cells}")
    if arguments.json:
        document = {
            "command": " ".join(["python", *sys.argv]),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "gpu": rocenante.build_info()["gpu"],
            "machine": machine.describe(),
            "versions": machine.versions(),
            "revision": machine.git_revision(),
            "rows": rows,
        }
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
