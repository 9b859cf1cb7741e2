"""How the guests of one run find each other's values and wait for each other."""

from __future__ import annotations

import os
import time
from pathlib import Path

_POLL_S = 0.02


class Cluster:
    """The guests of one run, which all run the same tests in the same order.

    They exchange small values and wait for each other through a folder of the host, not over the
    network under test.
    """

    def __init__(self) -> None:
        self.node = int(os.environ["SOFTROCE_NODE"])
        self.nodes = int(os.environ["SOFTROCE_NODES"])
        self._folder = Path(os.environ["SOFTROCE_CLUSTER"])

    def address(self, node: int, rail: int = 0) -> str:
        """The IPv4 address of a node's device."""
        return f"10.78.{rail}.{node + 1}"

    def publish(self, key: str, value: str) -> None:
        """Makes a value of this node known; each key can be published once."""
        new = self._folder / f"new.value.{key}.{self.node}"
        new.write_text(value)
        new.rename(self._folder / f"value.{key}.{self.node}")

    def fetch(self, key: str, node: int, timeout: float = 30.0) -> str:
        """Another node's value, waiting for it. Raises TimeoutError naming both."""
        file = self._folder / f"value.{key}.{node}"
        deadline = time.monotonic() + timeout
        while not file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"node {node} has not published {key!r} for {timeout:g} s")
            time.sleep(_POLL_S)
        return file.read_text()

    def barrier(self, key: str, timeout: float = 30.0) -> None:
        """Waits until all nodes are here; each key can be used once."""
        self.publish(f"barrier-{key}", "")
        for node in range(self.nodes):
            self.fetch(f"barrier-{key}", node, timeout)
