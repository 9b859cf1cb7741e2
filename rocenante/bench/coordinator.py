"""The plan of a measurement: which backend runs which block when.

For every size the backends take turns, a few rounds each, in reversed order on odd rounds, so that
a disturbance or a drift of the machine meets all of them alike. Only the group whose turn it is
does anything: the others block on a read.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from rocenante.bench.case import NATIVELY_IN_PLACE, ONLY_OUT_OF_PLACE, Case, count_for
from rocenante.bench.channel import Message
from rocenante.bench.groups import Group
from rocenante.bench.options import Options
from rocenante.bench.record import Block, Cell, Report, Row
from rocenante.bench.stats import slowest

ROUNDS = 4  # more where a block would take longer than _BLOCK_SECONDS
_BLOCK_SECONDS = 2.0
_CALIBRATION = 3
# Adaptive iterations: about this long per backend, size and placement, within these bounds.
_CELL_SECONDS = 0.12
_FEWEST, _MOST = 12, 1000


class Listener(Protocol):
    """Who hears about progress."""

    def note(self, text: str) -> None: ...

    def advance(self, text: str) -> None:
        """One size is done; `text` describes it."""

    def block_done(self, blocks: Sequence[Block]) -> None: ...


def cases_of(options: Options, collective: str, ranks: int) -> list[Case]:
    """One out-of-place case per distinct size that results for this collective."""
    counts = [count_for(collective, size, options.dtype, ranks) for size in options.sizes]
    dtype = "uint8" if collective == "barrier" else options.dtype
    return [
        Case(collective, count, dtype, options.op, options.root) for count in dict.fromkeys(counts)
    ]


def iterations_for(options: Options, median_us: float) -> int:
    """How often to run, given a first impression of the time; a multiple of ROUNDS if adaptive."""
    if options.iterations is not None:
        return options.iterations
    wanted = _CELL_SECONDS * 1e6 / max(median_us, 0.1)
    return math.ceil(min(_MOST, max(_FEWEST, wanted)) / ROUNDS) * ROUNDS


def rounds_for(iterations: int, median_us: float) -> int:
    """How many blocks to cut into: each must end long before the timeout, whatever is asked."""
    return max(ROUNDS, math.ceil(iterations * median_us / 1e6 / _BLOCK_SECONDS))


def warmups_for(options: Options, block_iterations: int) -> int:
    return options.warmups if options.warmups is not None else 1 + min(9, block_iterations // 10)


def split(iterations: int, rounds: int) -> list[int]:
    """Iterations of each round: equal up to one, empty rounds left out."""
    shares = [iterations // rounds + (index < iterations % rounds) for index in range(rounds)]
    return [share for share in shares if share]


class CaseRun:
    """All backends on one size."""

    def __init__(self, options: Options, groups: Sequence[Group], case: Case) -> None:
        self._options = options
        self._groups = groups
        if options.typical_only:
            self._cases = [replace(case, in_place=case.collective in NATIVELY_IN_PLACE)]
        else:
            self._cases = [case]
            if case.collective not in ONLY_OUT_OF_PLACE:
                self._cases.append(replace(case, in_place=True))
        self._refused: dict[str, str] = {}
        self.cells: dict[tuple[str, bool], Cell] = {}
        self._shares: dict[tuple[str, bool], list[int]] = {}

    def run(self) -> None:
        for group in self._groups:
            for case in self._cases:
                self._calibrate(group, case)
        for round_index in range(max(map(len, self._shares.values()), default=0)):
            order = list(self._groups) if round_index % 2 == 0 else list(reversed(self._groups))
            for group in order:
                for case in self._cases:
                    self._block(group, case, round_index)

    def refusals(self) -> dict[str, str]:
        """backend -> why, of those that have the operation in no placement."""
        measured = {name for name, _ in self.cells}
        return {name: why for name, why in self._refused.items() if name not in measured}

    def _calibrate(self, group: Group, case: Case) -> None:
        replies = self._ask(group, case, _CALIBRATION, 1)
        refusal = next((reply["refused"] for reply in replies if "refused" in reply), None)
        if refusal is not None:
            self._refused[group.name] = refusal
            return
        key = (group.name, case.in_place)
        median = statistics.median(slowest([reply["times"] for reply in replies]))
        iterations = iterations_for(self._options, median)
        self._shares[key] = split(iterations, rounds_for(iterations, median))
        self.cells[key] = Cell([], self._wrong(replies))

    def _block(self, group: Group, case: Case, round_index: int) -> None:
        key = (group.name, case.in_place)
        shares = self._shares.get(key, [])
        if round_index >= len(shares):
            return
        share = shares[round_index]
        last = self._options.check and round_index == len(shares) - 1
        replies = self._ask(group, case, share, warmups_for(self._options, share), check=last)
        cell = self.cells[key]
        cell.times_us += slowest([reply["times"] for reply in replies])
        wrong = self._wrong(replies)
        if wrong is not None:
            cell.wrong = (cell.wrong or 0) + wrong

    def _wrong(self, replies: Sequence[Message]) -> int | None:
        return sum(int(reply["wrong"]) for reply in replies) if self._options.check else None

    def _ask(
        self, group: Group, case: Case, iterations: int, warmups: int, check: bool = False
    ) -> list[Message]:
        request: dict[str, Any] = {
            "case": case.as_message(),
            "iterations": iterations,
            "warmups": warmups,
            "check": check,
        }
        return group.exchange({"run": request}, self._options.timeout)


def measure(
    options: Options, groups: Sequence[Group], ranks: int, report: Report, listener: Listener
) -> None:
    """Runs every collective and size on `groups`; the blocks go to `report`. Raises WorkerError."""
    for collective in options.collectives:
        if collective == "sendrecv" and ranks == 1:
            listener.note("sendrecv needs 2 ranks or more: left out with 1.")
            continue
        blocks = {
            group.name: Block(
                collective,
                group.name,
                group.version,
                ranks,
                options.dtype,
                options.op,
                options.root,
            )
            for group in groups
        }
        active = list(groups)
        for case in cases_of(options, collective, ranks):
            run = CaseRun(options, active, case)
            run.run()
            size = case.total_bytes(ranks)
            refusals = run.refusals()
            for name, reason in refusals.items():
                listener.note(f"{name} has no result for {collective}: {reason}")
            active = [group for group in active if group.name not in refusals]
            for group in active:
                cells = run.cells
                row = Row(
                    size, case.count, cells.get((group.name, False)), cells.get((group.name, True))
                )
                blocks[group.name].rows.append(row)
            listener.advance(f"{collective}, {ranks} ranks, {size} B")
        done = [block for block in blocks.values() if block.rows]
        report.blocks += done
        listener.block_done(done)


def total_steps(options: Options, ranks: Sequence[int]) -> int:
    """How often `advance` will be called."""
    return sum(
        len(cases_of(options, collective, count))
        for count in ranks
        for collective in options.collectives
        if not (collective == "sendrecv" and count == 1)
    )
