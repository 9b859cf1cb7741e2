"""The doctor on several local ranks, over shared memory, whole and with ranks that end."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, Machine
from harness import run_outcomes
from torch.distributed import FileStore

from rocenante.doctor import pairs
from rocenante.doctor.checks import run_checks
from rocenante.doctor.cluster import examine
from rocenante.doctor.facts import Facts, read_software
from rocenante.doctor.finding import Level
from rocenante.doctor.meeting import AbsentError, Meeting, StoreGoneError

SOFTWARE = read_software()
Hook = Callable[[int], None]


def _facts(folder: Path) -> Facts:
    """A quiet machine, with the real software."""
    machine = Machine(folder)
    machine.software = SOFTWARE
    return machine.facts()


def _rank(
    rank: int, size: int, folder: Path, here: list[int], hook: Hook, timeout: float
) -> dict[str, Any] | None:
    """What rank 0 found, as JSON. The ranks not in `here` never come."""
    if rank not in here:
        return None
    store = FileStore(str(folder / "store"), size)
    store.set_timeout(timedelta(seconds=30))
    meeting = Meeting(store, rank, size)
    facts = _facts(folder / f"host{rank}")
    hook(rank)
    result = examine(meeting, facts, timeout, lambda share: hook(rank))
    return None if result is None else result.as_json()


def _run(
    folder: Path, size: int, here: list[int], hook: Hook = lambda rank: None, timeout: float = 10.0
) -> dict[str, Any]:
    outcomes = run_outcomes(_rank, size, folder, here, hook, timeout, backend=None, timeout=120)
    assert outcomes[0].ok, outcomes[0].trace
    found: dict[str, Any] = outcomes[0].value
    return found


def _bad(result: dict[str, Any]) -> list[dict[str, str]]:
    # A laptop without RDMA is one finding of its own, and a busy one may have a slow pair.
    return [
        f
        for f in result["findings"]
        if f["level"] != "ok" and f["check"] not in ("rdma-devices", "pair-slow")
    ]


def test_three_ranks(tmp_path: Path) -> None:
    result = _run(tmp_path, 3, [0, 1, 2])
    assert _bad(result) == []
    assert {(p["low"], p["high"]) for p in result["pairs"]} == {(0, 1), (0, 2), (1, 2)}
    for pair in result["pairs"]:
        assert pair["error"] is None
        assert pair["rail"] == "shared memory"
        assert 0 < pair["latency_us"] <= pair["slowest_us"]
        assert pair["low_to_high_mib_s"] > 0
        assert pair["high_to_low_mib_s"] > 0
    assert [clock["rank"] for clock in result["clocks"]] == [1, 2]
    # One clock: the bound holds, or the bound is wrong.
    assert all(abs(c["offset_s"]) <= c["error_s"] for c in result["clocks"])


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    result = _run(tmp_path, 3, [0, 2], timeout=4.0)
    (found,) = _bad(result)
    assert (found["check"], found["subject"]) == ("ranks", "rank 1")
    assert "rank 1 of 3 did not come within 4 s" in found["why"]
    assert [(p["low"], p["high"]) for p in result["pairs"] if not p["error"]] == [(0, 2)]


def test_a_rank_that_dies_while_measuring(tmp_path: Path) -> None:
    """Rank 2 ends itself in its first pair: named by its partner, and left out from then on."""

    def dies(rank: int) -> None:
        if rank == 2:

            def die(*arguments: object) -> Any:
                os.kill(os.getpid(), signal.SIGKILL)

            pairs.measure = die
        else:
            pairs._GRACE_S = 2.0

    start = time.monotonic()
    result = _run(tmp_path, 4, [0, 1, 2, 3], hook=dies, timeout=8.0)
    found = _bad(result)
    assert {f["check"] for f in found} == {"ranks", "pairs"}
    assert [f["subject"] for f in found if f["check"] == "ranks"] == ["rank 2"]
    good = {(p["low"], p["high"]) for p in result["pairs"] if not p["error"]}
    assert good == {(0, 1), (0, 3), (1, 3)}
    failed = [p for p in result["pairs"] if p["error"]]
    assert [2 in (p["low"], p["high"]) for p in failed] == [True]
    assert time.monotonic() - start < 60


def test_without_rank_0_the_others_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocenante.doctor.cluster._GATHER_S", 1.0)
    outcomes = run_outcomes(
        _rank, 2, tmp_path, [1], lambda rank: None, 1.0, backend=None, timeout=60
    )
    assert "AbsentError: rank 0 did not tell present within 3 s" in outcomes[1].error


def test_a_store_that_is_not_there() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(StoreGoneError, match=r"rank 1 can't reach the store at 127.0.0.1:1 "):
        Meeting.from_env(environ, 1.0)


def test_findings_of_several_hosts_are_told_once(tmp_path: Path) -> None:
    result = _run(tmp_path, 2, [0, 1])
    assert [f["subject"] for f in result["findings"] if f["check"] == "rdma-devices"] == ["spark-1"]
    assert len([f for f in run_checks(_facts(tmp_path / "x")) if f.level is not Level.OK]) == 1


def test_absent_errors_are_told_apart() -> None:
    assert issubclass(StoreGoneError, AbsentError)
    assert dataclasses.is_dataclass(FakeHost)
