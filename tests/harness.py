"""Runs a function on several local ranks: forked processes, or threads for Communicator.

Forking costs milliseconds where starting Python and importing torch takes seconds: torch is
imported once, in the parent. Every run ends within its timeout, with the stacks of ranks that hang.

A test that takes a transport (groups(), TRANSPORTS) runs over shared memory on this machine, and
over RDMA or over both in a guest with Soft-RoCE, where each rank has a device of its own.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from crew import Crew, Outcome, RankError, outcome_of

StoreKind = Literal["file", "tcp"]
Transport = Literal["shm", "verbs", "mixed"]  # mixed: even and odd ranks on two hosts, as it were
GROUP_TIMEOUT = timedelta(seconds=30)

_crew = Crew()
_SLOWER = 4  # all ranks of a guest share one processor
_DEVICES = 5
IN_GUEST = pytest.mark.softroce(devices=_DEVICES, timeout=900)
TRANSPORTS = ["shm", pytest.param("verbs", marks=IN_GUEST), pytest.param("mixed", marks=IN_GUEST)]


def groups(
    shm: Sequence[int], verbs: Sequence[int] = (2,), mixed: Sequence[int] = (3,)
) -> pytest.MarkDecorator:
    """Gives a test its ``transport`` and ``world``: each of the world sizes over the transport."""
    cases = [pytest.param("shm", world) for world in shm]
    cases += [pytest.param("verbs", world, marks=IN_GUEST) for world in verbs]
    cases += [pytest.param("mixed", world, marks=IN_GUEST) for world in mixed]
    return pytest.mark.parametrize(("transport", "world"), cases)


def environment(transport: Transport, rank: int) -> dict[str, str]:
    """The variables that put a rank on the transport."""
    if transport == "shm":
        return {}
    variables = {"ROCENANTE_IB_HCA": f"=rxe{rank % _DEVICES}"}
    if transport == "verbs":
        return {**variables, "ROCENANTE_TRANSPORT": "verbs"}
    return {**variables, "ROCENANTE_HOST_ID": "even" if rank % 2 == 0 else "odd"}


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
    transport: Transport = "shm",
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
        transport=transport,
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
    transport: Transport = "shm",
    backend: str | None = "rocenante",
    timeout: float = 60,
    store: StoreKind = "file",
    group_timeout: timedelta = GROUP_TIMEOUT,
) -> list[Outcome]:
    """As run_ranks, but with what became of each rank. Raises RankError only if one hangs."""
    with tempfile.TemporaryDirectory() as folder, no_leftovers():
        if transport != "shm":
            common = (world_size, arguments, transport, backend, store, folder, group_timeout)
            each = [(function, rank, *common) for rank in range(world_size)]
            return _crew.run(_with_group, each, timeout * _SLOWER)
        ranks = [
            _Rank.start(
                lambda r=rank: _with_group(
                    function,
                    r,
                    world_size,
                    arguments,
                    transport,
                    backend,
                    store,
                    folder,
                    group_timeout,
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
    transport: Transport,
    backend: str | None,
    store: StoreKind,
    folder: str,
    group_timeout: timedelta,
) -> Any:
    os.environ.update(environment(transport, rank))
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
        with open(stacks, "w") as file:
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
            torch.set_num_threads(1)
            outcome = outcome_of(body)
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


def run_communicators(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    transport: Transport = "shm",
    timeout: float = 60,
) -> list[Any]:
    """function(communicator, *arguments) on each rank; results by rank.

    Threads over shared memory, else processes: a rank's variables are its process's.
    """
    if transport == "shm":
        return run_threads(function, world_size, *arguments, timeout=timeout)
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(
            _with_communicator,
            world_size,
            function,
            arguments,
            f"{folder}/meeting",
            transport=transport,
            backend=None,
            timeout=timeout,
        )


def _with_communicator(
    rank: int, world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...], path: str
) -> Any:
    from rocenante import Communicator

    store = dist.FileStore(path, world_size)
    with Communicator(rank, world_size, store, GROUP_TIMEOUT) as communicator:
        return function(communicator, *arguments)


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
