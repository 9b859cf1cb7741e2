"""PyTorch's own suite at world size 2; `make torch-suite` runs other worlds and profiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import no_leftovers

RUNNER = Path(__file__).with_name("runner.py")


def test_world_of_two() -> None:
    with no_leftovers():
        done = subprocess.run(
            [sys.executable, str(RUNNER), "--world-size", "2", "--profile", "union"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
