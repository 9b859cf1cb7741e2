"""The report of one host on a terminal, made for 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rocenante.doctor.finding import Finding, Level, count

_ORDER = (Level.OK, Level.WARNING, Level.ERROR)  # the worst last: it stays on the screen
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show_findings(console: Console, title: str, findings: Sequence[Finding]) -> None:
    """A table with a line for each, and its fix below."""
    if title:
        console.print(f"[bold]{escape(title)}[/]")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=24)
    table.add_column(overflow="fold")
    for level in _ORDER:
        for finding in (f for f in findings if f.level is level):
            name = escape(finding.check)
            if finding.subject:
                name += f" [dim]{escape(finding.subject)}[/]"
            text = escape(finding.why)
            if finding.fix and level is not Level.OK:
                text += f"\n[cyan]→ {escape(finding.fix)}[/]"
            style = _STYLES[level]
            table.add_row(f"[{style}]{level.value}[/]", name, text)
    console.print(table)


def show_summary(console: Console, findings: Sequence[Finding]) -> None:
    """1 error, 2 warnings, 20 ok"""
    numbers = count(findings)
    parts = []
    for level in reversed(_ORDER):
        number = numbers[level.value]
        plural = "s" if number != 1 and level is not Level.OK else ""
        if number or level is Level.OK:
            parts.append(f"[{_STYLES[level]}]{number} {level.value}{plural}[/]")
    console.print(", ".join(parts))
