"""Facts that need a driver's library: asked in a child process, which may hang or crash alone."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from rocenante.doctor.host import Host

LIMIT_S = 20.0  # a first cuInit on a large machine takes some seconds


@dataclass(frozen=True)
class Probe:
    """What a probe told: its facts, or why there are none."""

    facts: dict[str, Any]
    problem: str = ""


def run_probe(host: Host, module: str) -> Probe:
    """Runs rocenante.doctor.<module>, which prints one JSON object."""
    output = host.run([sys.executable, "-m", f"rocenante.doctor.{module}"], timeout=LIMIT_S)
    if output is None:
        return Probe({}, f"{module} crashed or did not end within {LIMIT_S:g} s")
    try:
        facts = json.loads(output)
    except ValueError:
        return Probe({}, f"{module} printed no JSON")
    problem = facts.pop("problem", "")
    return Probe(facts, problem)
