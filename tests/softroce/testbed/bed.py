"""The test-bed as tests on the host use it: a layout, and commands run in it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Layout:
    """What the ``softroce`` marker asks for; see ``run --help``."""

    nodes: int = 1
    devices: int = 0  # 0: as many as ``run`` gives by itself
    netem: str = ""
    mtu: int = 4200
    timeout: float = 300.0

    def options(self) -> list[str]:
        """The layout as options of ``run``."""
        options = ["--nodes", str(self.nodes), "--mtu", str(self.mtu)]
        options += ["--timeout", str(self.timeout)]
        if self.devices:
            options += ["--devices", str(self.devices)]
        return [*options, "--netem", self.netem] if self.netem else options


class Bed:
    """The test-bed, prepared."""

    def run(
        self,
        command: Sequence[str],
        layout: Layout | None = None,
        *,
        options: Sequence[str | Path] = (),
        directory: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in guests; see ``run --help`` for the options and the exit code."""
        layout = layout or Layout()
        return subprocess.run(
            [str(HERE / "run"), *layout.options(), *options, "--", *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=layout.timeout + 60,
        )
