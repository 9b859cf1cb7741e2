"""The typer application: one line per command, whose module is imported when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from rocenante.cli import EXTRA

# name -> (module:function, what it is for)
COMMANDS = {
    "bench": ("rocenante.bench.command:bench", "Measure collectives beside gloo, MPI and NCCL."),
    "doctor": ("rocenante.doctor.command:doctor", "Find what is wrong with the network."),
    "info": ("rocenante.info:info", "Show versions, transports and the configuration in force."),
    "tune": ("rocenante.tune.command:tune", "Measure when to take one step or two, and keep it."),
    "plan": ("rocenante.plan.command:plan", "Estimate what rocenante would bring on a cluster."),
}


def build_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The application. Commands not named by `arguments` are listed without being imported."""
    app = typer.Typer(
        name="rocenante",
        help="Low-latency collectives for torch.distributed over shared memory and RoCE.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    for name, (target, summary) in COMMANDS.items():
        wanted = name in arguments
        app.command(name, short_help=summary)(
            _load(name, target) if wanted else _listed(name, target)
        )
    return app


def _root() -> None:
    """Low-latency collectives for torch.distributed over shared memory and RoCE."""


def _load(name: str, target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    try:
        command: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as missing:
        return _unavailable(name, str(missing.name))
    return command


def _unavailable(name: str, missing: str) -> Callable[..., Any]:
    remedy = "" if missing.startswith("rocenante") else f": {EXTRA}"

    def unavailable(
        arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    ) -> None:
        typer.echo(f"rocenante {name} needs {missing}, which is not installed{remedy}", err=True)
        raise typer.Exit(1)

    return unavailable


def _listed(name: str, target: str) -> Callable[..., Any]:
    """Stands for a command in the list of commands."""

    def listed() -> None:
        raise AssertionError(f"{name} ({target}) was not loaded")

    return listed
