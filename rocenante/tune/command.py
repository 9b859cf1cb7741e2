"""`rocenante tune`: the command line."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import rocenante
from rocenante.bench import machine, session
from rocenante.bench import options as parsing
from rocenante.bench.coordinator import total_steps
from rocenante.bench.groups import WorkerError
from rocenante.bench.options import OptionError, Options
from rocenante.bench.record import Report, medians
from rocenante.bench.report_json import document, write_json
from rocenante.bench.run import Screen
from rocenante.tune import limits as tuning
from rocenante.tune.limits import Point

_ONE = f"communicator@{tuning.VARIABLE}=1G"  # a slot bounds it
_TWO = f"communicator@{tuning.VARIABLE}={tuning.NEVER}"
_DEFAULT = "communicator"
_SMALLEST = 1 << 10
_LOSS = 0.15  # of the defaults, shown in red from here on


def tune(
    ranks: Annotated[
        str, typer.Option("--ranks", "-g", help="Local ranks to tune for, one after the other.")
    ] = "2,4,8",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="Where to write the limits; by default the file that is read, "
            "~/.config/rocenante/tune.conf unless ROCENANTE_TUNE_FILE names another.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, write nothing.")] = False,
    pin: Annotated[bool, typer.Option("--pin", help="Confine rank i to core i.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", "-J", help="Write everything, with raw samples.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that ranks may take to start.")
    ] = 120.0,
) -> None:
    """Measure up to which size all_reduce should take one step, and keep it for this machine.

    Runs all_reduce in one step, in two, and as the defaults have it, in turns. Writes the limit
    of each number of ranks to a file that rocenante reads whenever a group is made. Starts its own
    ranks; under [bold]torchrun[/] it uses torchrun's, and tunes for that group.

    All ranks of a group must have the same limits: copy the file to the other hosts.
    """
    env = dict(os.environ)
    try:
        if tuning.VARIABLE in env:
            raise OptionError(tuning.VARIABLE, "is set, and prevails over any file: unset it.")
        target = file if file is not None else tuning.default_file(env)
        kept = {} if dry_run else tuning.limits_in(target)
        os.environ["ROCENANTE_TUNE_FILE"] = ""  # the defaults are to be measured, not the last run
        request = parsing.check(
            Options(
                collectives=("all_reduce",),
                backends=(_ONE, _TWO, _DEFAULT),
                ranks=parsing.parse_ranks(ranks),
                sizes=_sizes(),
                pin=pin,
                typical_only=True,
                timeout=timeout,
            )
        )
        if min(request.ranks) < 2:
            raise OptionError("--ranks", "a single rank has nobody to exchange with.")
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from error
    except (ValueError, ImportError, rocenante.ConfigError) as error:
        _fail(str(error))
    try:
        place = session.Torchrun.from_env(env)
        counts = request.ranks if place is None else (place.world_size,)
        report = Report()
        screen = Screen(Console(quiet=True), report, total_steps(request, counts), False)
        started, load = time.strftime("%Y-%m-%d %H:%M:%S"), [machine.load_average()]
        with screen.progress:
            if place is None:
                session.run_local(request, report, screen)
            else:
                session.run_under_torchrun(request, place, report, screen)
                if place.rank != 0:
                    return
        load.append(machine.load_average())
        if report.wrong():
            raise WorkerError(f"{report.wrong()} elements of the results are wrong")
        several_hosts = place is not None and place.world_size > place.local_world_size
        found = _show(report, several_hosts)
        if not dry_run:
            _keep(target, {**kept, **found}, several_hosts)
        if json_file is not None:
            write_json(json_file, document(report, request, started, load))
    except (WorkerError, session.NothingToMeasureError, ValueError, OSError) as error:
        _fail(str(error))


def _fail(text: str) -> None:
    Console(stderr=True).print(
        f"[bold red]rocenante tune:[/] {escape(text)}", highlight=False, soft_wrap=True
    )
    raise typer.Exit(1)


def _sizes() -> tuple[int, ...]:
    """From where one step certainly wins to a slot, which bounds it: two to an octave."""
    slot = next(int(row.value) for row in rocenante.config() if row.name == "ROCENANTE_SLOT_BYTES")
    steps = max(1, math.floor(2 * math.log2(slot / _SMALLEST)) + 1)
    return tuple(int(_SMALLEST * 2 ** (i / 2)) // 64 * 64 for i in range(steps))


def points_of(report: Report) -> dict[int, list[Point]]:
    """The measured points by number of ranks, in order of size."""
    found = {}
    for _, ranks, blocks in report.comparisons():
        times: Mapping[str, Mapping[int, float]] = {
            block.backend: medians(block) for block in blocks
        }
        found[ranks] = [
            Point(size, times[_ONE][size], times[_TWO][size], times[_DEFAULT][size])
            for size in sorted(times[_DEFAULT])
        ]
    return found


def _table(ranks: int, points: list[Point], limit: int) -> Table:
    table = Table(title=f"all_reduce, {ranks} ranks, p50 in us", title_justify="left", box=None)
    for name in ("size (B)", "one step", "two steps", "default", "default's loss"):
        table.add_column(name, justify="right")
    for point in points:
        one, two = f"{point.one_us:.4g}", f"{point.two_us:.4g}"
        if point.size <= limit:
            one = f"[bold]{one}[/]"
        else:
            two = f"[bold]{two}[/]"
        loss = f"{max(0.0, point.default_loss()):.0%}"
        if point.default_loss() > _LOSS:
            loss = f"[red]{loss}[/]"
        table.add_row(str(point.size), one, two, f"{point.default_us:.4g}", loss)
    return table


def _show(report: Report, several_hosts: bool) -> dict[str, int]:
    """Prints the tables; returns the best limits."""
    console = Console()
    found = {}
    for ranks, points in points_of(report).items():
        limit = tuning.best_limit(points)
        found[tuning.key(ranks, several_hosts)] = limit
        console.print(_table(ranks, points, limit), highlight=False)
        worst = max(point.default_loss() for point in points)
        console.print(
            f"one step up to {limit} B; the defaults lose at most {max(0.0, worst):.0%}\n",
            highlight=False,
        )
    return found


def _keep(target: Path, limits: Mapping[str, int], several_hosts: bool) -> None:
    console = Console()
    about = f"{machine.one_line(machine.describe())}, {time.strftime('%Y-%m-%d')}"
    tuning.write(target, tuning.content(limits, [about]))
    console.print(f"written to {target}", highlight=False, soft_wrap=True)
    if several_hosts:
        console.print("Copy it to the other hosts: all ranks must have the same.")
