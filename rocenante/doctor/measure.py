"""Latency and bandwidth of one pair over one rail, by the communicator that users get."""

from __future__ import annotations

import contextlib
import math
import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from rocenante.doctor.host import Host
from rocenante.doctor.loss import lost_packets
from rocenante.doctor.meeting import Meeting
from rocenante.doctor.rails import Rail
from rocenante.doctor.rdma import read_counters

WARM_UP, LATENCY_CALLS = 10, 60
BATCHES, BATCH = 3, 4
LARGE = 1 << 20
LONG_S = 0.02  # if one large message takes so long, a single batch of two tells enough


@dataclass(frozen=True)
class Task:
    """A pair and the rail that it measures; trip counts its attempts."""

    low: int
    high: int
    rail: Rail
    trip: int = 0

    @property
    def key(self) -> str:
        return f"{self.low}-{self.high}/{self.rail.low}-{self.rail.high}/{self.trip}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Task:
        return cls(**{**value, "rail": Rail(**value["rail"])})


@dataclass(frozen=True)
class Half:
    """What one of the two ranks saw."""

    latency_us: float | None = None  # p50 of an 8-byte all-reduce
    slowest_us: float | None = None
    out_mib_s: float | None = None  # of 1 MiB broadcasts from this rank
    in_mib_s: float | None = None
    lost: dict[str, int] = field(default_factory=dict)  # this port's counters that grew
    packets: int = 0
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@contextlib.contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    """Variables for a communicator that is made meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def measure(task: Task, meeting: Meeting, host: Host, timeout: float) -> Half:
    """This rank's half; never raises for what the network does. Ends within a few timeouts."""
    port = task.rail.low if meeting.rank == task.low else task.rail.high
    settings = {"ROCENANTE_LOG": "error"}
    if port:
        settings |= {"ROCENANTE_TRANSPORT": "verbs", "ROCENANTE_IB_HCA": f"={port}"}
    before = _counters(host, port)
    try:
        with _settings(settings):
            found = _times(task, meeting, timeout)
    except Exception as error:  # whatever went wrong is what is wanted to know
        found = {"error": _renamed(str(error) or type(error).__name__, task)}
    grown = lost_packets(_counters(host, port), before)
    return Half(**found, lost=dict(grown.counts), packets=grown.packets)


def _renamed(text: str, task: Task) -> str:
    """A pair's ranks are 0 and 1 to its communicator; the reader knows them by others."""
    names = {"0": str(task.low), "1": str(task.high)}
    text = re.sub(r"\brank ([01])\b", lambda found: f"rank {names[found[1]]}", text)
    return text.replace(" of 2 did not arrive", " did not arrive")


def _counters(host: Host, port: str) -> dict[str, int]:
    device, _, number = port.partition(":")
    return read_counters(host, device, int(number)) if port else {}


def _times(task: Task, meeting: Meeting, timeout: float) -> dict[str, Any]:
    import numpy as np
    from torch._C._distributed_c10d import PrefixStore

    import rocenante

    store = PrefixStore(f"pair/{task.key}", meeting.store)
    me = int(meeting.rank == task.high)
    small, large = np.zeros(1, np.float64), np.zeros(LARGE, np.uint8)
    with rocenante.Communicator(me, 2, store, timedelta(seconds=timeout), "doctor") as pair:
        times = []
        for call in range(WARM_UP + LATENCY_CALLS):
            start = time.perf_counter()
            pair.all_reduce(small)
            if call >= WARM_UP:
                times.append(time.perf_counter() - start)
        rates = [_rate(pair, large, root) for root in (0, 1)]
    return {
        "latency_us": statistics.median(times) * 1e6,
        "slowest_us": max(times) * 1e6,
        "out_mib_s": rates[me],
        "in_mib_s": rates[1 - me],
    }


def _rate(pair: Any, array: Any, root: int) -> float:
    """MiB/s of the best batch of broadcasts from a root; the barrier awaits the last one."""
    import numpy as np

    start = time.perf_counter()
    pair.broadcast(array, root)
    pair.barrier()
    once = np.array([time.perf_counter() - start])
    pair.all_reduce(once, "max")  # both ends must go on alike
    batches, batch = (1, 2) if once[0] > LONG_S else (BATCHES, BATCH)
    best = math.inf
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(batch):
            pair.broadcast(array, root)
        pair.barrier()
        best = min(best, time.perf_counter() - start)
    return batch * (LARGE / (1 << 20)) / best
