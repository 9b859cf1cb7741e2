"""What is measured: one collective on one size, and the layout of its buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "sendrecv",
)
REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
# One rank may return before another has entered: they need a barrier before every iteration.
UNSYNCHRONISED = ROOTED | {"sendrecv"}
# Without an in-place form: nothing overlaps, or the result overwrites what is still to be sent.
ONLY_OUT_OF_PLACE = frozenset({"all_to_all", "barrier", "sendrecv"})
# torch.distributed has these in place only: that is the form which users pay for.
NATIVELY_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})

ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
PREMUL_FACTOR = 2.0

_IN_PIECES = frozenset({"reduce_scatter", "scatter", "all_to_all"})
_OUT_PIECES = frozenset({"all_gather", "gather", "all_to_all"})

Array = TypeVar("Array", bound=Any)


class UnsupportedError(Exception):
    """A backend has no such operation; the text says which and why."""


@dataclass(frozen=True)
class Case:
    """One measured call.

    `count` is in elements: of a buffer, or of one rank's piece where every rank has a piece.
    """

    collective: str
    count: int
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    in_place: bool = False

    def as_message(self) -> dict[str, Any]:
        return asdict(self)

    def in_elements(self, size: int) -> int:
        """Elements that every one of `size` ranks hands in."""
        return self.count * size if self.collective in _IN_PIECES else self.count

    def out_elements(self, size: int) -> int:
        """Elements that every one of `size` ranks (or the root) receives."""
        return self.count * size if self.collective in _OUT_PIECES else self.count

    def total_bytes(self, size: int) -> int:
        """The larger of the two buffers in bytes: the size column."""
        return max(self.in_elements(size), self.out_elements(size)) * ITEMSIZE[self.dtype]


def count_for(collective: str, size_bytes: int, dtype: str, ranks: int) -> int:
    """Elements for a requested size in bytes; at least one: no row measures an empty call."""
    if collective == "barrier":
        return 0
    pieces = ranks if collective in _IN_PIECES | _OUT_PIECES else 1
    return max(1, size_bytes // ITEMSIZE[dtype] // pieces)


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: the share of the size that crosses the busiest link, as in nccl-tests."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in _IN_PIECES | _OUT_PIECES:
        return (ranks - 1) / ranks
    return 1.0


def allocate(
    case: Case, rank: int, size: int, empty: Callable[[int], Array]
) -> tuple[Array, Array]:
    """Input and output buffers of one rank; in place they share memory as in nccl-tests."""
    inputs, outputs = case.in_elements(size), case.out_elements(size)
    if not case.in_place:
        return empty(inputs), empty(outputs)
    whole = empty(max(inputs, outputs))
    mine = whole[rank * case.count : (rank + 1) * case.count] if inputs != outputs else whole
    return (mine if inputs < outputs else whole), (mine if outputs < inputs else whole)
