"""The C++ programs that the tests here run: built by scripts/ctest.sh, read from build/tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_BUILD = Path(__file__).resolve().parents[3] / "build" / "tests" / "tests"
_FOLDERS = {
    "verbs_ranks": _BUILD / "softroce" / "guest",
    "emulated_ranks": _BUILD / "emulation",
}


def path(name: str) -> str:
    """Where a program is. Raises FileNotFoundError, saying how to build it."""
    program = _FOLDERS.get(name, _BUILD / "unit") / name
    if not program.exists():
        raise FileNotFoundError(f"{program} is not there: run scripts/ctest.sh (or make ctest)")
    return str(program)


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a command with additional environment variables; stdout has all it says."""
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(
    name: str, *arguments: str, timeout: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. Raises FileNotFoundError and TimeoutExpired."""
    with start(path(name), *arguments, **environment) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said)
