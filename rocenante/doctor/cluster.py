"""The doctor on all ranks of a group: rank 0 leads and reports, the others take part."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress

from rocenante.doctor import clock, fabric, heatmap, pairs
from rocenante.doctor.checks import run_checks
from rocenante.doctor.compare import compare
from rocenante.doctor.diagnose import diagnose
from rocenante.doctor.facts import Facts, gather
from rocenante.doctor.finding import Finding, Level, count, exit_code
from rocenante.doctor.host import Host
from rocenante.doctor.meeting import AbsentError, Meeting
from rocenante.doctor.peer import Peer, describe
from rocenante.doctor.show import show_findings, show_summary

_GOODBYE_S = 5.0
_GATHER_S = 120.0  # what the slowest host may take to import torch and ask its drivers


@dataclass
class Examination:
    """What rank 0 found."""

    size: int
    peers: dict[int, Peer]
    fabric: fabric.Fabric
    measured: list[pairs.Measured] = field(default_factory=list)
    skews: list[clock.Skew] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # about more than one host

    @property
    def all_findings(self) -> list[Finding]:
        """Those of each host as well, the same ones of several hosts as one."""
        where: dict[Finding, list[str]] = {}
        for peer in self.peers.values():
            for finding in peer.findings:
                hosts = where.setdefault(finding, [])
                if peer.host not in hosts:
                    hosts.append(peer.host)
        of_hosts = []
        for finding, hosts in where.items():
            if finding.level is not Level.OK:
                subject = f"{', '.join(hosts)} {finding.subject}".strip()
                of_hosts.append(
                    Finding(finding.check, finding.level, finding.why, finding.fix, subject)
                )
        return [*of_hosts, *self.findings]

    def as_json(self) -> dict[str, Any]:
        return {
            "world_size": self.size,
            "ranks": [peer.as_json() for _, peer in sorted(self.peers.items())],
            "fabric": self.fabric.as_json(),
            "pairs": [one.as_json() for one in self.measured],
            "clocks": [skew.as_json() for skew in self.skews],
            "findings": [finding.as_json() for finding in self.all_findings],
            "summary": count(self.all_findings),
        }


def examine(
    meeting: Meeting, facts: Facts, timeout: float, progress: pairs.Progress
) -> Examination | None:
    """Takes part; the result on rank 0. Raises AbsentError if rank 0 or the store is gone."""
    mine = describe(meeting.rank, facts, run_checks(facts))
    meeting.tell(f"here/{meeting.rank}", mine.as_json())
    if meeting.rank != 0:
        # Rank 0 gathers as well, and waits for the last one before it says who is there.
        here = meeting.hear("present", timeout + 2 * _GATHER_S, "rank 0")
        if meeting.rank not in here:
            raise AbsentError(f"rank {meeting.rank} came later than --timeout {timeout:g} s")
        clock.measure(meeting, here, timeout)
        pairs.follow(meeting, facts.host, timeout)
        return None
    arrived = meeting.hear_all("arrived", list(range(meeting.size)), timeout)
    told = meeting.hear_all("here", list(arrived), _GATHER_S)
    peers = {rank: Peer.from_json(value) for rank, value in told.items()}
    meeting.tell("present", sorted(peers))
    result = Examination(meeting.size, peers, fabric.tell(peers))
    result.skews = clock.measure(meeting, sorted(peers), timeout)
    result.measured, gone = pairs.lead(meeting, peers, facts.host, timeout, progress)
    result.findings = [
        *_absent(meeting.size, peers, timeout, gone),
        *compare(peers, result.skews),
        *diagnose(peers, result.measured),
    ]
    return result


def _absent(
    size: int, peers: dict[int, Peer], timeout: float, gone: dict[int, str]
) -> Iterator[Finding]:
    for rank in range(size):
        if rank not in peers:
            yield Finding(
                "ranks",
                Level.ERROR,
                f"rank {rank} of {size} did not come within {timeout:g} s",
                "see its host: was it started with the same MASTER_ADDR, MASTER_PORT and "
                "WORLD_SIZE, and did it print an error?",
                f"rank {rank}",
            )
    for rank, why in gone.items():
        yield Finding(
            "ranks",
            Level.ERROR,
            f"{peers[rank].host} died or hangs: {why}",
            "see its output and its kernel's log (dmesg)",
            f"rank {rank}",
        )


def run_cluster(timeout: float, png: Path | None, as_json: bool) -> int:
    """The command on this rank of torchrun's: prints on rank 0; the exit code, alike on all."""
    try:
        meeting = Meeting.from_env(os.environ, timeout)
        facts = gather(Host())
        with _progress(meeting.rank == 0) as advance:
            result = examine(meeting, facts, timeout, advance)
        if result is None:
            code = int(meeting.hear("end", timeout + _GATHER_S, "rank 0"))
            meeting.tell(f"bye/{meeting.rank}", None)
            return code
        code = _report(result, png, as_json)
        meeting.tell("end", code)
        # Rank 0 may serve the store: it stays until the others have heard.
        meeting.hear_all("bye", [rank for rank in result.peers if rank != 0], _GOODBYE_S)
        return code
    except AbsentError as error:
        typer.echo(f"rocenante doctor: {error}. Check that every rank was started.", err=True)
        return 1


def _report(result: Examination, png: Path | None, as_json: bool) -> int:
    from rocenante.doctor.command import SCHEMA

    if png is not None:
        try:
            heatmap.draw(png, result.peers, result.measured)
        except (OSError, ValueError, ImportError) as error:
            result.findings.append(
                Finding("png", Level.WARNING, f"{png} was not written: {error}", "see the reason")
            )
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, **result.as_json()}, indent=1))
    else:
        show(Console(highlight=False), result)
        if png is not None:
            typer.echo(f"Image: {png}")
    return exit_code(result.all_findings)


def show(console: Console, result: Examination) -> None:
    """The report for a terminal."""
    hosts = ", ".join(dict.fromkeys(peer.host for peer in result.peers.values()))
    console.print(
        f"[bold]rocenante doctor: {len(result.peers)} of {result.size} ranks[/] ({hosts})"
    )
    heatmap.show(console, result.peers, result.measured)
    console.print(
        f"[bold]Fabric: {result.fabric.shape}[/]: {result.fabric.why}. {result.fabric.does}."
    )
    show_findings(console, "", result.all_findings)
    show_summary(console, result.all_findings)


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Callable[[float], None]]:
    """A bar on standard error while a terminal watches."""
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task("measuring pairs", total=1.0)
        yield lambda share: bar.update(task, completed=share)
