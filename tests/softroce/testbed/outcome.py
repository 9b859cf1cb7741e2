"""How the tests that ran in a guest tell the pytest outside how they went.

Each node appends a line per report to ``reports.<node>`` in a folder that it shares with the host;
the file is closed after each, so that what a dying guest has told is there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER_VARIABLE = "SOFTROCE_REPORTS"


@dataclass(frozen=True)
class Phase:
    """One phase (setup, call, teardown) of one test on one node."""

    test: str
    when: str
    outcome: str  # passed, failed, skipped
    text: str  # the failure or the reason for skipping
    seconds: float
    xfail: bool  # expected to fail, and said so by the outcome
    output: tuple[tuple[str, str], ...] = field(default=())  # captured: title, text


@dataclass(frozen=True)
class Verdict:
    """How one test went on all nodes together: passed, failed, skipped, xfailed or xpassed."""

    outcome: str
    text: str
    seconds: float
    output: tuple[tuple[str, str], ...]


def append(folder: Path, node: int, phase: Phase) -> None:
    """Writes one phase down."""
    with (folder / f"reports.{node}").open("a") as file:
        file.write(json.dumps(asdict(phase)) + "\n")


def read(folder: Path, nodes: int) -> list[dict[str, list[Phase]]]:
    """What each node told, by test. A last line that was cut short is left out."""
    told: list[dict[str, list[Phase]]] = []
    for node in range(nodes):
        phases: dict[str, list[Phase]] = {}
        file = folder / f"reports.{node}"
        for line in file.read_text().split("\n")[:-1] if file.exists() else []:
            raw = json.loads(line)
            raw["output"] = tuple((title, text) for title, text in raw["output"])
            phase = Phase(**raw)
            phases.setdefault(phase.test, []).append(phase)
        told.append(phases)
    return told


def judge(test: str, told: list[dict[str, list[Phase]]], missing: str) -> Verdict:
    """One verdict from what all nodes told of a test; ``missing`` explains a test without one."""
    failures, output, results = [], [], set()
    seconds = 0.0
    for node, phases in enumerate(told):
        name = f"node {node}: " if len(told) > 1 else ""
        mine = phases.get(test, [])
        if not mine or mine[-1].when != "teardown":
            failures.append(f"{name}the test did not end. {missing}")
            continue
        seconds = max(seconds, sum(phase.seconds for phase in mine))
        output += [(f"{name}{title}", text) for title, text in mine[-1].output]
        failures += [f"{name}{p.when}: {p.text}" for p in mine if p.outcome == "failed"]
        special = next((p for p in mine if p.xfail or p.outcome == "skipped"), None)
        if special is None:
            results.add(("passed", ""))
        elif special.xfail:
            kind = "xpassed" if special.outcome == "passed" else "xfailed"
            results.add((kind, special.text))
        else:
            results.add(("skipped", special.text))
    if not failures and len({kind for kind, _ in results}) > 1:
        failures.append(f"the nodes do not agree: {sorted(results)}")
    if failures:
        return Verdict("failed", "\n\n".join(failures), seconds, tuple(output))
    kind, text = sorted(results)[0]
    return Verdict(kind, text, seconds, tuple(output))
