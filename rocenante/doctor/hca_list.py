"""The list of ports in ROCENANTE_IB_HCA or NCCL_IB_HCA: mlx5_0:1,mlx5_1, = exact, ^ excluded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocenante.doctor.rdma import Port

VARIABLES = ("ROCENANTE_IB_HCA", "NCCL_IB_HCA")  # the first that is set counts


@dataclass(frozen=True)
class HcaList:
    """Which ports a variable allows; with no variable, all."""

    variable: str = ""
    text: str = ""

    @property
    def _excludes(self) -> bool:
        return self.text.startswith("^")

    @property
    def _exact(self) -> bool:
        return self.text.lstrip("^").startswith("=")

    @property
    def entries(self) -> list[str]:
        return [entry for entry in self.text.lstrip("^=").split(",") if entry]

    def names(self, entry: str, port: Port) -> bool:
        """Whether an entry of the list means this port."""
        device, _, number = entry.partition(":")
        if number and number != str(port.number):
            return False
        return port.device == device if self._exact else port.device.startswith(device)

    def allows(self, port: Port) -> bool:
        if not self.entries:
            return True
        listed = any(self.names(entry, port) for entry in self.entries)
        return listed != self._excludes

    def chooses(self, port: Port) -> bool:
        """Whether the user asked for just this port."""
        return bool(self.entries) and not self._excludes and self.allows(port)

    def unmatched(self, ports: Iterable[Port]) -> list[str]:
        """Entries that mean no port of this host."""
        if self._excludes:
            return []
        present = list(ports)
        return [e for e in self.entries if not any(self.names(e, port) for port in present)]


def chosen_ports(environ: Mapping[str, str]) -> HcaList:
    """The list that rocenante goes by."""
    for variable in VARIABLES:
        if variable in environ:
            return HcaList(variable, environ[variable].strip())
    return HcaList()
