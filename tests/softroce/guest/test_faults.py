"""Links, addresses, ports and permissions that fail: right results, or errors that say what to do.

That a test here can fail was tried by leaving the fault out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import programs
import pytest
from links import address_replaced, await_traffic, changed, disturbed

DEVICES = 4
pytestmark = pytest.mark.softroce(devices=DEVICES, timeout=600)

_VERBS = {"ROCENANTE_TRANSPORT": "verbs"}
_SOAK = ("soak", "--ops", "200", "--bytes", "65536")


def _soak(ranks: int, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = (*_SOAK, "--ranks", str(ranks), *more)
    return programs.run("verbs_ranks", *words, **_VERBS, **environment)


def _right(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout
    assert re.findall(r"soak .* wrong=(\d+)", done.stdout) == ["0"], done.stdout


def _start(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts verbs_ranks; returns once all ranks have met."""
    process = programs.start(programs.path("verbs_ranks"), *words, **_VERBS, **environment)
    assert process.stdout is not None
    met = process.stdout.readline()
    assert met == "all ranks have met\n", met + process.stdout.read()
    return process


def test_a_thousandth_of_the_packets_lost() -> None:
    """Right results."""
    with disturbed(DEVICES, "loss 0.1%"):
        _right(_soak(4))


@pytest.mark.parametrize(
    "specification", ["loss 5%", "delay 1ms reorder 25% 50%", "delay 500us 400us"]
)
def test_beyond_what_reliable_connections_bear(specification: str) -> None:
    """Right results or a loud error, never a wrong one; and in time."""
    with disturbed(DEVICES, specification):
        done = _soak(2, "--timeout", "10000")
    if done.returncode == 0:
        return _right(done)
    assert done.returncode == 3, done.stdout
    assert set(re.findall(r"soak .* wrong=(\d+)", done.stdout)) <= {"0"}, done.stdout
    for rank in (0, 1):
        said = next(
            line for line in done.stdout.splitlines() if re.match(f"rank {rank}: (?!soak)", line)
        )
        assert f"rank {1 - rank}" in said
        assert re.search(r"is lost|do not reach|failed at init|Timed out|did not arrive", said)
    return None


def test_a_link_that_goes_down_and_comes_up_again_changes_no_result() -> None:
    """Three times, each shorter than the retries last: 4 seconds here."""
    words = ("soak", "--ranks", "2", "--ops", "4000", "--bytes", "16384")
    with _start(*words, ROCENANTE_IB_TIMEOUT="17") as process:
        for _ in range(3):
            await_traffic(1, 500)
            with changed("link set vp1 down", "link set vp1 up"):
                assert process.poll() is None
        assert process.poll() is None
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert "wrong=0" in text


@pytest.mark.parametrize("new", [None, "10.77.0.99"], ids=["removed", "changed"])
def test_an_address_that_vanishes_in_mid_run_is_told_of(new: str | None) -> None:
    """Both ranks raise, naming each other, the way and what to check."""
    with _start("latency", "--ranks", "2", "--ops", "1000000") as process:
        await_traffic(1, 100)
        with address_replaced(1, new):
            start = time.monotonic()
            text, _ = process.communicate(timeout=60)
    assert process.returncode == 3, text
    assert time.monotonic() - start < 5, text
    for rank in (0, 1):
        assert f"rank {rank} is lost" in text
    assert "10.77.0.2" in text
    assert "check links, addresses" in text


def test_an_address_changed_before_init_is_used() -> None:
    """Whatever its index in the table, which is another now."""
    with address_replaced(1, "10.77.0.99"):
        done = _soak(2, ROCENANTE_LOG="info")
    _right(done)
    assert "to rxe1:1 (10.77.0.99)" in done.stdout


def test_without_an_ipv4_address_the_link_local_one_serves() -> None:
    """Neighbours need no address of their own choosing."""
    with address_replaced(1, None):
        done = _soak(2, ROCENANTE_LOG="info")
    _right(done)
    assert "to rxe1:1 (fe80::" in done.stdout


