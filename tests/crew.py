"""Ranks that outlive a test: processes, forked when first needed, that run function after function.

Forking a process that has torch takes milliseconds on this machine, but a second in a guest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

_STACKS_S = 0.5


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


def outcome_of(body: Callable[[], Any]) -> Outcome:
    """Runs it; an exception is an outcome, too."""
    outcome = Outcome()
    try:
        outcome.value = body()
    except BaseException as error:
        outcome.error = f"{type(error).__name__}: {error}"
        outcome.trace = traceback.format_exc()
    return outcome


@dataclass
class _Member:
    pid: int
    end: Connection
    stacks: IO[str]

    def stop(self) -> Outcome:
        """Kills the process, if it still runs; says how it ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.end.close()
        self.stacks.close()
        if os.WIFSIGNALED(status):
            return Outcome(signal=os.WTERMSIG(status))
        return Outcome(exit_code=os.WEXITSTATUS(status))


class Crew:
    """The processes by rank."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}

    def run(
        self, function: Callable[..., Any], arguments: list[tuple[Any, ...]], timeout: float
    ) -> list[Outcome]:
        """function(*arguments[rank]) on each rank. Raises RankError if one outlasts the timeout."""
        for rank in range(len(arguments)):
            if rank not in self._members:
                self._members[rank] = _start()
        outcomes = [Outcome()] * len(arguments)
        waiting: dict[Any, int] = {}
        start = time.monotonic()
        for rank, mine in enumerate(arguments):
            self._members[rank].end.send((function, mine))
            waiting[self._members[rank].end] = rank
        while waiting and time.monotonic() - start < timeout:
            for end in wait(list(waiting), timeout - (time.monotonic() - start)):
                rank = waiting.pop(end)
                try:
                    outcomes[rank] = self._members[rank].end.recv()
                except EOFError:
                    outcomes[rank] = self._members.pop(rank).stop()
                outcomes[rank].seconds = time.monotonic() - start
        if waiting:
            raise RankError(self._stacks(sorted(waiting.values()), timeout))
        return outcomes

    def _stacks(self, hung: list[int], timeout: float) -> str:
        """Ends ranks that hang; says where they hung."""
        for rank in hung:
            os.kill(self._members[rank].pid, signal.SIGCONT)
            os.kill(self._members[rank].pid, signal.SIGUSR1)
        time.sleep(_STACKS_S)
        text = f"ranks {hung} still ran after {timeout} s; their stacks:"
        for rank in hung:
            member = self._members.pop(rank)
            said = os.pread(member.stacks.fileno(), 1 << 20, 0).decode(errors="replace")
            text += f"\nrank {rank}:\n{said}"
            member.stop()
        return text


def _start() -> _Member:
    mine, its = Pipe()
    stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
    pid = os.fork()
    if pid:
        its.close()
        return _Member(pid, mine, stacks)
    mine.close()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    variables = dict(os.environ)
    while True:
        try:
            function, arguments = its.recv()
        except EOFError:
            os._exit(0)
        outcome = outcome_of(lambda f=function, a=arguments: f(*a))
        os.environ.clear()
        os.environ.update(variables)
        try:
            its.send(outcome)
        except Exception as error:
            its.send(Outcome(error=f"the result can't be pickled: {error}"))
