"""One rank of one backend: runs the blocks that the coordinator asks for.

Needs numpy and the standard library only: an MPI rank runs it in an environment of its own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rocenante.bench import verify
from rocenante.bench.case import UNSYNCHRONISED, Case, UnsupportedError, allocate
from rocenante.bench.channel import Channel, Message
from rocenante.bench.options import OURS, base

_PR_SET_PDEATHSIG = 1
_CACHED_OPERATIONS = 2  # out of place and in place of the size at hand


class Arm(Protocol):
    """A backend as the worker sees it. Arrays are whatever the backend's users hold."""

    name: str
    rank: int
    size: int
    version: str

    def empty(self, elements: int, dtype: str) -> Any: ...

    def write(self, array: Any, values: npt.NDArray[Any]) -> None: ...

    def read(self, array: Any) -> npt.NDArray[Any]: ...

    def bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        """The call to measure; it returns once the result is there. Raises UnsupportedError."""

    def barrier(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Operation:
    case: Case
    source: Any
    target: Any
    run: Callable[[], object]


def prepare(arm: Arm, case: Case) -> Operation:
    source, target = allocate(case, arm.rank, arm.size, lambda n: arm.empty(n, case.dtype))
    return Operation(case, source, target, arm.bind(case, source, target))


def verified_run(arm: Arm, operation: Operation) -> int:
    """Runs once on known inputs and counts this rank's wrong elements."""
    case = operation.case
    if case.collective == "barrier":
        operation.run()
        return 0
    # First something that the answer is not, so that an untouched output counts as wrong. In place
    # the input, written after it, overlaps.
    poison = np.full(case.out_elements(arm.size), 99, dtype=verify.wide_dtype(case.dtype))
    arm.write(operation.target, poison)
    receives = case.collective != "broadcast" or arm.rank == case.root
    values = verify.input_values(case, arm.rank, arm.size)
    arm.write(operation.source, values if receives else np.full_like(values, 99))
    arm.barrier()
    operation.run()
    if case.collective in ("reduce", "gather") and arm.rank != case.root:
        return 0
    return verify.count_wrong(case, arm.rank, arm.size, arm.read(operation.target))


def timed_run(arm: Arm, operation: Operation, iterations: int, warmups: int) -> list[float]:
    """Microseconds of every iteration on this rank.

    A collective in which every rank waits for all keeps the iterations of the ranks aligned by
    itself, so it runs back to back; the others get a barrier, outside the measured time, before
    each iteration.
    """
    run, now = operation.run, time.perf_counter_ns
    separate = operation.case.collective in UNSYNCHRONISED
    begins, ends = [0] * iterations, [0] * iterations
    collecting = gc.isenabled()
    gc.disable()
    try:
        arm.barrier()
        for _ in range(warmups):
            run()
        if separate:
            for i in range(iterations):
                arm.barrier()
                begins[i] = now()
                run()
                ends[i] = now()
        else:
            stamp = now()
            for i in range(iterations):
                begins[i] = stamp
                run()
                ends[i] = stamp = now()
    finally:
        if collecting:
            gc.enable()
    return [(end - begin) / 1e3 for begin, end in zip(begins, ends, strict=True)]


def answer(arm: Arm, operations: dict[Case, Operation], message: Message) -> Message:
    """Runs one block: {"run": {"case", "iterations", "warmups", "check"}}."""
    request = message["run"]
    case = Case(**request["case"])
    operation = operations.get(case)
    if operation is None:
        while len(operations) >= _CACHED_OPERATIONS:
            operations.pop(next(iter(operations)))
        try:
            operation = prepare(arm, case)
            wrong = verified_run(arm, operation)
        except Exception as error:
            if isinstance(error, _refusals(arm)):
                return {"refused": str(error).strip().split("\n")[0]}
            raise
        operations[case] = operation
    elif request["check"]:
        wrong = verified_run(arm, operation)
    else:
        wrong = 0
    times = timed_run(arm, operation, request["iterations"], request["warmups"])
    return {"times": times, "wrong": wrong}


def _refusals(arm: Arm) -> tuple[type[Exception], ...]:
    """What means "no such operation here" when the first call raises it; peers are not strict."""
    certain = (UnsupportedError, NotImplementedError, TypeError, ValueError)
    return certain if base(arm.name) in OURS else (*certain, RuntimeError)


def serve(arm: Arm, channel: Channel) -> None:
    """Answers until told to exit or until the coordinator is gone."""
    channel.send({"hello": {"backend": arm.name, "rank": arm.rank, "version": arm.version}})
    operations: dict[Case, Operation] = {}
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        if "exit" in message:
            return
        channel.send(answer(arm, operations, message))


def failure(backend: str, rank: int, error: BaseException) -> Message:
    """The message that reports `error` to the coordinator."""
    text = "".join(traceback.format_exception(error))
    return {"error": {"backend": backend, "rank": rank, "text": describe(error), "traceback": text}}


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def run_worker(backend: str, rank: int, channel: Channel, start: Callable[[], Arm]) -> int:
    """The life of a worker process; returns its exit status. Never raises."""
    try:
        arm = start()
        serve(arm, channel)
        arm.close()
        with suppress(
            OSError, RuntimeError
        ):  # only a coordinator that serves the Store waits for it
            channel.send({"bye": rank})
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError, RuntimeError):  # the coordinator may be gone
            channel.send(failure(backend, rank, error))
        return 1
    return 0


def isolate() -> None:
    """The coordinator ends its workers, not the terminal; and they do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def pin_to_core(index: int) -> None:
    """Confines this process to one of the processors that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})