def test_an_address_removed_during_init_is_an_error_on_both() -> None:
    """Rank 0 has announced it and waits for rank 1 when it goes."""
    with tempfile.TemporaryDirectory() as store:
        words = ("soak", "--ranks", "2", "--here", "1", "--store", store)
        program = programs.path("verbs_ranks")
        with programs.start(program, *words, "--first", "0", **_VERBS) as first:
            deadline = time.monotonic() + 30
            while not Path(store, "hello.0").exists():
                assert time.monotonic() < deadline
                assert first.poll() is None
                time.sleep(0.02)
            with address_replaced(0, None):
                start = time.monotonic()
                second = programs.run("verbs_ranks", *words, "--first", "1", **_VERBS)
                text, _ = first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (3, 3), text + second.stdout
    assert time.monotonic() - start < 30
    assert "cannot connect to rank 1 from rxe0:1 (10.77.0.1)" in text
    assert "check that" in text
    assert "rank 0 failed at init" in second.stdout or "rank 0 from rxe1:1" in second.stdout


def test_ends_of_different_mtu() -> None:
    """The smaller one is used."""
    with changed("link set ve1 mtu 1500", "link set ve1 mtu 4200"):
        done = _soak(2, ROCENANTE_LOG="info")
    _right(done)
    assert "in packets of 1024 bytes" in done.stdout


def test_a_path_that_carries_less_than_its_ends_say() -> None:
    """Found at init, not by a hang of the first large message."""
    with changed("link set vp1 mtu 1500", "link set vp1 mtu 4200"):
        start = time.monotonic()
        done = _soak(2)
    assert done.returncode == 3, done.stdout
    assert time.monotonic() - start < 10
    assert "packets of 4096 bytes do not reach rank 1 from rxe0:1" in done.stdout
    assert "is the MTU as large all along the way?" in done.stdout


def test_a_port_that_is_down_is_told_of_and_skipped() -> None:
    """As long as another one serves."""
    with changed("link set ve1 down", "link set ve1 up"):
        done = _soak(2, ROCENANTE_IB_HCA="rxe0,rxe1")
    _right(done)
    assert "ROCENANTE_IB_HCA names rxe1:1, which is skipped: down" in done.stdout


def test_a_rank_without_a_device_is_an_error_on_both() -> None:
    """Which names both ends and what each has."""
    with tempfile.TemporaryDirectory() as store:
        words = ("soak", "--ranks", "2", "--here", "1", "--store", store)
        program = programs.path("verbs_ranks")
        with programs.start(program, *words, "--first", "0", **_VERBS) as first:
            absent = {**_VERBS, "ROCENANTE_IB_HCA": "=rxe9"}
            second = programs.run("verbs_ranks", *words, "--first", "1", **absent)
            text, _ = first.communicate(timeout=60)
    for code, said in ((first.returncode, text), (second.returncode, second.stdout)):
        assert code == 3, said
        assert re.search(r"rank 0 \(softroce0\): has rxe0:1 \(.*\b10\.77\.0\.1\b", said), said
        assert "rank 1 (softroce0): no RDMA port is usable: rxe0:1 (not in" in said


def test_devices_that_may_not_be_opened() -> None:
    """As for a user without rights, or in a container that has the files but may not use them."""
    files = sorted(Path("/dev/infiniband").glob("uverbs*"))
    modes = [file.stat().st_mode for file in files]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(programs.path("verbs_ranks"), folder)
        for file in files:
            file.chmod(0)
        try:
            with programs.start(
                *("setpriv", "--bounding-set", "-dac_override", program, "soak"), **_VERBS
            ) as process:
                text, _ = process.communicate(timeout=60)
        finally:
            for file, mode in zip(files, modes, strict=True):
                file.chmod(mode)
    assert process.returncode == 3, text
    assert "rank 0 (softroce0) and rank 1 (softroce0) cannot reach each other" in text
    assert "may this user read and write /dev/infiniband/uverbs0?" in text
    assert "Permission denied" in text


@pytest.mark.parametrize("timeout", [12, 14, 16])
def test_how_long_a_dead_rank_goes_unnoticed(timeout: int) -> None:
    """7 x 4.096 us x 2^ROCENANTE_IB_TIMEOUT, as documented: here never less, and little more."""
    done = programs.run(
        "verbs_ranks", "kill", "--ranks", "3", **_VERBS, ROCENANTE_IB_TIMEOUT=str(timeout)
    )
    assert done.returncode == 0, done.stdout
    raised = [int(ms) for ms in re.findall(r"rank \d: raised after (\d+) ms", done.stdout)]
    expected = 7 * 4.096e-3 * 2**timeout
    assert len(raised) == 2, done.stdout
    # The first to know tells the other.
    assert expected * 0.95 < min(raised), done.stdout
    assert max(raised) < 1.3 * expected + 500, done.stdout
