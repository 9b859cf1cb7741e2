"""Measuring all pairs: rank 0 says who is next, and leaves out whoever stops answering."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocenante.doctor.host import Host
from rocenante.doctor.measure import Half, Task, measure
from rocenante.doctor.meeting import Meeting
from rocenante.doctor.peer import Peer
from rocenante.doctor.rails import rails_between
from rocenante.doctor.schedule import circle, rounds

# A pair that takes so much longer than the others over their rails is measured once more, and told
# of if that was no accident.
SLOW_LATENCY, SLOW_BANDWIDTH = 3.0, 2.0
_NAP_S, _GRACE_S = 0.002, 10.0
_MARGIN_S = 30.0  # beyond the time-outs of what a round does: processes may be slow


@dataclass(frozen=True)
class Measured:
    """Both halves of a pair over one rail."""

    task: Task
    low: Half
    high: Half

    @property
    def error(self) -> str:
        """Why it failed; the end that says more."""
        return max(self.low.error, self.high.error, key=len)

    @property
    def latency_us(self) -> float | None:
        values = [h.latency_us for h in (self.low, self.high) if h.latency_us is not None]
        return max(values, default=None)

    @property
    def slowest_us(self) -> float:
        return max(self.low.slowest_us or 0.0, self.high.slowest_us or 0.0)

    @property
    def up_mib_s(self) -> float | None:
        """From the lower to the higher rank, as the receiver saw it."""
        return self.high.in_mib_s

    @property
    def down_mib_s(self) -> float | None:
        return self.low.in_mib_s

    @property
    def lost(self) -> dict[str, int]:
        """Counters of either port that grew."""
        names = [*self.low.lost, *self.high.lost]
        return {n: self.low.lost.get(n, 0) + self.high.lost.get(n, 0) for n in dict.fromkeys(names)}

    @property
    def packets(self) -> int:
        return self.low.packets + self.high.packets

    def as_json(self) -> dict[str, Any]:
        return {
            "low": self.task.low,
            "high": self.task.high,
            "rail": self.task.rail.name,
            "latency_us": self.latency_us,
            "slowest_us": self.slowest_us or None,
            "low_to_high_mib_s": self.up_mib_s,
            "high_to_low_mib_s": self.down_mib_s,
            "lost": self.lost,
            "packets": self.packets,
            "error": self.error or None,
        }


Progress = Callable[[float], None]


def lead(
    meeting: Meeting, peers: dict[int, Peer], host: Host, timeout: float, progress: Progress
) -> tuple[list[Measured], dict[int, str]]:
    """Rank 0: what all pairs measured, and the ranks that stopped answering."""
    runner = _Lead(meeting, peers, host, timeout)
    order = rounds(
        circle(sorted(peers)),
        [peers[r].identity if r in peers else r for r in range(meeting.size)],
    )
    tasks = [
        [
            Task(low, high, rail)
            for low, high in pairs
            for rail in rails_between(peers[low], peers[high])
        ]
        for pairs in order
    ]
    for number, now in enumerate(tasks):
        runner.round(now)
        progress((number + 1) / len(tasks))
    for again in slow(runner.measured):
        runner.round([replace(again.task, trip=1)])
    meeting.tell(f"round/{runner.number}", None)
    return runner.measured, runner.gone


class _Lead:
    def __init__(
        self, meeting: Meeting, peers: dict[int, Peer], host: Host, timeout: float
    ) -> None:
        self.meeting, self.peers, self.host, self.timeout = meeting, peers, host, timeout
        self.number = 0
        self.measured: list[Measured] = []
        self.gone: dict[int, str] = {}

    def round(self, tasks: Sequence[Task]) -> None:
        """Has the pairs measure, each its own rails one after the other."""
        tasks = [t for t in tasks if t.low not in self.gone and t.high not in self.gone]
        number, self.number = self.number, self.number + 1
        self.meeting.tell(f"round/{number}", [task.as_json() for task in tasks])
        busy = sorted({rank for task in tasks for rank in (task.low, task.high)})
        _take_part(self.meeting, number, tasks, self.host, self.timeout)
        limit = _limit(tasks, self.timeout)
        heard = self._hear(number, tasks, busy, limit)
        for rank in busy:
            if rank not in heard:
                self.gone[rank] = "it did not tell what it measured"
        for at, task in enumerate(tasks):
            low, high = (_half(heard, rank, at, self.gone) for rank in (task.low, task.high))
            self._keep(Measured(task, low, high))

    def _hear(
        self, number: int, tasks: Sequence[Task], busy: list[int], limit: float
    ) -> dict[int, Any]:
        """The ranks' halves. One whose partner has failed has little time left to tell its own."""
        heard: dict[int, Any] = {}
        deadlines = dict.fromkeys(busy, time.monotonic() + limit)
        while pending := [r for r in busy if r not in heard and time.monotonic() < deadlines[r]]:
            for rank in pending:
                key = f"result/{number}/{rank}"
                if not self.meeting.there(key):
                    continue
                heard[rank] = self.meeting.hear(key, self.timeout, f"rank {rank}")
                for task, half in zip(tasks, heard[rank], strict=True):
                    if half is not None and half["error"]:
                        partner = task.low + task.high - rank
                        soon = time.monotonic() + _GRACE_S
                        deadlines[partner] = min(deadlines[partner], soon)
            time.sleep(_NAP_S)
        return heard

    def _keep(self, new: Measured) -> None:
        """Replaces a first attempt by a second that did better."""
        for at, old in enumerate(self.measured):
            if replace(new.task, trip=0) == old.task:
                if not new.error:
                    self.measured[at] = replace(better(old, new), task=old.task)
                return
        self.measured.append(new)


