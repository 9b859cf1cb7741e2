"""Tables of a plan, made for 80 columns."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from rocenante.plan.benchfit import BenchFit, Sample
from rocenante.plan.calibration import Calibration
from rocenante.plan.capacity import Groups, Memory, Routed, parse_groups, small_replica_needed
from rocenante.plan.costs import MAX_CROSSOVER_BYTES
from rocenante.plan.fabric import Fabric
from rocenante.plan.outcome import Check, Prediction, Workload
from rocenante.plan.published import Published
from rocenante.plan.sweep import Point, break_even, bytes_text

POOR_FIT = 0.25  # of a measured time; runs that the model describes stay below
ORIGINS = ("fitted", "published", "assumed")


def _table(title: str, *headings: str) -> Table:
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right")
    return table


def show_predictions(
    console: Console, work: Workload, fabric: Fabric, rows: list[Prediction]
) -> None:
    """Decode, prefill, crossover and memory for each node count."""
    model = work.model
    requests = "1 request" if work.requests == 1 else f"{work.requests} requests"
    console.print(
        f"[bold]{model.name}[/bold], {work.precision}, {requests} of {work.context} tokens; "
        f"a step: {model.all_reduces} all-reduces of "
        f"{bytes_text(model.message_bytes(work.requests))}"
    )
    table = _table(
        f"Predicted tokens/s and scaling, fabric: {fabric.value}",
        "nodes",
        "decode\nNCCL",
        "\none-shot",
        "scaling\nNCCL",
        "\none-shot",
        "\nprefill",
        "one-shot\nup to",
        "GB a\nnode",
        "\nfits",
    )
    for row in rows:
        table.add_row(
            str(row.nodes),
            f"{row.decode_nccl_tps:.2f}",
            "-" if row.decode_one_shot_tps is None else f"{row.decode_one_shot_tps:.2f}",
            f"{row.scaling_nccl:.2f}",
            "-" if row.scaling_one_shot is None else f"{row.scaling_one_shot:.2f}",
            f"{row.prefill_tps:.0f}",
            "-" if row.one_shot_until_nccl is None else until_text(row.one_shot_until_nccl),
            f"{row.memory.used_gb:.1f}",
            "yes" if row.memory.fits else "[red]no[/red]",
        )
    console.print(table)
    for row in rows:
        if not row.memory.fits:
            console.print(f"{row.nodes} node(s): does not run: {row.memory.reason}.")
    if any(row.nodes > 1 and row.decode_one_shot_tps is None for row in rows):
        console.print("One-shot sends to every peer: a ring of more than 3 nodes runs NCCL alone.")
    console.print(
        "[dim]'one-shot up to': the largest all-reduce that one-shot wins against NCCL. "
        "Scaling is against one node, even where the model does not fit into it.[/dim]"
    )


def show_parameters(console: Console, calibration: Calibration) -> None:
    """Every parameter with its origin."""
    table = _table("Parameters", "parameter", "value", "unit", "origin", "from")
    for parameter in calibration.parameters:
        table.add_row(
            parameter.name,
            f"{parameter.value:.4g}",
            parameter.unit,
            parameter.origin,
            parameter.source,
        )
    table.columns[2].justify = table.columns[3].justify = table.columns[4].justify = "left"
    console.print(table)
    counts = [
        f"{sum(p.origin == origin for p in calibration.parameters)} {origin}" for origin in ORIGINS
    ]
    console.print(f"[dim]{', '.join(counts)}. Rows marked 'predicted' were not read.[/dim]")


def show_checks(
    console: Console, published: Published, checks: list[Check], memory: Memory
) -> None:
    """The published tables beside the model."""
    console.print(f"[bold]Source:[/bold] {published.source}")
    console.print(f"[dim]{published.model}: {published.conditions}[/dim]")
    table = _table("", "table", "row", "published", "model", "error", "role")
    previous = ""
    for check in checks:
        if previous and check.table != previous:
            table.add_section()
        fitted = check.role == "fitted"
        table.add_row(
            "" if check.table == previous else check.table,
            check.row,
            f"{check.published:.4g}" if check.published < 1000 else f"{check.published:.0f}",
            f"{check.model:.4g}" if check.model < 1000 else f"{check.model:.0f}",
            _percent(check.error),
            check.role,
            style="dim" if fitted else "",
        )
        previous = check.table
    table.columns[1].justify = table.columns[5].justify = "left"
    console.print(table)
    worst = max((check for check in checks if check.role == "predicted"), key=_magnitude)
    console.print(
        f"Largest error of a predicted row: {_percent(worst.error)} "
        f"({worst.table}, {worst.row}). decode, prefill, training: tokens/s; routing: throughput "
        "against large-only."
    )
    groups = parse_groups(published.routing_groups)
    needed = max(small_replica_needed(groups, share) for share, _ in published.routing)
    console.print(
        f"Routing assumes that a small replica makes {needed:.1f} times a large one's tokens/s."
    )
    console.print(
        f"Memory: {published.memory_model} on {published.memory_nodes} nodes takes "
        f"{memory.used_gb:.1f} of {memory.usable_gb:.0f} usable GB a node: "
        f"{'fits' if memory.fits else 'does not fit'}."
    )


def _percent(error: float) -> str:
    # Adding zero turns -0.0 into 0.0.
    return f"{round(error * 100, 1) + 0.0:+.1f} %"


def _magnitude(check: Check) -> float:
    return abs(check.error)


def show_routing(console: Console, groups: Groups, small: str, rows: list[Routed]) -> None:
    """Aggregate throughput of routed replica groups."""
    table = _table(
        f"{groups.large_replicas} x {groups.large_nodes} nodes large, "
        f"{groups.small_replicas} x {groups.small_nodes} nodes {small}",
        "share to large",
        "tokens/s",
        f"large only ({groups.large_only_replicas} replicas)",
        "gain",
        "saturated",
    )
    for row in rows:
        table.add_row(
            f"{row.share:g}",
            f"{row.tps:.1f}",
            f"{row.large_only_tps:.1f}",
            f"{row.gain:.2f}",
            row.bottleneck,
        )
    console.print(table)


def show_fit(console: Console, fit: BenchFit) -> None:
    """What a bench run gave."""
    costs = fit.costs
    worst = max(abs(error) for _, error in fit.errors)
    parts = []
    if fit.one_shot:
        fixed = costs.launch_us + costs.exchange_us
        parts.append(
            f"one-shot {fixed:.2f} us + {costs.post_us:.2f} us a peer + "
            f"{costs.wire_us_per_byte * 1024:.3f} us/KiB ({len(fit.one_shot)} points)"
        )
    if fit.nccl:
        parts.append(
            f"NCCL {costs.step_us:.2f} us a step + {costs.ring_us_per_byte * 1024:.3f} us/KiB "
            f"({len(fit.nccl)} points)"
        )
    console.print(f"Fitted to the bench run: {'; '.join(parts)}; worst error {worst:.1%}.")
    if worst > POOR_FIT:
        console.print(
            "[yellow]The run does not follow the model, so neither will its predictions: was "
            "another load there, or more ranks than processors?[/yellow]"
        )


def show_sweep(console: Console, points: list[Point]) -> None:
    """Simulated gain of one-shot over NCCL by size and nodes."""
    nodes = sorted({point.nodes for point in points})
    gains = {(point.nodes, point.size): point.gain for point in points}
    table = _table(
        "NCCL's time over one-shot's, simulated with arrival skew",
        "bytes",
        *(f"{n} nodes" for n in nodes),
    )
    for size in sorted({point.size for point in points}):
        cells = [gains[n, size] for n in nodes]
        table.add_row(
            bytes_text(size),
            *(
                f"[green]{gain:.2f}[/green]" if gain >= 1 else f"[red]{gain:.2f}[/red]"
                for gain in cells
            ),
        )
    table.add_section()
    table.add_row("pays up to", *(_break_even_text(points, n) for n in nodes))
    console.print(table)
    worst = max(points, key=lambda point: point.incast)
    console.print(
        f"[dim]Incast: if all nodes posted in rank order, {bytes_text(worst.size)} on "
        f"{worst.nodes} nodes would take {worst.incast:.2f} times as long.[/dim]"
    )


def _break_even_text(points: list[Point], nodes: int) -> str:
    end = break_even(points, nodes)
    if end is None:
        return f"> {bytes_text(max(point.size for point in points))}"
    return bytes_text(end) if end else "never"


def show_against_bench(console: Console, pairs: list[tuple[Sample, float]]) -> None:
    """Simulated beside measured."""
    table = _table(
        "Simulator against the bench run", "backend", "ranks", "bytes", "us", "simulated", "error"
    )
    for sample, us in pairs:
        table.add_row(
            sample.backend,
            str(sample.ranks),
            bytes_text(sample.size),
            f"{sample.us:.2f}",
            f"{us:.2f}",
            _percent(us / sample.us - 1),
        )
    console.print(table)


def until_text(size: float) -> str:
    """Text of a closed-form crossover."""
    if size >= MAX_CROSSOVER_BYTES:
        return f"> {bytes_text(size)}"
    return bytes_text(size) if size else "never"
