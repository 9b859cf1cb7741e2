"""Tables for the terminal: nccl-tests' columns per block, then backends side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rocenante.bench.case import NATIVELY_IN_PLACE
from rocenante.bench.record import Block, Cell, Report, Row, medians, rivalries

# Below this width type, redop and root, the same in all rows, move from columns to the heading.
FULL_WIDTH = 106


def figure(value: float, width: int) -> str:
    """As many decimals, up to two, as fit in `width` characters."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def _columns(table: Table, names: Sequence[str]) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _wrong(count: int | None) -> Text:
    if count is None:
        return Text("N/A", style="dim")
    return Text(str(count), style="bold red" if count else "green")


def _cell(block: Block, row: Row, cell: Cell | None) -> list[str | Text]:
    if cell is None:
        return [Text("N/A", style="dim")] * 4
    algorithm, bus = block.bandwidths(row, cell)
    return [
        figure(cell.stats().p50_us, 8),
        figure(algorithm, 5),
        figure(bus, 5),
        _wrong(cell.wrong),
    ]


def block_table(block: Block, full: bool) -> Table:
    """One row per size: out of place, then in place."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    constants = ["\ntype", "\nredop", "\nroot"] if full else []
    _columns(table, ["\nsize\n(B)", "\ncount\n(elements)", *constants])
    # The placement's name spreads over the two columns in the middle.
    for first, second in (("out of", "place"), ("in", "place")):
        middle = [f"{first}\nalgbw\n(GB/s)", f"{second}\nbusbw\n(GB/s)"]
        _columns(table, ["\ntime\n(us)", *middle, "\n#wrong"])
    for row in block.rows:
        fixed = [block.type_name, block.redop, str(block.root_shown)] if full else []
        table.add_row(
            str(row.size),
            str(row.count),
            *fixed,
            *_cell(block, row, row.out_of_place),
            *_cell(block, row, row.in_place),
        )
    return table


def spread_table(block: Block) -> Table:
    """Samples, minimum, mean and tail of every cell."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    _columns(table, ["size\n(B)"])
    for placement in ("out of\nplace n", "in\nplace n"):
        _columns(table, [placement, "min\n(us)", "avg\n(us)", "p99\n(us)", "max\n(us)"])
    for row in block.rows:
        values: list[str] = []
        for cell in (row.out_of_place, row.in_place):
            if cell is None:
                values += ["N/A"] * 5
                continue
            stats = cell.stats()
            values.append(str(len(cell.times_us)))
            values += [
                figure(t, 6) for t in (stats.min_us, stats.avg_us, stats.p99_us, stats.max_us)
            ]
        table.add_row(str(row.size), *values)
    return table


def speedup(times: float) -> Text:
    """Green where ours is faster."""
    text = f"{times:.0f}x" if times >= 100 else f"{times:.1f}x" if times >= 10 else f"{times:.2f}x"
    return Text(text, style="green" if times >= 1.05 else "red" if times <= 0.95 else "")


def summary_table(blocks: Sequence[Block]) -> Table:
    """Median latency per size and backend, and how many times faster ours is than each peer."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    pairs = rivalries(list(blocks))
    _columns(table, ["size\n(B)", *(f"{block.backend}\n(us)" for block in blocks)])
    several = len({subject.backend for subject, _ in pairs}) > 1
    _columns(
        table,
        [
            f"{subject.backend if several else 'faster'}\nvs {peer.backend}"
            for subject, peer in pairs
        ],
    )
    columns = [medians(block) for block in blocks]
    by_name = {block.backend: column for block, column in zip(blocks, columns, strict=True)}
    for size in sorted({size for column in columns for size in column}):
        cells: list[str | Text] = [
            figure(column[size], 9) if size in column else "N/A" for column in columns
        ]
        for subject, peer in pairs:
            ours, theirs = by_name[subject.backend].get(size), by_name[peer.backend].get(size)
            cells.append(speedup(theirs / ours) if ours and theirs else "N/A")
        table.add_row(str(size), *cells)
    return table


def print_block(console: Console, block: Block, spread: bool) -> None:
    """Heading, table and nccl-tests' closing lines of one block."""
    full = console.width >= FULL_WIDTH
    constants = [f"type {block.type_name}"] if block.collective != "barrier" else []
    if block.redop != "none":
        constants.append(f"redop {block.redop}")
    if block.root_shown >= 0:
        constants.append(f"root {block.root_shown}")
    console.print()
    console.print(
        f"[bold cyan]{block.collective}[/] on [bold]{block.backend}[/], {block.ranks} ranks"
        + ("" if full or not constants else f": {', '.join(constants)}"),
        highlight=False,
    )
    console.print(
        f"[dim]{escape(block.version)}; median of the slowest rank's time[/]",
        highlight=False,
    )
    console.print(block_table(block, full))
    wrong = block.wrong()
    verdict = "N/A" if wrong is None else f"{wrong} {'OK' if wrong == 0 else 'FAILED'}"
    console.print(
        f"# Out of bounds values : {verdict}", style="bold red" if wrong else None, highlight=False
    )
    console.print(f"# Avg bus bandwidth    : {block.average_bus_bandwidth():.4g}", highlight=False)
    if spread:
        console.print(spread_table(block))


def print_summary(console: Console, report: Report) -> None:
    """One side-by-side table per collective and number of ranks."""
    for collective, ranks, blocks in report.comparisons():
        if len(blocks) < 2:
            continue
        placement = "in place" if collective in NATIVELY_IN_PLACE else "out of place"
        console.print()
        console.print(
            f"[bold]p50 latency of {collective}[/], {ranks} ranks, {placement}, slowest rank",
            highlight=False,
        )
        console.print(summary_table(blocks))


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
