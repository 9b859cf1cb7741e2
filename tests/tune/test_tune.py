"""`rocenante tune`: the limits it finds, the file it writes, and that groups take it up."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocenante import _native
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
    measured = [Point(1, 10.0, 1.0, 1.0), Point(2, 1.0, 1.1, 1.0), Point(4, 1.0, 1.1, 1.0)]
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


def rocenante(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ROCENANTE_", "XDG_")) and name not in ("RANK", "WORLD_SIZE")
    }
    return subprocess.run(
        [sys.executable, "-m", "rocenante", *arguments],
        cwd=ROOT,
        env={**clean, "HOME": str(home), "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def in_force(home: Path, **env: str) -> dict[str, str]:
    done = rocenante(home, "info", "--json", **env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["config_problem"] is None
    return {row["name"]: row["value"] for row in found["config"]}


@native
def test_it_measures_writes_and_the_next_group_reads(tmp_path: Path) -> None:
    """Checked to fail with a file that from_environment() does not read."""
    small = {"ROCENANTE_SLOT_BYTES": "16K"}  # nine sizes
    saved = tmp_path / "tune.json"
    done = rocenante(tmp_path, "tune", "--ranks", "2", "--json", str(saved), **small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the defaults lose at most") == 1
    runs = json.loads(saved.read_text())["runs"]
    sizes = [row["size"] for row in runs[0]["results"]]
    assert (sizes[0], sizes[-1], len(sizes)) == (1024, 16384, 9)
    file = tmp_path / ".config" / "rocenante" / "tune.conf"
    [(group, limit)] = limits.limits_in(file).items()
    assert group == "host/2"
    assert limit in (limits.NEVER, *sizes)
    config = in_force(tmp_path)
    assert config["ROCENANTE_TUNE_FILE"] == str(file)
    assert config[limits.VARIABLE] == f"host/2:{limit}"
    assert in_force(tmp_path, **{limits.VARIABLE: "4K"})[limits.VARIABLE] == "4096"


@native
def test_ranks_with_different_files_are_told_on_both(tmp_path: Path) -> None:
    program = """
import sys, rocenante, torch.distributed as dist
rank = int(sys.argv[1])
try:
    rocenante.Communicator(rank, 2, dist.FileStore(sys.argv[2], 2), timeout=60)
except rocenante.ConfigError as error:
    sys.exit(str(error))
"""
    ranks = []
    for rank in range(2):
        file = tmp_path / f"{rank}.conf"
        file.write_text(limits.content({"host/2": 4096 + rank}, []))
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", program, str(rank), str(tmp_path / "store")],
                cwd=ROOT,
                env={**os.environ, "ROCENANTE_TUNE_FILE": str(file)},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        texts = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    for text in texts:
        assert limits.VARIABLE in text
        assert "host/2:4096" in text
        assert "host/2:4097" in text


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
    tmp_path: Path, arguments: list[str], env: dict[str, str], status: int, said: str
) -> None:
    done = rocenante(tmp_path, "tune", *arguments, **env)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
