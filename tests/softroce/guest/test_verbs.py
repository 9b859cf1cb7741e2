"""The verbs transport, and groups that mix it with shared memory, on real queue pairs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import programs
import pytest
from cluster import Cluster

DEVICES = 8
pytestmark = pytest.mark.softroce(devices=DEVICES, timeout=900)

_SOAK = ("--ops", "300", "--bytes", "262144")


def _ranks(what: str, ranks: int, *more: str, **environment: str) -> str:
    """Runs verbs_ranks and returns what it says; fails unless it ends well."""
    done = programs.run("verbs_ranks", what, "--ranks", str(ranks), *more, **environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _check_soak(text: str) -> None:
    found = re.search(r"ops=(\d+) bytes=(\d+) wrong=(\d+)", text)
    assert found is not None, text
    assert int(found[2]) > 1_000_000
    assert int(found[3]) == 0


@pytest.mark.parametrize("transport", ["verbs", "mixed"])
@pytest.mark.parametrize("program", ["test_exchange", "test_point_to_point"])
def test_the_unit_tests_pass(program: str, transport: str) -> None:
    """The tests that pass over shared memory pass over RDMA and in mixed groups."""
    done = programs.run(program, timeout=240, ROCENANTE_TEST_TRANSPORT=transport)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[  PASSED  ]" in done.stdout


@pytest.mark.parametrize("transport", ["verbs", pytest.param("mixed", marks=pytest.mark.long)])
def test_every_collective(transport: str) -> None:
    """On 2 to 5 ranks, with messages shorter and longer than a slot."""
    done = programs.run("test_collectives", timeout=400, ROCENANTE_TEST_TRANSPORT=transport)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize(("ranks", "ops"), [(2, 1000), (4, 600), (8, 400)])
def test_random_sizes_every_element_checked(ranks: int, ops: int) -> None:
    """All-reduces of log-random sizes to 4 MiB, one device for each rank: 2,000 of the soak."""
    most = ("--ops", str(ops), "--bytes", str(4 << 20))
    # Patient: eight ranks share a processor, and acknowledgements of large messages come late.
    patience = {"ROCENANTE_IB_TIMEOUT": "17"}
    _check_soak(_ranks("soak", ranks, *most, **patience, ROCENANTE_TRANSPORT="verbs"))


def test_random_sizes_in_a_mixed_group() -> None:
    """Two ranks each on what counts as two hosts."""
    _check_soak(_ranks("soak", 4, *_SOAK, ROCENANTE_HOST_ID="halves"))


@pytest.mark.softroce(devices=DEVICES, netem="loss 1%", timeout=600)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_random_sizes_while_packets_are_lost(ranks: int) -> None:
    """Reliable connections make up for it: right results."""
    _check_soak(_ranks("soak", ranks, *_SOAK, ROCENANTE_TRANSPORT="verbs"))


@pytest.mark.softroce(devices=4, mtu=1500, netem="delay 200us duplicate 1%")
def test_random_sizes_with_delay_and_duplicates() -> None:
    """And with small packets."""
    _check_soak(_ranks("soak", 4, *_SOAK, ROCENANTE_TRANSPORT="verbs"))


@pytest.mark.softroce(devices=2, netem="corrupt 0.5%")
def test_random_sizes_with_corruption() -> None:
    """A damaged packet is dropped, not delivered."""
    _check_soak(_ranks("soak", 2, *_SOAK, ROCENANTE_TRANSPORT="verbs"))


@pytest.mark.parametrize(
    ("ranks", "environment"),
    [
        (2, {"ROCENANTE_TRANSPORT": "verbs"}),
        (4, {"ROCENANTE_TRANSPORT": "verbs"}),
        (8, {"ROCENANTE_TRANSPORT": "verbs"}),
        (4, {"ROCENANTE_HOST_ID": "halves"}),
    ],
    ids=["2", "4", "8", "mixed"],
)
def test_a_killed_rank_is_named_by_every_survivor(ranks: int, environment: dict[str, str]) -> None:
    """Within two seconds, though nobody tells them."""
    text = _ranks("kill", ranks, **environment)
    raised = dict(re.findall(r"rank (\d+): raised after (\d+) ms", text))
    assert sorted(map(int, raised)) == list(range(ranks - 1)), text
    assert max(map(int, raised.values())) < 2000, text
    assert text.count(f"rank {ranks - 1} is lost") == ranks - 1, text


def test_a_port_that_is_not_there_is_told_of_and_skipped() -> None:
    """A wrong entry among the ports to use is no reason to fail."""
    chosen = {"ROCENANTE_TRANSPORT": "verbs", "ROCENANTE_IB_HCA": "rxe0,mlx5_7"}
    text = _ranks("soak", 2, *_SOAK, **chosen)
    assert "names mlx5_7, and there is no such port" in text
    _check_soak(text)


def test_ports_that_fit_nothing_are_an_error_that_names_both_ends() -> None:
    """And what there is."""
    done = programs.run(
        "verbs_ranks",
        *("soak", "--ranks", "2"),
        ROCENANTE_TRANSPORT="verbs",
        ROCENANTE_IB_HCA="=mlx5_7",
    )
    assert done.returncode == 3, done.stdout
    assert "rank 0 (softroce0) and rank 1 (softroce0) cannot reach each other" in done.stdout
    assert "rxe0:1 (not in ROCENANTE_IB_HCA)" in done.stdout


def test_too_little_lockable_memory_says_how_much_is_needed() -> None:
    """As in a container without --ulimit memlock=-1; the other rank hears of it as well."""
    with programs.start(
        *("setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=65536"),
        *(programs.path("verbs_ranks"), "soak", "--ranks", "2"),
        ROCENANTE_TRANSPORT="verbs",
    ) as process:
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 3, text
    needed = re.search(r"a window of (\d+) KiB must be locked .* may lock 64 KiB", text)
    assert needed is not None, text
    assert int(needed[1]) > 2 * 512
    assert "ulimit -l" in text
    assert text.count("Cannot allocate memory") >= 2, text


def _start_long_run(**environment: str) -> subprocess.Popen[str]:
    process = programs.start(
        *(programs.path("verbs_ranks"), "latency", "--ranks", "2", "--ops", "4000"),
        ROCENANTE_TRANSPORT="verbs",
        **environment,
    )
    assert process.stdout is not None
    met = process.stdout.readline()
    assert met == "all ranks have met\n", met + process.stdout.read()
    return process


def test_a_short_outage_of_a_link_is_ridden_out() -> None:
    """Shorter than what the retries last: 4 seconds here, and Linux may take 1 to see a link."""
    with _start_long_run(ROCENANTE_IB_TIMEOUT="17") as process:
        outage = "link set vp1 down\nlink set vp1 up\n"
        subprocess.run(["ip", "-batch", "-"], input=outage, text=True, check=True)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text


def test_a_link_that_stays_down_is_told_of() -> None:
    """By both ranks, and the one whose port it is says so."""
    with _start_long_run() as process:
        start = time.monotonic()
        subprocess.run(["ip", "link", "set", "vp1", "down"], check=True)
        try:
            text, _ = process.communicate(timeout=60)
        finally:
            subprocess.run(["ip", "link", "set", "vp1", "up"], check=True)
    assert process.returncode == 3, text
    assert time.monotonic() - start < 4, text
    assert "rank 1 is lost" in text
    assert "rank 0 is lost" in text
    assert "its own port rxe1:1 is down" in text


@pytest.mark.softroce(nodes=2)
def test_two_hosts(cluster: Cluster) -> None:
    """Ranks 0 and 1 on one kernel, 2 and 3 on another: each pair finds its own way."""
    folder = Path(os.environ["SOFTROCE_CLUSTER"]) / "ranks"
    folder.mkdir(exist_ok=True)
    cluster.barrier("folder")
    first = ("--first", str(2 * cluster.node), "--here", "2", "--store", str(folder))
    text = _ranks("soak", 4, *_SOAK, *first)
    if cluster.node == 0:
        _check_soak(text)
