"""Worker groups: a wrong result is counted, a failure is told and nothing hangs or stays behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocenante.bench.arms import TorchArm
from rocenante.bench.case import Case
from rocenante.bench.coordinator import measure
from rocenante.bench.groups import Launch, SocketGroup, WorkerError, fork_group
from rocenante.bench.record import Block, Report
from tests.bench.test_bench_options import request

RANKS = 2


class Quiet:
    """A listener that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, text: str) -> None:
        pass

    def block_done(self, blocks: Sequence[Block]) -> None:
        pass


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(RANKS, tmp_path, pin=False, device="cpu", timeout=60.0)


@pytest.fixture
def started(launch: Launch) -> Iterator[Callable[[type[TorchArm]], SocketGroup]]:
    groups: list[SocketGroup] = []

    def start(kind: type[TorchArm]) -> SocketGroup:
        group = fork_group(
            "gloo", launch, lambda rank, store: kind("gloo", rank, RANKS, store, "cpu", 20.0)
        )
        groups.append(group)
        return group

    yield start
    for group in groups:
        group.close()


class AddsOne(TorchArm):
    """Rank 1's all_reduce is wrong in one element, only on the n-th call."""

    def _bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        call = super()._bind(case, source, target)

        def wrong() -> None:
            call()
            if self.rank == 1:
                target[3] += 1

        return wrong


class DoesNothing(TorchArm):
    def _bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        return lambda: None


class Raises(TorchArm):
    """Breaks on rank 1 once it is being timed."""

    calls = 0

    def barrier(self) -> None:
        self.calls += 1
        if self.calls > 4 and self.rank == 1:
            raise ZeroDivisionError("planted")
        super().barrier()


class Dies(Raises):
    def barrier(self) -> None:
        if self.calls >= 3 and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().barrier()


class Stalls(Raises):
    def barrier(self) -> None:
        if self.calls >= 3:
            time.sleep(3600)
        super().barrier()


class RefusesOnOneRank(TorchArm):
    def _bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        if self.rank == 1:
            raise ValueError("not on this rank")
        return super()._bind(case, source, target)


Start = Callable[[type[TorchArm]], SocketGroup]


def run(group: SocketGroup, timeout: float = 60.0, collective: str = "all_reduce") -> Report:
    report = Report()
    wanted = request(sizes=(64, 4096), iterations=4, timeout=timeout, collectives=(collective,))
    measure(wanted, [group], RANKS, report, Quiet())
    return report


def test_right_results_count_zero_in_both_placements(started: Start) -> None:
    report = run(started(TorchArm))
    [block] = report.blocks
    assert block.wrong() == 0
    assert [len(cell.times_us) for row in block.rows for cell in row.cells()] == [4] * 4


def test_one_wrong_element_is_counted_in_both_placements(started: Start) -> None:
    [block] = run(started(AddsOne)).blocks
    for row in block.rows:
        assert row.out_of_place is not None
        assert row.in_place is not None
        # Once before and once after the measurement.
        assert row.out_of_place.wrong == 2
        assert row.in_place.wrong == 2


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather"]
)
def test_an_output_that_is_not_written_is_wrong(started: Start, collective: str) -> None:
    [block] = run(started(DoesNothing), collective=collective).blocks
    for row in block.rows:
        assert all(cell.wrong for cell in row.cells())


def test_an_exception_on_one_rank_ends_the_run_with_its_text(started: Start) -> None:
    group = started(Raises)
    with pytest.raises(WorkerError, match="gloo: rank 1 failed: ZeroDivisionError: planted"):
        run(group)


def test_a_killed_rank_is_named(started: Start) -> None:
    group = started(Dies)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"gloo: rank 1 was ended by SIGKILL|Connection closed"):
        run(group)
    assert time.monotonic() - begin < 20


def test_a_stalled_group_is_a_timeout_and_leaves_no_process(started: Start) -> None:
    group = started(Stalls)
    pids = list(group._children.pids)
    with pytest.raises(WorkerError, match=r"no answer from rank 0, 1 within 1 s"):
        run(group, timeout=1.0)
    group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_refusal_by_one_rank_alone_is_told_soon(started: Start) -> None:
    group = started(RefusesOnOneRank)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 1 refuses the call \(not on this rank\), rank 0"):
        run(group)
    assert time.monotonic() - begin < 30


def test_a_backend_that_cannot_start_says_why(launch: Launch) -> None:
    def start(rank: int, store: Any) -> TorchArm:
        raise RuntimeError("no such device")

    with pytest.raises(WorkerError, match=r"rank [01] failed: RuntimeError: no such device"):
        fork_group("gloo", launch, start)


def test_an_operation_that_the_backend_lacks_is_a_note(started: Start) -> None:
    listener, report = Quiet(), Report()
    measure(request(op="avg"), [started(TorchArm)], RANKS, report, listener)
    assert listener.notes == ["gloo has no result for all_reduce: gloo has no reduction avg"]
    assert report.blocks == []
