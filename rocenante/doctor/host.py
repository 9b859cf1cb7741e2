"""The host as the checks see it: files below a root, commands, environment. Tests give another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Host:
    """Where facts come from. Nothing here raises for a file or command that is not there."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def path(self, name: str) -> Path:
        """/sys/... below the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """A file's text without the blanks at its ends; None if it can't be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, name: str) -> int | None:
        """A file that holds one decimal number."""
        try:
            return int(self.read(name) or "")
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """What a folder holds, sorted, numbers by value; empty if it can't be read."""
        try:
            found = [entry.name for entry in self.path(name).iterdir()]
        except OSError:
            return []
        return sorted(found, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def target(self, name: str) -> str | None:
        """The last part of where a link leads, as /sys/class/net/X/device/driver -> mlx5_core."""
        try:
            return self.path(name).resolve(strict=True).name
        except (OSError, RuntimeError):
            return None

    def may_use(self, name: str) -> bool:
        """Whether this process may read and write a file."""
        return os.access(self.path(name), os.R_OK | os.W_OK)

    def run(self, command: Sequence[str], timeout: float = 10.0) -> str | None:
        """A command's standard output; None if it is missing, fails or takes longer."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env={**self.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        return done.stdout if done.returncode == 0 else None

    def status(self, name: str) -> str | None:
        """A line of /proc/self/status."""
        for line in (self.read("/proc/self/status") or "").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
        return None
