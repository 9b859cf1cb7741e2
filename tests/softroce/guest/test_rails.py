"""Several rails between two ranks: what goes over which, and what happens when one dies.

Rank 0 has the devices rxe0 and rxe1, rank 1 has rxe2 and rxe3.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import programs
import pytest

pytestmark = pytest.mark.softroce(devices=4, timeout=600)

_VERBS = {"ROCENANTE_TRANSPORT": "verbs"}
_MOST = 262144
_RAIL_BYTES = 1_000_000  # well above what goes over a rail that gets no stripes


def _soak(ops: int, **environment: str) -> subprocess.Popen[str]:
    """Two ranks, each with two rails, in a checked run of collectives and messages."""
    return programs.start(
        *(programs.path("verbs_ranks"), "soak", "--ranks", "2", "--rails", "2"),
        *("--ops", str(ops), "--bytes", str(_MOST), "--messages", "60000"),
        **(_VERBS | environment),
    )


def _result(process: subprocess.Popen[str]) -> str:
    with process:
        text, _ = process.communicate(timeout=120)
    return text


def _check(text: str, ops: int) -> None:
    assert f"ops={ops} " in text, text
    assert "wrong=0 " in text, text


def _bytes_sent(device: int) -> int:
    return int(Path(f"/sys/class/net/ve{device}/statistics/tx_bytes").read_text())


def _wait_for_traffic(process: subprocess.Popen[str]) -> None:
    """Until both rails of rank 0 are in use."""
    goal = [_bytes_sent(device) + _RAIL_BYTES for device in (0, 1)]
    deadline = time.monotonic() + 30
    while not all(_bytes_sent(device) >= goal[device] for device in (0, 1)):
        assert process.poll() is None, _result(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def _down(*devices: int) -> Iterator[None]:
    """The bridge's ends of the devices' cables are down."""

    def set_links(state: str) -> None:
        batch = "".join(f"link set vp{device} {state}\n" for device in devices)
        subprocess.run(["ip", "-batch", "-"], input=batch, text=True, check=True)

    set_links("down")
    try:
        yield
    finally:
        set_links("up")
        deadline = time.monotonic() + 10
        for device in devices:  # for the tests that follow
            state = Path(f"/sys/class/infiniband/rxe{device}/ports/1/state")
            while "ACTIVE" not in state.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)


def _check_both_rails_carry_much(ops: int) -> None:
    before = [_bytes_sent(device) for device in range(4)]
    _check(_result(_soak(ops)), ops)
    sent = [_bytes_sent(device) - before[device] for device in range(4)]
    # Of large contributions each rail has half, of small ones the first has all.
    for one, other in (sent[:2], sent[2:]):
        assert min(one, other) > _RAIL_BYTES, sent
        assert min(one, other) > 0.6 * max(one, other), sent


def test_random_sizes_are_striped_over_both_rails() -> None:
    """Every element is checked, and the interfaces have counted what went over them."""
    _check_both_rails_carry_much(300)


@pytest.mark.softroce(devices=4, netem="loss 1%", timeout=600)
def test_random_sizes_over_both_rails_while_packets_are_lost() -> None:
    """So that stripes and signals overtake each other."""
    _check_both_rails_carry_much(200)


def test_one_rail_if_no_more_are_wanted() -> None:
    """ROCENANTE_RAILS=1 is one connection for each pair."""
    before = [_bytes_sent(device) for device in range(4)]
    _check(_result(_soak(100, ROCENANTE_RAILS="1")), 100)
    used = [_bytes_sent(device) - before[device] > _RAIL_BYTES for device in range(4)]
    assert used in ([True, False, True, False], [False, True, False, True])


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("test_exchange", "I1.*:I3.*:I6.WhatAPeerPublished*"),
        ("test_point_to_point", "*SameTag*:*AnySource*:*ALargeSend*"),
    ],
)
def test_the_unit_tests_that_depend_on_order_pass(program: str, tests: str) -> None:
    """What one connection orders by itself, two do not: a rank's leaving after its last signal."""
    done = programs.run(
        program, f"--gtest_filter={tests}", timeout=240, ROCENANTE_TEST_TRANSPORT="rails"
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[  PASSED  ]" in done.stdout


@pytest.mark.parametrize("device", [0, 3])
def test_a_rail_that_dies_is_dropped_and_nothing_is_lost(device: int) -> None:
    """Either rail, at either end: both ranks say so, and go on.

    Seen to fail: with nothing sent again by mend() the run stands still until its time is up.
    """
    process = _soak(300)
    _wait_for_traffic(process)
    with _down(device):
        text = _result(process)
    _check(text, 300)
    for rank in (0, 1):
        mine, theirs = (0, 2) if rank == 0 else (2, 0)
        rail = device % 2
        found = re.search(
            rf"warning: rank {rank} goes on over 1 of 2 rails to rank {1 - rank}: .*", text
        )
        assert found is not None, text
        assert f"from rxe{mine + rail}:1 (10.77.0.{mine + rail + 1})" in found[0]
        assert f"to rxe{theirs + rail}:1 (10.77.0.{theirs + rail + 1})" in found[0]
        if device == mine + rail:
            assert f"its own port rxe{device}:1 is down" in found[0]
    assert re.search(r"\(status 12\): this way there does not answer: check the ports", text), text


def test_without_a_rail_left_the_peer_is_lost() -> None:
    """First one rail goes, then, in the same run, the other one."""
    process = _soak(100_000)
    _wait_for_traffic(process)
    with _down(0):
        sent, deadline = _bytes_sent(1), time.monotonic() + 30
        while _bytes_sent(1) < sent + 2 * _RAIL_BYTES:
            assert process.poll() is None, _result(process)
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with _down(3):
            text = _result(process)
    assert process.returncode == 3, text
    assert "goes on over 1 of 2 rails" in text
    for rank in (0, 1):
        assert re.search(rf"rank {rank} is lost: .*no other of its 2 rails is left", text), text


def test_a_rail_that_one_end_lacks_at_init_is_not_used() -> None:
    """And as it was asked for, there is a warning."""
    with _down(3):
        state = Path("/sys/class/infiniband/rxe3/ports/1/state")
        deadline = time.monotonic() + 10
        while "ACTIVE" in state.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        text = _result(_soak(100))
    _check(text, 100)
    assert "ROCENANTE_IB_HCA names rxe3:1, which is skipped: down" in text
    assert "goes on over" not in text
