"""Ranks that disagree, die, stop or never come; refused memory; malformed variables.

Each must end in an exception that names what to fix, on every rank that is left, in bounded time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from crew import Outcome
from harness import Transport, groups, run_outcomes, run_ranks
from torch.distributed import ReduceOp

OTHERS: dict[str, tuple[Callable[[], object], str, str]] = {
    # What rank 1 calls instead of all_reduce(torch.ones(4)), and both calls as the text shows them.
    "collective": (lambda: dist.broadcast(torch.ones(4), 0), "all_reduce", "broadcast"),
    "size": (lambda: dist.all_reduce(torch.ones(5)), "16 bytes", "20 bytes"),
    "large size": (lambda: dist.all_reduce(torch.ones(500_000)), "16 bytes", "2000000 bytes"),
    "dtype": (lambda: dist.all_reduce(torch.ones(4).int()), "float32", "int32"),
    "operator": (lambda: dist.all_reduce(torch.ones(4), ReduceOp.MAX), "sum", "max"),
    "barrier": (lambda: dist.barrier(), "all_reduce", "barrier"),
}


def _differ(rank: int, world: int, what: str) -> None:
    dist.all_reduce(torch.ones(2))
    if rank == 1:
        OTHERS[what][0]()
    else:
        dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize("what", OTHERS)
@groups(shm=[2, 3], verbs=[])
def test_different_calls(what: str, transport: Transport, world: int) -> None:
    _, here, there = OTHERS[what]
    for rank, outcome in enumerate(run_outcomes(_differ, world, what, transport=transport)):
        assert outcome.error.startswith("DistBackendError"), outcome
        for r in range(world):
            line = next(x for x in outcome.error.splitlines() if x.strip().startswith(f"rank {r}:"))
            assert (there if r == 1 else here) in line, f"on rank {rank}: {outcome.error}"
        assert outcome.seconds < 10 or transport != "shm"  # a guest's ranks may take long to start


def _roots(rank: int, world: int) -> None:
    dist.broadcast(torch.ones(3), src=rank)
    dist.barrier()  # a root waits for nobody: here at the latest it sees what the others did


@groups(shm=[2])
def test_different_roots(transport: Transport, world: int) -> None:
    for outcome in run_outcomes(_roots, world, transport=transport):
        assert "root 0" in outcome.error
        assert "root 1" in outcome.error


def _splits(rank: int, world: int) -> None:
    sizes = [2, 2] if rank == 0 else [3, 1]
    dist.all_to_all_single(torch.empty(4), torch.ones(4), sizes, [2, 2])


@groups(shm=[2], mixed=[])
def test_splits_that_do_not_fit(transport: Transport, world: int) -> None:
    for outcome in run_outcomes(_splits, world, transport=transport):
        assert outcome.error.startswith("DistBackendError"), outcome
        assert "split sizes" in outcome.error
        assert "12" in outcome.error


def _different_message(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(5), 0)


@groups(shm=[2], mixed=[])
def test_message_of_another_size(transport: Transport, world: int) -> None:
    outcome = run_outcomes(_different_message, world, transport=transport)[1]
    assert outcome.error.startswith("DistBackendError"), outcome
    assert "16" in outcome.error
    assert "20" in outcome.error


def _skips_one(rank: int, world: int) -> None:
    if rank != 0:
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(9))
    dist.barrier()


@groups(shm=[2], mixed=[])
def test_skipped_call(transport: Transport, world: int) -> None:
    for outcome in run_outcomes(_skips_one, world, transport=transport):
        assert outcome.error.startswith("DistBackendError"), outcome


def _busy(rank: int, world: int, how: int, wake_s: float = 0.0) -> None:
    t = torch.ones(1000)
    dist.all_reduce(t)
    if rank == 1:
        if how == signal.SIGSTOP:  # something must wake it for the parent to collect it
            os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", f"sleep {wake_s}; kill -CONT {os.getpid()}")
        os.kill(os.getpid(), how)
    while True:
        dist.all_reduce(t)


@groups(shm=[2, 4])
def test_killed(transport: Transport, world: int) -> None:
    """Survivors raise within 2 s, naming the rank.

    Over RDMA tests/softroce holds them to it, without Python's share of a slow guest.
    """
    limit_s = 2 if transport == "shm" else 10
    outcomes = run_outcomes(_busy, world, int(signal.SIGKILL), transport=transport)
    assert outcomes[1].signal == signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank != 1:
            assert outcome.error.startswith("DistBackendError"), outcome
            assert "rank 1" in outcome.error
            assert outcome.seconds - outcomes[1].seconds < limit_s


@groups(shm=[3], verbs=[3], mixed=[])
def test_stopped(transport: Transport, world: int) -> None:
    """Within the timeout; the text says that the process is stopped, or that its host is alive."""
    limit_s, wake_s = (1, 4) if transport == "shm" else (6, 25)  # the limit holds for init, too
    outcomes = run_outcomes(
        _busy,
        world,
        int(signal.SIGSTOP),
        wake_s,
        transport=transport,
        group_timeout=timedelta(seconds=limit_s),
        timeout=60,
    )
    for rank in (0, 2):
        assert outcomes[rank].error.startswith("DistBackendError"), outcomes[rank]
        assert "rank 1" in outcomes[rank].error
        assert outcomes[rank].seconds < wake_s
    seen = "stopped" if transport == "shm" else "which answers"
    assert seen in outcomes[0].error + outcomes[2].error
    assert outcomes[1].error.startswith("DistBackendError"), outcomes[1]


def _killed_in_recv(rank: int, world: int) -> None:
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.ones(3), 1)


@groups(shm=[2], mixed=[])
def test_killed_before_it_sends(transport: Transport, world: int) -> None:
    outcomes = run_outcomes(_killed_in_recv, world, transport=transport)
    assert outcomes[0].error.startswith("DistBackendError"), outcomes[0]
    assert "rank 1" in outcomes[0].error
    assert outcomes[0].seconds - outcomes[1].seconds < (2 if transport == "shm" else 10)


def _absent(rank: int, world: int, path: str) -> None:
    if rank == 1:
        return
    dist.init_process_group(
        "rocenante",
        store=dist.FileStore(path, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=1),
    )


def test_rank_that_never_comes(tmp_path: Path) -> None:
    outcomes = run_outcomes(_absent, 3, str(tmp_path / "store"), backend=None)
    for rank in (0, 2):
        assert outcomes[rank].error.startswith("DistBackendError"), outcomes[rank]
        assert "rank 1" in outcomes[rank].error
        assert outcomes[rank].seconds < 5


def _dies_at_init(rank: int, world: int, path: str) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _absent(rank, world, path)


def test_rank_that_dies_at_init(tmp_path: Path) -> None:
    outcome = run_outcomes(_dies_at_init, 2, str(tmp_path / "store"), backend=None)[0]
    assert "rank 1" in outcome.error
    assert outcome.seconds < 5


def _with_variables(rank: int, world: int, by_rank: list[dict[str, str]], path: str) -> None:
    os.environ.update(by_rank[rank])
    dist.init_process_group(
        "rocenante", store=dist.FileStore(path, world), rank=rank, world_size=world
    )
    t = torch.ones(3)
    dist.all_reduce(t)
    assert torch.equal(t, torch.full((3,), float(world)))
    dist.destroy_process_group()


def variables(tmp_path: Path, *by_rank: dict[str, str]) -> list[Outcome]:
    return run_outcomes(
        _with_variables, len(by_rank), list(by_rank), str(tmp_path / "s"), backend=None, timeout=30
    )


def test_different_configuration(tmp_path: Path) -> None:
    for outcome in variables(tmp_path, {}, {"ROCENANTE_SLOT_BYTES": "64K"}):
        assert "ROCENANTE_SLOT_BYTES" in outcome.error
        assert "65536" in outcome.error
        assert "524288" in outcome.error


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ROCENANTE_SLOT_BYTES", "many", "a number of bytes from"),
        ("ROCENANTE_SLOT_BYTES", "1", "a number of bytes from"),
        ("ROCENANTE_TRANSPORT", "carrier-pigeon", "one of auto, shm"),
        ("ROCENANTE_LOG", "", "one of error, warn, info"),
        ("ROCENANTE_INIT_TIMEOUT", "-1", "seconds"),
    ],
)
def test_malformed_variable(name: str, value: str, text: str, tmp_path: Path) -> None:
    (outcome,) = variables(tmp_path, {name: value})
    assert f'{name}="{value}"' in outcome.error
    assert text in outcome.error


def test_unknown_variable(tmp_path: Path) -> None:
    code = (
        "import torch.distributed as d; d.init_process_group('rocenante',"
        f"init_method='file://{tmp_path}/s', rank=0, world_size=1); d.destroy_process_group()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROCENANTE_SLOT_BITES": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ROCENANTE_SLOT_BITES" in done.stderr
    assert "did you mean ROCENANTE_SLOT_BYTES?" in done.stderr


@pytest.mark.parametrize(("rank", "world"), [(0, 65), (-1, 2), (2, 2)])
def test_impossible_world(rank: int, world: int) -> None:
    import rocenante

    with pytest.raises(rocenante.UsageError, match=r"64|not in a world"):
        rocenante.Communicator(rank, world, dist.HashStore(), timeout=1)


_SYSCALLS = {"x86_64": 319, "aarch64": 279}  # memfd_create


def _refuse_memfd() -> None:
    """A seccomp filter, as containers have: memfd_create gives EPERM."""
    number = _SYSCALLS[os.uname().machine]
    code = [
        (0x20, 0, 0, 0),  # load the call's number
        (0x15, 0, 1, number),  # is it memfd_create?
        (0x06, 0, 0, 0x00050001),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allow
    ]
    filters = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(filters)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program)) == 0


def _without_memfd(rank: int, world: int, path: str) -> None:
    _refuse_memfd()
    with pytest.raises(PermissionError):
        os.memfd_create("x")
    _with_variables(rank, world, [{}] * world, path)


def test_memfd_refused(tmp_path: Path) -> None:
    """Then an unnamed file in /dev/shm serves, and nothing is left there."""
    run_ranks(_without_memfd, 2, str(tmp_path / "s"), backend=None)


def _no_descriptors(rank: int, world: int) -> None:
    store = dist.HashStore()  # which needs none itself
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
    with contextlib.suppress(OSError):  # the limit is on numbers: fill the gaps below it
        while True:
            os.dup(0)
    dist.init_process_group(
        "rocenante", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=2)
    )


def test_no_file_descriptors() -> None:
    (outcome,) = run_outcomes(_no_descriptors, 1, backend=None)
    assert outcome.error
    assert "Too many open files" in outcome.error or "No file descriptors" in outcome.error


def _tiny_shm(rank: int, world: int, path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x00020000) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"], check=True)
    _refuse_memfd()
    _with_variables(rank, world, [{}] * world, path)


@pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "-m", "mount", "--make-rprivate", "/"], check=False).returncode
    != 0
    if shutil.which("unshare")
    else True,
    reason="needs root and mount namespaces",
)
def test_shared_memory_full(tmp_path: Path) -> None:
    """An error at init, not a SIGBUS at the first use."""
    (outcome,) = run_outcomes(_tiny_shm, 1, str(tmp_path / "s"), backend=None)
    assert outcome.error.startswith("DistBackendError"), outcome
    assert "/dev/shm (make it larger" in outcome.error
    assert "No space left" in outcome.error


def _cuda(rank: int, world: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cuda"))
    tensor = torch.empty(3, device="meta")
    with pytest.raises(ValueError, match=r"meta.*CPU tensors only"):
        backend.allreduce([tensor])


def test_tensors_elsewhere() -> None:
    run_ranks(_cuda, 1)
