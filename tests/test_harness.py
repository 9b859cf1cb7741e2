"""The harness itself: a rank that hangs or dies must not go unnoticed."""

from __future__ import annotations

import os
import signal
import time

import pytest
from crew import RankError
from harness import Transport, run_outcomes, run_ranks

# Ranks forked for each run, and ranks that outlive it.
both = pytest.mark.parametrize("transport", ["shm", "verbs"])


@both
def test_harness_reports_hangs(transport: Transport) -> None:
    with pytest.raises(RankError, match=r"(?s)ranks \[0, 1\] still ran.*in _sleeper"):
        run_outcomes(_sleeper, 2, transport=transport, backend=None, timeout=0.5)


def _sleeper(rank: int, world: int) -> None:
    time.sleep(60)


@both
def test_harness_reports_deaths(transport: Transport) -> None:
    outcomes = run_outcomes(_victim, 2, transport=transport, backend=None)
    assert [o.signal for o in outcomes] == [0, signal.SIGKILL]
    # And the next run has both ranks again.
    assert run_ranks(_pid, 2, transport=transport, backend=None)[0] != os.getpid()


def _victim(rank: int, world: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _pid(rank: int, world: int) -> int:
    return os.getpid()


@both
def test_harness_reports_exceptions_and_forgets_variables(transport: Transport) -> None:
    with pytest.raises(RankError, match=r"rank 1: ValueError: on purpose"):
        run_ranks(_raises, 2, transport=transport, backend=None)
    assert run_ranks(_left, 2, transport=transport, backend=None) == [None, None]


def _raises(rank: int, world: int) -> None:
    os.environ["ROCENANTE_LEFT"] = "1"
    if rank == 1:
        raise ValueError("on purpose")


def _left(rank: int, world: int) -> str | None:
    return os.environ.get("ROCENANTE_LEFT")
