"""Brings the groups up and down: local ranks, or the ranks that torchrun started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rocenante import _native
from rocenante.bench.coordinator import Listener, measure
from rocenante.bench.groups import (
    Children,
    Group,
    Launch,
    StoreGroup,
    WorkerError,
    fork_group,
    greet,
    log_tail,
    scratch_folder,
    worker_channel,
)
from rocenante.bench.mpi_group import MpiGroup, MpiMissingError, find_mpi
from rocenante.bench.options import OURS, Options, base
from rocenante.bench.record import Report
from rocenante.bench.worker import pin_to_core, run_worker


class NothingToMeasureError(RuntimeError):
    """No requested backend can run here."""


def _cuda_devices() -> int:
    """GPUs that torch can use, asked in a child: initialised CUDA does not survive a fork."""
    pid = os.fork()
    if pid == 0:
        count = 0
        try:
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        finally:
            os._exit(min(count, 255))
    _, status = os.waitpid(pid, 0)
    return max(0, os.waitstatus_to_exitcode(status))


def absent(
    backend: str, options: Options, local_ranks: int, devices: Callable[[], int] = _cuda_devices
) -> str | None:
    """Why `backend` cannot be measured here, before any process is started; None if it may."""
    if base(backend) in OURS and (problem := _native.why_not()) is not None:
        return problem
    if base(backend) == "communicator" and options.device == "cuda":
        return f"{backend} is measured on numpy arrays: use --device cpu"
    if backend in dict(options.mpi) and options.device == "cuda":
        return f"{backend} is measured on numpy arrays: use --device cpu"
    if backend == "nccl" and options.device != "cuda":
        return "nccl moves CUDA tensors only: add --device cuda"
    if options.device == "cuda" and devices() < local_ranks:
        found = f"torch finds {devices()}"
        return f"{backend} on --device cuda needs a GPU for each of {local_ranks} ranks; {found}"
    return None


def _selected(options: Options, local_ranks: int, listener: Listener) -> list[str]:
    chosen = []
    for backend in options.backends:
        reason = absent(backend, options, local_ranks)
        if reason is None:
            chosen.append(backend)
        elif base(backend) in OURS:
            raise NothingToMeasureError(f"{reason}; or leave {backend} out with --backends")
        else:
            listener.note(f"{backend} is left out: {reason}.")
    return chosen


def _start(backend: str, options: Options, launch: Launch) -> Group:
    pythons = dict(options.mpi)
    if backend not in pythons:
        return fork_group(backend, launch)
    installation = find_mpi(pythons[backend])
    return MpiGroup(backend, installation.command(launch.ranks), installation.environment(), launch)


@contextmanager
def local_groups(options: Options, ranks: int, listener: Listener) -> Iterator[list[Group]]:
    """One group per backend that can run, ended on leaving whatever happens."""
    groups: list[Group] = []
    with scratch_folder() as folder:
        launch = Launch(ranks, Path(folder), options.pin, options.device, options.timeout)
        try:
            for backend in _selected(options, ranks, listener):
                try:
                    groups.append(_start(backend, options, launch))
                except (WorkerError, MpiMissingError) as error:
                    if base(backend) in OURS:
                        raise
                    listener.note(f"{backend} is left out: {error}")
            if not groups:
                raise NothingToMeasureError("none of the requested backends can run here.")
            yield groups
        finally:
            for group in groups:
                group.close()


def run_local(options: Options, report: Report, listener: Listener) -> None:
    """Measures with every requested number of ranks on this host."""
    import torch.distributed  # noqa: F401  (once, before the ranks are forked from this process)

    for ranks in options.ranks:
        with local_groups(options, ranks, listener) as groups:
            measure(options, groups, ranks, report, listener)


@dataclass(frozen=True)
class Torchrun:
    """What torchrun, or another launcher with the same variables, tells a process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    agent_store: bool

    @classmethod
    def from_env(cls, env: dict[str, str]) -> Torchrun | None:
        """None outside a launcher. Raises ValueError naming a variable that is malformed."""
        if "RANK" not in env or "WORLD_SIZE" not in env:
            return None
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in env:
                raise ValueError(
                    f"RANK and WORLD_SIZE are set but {name} is not: start the ranks with torchrun."
                )
        numbers = {}
        for name, default in (
            ("RANK", ""),
            ("WORLD_SIZE", ""),
            ("LOCAL_RANK", "0"),
            ("MASTER_PORT", ""),
        ):
            text = env.get(name, default)
            if not text.isdigit():
                raise ValueError(f"{name}={text!r} is not a number.")
            numbers[name] = int(text)
        rank, world = numbers["RANK"], numbers["WORLD_SIZE"]
        if rank >= world:
            raise ValueError(f"RANK={rank} must be less than WORLD_SIZE={world}.")
        return cls(
            rank=rank,
            world_size=world,
            local_rank=numbers["LOCAL_RANK"],
            local_world_size=int(env.get("LOCAL_WORLD_SIZE", world)),
            address=env["MASTER_ADDR"],
            port=numbers["MASTER_PORT"],
            agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    def store(self, host: bool) -> Any:
        """A client of the launcher's TCPStore; with `host` the server that others lack."""
        dist: Any = importlib.import_module("torch.distributed")

        return dist.TCPStore(
            self.address,
            self.port,
            is_master=host,
            wait_for_workers=False,
            timeout=timedelta(seconds=300),
        )


def run_under_torchrun(
    options: Options, place: Torchrun, report: Report, listener: Listener
) -> None:
    """This process's part of a run under torchrun.

    Each process forks one worker per backend; the first rank's process also coordinates. Workers
    talk through the launcher's Store, so nothing else needs to be reachable.
    """
    import torch.distributed  # noqa: F401

    backends = []
    for backend in _selected(options, place.local_world_size, listener):
        if backend in dict(options.mpi):
            listener.note(
                f"{backend} is left out: mpiexec starts its ranks, on one host; run without "
                "torchrun."
            )
        else:
            backends.append(backend)
    if not backends:
        raise NothingToMeasureError("none of the requested backends can run under torchrun.")
    with scratch_folder() as folder:
        children = Children(Path(folder) / "workers.log")
        try:
            for backend in backends:
                children.fork(place.rank, _remote_life(backend, options, place))
            if place.rank == 0:
                _coordinate(options, place, backends, report, listener)
            children.wait(None)
            if children.failed:
                raise WorkerError(f"a worker of rank {place.rank} failed:")
        except WorkerError as failed:
            tail = log_tail(children.log)
            raise WorkerError(f"{failed}\n{tail}" if tail else str(failed)) from failed
        finally:
            children.wait(0.0)


def _remote_life(backend: str, options: Options, place: Torchrun) -> Callable[[], int]:
    def life() -> int:
        dist: Any = importlib.import_module("torch.distributed")

        from rocenante.bench.arms import start_arm

        if options.pin:
            pin_to_core(place.local_rank)
        store = place.store(host=False)
        meeting = dist.PrefixStore(f"bench/{backend}", store)
        channel = worker_channel(
            dist.PrefixStore("bench/control", place.store(host=False)), backend, place.rank
        )

        def start() -> Any:
            return start_arm(
                backend, place.rank, place.world_size, meeting, options.device, options.timeout
            )

        return run_worker(backend, place.rank, channel, start)

    return life


def _coordinate(
    options: Options, place: Torchrun, backends: Sequence[str], report: Report, listener: Listener
) -> None:
    dist: Any = importlib.import_module("torch.distributed")

    store = dist.PrefixStore("bench/control", place.store(host=not place.agent_store))
    groups = [StoreGroup(backend, store, place.world_size) for backend in backends]
    try:
        for group in groups:
            greet(group, options.timeout)
        measure(options, groups, place.world_size, report, listener)
    finally:
        for group in groups:
            group.close()
