"""`rocenante tune`: the limits it finds, the file it writes, and that groups take it up."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import make_store, run_outcomes
from typer.testing import CliRunner

import rocenante
from rocenante import _native
from rocenante.cli.app import build_app
from rocenante.tune import limits
from rocenante.tune.limits import Point

ROOT = Path(__file__).resolve().parents[2]
SIZES = [1024 << shift for shift in range(6)]
native = pytest.mark.skipif(_native.why_not() is not None, reason=str(_native.why_not()))


def points(one_shot_wins: str) -> list[Point]:
    """A point for each letter: one step wins by half at "1", two steps at "2"."""
    pairs = {"1": (2.0, 3.0), "2": (3.0, 2.0)}
    return [Point(s, *pairs[c], 3.0) for s, c in zip(SIZES, one_shot_wins, strict=True)]


@pytest.mark.parametrize(
    ("wins", "limit"),
    [
        ("111222", SIZES[2]),
        ("111111", SIZES[5]),
        ("222222", limits.NEVER),
        ("121222", SIZES[2]),  # one disturbed size below the crossover
        ("111221", SIZES[2]),  # and one above
    ],
)
def test_the_limit_is_the_best_for_all_sizes(wins: str, limit: int) -> None:
    assert limits.best_limit(points(wins)) == limit


def test_a_large_gain_outweighs_several_small_losses() -> None:
    measured = [Point(2, 10.0, 1.0, 1.0), Point(4, 1.0, 1.1, 1.0), Point(8, 1.0, 1.1, 1.0)]
    assert limits.best_limit(measured) == limits.NEVER
    with pytest.raises(ValueError, match="nothing was measured"):
        limits.best_limit([])


def test_the_loss_of_the_defaults() -> None:
    assert Point(8, 2.0, 4.0, 3.0).default_loss() == pytest.approx(0.5)
    assert math.isclose(Point(8, 2.0, 4.0, 2.0).default_loss(), 0.0)


def test_the_file_keeps_what_was_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tune.conf"
    assert limits.limits_in(file) == {}
    limits.write(file, limits.content({"hosts/2": 9, "host/16": 7, "host/2": 8}, ["a machine"]))
    assert file.read_text().endswith("=host/2:8,host/16:7,hosts/2:9\n")
    assert "# a machine\n" in file.read_text()
    assert limits.limits_in(file) == {"host/2": 8, "host/16": 7, "hosts/2": 9}
    assert os.listdir(file.parent) == ["tune.conf"]


@pytest.mark.parametrize("text", ["X=1\n", "no\n", f"{limits.VARIABLE}=host/2:many\n"])
def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tune.conf"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"tune.conf is not as rocenante tune wrote it"):
        limits.limits_in(file)


def test_where_the_file_is() -> None:
    assert limits.default_file({"ROCENANTE_TUNE_FILE": "/a", "HOME": "/h"}) == Path("/a")
    assert limits.default_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/rocenante/tune.conf")
    home = {"XDG_CONFIG_HOME": "relative", "HOME": "/h"}
    assert limits.default_file(home) == Path("/h/.config/rocenante/tune.conf")
    for nowhere in ({}, {"ROCENANTE_TUNE_FILE": "", "HOME": "/h"}):
        with pytest.raises(ValueError, match="set"):
            limits.default_file(nowhere)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in an environment without any setting."""
    for name in list(os.environ):
        if name.startswith(("ROCENANTE_", "XDG_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def in_force() -> dict[str, str]:
    """The settings of a communicator made now."""
    return {row.name: row.value for row in rocenante.config()}


@native
def test_it_measures_writes_and_the_next_group_reads(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked to fail with a file under a name that from_environment() does not look for."""
    saved = home / "tune.json"
    done = subprocess.run(
        [sys.executable, "-m", "rocenante", "tune", "--ranks", "2", "--json", str(saved)],
        cwd=ROOT,
        env={**os.environ, "ROCENANTE_SLOT_BYTES": "16K"},  # nine sizes
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the defaults lose at most") == 1
    runs = json.loads(saved.read_text())["runs"]
    sizes = [row["size"] for row in runs[0]["results"]]
    assert (sizes[0], sizes[-1], len(sizes)) == (1024, 16384, 9)
    file = home / ".config" / "rocenante" / "tune.conf"
    [(group, limit)] = limits.limits_in(file).items()
    assert group == "host/2"
    assert limit in (limits.NEVER, *sizes)
    assert in_force()["ROCENANTE_TUNE_FILE"] == str(file)
    assert in_force()[limits.VARIABLE] == f"host/2:{limit}"
    monkeypatch.setenv(limits.VARIABLE, "4K")
    assert in_force()[limits.VARIABLE] == "4096"


def _with_own_file(rank: int, size: int, folder: str) -> None:
    file = Path(folder) / f"{rank}.conf"
    file.write_text(limits.content({"host/2": 4096 + rank}, []))
    os.environ["ROCENANTE_TUNE_FILE"] = str(file)
    store = make_store("file", folder, rank, size)
    rocenante.Communicator(rank, size, store, timeout=30)


@native
def test_ranks_with_different_limits_are_told_on_both(home: Path) -> None:
    for outcome in run_outcomes(_with_own_file, 2, str(home), backend=None):
        for said in ("ConfigError", limits.VARIABLE, "host/2:4096", "host/2:4097"):
            assert said in outcome.error


@native
@pytest.mark.parametrize(
    ("arguments", "env", "status", "said"),
    [
        (["--ranks", "1"], {}, 2, "nobody to exchange with"),
        (["--ranks", "x"], {}, 2, "not a number of ranks"),
        ([], {limits.VARIABLE: "4K"}, 2, "unset it"),
        ([], {"ROCENANTE_TUNE_FILE": ""}, 1, "unset it"),
        (["--file", __file__], {}, 1, "remove it"),
        ([], {"ROCENANTE_SLOT_BYTES": "x"}, 1, "ROCENANTE_SLOT_BYTES"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_before_anything_runs(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    env: dict[str, str],
    status: int,
    said: str,
) -> None:
    monkeypatch.setenv("ROCENANTE_TUNE_FILE", "undone after the test: tune changes it")
    monkeypatch.delenv("ROCENANTE_TUNE_FILE")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(build_app(["tune"]), ["tune", *arguments])
    assert (done.exit_code, said in done.output) == (status, True), done.output
    assert list(home.iterdir()) == []
