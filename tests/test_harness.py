"""The harness itself: a rank that hangs must not go unnoticed."""

from __future__ import annotations

import time

import pytest
from harness import RankError, run_outcomes


def test_harness_reports_hangs() -> None:
    with pytest.raises(RankError, match=r"(?s)ranks \[0, 1\] still ran.*in _sleeper"):
        run_outcomes(_sleeper, 2, backend=None, timeout=0.5)


def _sleeper(rank: int, world: int) -> None:
    time.sleep(60)
