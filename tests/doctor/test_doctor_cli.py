"""`rocenante doctor` as a user meets it: exit codes, 80 columns, JSON, refusals, probes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from fake_host import FakeHost, Machine, spark
from typer.testing import CliRunner

from rocenante.doctor import command, probe_gpu, probe_verbs, probes
from rocenante.doctor.checks import CHECKS
from rocenante.doctor.facts import Facts
from rocenante.doctor.host import Host

ROOT = Path(__file__).resolve().parents[2]
app = typer.Typer()
app.command()(command.doctor)


def invoke(*arguments: str, **environment: str) -> tuple[int, str, str]:
    clean = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", **clean, **environment})
    result = runner.invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The command sees this machine."""
    made = spark(tmp_path / "root")

    def gather(host: Host) -> Facts:
        return made.facts()

    monkeypatch.setattr(command, "gather", gather)
    return made


def test_healthy(machine: Machine) -> None:
    code, output, _ = invoke()
    assert code == 0
    assert re.search(r"^\d+ ok$", output, re.M)
    assert "warning" not in output


def test_findings(machine: Machine) -> None:
    machine.memlock("65536")
    machine.write("/sys/class/net/enp1s0f0np0/mtu", "1500")
    code, output, _ = invoke()
    assert code == 1
    assert "→ ulimit -l unlimited" in output
    assert re.search(r"^1 error, 1 warning, \d+ ok$", output, re.M)
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    # The worst is what stays on the screen.
    levels = re.findall(r"^(ok|warning|error) ", output, re.M)
    assert levels == sorted(levels, key=["ok", "warning", "error"].index)


def test_json(machine: Machine) -> None:
    machine.memlock("65536")
    code, output, _ = invoke("--json")
    assert code == 1
    found: dict[str, Any] = json.loads(output)
    assert found["schema"] == command.SCHEMA
    assert found["host"] == "spark-1"
    assert found["summary"]["error"] == 1
    assert {f["check"] for f in found["findings"]} <= set(CHECKS)
    (device, _) = sorted(found["devices"], key=lambda d: d["name"], reverse=True)
    assert device["ports"][0]["active_mtu"] == 4096
    networks = [gid["network"] for gid in device["ports"][0]["gids"]]
    assert "10.0.1.0/24" in networks
    documented = (ROOT / "docs" / "doctor.md").read_text()
    fields = {*found, *device, *device["ports"][0], *found["findings"][0]}
    assert [field for field in sorted(fields) if f"`{field}`" not in documented] == []


def test_every_check_is_documented() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text()
    assert [name for name in CHECKS if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (("--ranks", "1"), {}, "2 to 64"),
        (("--ranks", "65"), {}, "2 to 64"),
        (("--timeout", "0"), {}, "--timeout"),
        (("--timeout", "nan"), {}, "--timeout"),
        (("--png", "x.png"), {}, "--png"),
        (("--ranks", "2", "--png", "no/such/x.png"), {}, "no folder"),
        ((), {"WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ((), {"WORLD_SIZE": "65", "RANK": "0"}, "at most 64"),
        ((), {"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR, MASTER_PORT"),
        (
            (),
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"},
            "not below WORLD_SIZE",
        ),
        (("--ranks", "2"), {"WORLD_SIZE": "2", "RANK": "0"}, "leave it out"),
        (("--nonsense",), {}, "No such option"),
    ],
)
def test_usage(arguments: tuple[str, ...], environment: dict[str, str], text: str) -> None:
    code, output, error = invoke(*arguments, **environment)
    assert code == 2
    assert output == ""
    assert text in error


def test_unreachable_store() -> None:
    """Nobody listens on port 1: a sentence that says where, in time."""
    code, _, error = invoke(
        *("--timeout", "1"), WORLD_SIZE="2", RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"
    )
    assert code == 1
    assert "rank 1 can't reach the store at 127.0.0.1:1" in error


def test_two_ranks_of_this_host(tmp_path: Path) -> None:
    """The real command, the real host, with an image and JSON."""
    picture = tmp_path / "pairs.png"
    done = subprocess.run(
        [sys.executable, "-m", "rocenante", "doctor", "--ranks", "2", "--png", picture, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found["world_size"] == 2
    assert found["fabric"]["shape"] == "one host"
    (pair,) = found["pairs"]
    assert pair["rail"] == "shared memory"
    assert pair["error"] is None
    assert picture.read_bytes().startswith(b"\x89PNG")
    documented = (ROOT / "docs" / "doctor.md").read_text()
    fields = {*found, *found["ranks"][0], *pair, *found["fabric"], *found["clocks"][0]}
    assert [field for field in sorted(fields) if f"`{field}`" not in documented] == []


def test_probe_that_hangs_or_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may do either; the doctor says so and goes on."""
    monkeypatch.setattr(probes, "LIMIT_S", 0.01)
    assert "did not end" in probes.run_probe(Host(), "probe_gpu").problem
    host = FakeHost(tmp_path, answers={"probe_gpu": "Segmentation"})
    assert "no JSON" in probes.run_probe(host, "probe_gpu").problem


def test_probes_of_this_machine() -> None:
    """Whatever is here, they answer."""
    assert {"gpus", "problem"} & set(probe_gpu.probe())
    assert {"devices", "problem"} & set(probe_verbs.probe())


FAKE_CUDA = """
#include <string.h>
int cuInit(unsigned f) { return %(init)d; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = 7 + i; return 0; }
int cuDeviceGetName(char *t, int n, int d) { strncpy(t, d == 7 ? "GB10" : "?", n); return 0; }
int cuDeviceTotalMem_v2(unsigned long *m, int d) { *m = 128UL << 30; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a; return a == 124 ? 1 : 0; }
int cuGetErrorName(int e, const char **t) { *t = "CUDA_ERROR_NO_DEVICE"; return 0; }
"""


@pytest.mark.parametrize("init", [0, 100])
def test_libcuda(tmp_path: Path, init: int) -> None:
    """Against a library that answers with what it was asked for; 124 it does not know."""
    source = tmp_path / "cuda.c"
    source.write_text(FAKE_CUDA % {"init": init})
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "rocenante.doctor.probe_gpu"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    found = json.loads(done.stdout)
    if init:
        assert found == {"problem": "cuInit: CUDA_ERROR_NO_DEVICE"}
        return
    (gpu,) = found["gpus"]
    assert found["cuda"] == "13.0"
    assert (gpu["name"], gpu["memory_gib"]) == ("GB10", 128.0)
    assert (gpu["integrated"], gpu["major"], gpu["gpudirect_rdma"]) == (18, 75, 116)
    assert gpu["dma_buf"] is None
