"""all_reduce over real RoCE verbs in one guest (tests/softroce), all backends in turns.

    make bench-softroce     boots a guest of four devices and runs this in it

`floor` is half a round trip of bare RDMA WRITEs between two processes, `ib_write_lat` the same by
perftest; `communicator` goes over verbs, `gloo` over TCP, `ucx` is Open MPI over UCX's rc_verbs;
each rank has a device of its own. A guest has one processor, so times count packets and wake-ups:
they compare within a boot, and say nothing about a wire.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from measure import RESULTS, human
from rich.console import Console
from rich.table import Table

from rocenante.bench import machine
from rocenante.bench.arms import start_arm
from rocenante.bench.channel import Message
from rocenante.bench.coordinator import measure
from rocenante.bench.groups import Group, Launch, WorkerError, fork_group, scratch_folder
from rocenante.bench.mpi_group import MpiGroup
from rocenante.bench.options import Options
from rocenante.bench.ratios import Cell, times
from rocenante.bench.record import Block, Report
from rocenante.bench.report_json import document, write_json
from rocenante.bench.worker import Arm

ROOT = Path(__file__).resolve().parents[1]
FLOOR = ROOT / "build/bench/benchmarks/floor/write_ping_pong"
RANKS = (2, 4)
SIZES = (8, 10 << 10)
TARGETS = {"ucx": 0.9, "gloo": 0.2}
UCX_PYTHON = "/usr/bin/python3"
UCX_PACKAGES = "openmpi-bin libucx0 python3-mpi4py python3-numpy"
_START_LIMIT_S = 120.0

Program = Callable[[int, int], list[float]]  # bytes, rounds -> microseconds


class ProgramGroup:
    """A program of two processes that has no collectives, as a group of the bench."""

    def __init__(self, name: str, version: str, program: Program) -> None:
        self.name, self.version = name, version
        self._program = program

    def exchange(self, message: Message, timeout: float) -> list[Message]:
        request = message["run"]
        size = 4 * request["case"]["count"]
        try:
            return [{"times": self._program(size, request["iterations"]), "wrong": 0}]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return [{"refused": f"{error}"}]

    def close(self) -> None:
        """Each exchange has ended its processes."""


def floor(size: int, rounds: int) -> list[float]:
    done = subprocess.run(
        [str(FLOOR), str(size), str(rounds), "rxe0", "rxe1", "32"],
        capture_output=True,
        text=True,
        timeout=_START_LIMIT_S,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return [float(line) for line in done.stdout.split()]


def perftest(size: int, _rounds: int) -> list[float]:
    """ib_write_lat's typical latency: one sample a call.

    In cycles (-C), since its own conversion to microseconds fails in a guest that shares its
    processor. It never gives its processor away while it waits.
    """
    mhz = re.search(r"^cpu MHz\s*: (\S+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if mhz is None:
        raise ValueError("/proc/cpuinfo does not tell the clock's frequency")
    command = ["ib_write_lat", "-F", "-C", "-x", "1", "-s", str(size), "-n", "50"]
    with subprocess.Popen(
        [*command, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            time.sleep(0.5)  # it says nothing once it listens; the client gives up at once
            done = subprocess.run(
                [*command, "-d", "rxe1", "10.77.0.1"],
                capture_output=True,
                text=True,
                timeout=_START_LIMIT_S,
            )
        finally:
            server.kill()
    # bytes iterations t_min t_max t_typical t_avg ...
    found = re.search(rf"^\s*{size}\s+\d+\s+\S+\s+\S+\s+(\S+)", done.stdout, re.MULTILINE)
    if found is None:
        raise ValueError(f"ib_write_lat has no figure: {done.stderr[-200:]}")
    return [float(found[1]) / float(mhz[1])]


def on_verbs(ranks: int, timeout: float) -> Callable[[int, Any], Arm]:
    """Starts a rank of `Communicator` that has a device of its own."""

    def start(rank: int, store: Any) -> Arm:
        os.environ["ROCENANTE_TRANSPORT"] = "verbs"
        os.environ["ROCENANTE_IB_HCA"] = f"=rxe{rank}"
        return start_arm("communicator", rank, ranks, store, "cpu", timeout)

    return start


def ucx_group(launch: Launch) -> Group:
    """Open MPI of the distribution, over UCX and nothing else."""
    options = ["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    for name, value in (("pml", "ucx"), ("btl", "self"), ("mpi_yield_when_idle", "1")):
        options += ["--mca", name, value]
    # Each rank's device depends on its number, which only its environment tells.
    own = f'UCX_NET_DEVICES=rxe$OMPI_COMM_WORLD_RANK:1 exec {UCX_PYTHON} "$@"'
    # ud_verbs sets the connections of rc_verbs up; the default GID does not reach the peer.
    settings = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_IB_GID_INDEX": "0"}
    env = {**os.environ, **settings, "OMP_NUM_THREADS": "1"}
    command = ["mpirun", "-n", str(launch.ranks), *options, "sh", "-c", own, "ucx"]
    return MpiGroup("ucx", command, env, launch)


@contextmanager
def groups(ranks: int, timeout: float, notes: list[str]) -> Iterator[list[Group]]:
    with scratch_folder() as folder, ExitStack() as stack:
        launch = Launch(ranks, Path(folder), False, "cpu", timeout)
        found: list[Group] = []

        def add(group: Group) -> None:
            stack.callback(group.close)
            found.append(group)

        if ranks == RANKS[0]:
            add(ProgramGroup("floor", "half a round trip of RDMA WRITE", floor))
            add(ProgramGroup("ib_write_lat", "perftest", perftest))
        add(fork_group("communicator", launch, on_verbs(ranks, timeout)))
        add(fork_group("gloo", launch))
        try:
            add(ucx_group(launch))
        except (WorkerError, OSError) as error:
            notes.append(f"ucx is left out: {error} (apt-get install {UCX_PACKAGES})")
        yield found


class Quiet:
    """Keeps the notes, says on stderr how far it is."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def note(self, text: str) -> None:
        self._report.notes.append(text)

    def advance(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def block_done(self, blocks: Sequence[Block]) -> None:
        """All tables come at the end."""


def table(ranks: int, found: dict[Cell, dict[str, float]]) -> tuple[Table, int]:
    """Times, and ours over those that have a target; how many miss it."""
    cells = {cell.size: by for cell, by in found.items() if cell.ranks == ranks}
    names = list(dict.fromkeys(name for by in cells.values() for name in by))
    shown = Table(title=f"all_reduce, {ranks} ranks, p50 in us", title_justify="left", box=None)
    for name in ("size", *names, *(f"ours/{peer}\n<= {most}" for peer, most in TARGETS.items())):
        shown.add_column(name, justify="right")
    misses = 0
    for size, by in sorted(cells.items()):
        row = [human(size), *(f"{by[name]:.4g}" if name in by else "" for name in names)]
        for peer, most in TARGETS.items():
            ratio = by["communicator"] / by[peer] if peer in by else None
            missed = ratio is not None and ratio > most and size in (8, 10 << 10)
            misses += missed
            row.append("" if ratio is None else f"{ratio:.2f}{' MISS' if missed else ''}")
        shown.add_row(*row)
    return shown, misses


def in_guest(target: Path) -> int:
    import torch.distributed  # noqa: F401  (once, before the ranks are forked from this process)

    options = Options(
        collectives=("all_reduce",),
        backends=("communicator", "gloo"),
        ranks=RANKS,
        sizes=SIZES,
        typical_only=True,
        timeout=300.0,
    )
    report = Report()
    started, load = time.strftime("%Y-%m-%d %H:%M:%S"), [machine.load_average()]
    for ranks in RANKS:
        with groups(ranks, options.timeout, report.notes) as running:
            measure(options, running, ranks, report, Quiet(report))
    load.append(machine.load_average())
    saved = document(report, options, started, load)
    layout = ("SOFTROCE_DEVICES", "SOFTROCE_MTU", "SOFTROCE_NETEM")
    saved["guest"] = {name: os.environ.get(name, "") for name in layout}
    write_json(target, saved)
    found, misses = times(saved), 0
    console = Console(width=140)
    for ranks in RANKS:
        shown, more = table(ranks, found)
        console.print(shown)
        misses += more
    console.print(f"{misses} miss their target")
    for note in report.notes:
        console.print(f"note: {note}", markup=False)
    return 1 if report.wrong() else 0


def main() -> int:
    target = RESULTS / "softroce.json"
    if "SOFTROCE_NODE" in os.environ:
        return in_guest(target)
    guest = ["tests/softroce/run", "--devices", str(max(RANKS)), "--timeout", "900"]
    command = ["--rw", str(RESULTS), "--", sys.executable, "benchmarks/softroce.py"]
    return subprocess.run([*guest, *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
