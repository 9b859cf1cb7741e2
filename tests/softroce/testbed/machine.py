"""What a run asks for and what one node of it is; shared by the kinds of guest."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FILES = Path(__file__).parent / "guest_files"


@dataclass(frozen=True)
class Spec:
    """One run: a command, and the network to run it in.

    With one node, ``devices`` RoCE devices hang on one bridge. With several, each node has
    ``devices`` of them on the private switch, device i of all nodes in one subnet.
    """

    command: tuple[str, ...]
    nodes: int = 1
    devices: int = 1
    netem: str = ""
    mtu: int = 4200
    timeout: float = 300.0  # seconds from the start of the guests to the end of the last
    writable: tuple[Path, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Node:
    """One guest: its control folder on the host and where its output goes."""

    index: int
    control: Path
    console_fd: int
    out_fd: int
    err_fd: int


class Machine(Protocol):
    """A kind of guest."""

    name: str

    def start_network(self, spec: Spec, top: Path) -> list[subprocess.Popen[bytes]]:
        """Starts what the nodes' network needs on the host, if anything."""

    def environment(self, spec: Spec) -> dict[str, str]:
        """Variables for the guest's job that depend on the kind of guest."""

    def start(self, spec: Spec, node: Node, memory: int) -> subprocess.Popen[bytes]:
        """Starts one node with ``memory`` bytes, leader of its own process group."""
