"""`rocenante info`: versions, what was built in, transports, and the configuration in force."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import rocenante
from rocenante.bench import machine


def collect() -> dict[str, Any]:
    """Everything that is shown. Works without the extension: "problem" then says what is missing.

    Keys: those of rocenante.build_info(), and machine, versions, revision, config (list of rows)
    and config_problem (None, or why the configuration in force can't be told).
    """
    found: dict[str, Any] = dict(rocenante.build_info())
    found["machine"] = machine.describe()
    found["versions"] = machine.versions()
    found["revision"] = machine.git_revision()
    found["config"], found["config_problem"] = [], None
    try:
        found["config"] = [row._asdict() for row in rocenante.config()]
    except (ImportError, rocenante.ConfigError) as error:
        found["config_problem"] = str(error)
    return found


def _pairs(title: str, pairs: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold cyan", box=None)
    table.show_header = False
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, escape(value))
    return table


def _software(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, str(value)) for name, value in found["versions"].items()]
    if found.get("torch_built_against"):
        rows.append(("built against", f"torch {found['torch_built_against']}"))
    if found.get("compiler"):
        rows.append(("compiler", f"{found['compiler']}, {found.get('build_type')}"))
    if found["revision"]:
        rows.append(("revision", str(found["revision"])))
    if found.get("cuda"):
        archs = ", ".join(str(arch) for arch in found.get("cuda_archs") or [])
        rows.append(("CUDA kernels", f"{found.get('cuda_version')} for {archs}"))
    elif "cuda" in found:
        rows.append(("CUDA kernels", "not built in: no nvcc was found when rocenante was built"))
    return rows


def _config_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title="Configuration in force", title_justify="left", title_style="bold cyan", box=None
    )
    table.add_column("variable", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for row in rows:
        changed = row["value"] != row["default"]
        value = escape(str(row["value"])) or "-"
        if changed:
            value = f"[yellow]{value}[/] (default {escape(str(row['default'])) or '-'})"
        agree = "; the same on all ranks" if row["must_agree"] else ""
        table.add_row(str(row["name"]), value, escape(f"{row['meaning']}{agree}"))
    return table


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Prints what `collect` returned."""
    console.print(_pairs("Software", _software(found)))
    about = found["machine"]
    console.print(
        _pairs(
            "Machine",
            [
                ("processor", f"{about['cpu']} ({about['architecture']})"),
                ("cores", f"{about['usable_cores']} usable of {about['cores']}"),
                ("memory", f"{about['memory_gib']:g} GiB"),
                ("kernel", str(about["kernel"])),
                ("SIMD in use", str(found.get("simd") or "unknown without the extension")),
            ],
        )
    )
    transports = [(name, str(state)) for name, state in found["transports"].items()]
    console.print(_pairs("Transports", transports))
    console.print(_pairs("GPU", [("kernels", str(found["gpu"]))]))
    if found["config_problem"] is None:
        console.print(_config_table(found["config"]))
    elif found["config_problem"] != found["problem"]:
        console.print(f"[bold red]configuration:[/] {escape(found['config_problem'])}")
    if found["problem"] is not None:
        console.print(f"\n[bold red]the backend can't be used:[/] {escape(found['problem'])}")


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show versions, what was built in, transports and why not, and the configuration in force."""
    found = collect()
    if as_json:
        typer.echo(json.dumps(found, indent=1, default=str))
        return
    console = Console(width=None if os.environ.get("COLUMNS") else _width())
    show(console, found)


def _width() -> int:
    return max(80, Console().width)
