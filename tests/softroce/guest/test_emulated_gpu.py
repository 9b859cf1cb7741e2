"""Emulated GPUs with the real proxy on real queue pairs: the way of a GPU's bytes, but the GPU."""

from __future__ import annotations

import re

import programs
import pytest

DEVICES = 8
pytestmark = pytest.mark.softroce(devices=DEVICES, timeout=900)  # the boot of test_verbs.py


def _soak(ranks: int) -> None:
    """Random collectives, types, operators and sizes; bits compared with the CPU executor's."""
    done = programs.run(
        "emulated_ranks",
        *("soak", "--ranks", str(ranks), "--ops", "20", "--bytes", "8192"),
        timeout=240,
        ROCENANTE_TRANSPORT="verbs",
    )
    assert done.returncode == 0, done.stdout
    found = re.search(r"ops=20 bytes=(\d+): every bit as on the CPU", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > 10_000


@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_are_those_of_the_cpu(ranks: int) -> None:
    """One device for each rank."""
    _soak(ranks)


@pytest.mark.softroce(devices=DEVICES, netem="loss 1%", timeout=600)
@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_are_those_of_the_cpu_while_packets_are_lost(ranks: int) -> None:
    """Reliable connections make up for it."""
    _soak(ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_kernels_end_when_a_rank_is_killed(ranks: int) -> None:
    """Within two seconds, though their own patience is a minute, and every survivor names it."""
    done = programs.run(
        "emulated_ranks", "kill", "--ranks", str(ranks), ROCENANTE_TRANSPORT="verbs"
    )
    assert done.returncode == 0, done.stdout
    ended = dict(
        re.findall(r"rank (\d+): kernel ended after (\d+) ms with failure 2:", done.stdout)
    )
    assert sorted(map(int, ended)) == list(range(ranks - 1)), done.stdout
    assert max(map(int, ended.values())) < 2000, done.stdout
    assert done.stdout.count(f"rank {ranks - 1} is lost") == ranks - 1, done.stdout
