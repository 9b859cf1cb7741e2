"""The worker processes of one backend: started, commanded and ended as one group."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rocenante.bench.arms import start_arm
from rocenante.bench.channel import (
    Channel,
    Message,
    PeerClosedError,
    SocketChannel,
    StoreChannel,
    gather_sockets,
    gather_store,
)
from rocenante.bench.worker import Arm, isolate, pin_to_core, run_worker

EXIT_GRACE = 5.0


class WorkerError(RuntimeError):
    """A rank failed or died, or a group did not answer; the text names backend and rank."""


class Group(Protocol):
    """All ranks of one backend."""

    name: str
    version: str

    def exchange(self, message: Message, timeout: float) -> list[Message]:
        """Sends `message` to every rank; returns the answers in rank order. Raises WorkerError."""

    def close(self) -> None: ...


StartArm = Callable[[int, Any], Arm]


@dataclass(frozen=True)
class Launch:
    """What every group's workers have in common."""

    ranks: int
    folder: Path
    pin: bool
    device: str
    timeout: float


class Children:
    """Forked or spawned processes of one group, with their output kept for error messages."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pids: dict[int, int] = {}  # pid -> rank
        self.failed = False

    def fork(self, rank: int, body: Callable[[], int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(body)
        self.pids[pid] = rank

    def _become(self, body: Callable[[], int]) -> NoReturn:
        status = 1
        try:
            isolate()
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = body()
        finally:
            # Without the parent's exit handlers and buffers.
            os._exit(status)

    def how_ended(self, rank: int) -> str:
        """How the process of `rank` ended, for a person."""
        deadline = time.monotonic() + 1.0
        for pid, its_rank in self.pids.items():
            while its_rank == rank and time.monotonic() < deadline:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del self.pids[pid]
                    code = os.waitstatus_to_exitcode(status)
                    return (
                        f"was ended by {signal.Signals(-code).name}"
                        if code < 0
                        else f"exited with status {code}"
                    )
                time.sleep(0.01)
        return "has gone"

    def wait(self, seconds: float | None) -> None:
        """Reaps those that end within `seconds` (None: whenever), then kills the rest."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.pids:
            for pid in list(self.pids):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del self.pids[pid]
                    self.failed = self.failed or status != 0
                elif deadline is not None and time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def log_tail(log: Path, lines: int = 12) -> str:
    """The end of what the workers printed, indented; empty when they printed nothing."""
    if not log.exists():
        return ""
    text = log.read_text(errors="replace").strip().splitlines()[-lines:]
    return "\n".join("    " + line for line in text)


class SocketGroup:
    """Workers of this host, each on a stream socket."""

    def __init__(self, name: str, channels: Sequence[SocketChannel], children: Children) -> None:
        self.name = name
        self.version = ""
        self._channels = channels
        self._children = children

    def exchange(self, message: Message, timeout: float) -> list[Message]:
        for rank, channel in enumerate(self._channels):
            try:
                channel.send(message)
            except OSError as gone:
                raise WorkerError(self._death(rank)) from gone
        return self.gather(timeout)

    def gather(self, timeout: float) -> list[Message]:
        try:
            return check_replies(gather_sockets(self._channels, timeout))
        except PeerClosedError as gone:
            raise WorkerError(self._death(gone.rank)) from gone
        except TimeoutError as late:
            raise WorkerError(f"{self.name}: {late}") from late

    def _death(self, rank: int) -> str:
        tail = log_tail(self._children.log)
        ended = f"{self.name}: rank {rank} {self._children.how_ended(rank)}"
        return f"{ended}; its last output:\n{tail}" if tail else ended

    def close(self) -> None:
        for channel in self._channels:
            with suppress(OSError):
                channel.send({"exit": True})
            channel.close()
        self._children.wait(EXIT_GRACE)


def check_replies(replies: list[Message]) -> list[Message]:
    """The replies, unless one reports an error: that becomes WorkerError."""
    for reply in replies:
        if "error" in reply:
            error = reply["error"]
            raise WorkerError(f"{error['backend']}: rank {error['rank']} failed: {error['text']}")
    return replies


def greet(group: SocketGroup | StoreGroup, timeout: float) -> None:
    """Waits until every rank has brought its backend up."""
    group.version = str(group.gather(timeout)[0]["hello"]["version"])


def fork_group(backend: str, launch: Launch, start: StartArm | None = None) -> SocketGroup:
    """Forks the ranks of `backend`; `start` replaces the backend's own way of coming up.

    They meet through a FileStore in the launch's folder, so that no port is opened for it.
    """
    file = f"{backend}-{launch.ranks}".replace("/", "_")
    children = Children(launch.folder / f"{file}.log")
    meeting = launch.folder / f"{file}.store"
    pairs = [socket.socketpair() for _ in range(launch.ranks)]

    def default_start(rank: int, store: Any) -> Arm:
        return start_arm(backend, rank, launch.ranks, store, launch.device, launch.timeout)

    def life(rank: int) -> int:
        for other, (near, far) in enumerate(pairs):
            near.close()
            if other != rank:
                far.close()
        if launch.pin:
            pin_to_core(rank)

        def arm() -> Arm:
            dist: Any = importlib.import_module("torch.distributed")

            return (start or default_start)(rank, dist.FileStore(str(meeting), launch.ranks))

        return run_worker(backend, rank, SocketChannel(pairs[rank][1]), arm)

    for rank in range(launch.ranks):
        children.fork(rank, lambda rank=rank: life(rank))  # type: ignore[misc]
    for _, far in pairs:
        far.close()
    return _greeted(
        SocketGroup(backend, [SocketChannel(near) for near, _ in pairs], children), launch
    )


def _greeted(group: SocketGroup, launch: Launch) -> SocketGroup:
    try:
        greet(group, launch.timeout)
    except BaseException:
        group.close()
        raise
    return group


class StoreGroup:
    """Ranks on any hosts, reached through the Store that torchrun provides."""

    def __init__(self, name: str, store: Any, ranks: int) -> None:
        self.name = name
        self.version = ""
        self._channels = [
            StoreChannel(store, f"{name}/{rank}", "coordinator") for rank in range(ranks)
        ]

    def exchange(self, message: Message, timeout: float) -> list[Message]:
        for channel in self._channels:
            channel.send(message)
        return self.gather(timeout)

    def gather(self, timeout: float) -> list[Message]:
        try:
            return check_replies(gather_store(self._channels, timeout))
        except TimeoutError as late:
            raise WorkerError(f"{self.name}: {late}") from late

    def close(self) -> None:
        for channel in self._channels:
            channel.send({"exit": True})
        # The Store may end with this process, so not before all have read that.
        with suppress(WorkerError):
            self.gather(EXIT_GRACE)


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder for sockets, stores and logs; a socket's path may have 107 bytes."""
    return tempfile.TemporaryDirectory(prefix="rocenante-bench-", ignore_cleanup_errors=True)


def worker_channel(store: Any, backend: str, rank: int) -> Channel:
    """The worker's end of a StoreGroup's channel."""
    return StoreChannel(store, f"{backend}/{rank}", "worker")
