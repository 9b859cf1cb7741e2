"""PyTorch's own suite at world size 2; `make torch-suite` runs other worlds and profiles.

Checked to be able to fail: with a figure changed in docs/conformance.md its test fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import no_leftovers

sys.path.insert(0, str(Path(__file__).parent))

from matrix import table

RUNNER = Path(__file__).with_name("runner.py")
ROOT = Path(__file__).resolve().parents[2]


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


def test_documented_counts_are_those_of_the_saved_run() -> None:
    cells = json.loads((ROOT / "benchmarks/results/torch_suite.json").read_text())["cells"]
    assert table(cells) in (ROOT / "docs/conformance.md").read_text()
