"""all_reduce(stream=...) between processes that share a GPU, which takes turns between them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RANK = """
import sys, torch, torch.distributed as dist, rocenante
rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with rocenante.Communicator(rank, size, dist.FileStore(path, size), 60) as c:
    stream = torch.cuda.Stream()
    for count in (1, 1000, 100_000):
        data = torch.full((count,), float(rank + 1), device="cuda")
        torch.cuda.synchronize()
        c.all_reduce(data, stream=stream)
        stream.synchronize()
        assert c.failure is None, c.failure
        assert data.eq(size * (size + 1) / 2).all().item(), count
    c.barrier()
"""


def test_ranks_as_processes(tmp_path: Path) -> None:
    """Two of them, three sizes."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            said, _ = rank.communicate(timeout=120)
            assert rank.returncode == 0, said
    finally:
        for rank in ranks:
            rank.kill()
