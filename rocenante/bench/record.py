"""What a run produced: the shape that tables, plots and reports read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocenante.bench.case import NATIVELY_IN_PLACE, REDUCTIONS, ROOTED, bus_factor
from rocenante.bench.options import base
from rocenante.bench.stats import Stats, bandwidth, summarise

# How nccl-tests writes them.
_TYPE_NAMES = {
    "float32": "float",
    "float16": "half",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_OP_NAMES = {"product": "prod", "premul_sum": "mulsum"}


@dataclass
class Cell:
    """Samples (µs, slowest rank, in the order measured) of one size, backend and placement."""

    times_us: list[float]
    wrong: int | None  # None: not checked

    def stats(self) -> Stats:
        return summarise(self.times_us)


@dataclass
class Row:
    """One size. A placement that the backend lacks is None."""

    size: int
    count: int
    out_of_place: Cell | None = None
    in_place: Cell | None = None

    def cells(self) -> list[Cell]:
        return [cell for cell in (self.out_of_place, self.in_place) if cell is not None]


@dataclass
class Block:
    """All sizes of one collective on one backend with one number of ranks."""

    collective: str
    backend: str
    version: str
    ranks: int
    dtype: str
    op: str
    root: int
    rows: list[Row] = field(default_factory=list)

    @property
    def type_name(self) -> str:
        return _TYPE_NAMES.get(self.dtype, self.dtype)

    @property
    def redop(self) -> str:
        return _OP_NAMES.get(self.op, self.op) if self.collective in REDUCTIONS else "none"

    @property
    def root_shown(self) -> int:
        """-1 where the collective has no root."""
        return self.root if self.collective in ROOTED else -1

    def bandwidths(self, row: Row, cell: Cell) -> tuple[float, float]:
        """algbw and busbw in GB/s, from the median time."""
        algorithm = bandwidth(row.size, cell.stats().p50_us)
        return algorithm, algorithm * bus_factor(self.collective, self.ranks)

    def wrong(self) -> int | None:
        """Wrong elements of all cells; None when nothing was checked."""
        counts = [cell.wrong for row in self.rows for cell in row.cells() if cell.wrong is not None]
        return sum(counts) if counts else None

    def average_bus_bandwidth(self) -> float:
        """The mean busbw of all cells, GB/s."""
        values = [self.bandwidths(row, cell)[1] for row in self.rows for cell in row.cells()]
        return sum(values) / len(values) if values else 0.0

    def typical(self, row: Row) -> Cell | None:
        """The placement that comparisons use: the one that torch.distributed itself offers."""
        if self.collective in NATIVELY_IN_PLACE:
            return row.in_place
        return row.out_of_place


@dataclass
class Report:
    """A whole run."""

    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def comparisons(self) -> Iterator[tuple[str, int, list[Block]]]:
        """The blocks to set side by side: (collective, ranks, one block per backend)."""
        groups: dict[tuple[str, int], list[Block]] = {}
        for block in self.blocks:
            groups.setdefault((block.collective, block.ranks), []).append(block)
        for (collective, ranks), blocks in groups.items():
            yield collective, ranks, blocks

    def wrong(self) -> int:
        return sum(block.wrong() or 0 for block in self.blocks)


def medians(block: Block) -> dict[int, float]:
    """size -> p50 in µs of the placement used in comparisons."""
    result = {}
    for row in block.rows:
        cell = block.typical(row)
        if cell is not None:
            result[row.size] = cell.stats().p50_us
    return result


def rivalries(blocks: list[Block]) -> list[tuple[Block, Block]]:
    """(ours, peer) pairs whose speed-up is worth showing.

    Like is compared with like: torch.distributed backends with each other, rocenante.Communicator
    with MPI. Where only one of ours was measured, it is compared with every peer. Ours
    with a setting is a peer of ours without.
    """
    ours = {
        block.backend: block for block in blocks if block.backend in ("rocenante", "communicator")
    }
    peers = [block for block in blocks if block.backend not in ours]
    pairs = []
    for peer in peers:
        through_torch = ("gloo", "nccl", "rocenante")
        suited = "rocenante" if base(peer.backend) in through_torch else "communicator"
        subject = ours.get(suited) or next(iter(ours.values()), None)
        if subject is not None:
            pairs.append((subject, peer))
    return pairs
