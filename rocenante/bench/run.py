"""One run of the benchmark, from checked options to tables and files."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rocenante.bench import machine, session
from rocenante.bench.coordinator import total_steps
from rocenante.bench.groups import WorkerError
from rocenante.bench.mpi_group import MpiMissingError
from rocenante.bench.options import Options
from rocenante.bench.record import Block, Report
from rocenante.bench.report_json import document, write_csv, write_json
from rocenante.bench.table import FULL_WIDTH, print_block, print_notes, print_summary


@dataclass(frozen=True)
class Outputs:
    """What to print and write beyond the tables."""

    spread: bool = False
    json_file: Path | None = None
    csv_file: Path | None = None
    plot_file: Path | None = None


class Screen:
    """Prints blocks as they come, notes once, and a progress bar on a terminal's stderr."""

    def __init__(self, console: Console, report: Report, steps: int, spread: bool) -> None:
        self._console = console
        self._report = report
        self._spread = spread
        errors = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        # Without its refresh thread: workers are forked from this process.
        self.progress = Progress(
            *columns,
            console=errors,
            transient=True,
            auto_refresh=False,
            disable=not errors.is_terminal,
        )
        self._task = self.progress.add_task("starting the ranks", total=steps)

    def note(self, text: str) -> None:
        if text not in self._report.notes:
            self._report.notes.append(text)

    def advance(self, text: str) -> None:
        self.progress.update(self._task, advance=1, description=text)
        self.progress.refresh()

    def block_done(self, blocks: Sequence[Block]) -> None:
        # The bar is drawn on stderr: two consoles must not write to one terminal at a time.
        self.progress.stop()
        for block in blocks:
            print_block(self._console, block, self._spread)
        self.progress.start()


def _stdout() -> Console:
    """Full width where stdout is not a terminal, unless COLUMNS says otherwise."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return Console()
    return Console(width=FULL_WIDTH)


def _on_terminate(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def run(request: Options, outputs: Outputs) -> int:
    """Measures and writes everything; returns the exit status."""
    errors = Console(stderr=True)
    report = Report()
    try:
        place = session.Torchrun.from_env(dict(os.environ))
        counts = request.ranks if place is None else (place.world_size,)
        screen = Screen(_stdout(), report, total_steps(request, counts), outputs.spread)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        load = [machine.load_average()]
        signal.signal(signal.SIGTERM, _on_terminate)
        with screen.progress:
            if place is None:
                session.run_local(request, report, screen)
            else:
                session.run_under_torchrun(request, place, report, screen)
                if place.rank != 0:
                    return 0
        load.append(machine.load_average())
    except (
        WorkerError,
        session.NothingToMeasureError,
        MpiMissingError,
        ValueError,
        ModuleNotFoundError,
    ) as error:
        print_notes(errors, report.notes)
        errors.print(
            f"[bold red]rocenante bench:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        return 1
    return _finish(request, report, started, load, outputs)


def _finish(
    request: Options,
    report: Report,
    started: str,
    load: list[list[float]],
    outputs: Outputs,
) -> int:
    console = _stdout()
    print_summary(console, report)
    about = machine.one_line(machine.describe())
    console.print()
    console.print(
        f"[dim]{escape(about)}; load average {load[0][0]:g} before, {load[-1][0]:g} after[/]",
        highlight=False,
    )
    print_notes(console, report.notes)
    if outputs.json_file is not None:
        write_json(outputs.json_file, document(report, request, started, load))
    if outputs.csv_file is not None:
        write_csv(outputs.csv_file, report)
    if outputs.plot_file is not None:
        from rocenante.bench.plot import write_plots

        written = write_plots(outputs.plot_file, report, about)
        console.print(f"plotted: {', '.join(str(path) for path in written)}", highlight=False)
    if not report.blocks:
        Console(stderr=True).print("rocenante bench: no backend has any of these operations.")
        return 1
    return 1 if report.wrong() else 0
