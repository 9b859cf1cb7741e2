"""Each file in examples/ does what it says, with the ranks that it asks for."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
from pathlib import Path

from harness import run_ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(rank: int, world: int, name: str, folder: str) -> str:
    """What it prints. Ranks meet as under torchrun, by environment variables."""
    import torch.distributed as dist

    store = Path(folder, "port")
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        Path(folder, "port.new").write_text(str(server.port))
        os.rename(f"{folder}/port.new", store)
    while not store.exists():
        os.sched_yield()
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=store.read_text(),
        TORCHELASTIC_USE_AGENT_STORE="True",
        RANK=str(rank),
        WORLD_SIZE=str(world),
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


def run(name: str, world: int, folder: Path) -> list[str]:
    return run_ranks(example, world, name, str(folder), backend=None, timeout=120)


def test_all_are_tested() -> None:
    here = Path(__file__).read_text()
    for file in EXAMPLES.glob("*.py"):
        assert f'run("{file.name}"' in here, f"no test runs examples/{file.name}"
        assert file.name in (EXAMPLES / "README.md").read_text()


def test_all_reduce(tmp_path: Path) -> None:
    printed = run("all_reduce.py", 4, tmp_path)
    assert printed == [f"rank {rank} of 4: 6.0\n" for rank in range(4)]


def test_ddp(tmp_path: Path) -> None:
    printed = run("ddp.py", 2, tmp_path)
    found = re.fullmatch(r"2 ranks, 200 steps: loss (\d\.\d+)\n", printed[0])
    assert found, printed
    assert float(found[1]) < 0.005  # the mean of the data has 0.05
    assert printed[1] == ""


def test_tensor_parallel_mlp(tmp_path: Path) -> None:
    for rank, text in enumerate(run("tensor_parallel_mlp.py", 2, tmp_path)):
        found = re.fullmatch(r"rank (\d): (\d+) of 33088 parameters, differs .* by (\S+)\n", text)
        assert found, text
        assert int(found[1]) == rank
        assert int(found[2]) == 16576
        assert float(found[3]) < 1e-5


def test_replica_groups(tmp_path: Path) -> None:
    printed = run("replica_groups.py", 9, tmp_path)
    assert printed[:8] == [""] * 8
    lines = printed[8].splitlines()
    served = {(m[1], int(m[2])): int(m[3]) for line in lines[:-1] if (m := _REPLICA.match(line))}
    assert served.keys() == {("large", 0), ("large", 2), ("large", 4), ("small", 6), ("small", 7)}
    assert sum(n for (model, _), n in served.items() if model == "large") == 10
    assert sum(n for (model, _), n in served.items() if model == "small") == 30
    assert min(served.values()) >= 1
    found = re.fullmatch(r"40 answers; they differ from one process's by (\S+) at most", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) < 1e-5


_REPLICA = re.compile(r"(\w+) replica led by rank (\d): (\d+) requests")
