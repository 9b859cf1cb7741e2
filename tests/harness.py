"""Runs a function on several local ranks: forked processes, or threads for Communicator.

Forking costs milliseconds where starting Python and importing torch takes seconds: torch is
imported once, in the parent. Every run ends within its timeout, with the stacks of ranks that hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import selectors
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

StoreKind = Literal["file", "tcp"]
GROUP_TIMEOUT = timedelta(seconds=30)


@dataclass
class Outcome:
    """How one rank ended."""

    value: Any = None  # what the function returned
    error: str = ""  # the exception's class and text
    trace: str = ""  # its traceback
    signal: int = 0  # that ended the process
    seconds: float = 0.0  # from the start of all ranks to this one's end
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        return not (self.error or self.signal or self.exit_code)


class RankError(AssertionError):
    """At least one rank failed or hung."""


def shared_memory_files() -> set[str]:
    # tests/softroce keeps its guests' folders there while they run.
    names = os.listdir("/dev/shm")
    return {n for n in names if "rocenante" in n and not n.startswith("rocenante-softroce.")}


@contextlib.contextmanager
def no_leftovers() -> Iterator[None]:
    """Nothing of ours may be left in /dev/shm afterwards."""
    before = shared_memory_files()
    yield
    left = shared_memory_files() - before
    assert not left, f"left in /dev/shm: {sorted(left)}"


def make_store(kind: StoreKind, folder: str, rank: int, world_size: int) -> dist.Store:
    if kind == "file":
        return dist.FileStore(f"{folder}/store", world_size)
    port_file = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, GROUP_TIMEOUT, wait_for_workers=False)
        Path(folder, "port.new").write_text(str(store.port))
        os.rename(f"{folder}/port.new", port_file)
        return store
    while not port_file.exists():
        time.sleep(0.001)
    return dist.TCPStore("127.0.0.1", int(port_file.read_text()), None, False, GROUP_TIMEOUT)


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str | None = "rocenante",
    timeout: float = 60,
    store: StoreKind = "file",
    group_timeout: timedelta = GROUP_TIMEOUT,
) -> list[Any]:
    """function(rank, world_size, *arguments) on each rank; the results by rank.

    The default group exists while it runs, unless backend is None. Raises RankError if a rank
    raises, dies or outlasts the timeout (seconds).
    """
    outcomes = run_outcomes(
        function,
        world_size,
        *arguments,
        backend=backend,
        timeout=timeout,
        store=store,
        group_timeout=group_timeout,
    )
    bad = [
        f"rank {rank}: {o.error or f'signal {o.signal}, exit code {o.exit_code}'}\n{o.trace}"
        for rank, o in enumerate(outcomes)
        if not o.ok
    ]
    if bad:
        raise RankError("\n".join(bad))
    return [o.value for o in outcomes]


def run_outcomes(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    backend: str | None = "rocenante",
    timeout: float = 60,
    store: StoreKind = "file",
    group_timeout: timedelta = GROUP_TIMEOUT,
) -> list[Outcome]:
    """As run_ranks, but with what became of each rank. Raises RankError only if one hangs."""
    with tempfile.TemporaryDirectory() as folder, no_leftovers():
        ranks = [
            _Rank.start(
                lambda r=rank: _with_group(
                    function, r, world_size, arguments, backend, store, folder, group_timeout
                ),
                Path(folder, f"stacks.{rank}"),
            )
            for rank in range(world_size)
        ]
        return _collect(ranks, timeout)


def _with_group(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    arguments: tuple[Any, ...],
    backend: str | None,
    store: StoreKind,
    folder: str,
    group_timeout: timedelta,
) -> Any:
    if backend is None:
        return function(rank, world_size, *arguments)
    dist.init_process_group(
        backend,
        store=make_store(store, folder, rank, world_size),
        rank=rank,
        world_size=world_size,
        timeout=group_timeout,
    )
    try:
        return function(rank, world_size, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass
class _Rank:
    pid: int
    pipe: int
    stacks: Path
    data: bytes = b""

    @staticmethod
    def start(body: Callable[[], Any], stacks: Path) -> _Rank:
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            return _Rank(pid, read, stacks)
        os.close(read)
        outcome = Outcome()
        with open(stacks, "w") as file:
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
            torch.set_num_threads(1)
            try:
                outcome.value = body()
            except BaseException as error:
                outcome.error = f"{type(error).__name__}: {error}"
                outcome.trace = traceback.format_exc()
            try:
                data = pickle.dumps(outcome)
            except Exception as error:
                data = pickle.dumps(Outcome(error=f"the result can't be pickled: {error}"))
            with os.fdopen(write, "wb") as out:
                out.write(data)
        os._exit(0)


def _collect(ranks: list[_Rank], timeout: float) -> list[Outcome]:
    start = time.monotonic()
    ends = [0.0] * len(ranks)
    selector = selectors.DefaultSelector()
    for rank in ranks:
        selector.register(rank.pipe, selectors.EVENT_READ, rank)
    while selector.get_map() and time.monotonic() - start < timeout:
        for key, _ in selector.select(timeout - (time.monotonic() - start)):
            rank = key.data
            chunk = os.read(rank.pipe, 1 << 16)
            rank.data += chunk
            if not chunk:
                selector.unregister(rank.pipe)
                ends[ranks.index(rank)] = time.monotonic() - start
    hung = [ranks.index(key.data) for key in list(selector.get_map().values())]
    selector.close()
    stacks = ""
    for number in hung:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[number].pid, signal.SIGCONT)
            os.kill(ranks[number].pid, signal.SIGUSR1)
    if hung:
        time.sleep(0.5)
        stacks = "".join(f"\nrank {n}:\n{ranks[n].stacks.read_text()}" for n in hung)
    outcomes = []
    for number, rank in enumerate(ranks):
        os.close(rank.pipe)
        if number in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        _, status = os.waitpid(rank.pid, 0)
        outcome = pickle.loads(rank.data) if rank.data else Outcome()
        outcome.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        outcome.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        outcome.seconds = ends[number]
        outcomes.append(outcome)
    if hung:
        raise RankError(f"ranks {hung} still ran after {timeout} s; their stacks:{stacks}")
    return outcomes


def run_threads(
    function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 60
) -> list[Any]:
    """function(communicator, *arguments), each rank a thread of this process; results by rank."""
    from rocenante import Communicator

    store = dist.HashStore()
    results: list[Any] = [None] * world_size
    errors: list[str] = []

    def body(rank: int) -> None:
        try:
            with Communicator(rank, world_size, store, timeout) as communicator:
                results[rank] = function(communicator, *arguments)
        except BaseException:
            errors.append(f"rank {rank}:\n{traceback.format_exc()}")

    threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(world_size)]
    with no_leftovers():
        for thread in threads:
            thread.start()
        end = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            with tempfile.TemporaryFile("w+") as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                errors.append(f"threads still ran after {timeout} s:\n{file.read()}")
    if errors:
        raise RankError("\n".join(errors))
    return results
