"""`rocenante doctor`: what is wrong with this host, and with the network between hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rocenante.doctor.checks import run_checks
from rocenante.doctor.facts import gather
from rocenante.doctor.finding import count, exit_code
from rocenante.doctor.host import Host
from rocenante.doctor.show import show_findings, show_summary

SCHEMA = 1
MAX_RANKS = 64
MIN_TIMEOUT, MAX_TIMEOUT = 1.0, 3600.0


def doctor(
    ranks: Annotated[
        int, typer.Option(help="Try the checks between hosts with N ranks on this one.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for all ranks, and for each pair of them.")
    ] = 30.0,
    png: Annotated[
        Path | None, typer.Option(help="Write the matrices of latency and bandwidth as an image.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Find what is wrong with this host's RDMA, and with the network between hosts.

    Alone it looks at this host. Under torchrun, one rank on each host, it also measures every
    pair of ranks over each rail and compares the hosts.

    Exit code: 0 healthy, 1 findings, 2 usage. docs/doctor.md explains checks and JSON.
    """
    if problem := _usage(ranks, timeout, png, os.environ):
        typer.echo(f"rocenante doctor: {problem}", err=True)
        raise typer.Exit(2)
    if ranks:
        from rocenante.doctor.local import run_local

        raise typer.Exit(run_local(ranks, timeout, png, as_json))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from rocenante.doctor.cluster import run_cluster

        raise typer.Exit(run_cluster(timeout, png, as_json))
    raise typer.Exit(_one_host(as_json))


def _usage(ranks: int, timeout: float, png: Path | None, environ: Mapping[str, str]) -> str | None:
    """What is wrong with the command line or torchrun's variables."""
    world = environ.get("WORLD_SIZE", "1")
    if not world.isdigit() or int(world) < 1:
        return f"WORLD_SIZE={world} is no number of ranks: start it with torchrun."
    if ranks and not 2 <= ranks <= MAX_RANKS:
        return f"--ranks is a number from 2 to {MAX_RANKS}, not {ranks}."
    if ranks and int(world) > 1:
        return "--ranks starts its own ranks: leave it out under torchrun."
    if int(world) > MAX_RANKS:
        return f"WORLD_SIZE={world}: a group has at most {MAX_RANKS} ranks."
    if not MIN_TIMEOUT <= timeout <= MAX_TIMEOUT:
        return f"--timeout is from {MIN_TIMEOUT:g} to {MAX_TIMEOUT:g} seconds, not {timeout:g}."
    between = bool(ranks) or int(world) > 1
    if png is not None and not between:
        return "--png shows pairs of ranks: it needs torchrun or --ranks."
    if png is not None and not png.resolve().parent.is_dir():
        return f"--png {png}: there is no folder {png.parent}."
    if not ranks and int(world) > 1:
        missing = [v for v in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environ.get(v)]
        if missing:
            return f"WORLD_SIZE is set, but not {', '.join(missing)}: start it with torchrun."
        for variable in ("RANK", "MASTER_PORT"):
            if not environ[variable].isdigit():
                return f"{variable}={environ[variable]} is no number: start it with torchrun."
        if int(environ["RANK"]) >= int(world):
            return f"RANK={environ['RANK']} is not below WORLD_SIZE={world}."
    return None


def _one_host(as_json: bool) -> int:
    facts = gather(Host())
    findings = run_checks(facts)
    if as_json:
        result: dict[str, Any] = {"schema": SCHEMA, **facts.as_json()}
        result["findings"] = [finding.as_json() for finding in findings]
        result["summary"] = count(findings)
        typer.echo(json.dumps(result, indent=1))
    else:
        console = Console(highlight=False)
        show_findings(console, f"rocenante doctor: {facts.name}", findings)
        show_summary(console, findings)
    return exit_code(findings)
