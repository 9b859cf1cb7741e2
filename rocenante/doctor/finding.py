"""What a check says: one line of why, one line of what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Level(str, Enum):
    """How bad it is; the values are those of the JSON."""

    OK = "ok"
    WARNING = "warning"  # works, but slower or only in part
    ERROR = "error"  # rocenante cannot use it


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str  # the check's name in the table of checks
    level: Level
    why: str
    fix: str = ""  # empty for OK
    subject: str = ""  # a device, a port, a variable, a pair of ranks; empty: the whole host

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finding:
        return cls(**{**value, "level": Level(value["level"])})


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if nothing is worse than OK, else 1."""
    return int(any(finding.level is not Level.OK for finding in findings))


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """How many there are of each level."""
    return {level.value: sum(f.level is level for f in findings) for level in Level}
