"""PyTorch's own suite in every profile and world size: a table of counts, and the exceptions.

    python tests/torch_suite/matrix.py [--world-size 4] [--profile union] [--backend gloo]

Each cell is a run of runner.py in a process of its own. Exit status 0 if no cell of rocenante's has
a surprise. The file given with --json keeps the cells of other runs that it holds already, such as
those on another release of torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from runner import PROFILES, expected_failures, last_error

from rocenante.bench import machine

RUNNER = Path(__file__).with_name("runner.py")
WORLDS = (2, 3, 4)
KEY = ("torch", "backend", "profile", "world")
Cell = dict[str, Any]


def run_cell(backend: str, profile: str, world: int, limit: float) -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder, "rows.json")
        command = [sys.executable, str(RUNNER), "--backend", backend, "--profile", profile]
        command += ["--world-size", str(world), "--limit", str(limit), "--json", str(rows_file)]
        before = machine.load_average()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not rows_file.exists():
            sys.exit(f"{' '.join(command[1:])} ended early:\n{done.stderr[-4000:]}")
        rows = json.loads(rows_file.read_text())
    counts = Counter(row["status"] for row in rows)
    failed = {row["test"]: last_error(row["text"]) for row in rows if row["status"] == "failed"}
    passed = {row["test"] for row in rows if row["status"] == "passed"}
    listed = expected_failures(backend)
    return {
        "torch": torch.__version__.partition("+")[0],
        "backend": backend,
        "profile": profile,
        "world": world,
        "passed": counts["passed"],
        "expected": sorted(failed.keys() & listed.keys()),
        "surprises": {name: why for name, why in failed.items() if name not in listed}
        | {name: "passes, though it is on the list" for name in listed if name in passed},
        "skipped": counts["skipped"],
        "seconds": round(sum(row["seconds"] for row in rows)),
        "load_average": before,
    }


def table(cells: list[Cell]) -> str:
    lines = [
        "| torch | profile | world | backend | passed | failed | skipped |",
        "|---|---|--:|---|--:|--:|--:|",
    ]
    for cell in sorted(
        cells, key=lambda c: [c[k] for k in ("torch", "profile", "world", "backend")]
    ):
        failed = len(cell["expected"]) + len(cell["surprises"])
        values = [cell["torch"], cell["profile"], cell["world"], cell["backend"]]
        values += [cell["passed"], failed, cell["skipped"]]
        lines.append("| " + " | ".join(map(str, values)) + " |")
    return "\n".join(lines)


def save(path: Path, cells: list[Cell]) -> None:
    """Adds the cells to the file's; a cell replaces the one of the same key."""
    old = json.loads(path.read_text())["cells"] if path.exists() else []
    merged = {tuple(c[k] for k in KEY): c for c in [*old, *cells]}
    document = {
        "command": "make torch-suite ARGS='--backend rocenante --backend gloo --json FILE'",
        "machine": machine.describe(),
        "cells": [merged[key] for key in sorted(merged)],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", action="append", help="default: rocenante")
    parser.add_argument("--world-size", action="append", type=int, help="default: 2, 3 and 4")
    parser.add_argument("--profile", action="append", choices=PROFILES, help="default: all")
    parser.add_argument("--limit", type=float, default=60, help="seconds a test may take")
    parser.add_argument("--json", type=Path, help="add the cells to this file")
    options = parser.parse_args()
    cells = []
    for backend in options.backend or ["rocenante"]:
        for profile in options.profile or PROFILES:
            if backend == profile == "gloo" and "native" in (options.profile or PROFILES):
                continue  # gloo's own name is its native profile
            for world in options.world_size or WORLDS:
                cell = run_cell(backend, profile, world, options.limit)
                cells.append(cell)
                print(
                    f"{backend}, profile {profile}, world {world}: {cell['passed']} passed, "
                    f"{len(cell['expected'])} failed as listed, "
                    f"{len(cell['surprises'])} surprises, {cell['skipped']} skipped, "
                    f"{cell['seconds']} s",
                    flush=True,
                )
                for name, why in cell["surprises"].items():
                    print(f"  {name}: {why}", flush=True)
                if options.json:
                    save(options.json, [cell])
    print(f"\n{table(cells)}\n\nTests that can't pass for a backend outside torch:")
    for name, why in expected_failures("rocenante").items():
        print(f"  {name}: {why}")
    return int(any(c["surprises"] for c in cells if c["backend"] == "rocenante"))


if __name__ == "__main__":
    sys.exit(main())
