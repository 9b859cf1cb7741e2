"""`rocenante plan`: will a second, fourth, eighth node help, and will one-shot?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress

from rocenante.plan import capacity, outcome, report, sweep
from rocenante.plan.benchfit import BenchFit, fit_samples, read_samples
from rocenante.plan.calibration import Calibration, calibrate
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric, parse_fabric, parse_nodes
from rocenante.plan.model import Model, check_precision, load_model
from rocenante.plan.predict import Machine
from rocenante.plan.published import load_published

SCHEMA = 1
MAX_TOKENS = 10_000_000
DEFAULT_NODES = {Fabric.SWITCH: "1,2,4,8", Fabric.RING: "1,2,4,8", Fabric.DIRECT: "1,2,3"}
DEFAULT_SIMULATED = {Fabric.SWITCH: "2,4,8,16,32,64", Fabric.RING: "2,3", Fabric.DIRECT: "2,3"}


def plan(
    model: Annotated[
        str, typer.Option(help="A model that comes with the package, or a .json description.")
    ] = "qwen3.8-27b",
    nodes: Annotated[str, typer.Option(help="Node counts, such as 2,4,8.")] = "",
    fabric: Annotated[str, typer.Option(help="switch, ring or direct.")] = "switch",
    precision: Annotated[
        str, typer.Option(help="nvfp4, fp8 or bf16; the model's own if not given.")
    ] = "",
    context: Annotated[int, typer.Option(help="Tokens of each request.")] = 8192,
    concurrency: Annotated[int, typer.Option(help="Requests decoded together.")] = 1,
    route_to: Annotated[
        str, typer.Option(help="Small model that takes the requests the large one need not.")
    ] = "",
    groups: Annotated[
        str, typer.Option(help="Replicas x nodes, large + small; with --route-to.")
    ] = "3x2+2x1",
    share: Annotated[
        str, typer.Option(help="Shares of requests for the large model; with --route-to.")
    ] = "0.5,0.25",
    fit: Annotated[
        Path | None, typer.Option(help="Take alphas and betas from a bench --json file.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="The published tables beside the model.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate the fabric: where one-shot stops paying.")
    ] = False,
    plot: Annotated[Path, typer.Option(help="Image that --simulate writes.")] = Path(
        "plan-simulate.png"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Predict tokens/s, memory and the crossover on n nodes, with and without one-shot.

    Calibrated on published figures of DGX Spark clusters: --published shows its errors.

    docs/plan.md explains the formulas, the parameters and the JSON.
    """
    console = Console(highlight=False, quiet=as_json)
    try:
        cabling = parse_fabric(fabric)
        default = DEFAULT_SIMULATED if simulate else DEFAULT_NODES
        counts = parse_nodes(nodes or default[cabling], cabling)
        calibration = calibrate()
        result: dict[str, Any] = {"schema": SCHEMA}
        bench = _bench(fit, calibration, cabling, console, result)
        if published:
            if bench is not None:
                raise PlanError("--published checks the built-in calibration: leave out --fit.")
            _published(calibration, console, result)
        elif simulate:
            machine = _machine(calibration, bench)
            _check_folder(plot)
            _simulate(machine, counts, cabling, seed, plot, bench, console, result)
        else:
            work = _workload(model, precision, context, concurrency)
            machine = _machine(calibration, bench)
            routing = _routing(route_to, groups, share) if route_to else None
            _predict(machine, work, counts, cabling, console, result)
            if routing:
                _route(machine, work, routing, cabling, console, result)
        result["parameters"] = [vars(parameter) for parameter in calibration.parameters]
    except PlanError as error:
        typer.echo(f"rocenante plan: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(result, indent=1))


def _workload(name: str, precision: str, context: int, requests: int) -> outcome.Workload:
    model = load_model(name)
    for option, value in (("--context", context), ("--concurrency", requests)):
        if not 1 <= value <= MAX_TOKENS:
            raise PlanError(f"{option} is a number from 1 to {MAX_TOKENS}, not {value}.")
    chosen = check_precision(precision) if precision else model.precision
    return outcome.Workload(model, chosen, context, requests)


def _machine(calibration: Calibration, bench: BenchFit | None) -> Machine:
    if bench is None:
        return calibration.machine
    return replace(calibration.machine, costs=bench.costs)


def _bench(
    path: Path | None,
    calibration: Calibration,
    fabric: Fabric,
    console: Console,
    result: dict[str, Any],
) -> BenchFit | None:
    if path is None:
        return None
    bench = fit_samples(calibration.machine.costs, read_samples(path), fabric)
    report.show_fit(console, bench)
    result["fit"] = {
        "costs": vars(bench.costs),
        "points": [{**vars(sample), "error": error} for sample, error in bench.errors],
    }
    return bench


def _published(calibration: Calibration, console: Console, result: dict[str, Any]) -> None:
    tables = load_published()
    checks = outcome.check_published(calibration, tables)
    memory = outcome.check_memory(tables)
    report.show_checks(console, tables, checks, memory)
    report.show_parameters(console, calibration)
    result["published"] = [check.as_json() for check in checks]
    result["memory"] = {**vars(memory), "used_gb": memory.used_gb, "fits": memory.fits}


def _predict(
    machine: Machine,
    work: outcome.Workload,
    counts: list[int],
    fabric: Fabric,
    console: Console,
    result: dict[str, Any],
) -> None:
    rows = outcome.predict(machine, work, fabric, counts, load_published().memory_gb)
    report.show_predictions(console, work, fabric, rows)
    console.print("[dim]How far the model is off: rocenante plan --published[/dim]")
    result["model"] = work.model.name
    result["precision"] = work.precision
    result["context"] = work.context
    result["concurrency"] = work.requests
    result["predictions"] = [row.as_json() for row in rows]


class Routing(NamedTuple):
    """What --route-to, --groups and --share say."""

    small: Model
    groups: capacity.Groups
    shares: list[float]


def _routing(small: str, groups: str, shares: str) -> Routing:
    return Routing(load_model(small), capacity.parse_groups(groups), capacity.parse_shares(shares))


def _check_folder(plot: Path) -> None:
    """Before minutes of simulation, not after."""
    if not plot.resolve().parent.is_dir():
        raise PlanError(f"cannot write {plot}: there is no folder {plot.parent}.")


def _route(
    machine: Machine,
    work: outcome.Workload,
    routing: Routing,
    fabric: Fabric,
    console: Console,
    result: dict[str, Any],
) -> None:
    small, groups, shares = routing
    rows = outcome.routed(machine, work, small, groups, shares, fabric)
    report.show_routing(console, groups, small.name, rows)
    result["routing"] = {
        "small_model": small.name,
        "groups": vars(groups),
        "rows": [{**vars(row), "gain": row.gain} for row in rows],
    }


def _simulate(
    machine: Machine,
    counts: list[int],
    fabric: Fabric,
    seed: int,
    path: Path,
    bench: BenchFit | None,
    console: Console,
    result: dict[str, Any],
) -> None:
    sweep.check_sweep(counts, fabric)
    with _progress("simulating") as advance:
        points = sweep.sweep(machine.costs, machine.skew_us, counts, fabric, seed, progress=advance)
    report.show_sweep(console, points)
    sweep.plot(points, machine.costs, fabric, path)
    console.print(f"Plot: {path}")
    result["simulation"] = {
        "seed": seed,
        "skew_us": machine.skew_us,
        "plot": str(path),
        "points": [{**vars(point), "gain": point.gain} for point in points],
        "break_even": {str(n): sweep.break_even(points, n) for n in counts},
    }
    if bench is not None:
        pairs = sweep.against_bench(machine.costs, bench.one_shot + bench.nccl, fabric)
        report.show_against_bench(console, pairs)
        result["simulation"]["bench"] = [
            {**vars(sample), "simulated_us": us} for sample, us in pairs
        ]


@contextlib.contextmanager
def _progress(label: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error while a terminal watches; it disappears when done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda share: bar.update(task, completed=share)
