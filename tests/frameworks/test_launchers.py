"""Every usual way to start ranks and let them meet."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from harness import no_leftovers, run_ranks

WORKER = Path(__file__).with_name("elastic_worker.py")
LIMIT = timedelta(seconds=60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check(rank: int, world: int) -> None:
    """The group works, and its ranks are those asked for."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world)
    ranks = torch.empty(world, dtype=torch.int64)
    dist.all_gather_into_tensor(ranks, torch.tensor([rank]))
    assert ranks.tolist() == list(range(world))
    dist.destroy_process_group()


def test_torchrun_restarts_after_a_killed_worker(tmp_path: Path) -> None:
    """The survivor's error names the dead; the restarted ranks form a new group."""
    with no_leftovers():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        options = ["--nproc-per-node", "2", "--max-restarts", "1"]
        done = subprocess.run(
            [*torchrun, *options, str(WORKER), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    seen = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert done.returncode == 0, done.stderr[-3000:]
    assert seen.keys() == {"0.0", "1.0", "1.1"}
    assert "rank 1" in seen["0.0"]
    assert seen["0.0"].startswith("error: ")
    assert seen["1.0"] == seen["1.1"] == "sum: 2000"


def spawned(rank: int, world: int, port: int) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        "rocenante", init_method=address, rank=rank, world_size=world, timeout=LIMIT
    )
    check(rank, world)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_multiprocessing(method: str) -> None:
    world = 2
    context = mp.start_processes(
        spawned, (world, free_port()), world, join=False, start_method=method
    )
    for _ in range(world):
        if context.join(timeout=150):
            return
    pytest.fail("ranks still ran after 150 s each")


def by_variables(rank: int, world: int, host: str, port: int) -> None:
    os.environ.update(
        MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world)
    )
    dist.init_process_group("rocenante", timeout=LIMIT)
    check(rank, world)


def by_url(rank: int, world: int, url: str) -> None:
    dist.init_process_group(
        "rocenante", init_method=url, rank=rank, world_size=world, timeout=LIMIT
    )
    check(rank, world)


@pytest.mark.parametrize("world", [2, 4])
def test_variables(world: int) -> None:
    run_ranks(by_variables, world, "127.0.0.1", free_port(), backend=None)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_url(scheme: str, world: int, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting" if scheme == "file" else f"tcp://127.0.0.1:{free_port()}"
    run_ranks(by_url, world, url, backend=None)


def with_own_hosts(rank: int, world: int, hosts: str, port: int) -> None:
    """In a mount namespace of its own, where the machine's name is 127.0.1.1's, as on Debian."""
    new_user, new_mounts, bind, recursive_private = 0x10000000, 0x20000, 0x1000, 0x44000
    libc = ctypes.CDLL(None, use_errno=True)
    flags = new_mounts if os.geteuid() == 0 else new_mounts | new_user
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    libc.mount(None, b"/", None, recursive_private, None)
    if libc.mount(hosts.encode(), b"/etc/hosts", None, bind, None):
        raise OSError(ctypes.get_errno(), "mount")
    assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
    by_variables(rank, world, socket.gethostname(), port)


def may_mount() -> bool:
    """Whether ranks can have a file of hosts of their own: not so in some containers."""
    if os.geteuid() == 0:
        command = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    else:
        command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_hostname_of_127_0_1_1(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("needs to mount a file over /etc/hosts, which this container forbids")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
    run_ranks(with_own_hosts, 2, str(hosts), free_port(), backend=None)


def by_store(rank: int, world: int, kind: str, folder: str, port: int) -> None:
    store: dist.Store
    if kind.startswith("tcp"):
        store = dist.TCPStore("127.0.0.1", port, world, rank == 0, LIMIT)
    else:
        store = dist.FileStore(f"{folder}/store", world)
    if kind.endswith("prefixed"):
        store = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    for _ in range(2):  # a second group through the same store
        dist.init_process_group(
            "rocenante", store=store, rank=rank, world_size=world, timeout=LIMIT
        )
        check(rank, world)
    if kind.startswith("tcp"):  # rank 0 serves it: the last to leave
        store.set(f"left{rank}", "")
        if rank == 0:
            store.wait([f"left{r}" for r in range(world)], LIMIT)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", ["file", "tcp", "file, prefixed", "tcp, prefixed"])
def test_store(kind: str, world: int, tmp_path: Path) -> None:
    run_ranks(by_store, world, kind, str(tmp_path), free_port(), backend=None)


def test_hash_store() -> None:
    """Lives in one process: its ranks are threads, each with a Backend."""
    import rocenante

    world, store, sums = 3, dist.HashStore(), {}

    def body(rank: int) -> None:
        backend = rocenante.Backend(store, rank, world, rocenante.Options(timeout=LIMIT), "threads")
        tensor = torch.full((9,), float(rank))
        backend.allreduce([tensor], dist.AllreduceOptions()).wait()
        sums[rank] = tensor.tolist()
        backend.shutdown()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == {rank: [3.0] * 9 for rank in range(world)}
