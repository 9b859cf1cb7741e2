"""How nodes are cabled, and which node counts each cabling allows."""

from __future__ import annotations

import enum

from rocenante.plan.errors import PlanError, nearest

MAX_NODES = 64
# A DGX Spark has two QSFP ports, so direct cables reach two peers.
MAX_DIRECT_NODES = 3


class Fabric(str, enum.Enum):
    """Cabling between nodes; `NONE` is a single node."""

    NONE = "none"
    DIRECT = "direct"
    RING = "ring"
    SWITCH = "switch"

    def at(self, nodes: int) -> Fabric:
        """Return what this cabling amounts to for `nodes`.

        One node needs no cable; a ring of two is one direct cable, a ring of three joins all pairs.
        """
        if nodes == 1:
            return Fabric.NONE
        if self is Fabric.RING and nodes <= MAX_DIRECT_NODES:
            return Fabric.DIRECT
        return self

    def joins_all_pairs(self, nodes: int) -> bool:
        """True if every node reaches every other without passing through a third."""
        return self.at(nodes) is not Fabric.RING


def parse_fabric(text: str) -> Fabric:
    """Return the fabric of that name. Raises PlanError naming the known ones."""
    known = [fabric.value for fabric in Fabric if fabric is not Fabric.NONE]
    if text not in known:
        raise PlanError(
            f"unknown fabric {text!r}: one of {', '.join(known)}.{nearest(text, known)}"
        )
    return Fabric(text)


def parse_nodes(text: str, fabric: Fabric) -> list[int]:
    """Return the node counts of a comma-separated list, sorted and distinct.

    Raises PlanError for anything but whole numbers of 1 to 64 that `fabric` can join.
    """
    counts = set()
    for part in text.split(","):
        try:
            count = int(part)
        except ValueError:
            raise PlanError(
                f"--nodes takes whole numbers such as 2,4,8; {part.strip()!r} is not one."
            ) from None
        if count < 1:
            raise PlanError(f"--nodes starts at 1; {count} is not a number of nodes.")
        if count > MAX_NODES:
            raise PlanError(f"--nodes ends at {MAX_NODES}: the model says nothing about {count}.")
        counts.add(count)
    check_fabric(fabric, max(counts))
    return sorted(counts)


def check_fabric(fabric: Fabric, nodes: int) -> None:
    """Raise PlanError if `fabric` cannot join that many nodes."""
    if fabric is Fabric.DIRECT and nodes > MAX_DIRECT_NODES:
        raise PlanError(
            f"direct cables join {MAX_DIRECT_NODES} nodes at most (two ports a node), not {nodes}: "
            "choose --fabric ring or --fabric switch."
        )