def better(old: Measured, new: Measured) -> Measured:
    """The attempt of the smaller latency with the larger of both bandwidths, and all losses."""
    if (old.latency_us or 0.0) < (new.latency_us or 0.0):
        old, new = new, old

    def merge(one: Half, other: Half) -> Half:
        grown = {n: one.lost.get(n, 0) + other.lost.get(n, 0) for n in {**one.lost, **other.lost}}
        return replace(
            one,
            out_mib_s=max(one.out_mib_s or 0.0, other.out_mib_s or 0.0),
            in_mib_s=max(one.in_mib_s or 0.0, other.in_mib_s or 0.0),
            lost=grown,
            packets=one.packets + other.packets,
        )

    return Measured(new.task, merge(new.low, old.low), merge(new.high, old.high))


def follow(meeting: Meeting, host: Host, timeout: float) -> None:
    """All other ranks: take part until rank 0 says that it is over. Raises AbsentError."""
    number = 0
    patience = timeout  # what the round before may take, for others are still at it
    while True:
        told = meeting.hear(f"round/{number}", patience + 2 * _MARGIN_S, "rank 0")
        if told is None:
            return
        tasks = [Task.from_json(value) for value in told]
        patience = _limit(tasks, timeout)
        _take_part(meeting, number, tasks, host, timeout)
        number += 1


def _take_part(
    meeting: Meeting, number: int, tasks: Sequence[Task], host: Host, timeout: float
) -> None:
    if not any(meeting.rank in (task.low, task.high) for task in tasks):
        return
    halves = [
        measure(task, meeting, host, timeout).as_json()
        if meeting.rank in (task.low, task.high)
        else None
        for task in tasks
    ]
    meeting.tell(f"result/{number}/{meeting.rank}", halves)


def _limit(tasks: Sequence[Task], timeout: float) -> float:
    """What a round takes at most: meeting and one call that runs out, on every rail of a pair."""
    rails = max((sum(t.low == u.low and t.high == u.high for u in tasks) for t in tasks), default=0)
    return 2 * timeout * rails + _MARGIN_S


def _half(heard: dict[int, Any], rank: int, at: int, gone: dict[int, str]) -> Half:
    if rank in heard:
        return Half(**heard[rank][at])
    return Half(error=f"rank {rank} stopped answering: {gone.get(rank, '')}")


def slow(measured: Sequence[Measured]) -> list[Measured]:
    """Those far slower than the others of their kind, without any that failed."""
    return [
        one
        for one in measured
        if not one.error and (latency_factor(one, measured) or bandwidth_factor(one, measured))
    ]


def _alike(one: Measured, measured: Sequence[Measured]) -> list[Measured]:
    """Its kind: over RDMA or over shared memory."""
    rdma = bool(one.task.rail.low)
    return [m for m in measured if not m.error and bool(m.task.rail.low) == rdma]


def latency_factor(one: Measured, measured: Sequence[Measured]) -> float | None:
    """How many times the usual latency it takes, if that is too much."""
    usual = _usual([m.latency_us for m in _alike(one, measured)], better=min)
    factor = one.latency_us / usual if usual and one.latency_us else 0.0
    return factor if factor > SLOW_LATENCY else None


def bandwidth_factor(one: Measured, measured: Sequence[Measured]) -> float | None:
    """How many times the usual bandwidth it falls short of, in its worse direction."""
    usual = _usual([_worse(m) for m in _alike(one, measured)], better=max)
    mine = _worse(one)
    factor = usual / mine if usual and mine else 0.0
    return factor if factor > SLOW_BANDWIDTH else None


def _worse(one: Measured) -> float | None:
    values = [v for v in (one.up_mib_s, one.down_mib_s) if v is not None]
    return min(values, default=None)


def _usual(values: Sequence[float | None], better: Callable[..., float]) -> float | None:
    """The median; of two, the better one: there is no telling which is the exception."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.median(known) if len(known) > 2 else float(better(known))
