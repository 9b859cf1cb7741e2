"""The command as users run it: exit statuses, notes, files, an MPI of its own environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rocenante import _native

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["-b", "8", "-e", "4K", "-f", "32", "-n", "4"]


def rocenante(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "COLUMNS")
    }
    return subprocess.run(
        [sys.executable, "-m", "rocenante", *arguments],
        cwd=ROOT,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_gloo_end_to_end(tmp_path: Path) -> None:
    files = [f"--{kind}={tmp_path / 'out'}.{kind}" for kind in ("json", "csv")]
    done = rocenante(
        "bench", "all_reduce,broadcast", *SMALL, "--ranks", "2", "--backends", "gloo", *files
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[2:3] == ["float"]]
    assert [row[0] for row in rows] == ["8", "256"] * 2
    assert all(len(row) == 13 for row in rows)
    content = json.loads((tmp_path / "out.json").read_text())
    assert [run["config"]["collective"] for run in content["runs"]] == ["all_reduce", "broadcast"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 1 + 2 * 2 * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-b", "0"], "whole, positive number of bytes"),
        (["--ranks", "0"], "at least 1"),
        (["--backends", "foo"], "unknown backend 'foo'"),
        (["-o", "xor"], "Did you mean bxor?"),
        (["-d", "float31"], "Did you mean float32?"),
        (["allreduce"], "Did you mean all_reduce?"),
        (["--json", "/nonexistent/x.json"], "does not exist"),
    ],
)
def test_options_that_cannot_be_used_exit_2_with_a_sentence(
    arguments: list[str], sentence: str
) -> None:
    done = rocenante("bench", *arguments, COLUMNS="200")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_peer_is_a_note() -> None:
    done = rocenante("bench", *SMALL, "--ranks", "2", "--backends", "gloo,nccl", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert "note: nccl is left out: nccl moves CUDA tensors only" in done.stdout


def test_without_any_backend_it_fails_with_a_sentence() -> None:
    done = rocenante("bench", "--ranks", "2", "--backends", "nccl", COLUMNS="120")
    assert done.returncode == 1
    assert "none of the requested backends can run here" in done.stderr


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocenante", "bench", "--ranks", "2", "--backends", "gloo"]
    marked = {**os.environ, "TMPDIR": str(tmp_path)}
    bench = subprocess.Popen(
        [*command, "-n", "100000"],
        cwd=ROOT,
        env=marked,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("rocenante-bench-*/gloo-2.store")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
        assert len(children) == 2
        bench.send_signal(signal.SIGINT)
        assert bench.wait(30) not in (0, None)
    finally:
        bench.kill()
        bench.communicate()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="needs torchrun's processes on Linux")
def test_under_torchrun() -> None:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
    ]
    done = subprocess.run(
        [*launcher, "--standalone", "-m", "rocenante", "bench", *SMALL, "--backends", "gloo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1


FAKE_MPI = """
import numpy as np

def Get_library_version():
    return "A stand-in for MPI"

SUM, IN_PLACE = object(), object()

class World:
    Get_rank = lambda self: 0
    Get_size = lambda self: 1
    Barrier = lambda self: None
    def Allreduce(self, source, target, op):
        if source is not IN_PLACE:
            target[:] = source + BIAS

BIAS = {bias}
COMM_WORLD = World()
Finalize = lambda: None
"""


def fake_mpi(folder: Path, bias: int = 0) -> Path:
    """A Python with an mpi4py of one rank, without torch, and an mpiexec beside it."""
    packages, programs = folder / "packages", folder / "bin"
    (packages / "mpi4py").mkdir(parents=True)
    programs.mkdir()
    (packages / "mpi4py" / "__init__.py").write_text("class rc: initialize = True\n")
    (packages / "mpi4py" / "MPI.py").write_text(FAKE_MPI.format(bias=bias))
    (packages / "torch.py").write_text("raise ImportError('the MPI arm must not need torch')\n")
    python, mpiexec = programs / "python", programs / "mpiexec"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    mpiexec.write_text(
        textwrap.dedent("""\
        #!/bin/sh
        test "$1" = -n || exit 9
        shift 2
        exec "$@"
        """)
    )
    for program in (python, mpiexec):
        program.chmod(0o755)
    return python


def test_the_mpi_arm_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    python = fake_mpi(tmp_path)
    done = rocenante(
        "bench", *SMALL, "--ranks", "1", "--backends", "gloo,mpi", "--mpi-python", str(python)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A stand-in for MPI" in done.stdout
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2
    assert "p50 latency of all_reduce, 1 ranks" in done.stdout


def test_several_mpis_in_one_run(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("impi", "openmpi")}
    pythons = []
    for name, folder in folders.items():
        folder.mkdir()
        pythons += ["--mpi-python", f"{name}={fake_mpi(folder)}"]
    target = tmp_path / "out.json"
    done = rocenante(
        *("bench", "--sizes", "1K,8", "-n", "4", "--ranks", "1", "--backends", "gloo,mpi"),
        *(*pythons, "--json", str(target)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(target.read_text())["runs"]
    assert [run["config"]["backend"] for run in runs] == ["gloo", "impi", "openmpi"]
    assert [row["size"] for run in runs for row in run["results"]] == [1024, 8] * 3


def test_a_wrong_mpi_result_is_counted_and_fails_the_run(tmp_path: Path) -> None:
    python = fake_mpi(tmp_path, bias=1)
    done = rocenante(
        "bench", *SMALL, "--ranks", "1", "--backends", "mpi", "--mpi-python", str(python)
    )
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_an_mpiexec_that_fails_is_a_note_with_its_output(tmp_path: Path) -> None:
    python = fake_mpi(tmp_path)
    (tmp_path / "bin" / "mpiexec").write_text("#!/bin/sh\necho no slots left >&2\nexit 3\n")
    done = rocenante(
        "bench", *SMALL, "--ranks", "1", "--backends", "gloo,mpi", "--mpi-python", str(python)
    )
    assert done.returncode == 0
    assert "no slots left" in done.stdout


def test_info_in_text_and_json() -> None:
    done = rocenante("info", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "SIMD in use" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    content = json.loads(rocenante("info", "--json").stdout)
    assert {"transports", "config", "machine", "versions", "problem", "simd"} <= set(content)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_package_is_a_sentence(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from rocenante.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "bench"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'rocenante[bench]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_every_command_without_importing_torch() -> None:
    code = "import sys; sys.argv[1:] = ['-h']; sys.modules['torch'] = None\n"
    code += "from rocenante.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("bench", "info", "plan"))


def test_ranks_of_another_launcher_meet_without_an_agent_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "rocenante", "bench", *SMALL, "--backends", "gloo"]
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0].count("# Out of bounds values : 0 OK") == 1
    assert outputs[1] == ""


@pytest.mark.skipif(_native.why_not() is not None, reason=str(_native.why_not()))
@pytest.mark.parametrize("ranks", ["1", "3"])
def test_every_collective_of_ours_is_right(ranks: str) -> None:
    done = rocenante(
        *("bench", "all", "-b", "8", "-e", "64K", "-f", "90", "-n", "4", "--ranks", ranks),
        *("--backends", "rocenante,communicator"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collectives = 9 if ranks == "1" else 10
    assert done.stdout.count("# Out of bounds values : 0 OK") == 2 * collectives
