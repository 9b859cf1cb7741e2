"""How far the hosts' clocks are apart, by round trips through the store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from rocenante.doctor.meeting import AbsentError, Meeting

ROUND_TRIPS = 8


@dataclass(frozen=True)
class Skew:
    """A rank's clock against rank 0's: its time minus rank 0's, in seconds."""

    rank: int
    offset_s: float
    error_s: float  # the true offset differs by no more than this

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(meeting: Meeting, ranks: list[int], timeout: float) -> list[Skew]:
    """On rank 0 all ranks' skews, on others nothing. Rank 0 serves one after the other."""
    if meeting.rank == 0:
        return [skew for rank in ranks if rank != 0 for skew in _serve(meeting, rank, timeout)]
    meeting.hear(f"clock/{meeting.rank}/turn", timeout * len(ranks), "rank 0")
    best: Skew | None = None
    for trip in range(ROUND_TRIPS):
        start = time.time()
        meeting.tell(f"clock/{meeting.rank}/ask{trip}", None)
        at_zero = float(meeting.hear(f"clock/{meeting.rank}/told{trip}", timeout, "rank 0"))
        end = time.time()
        # Rank 0 read its clock between the two; half of what lies between bounds the error.
        skew = Skew(meeting.rank, (start + end) / 2 - at_zero, (end - start) / 2)
        if best is None or skew.error_s < best.error_s:
            best = skew
    assert best is not None
    meeting.tell(f"clock/{meeting.rank}/best", best.as_json())
    return []


def _serve(meeting: Meeting, rank: int, timeout: float) -> list[Skew]:
    who = f"rank {rank}"
    try:
        meeting.tell(f"clock/{rank}/turn", None)
        for trip in range(ROUND_TRIPS):
            meeting.hear(f"clock/{rank}/ask{trip}", timeout, who)
            meeting.tell(f"clock/{rank}/told{trip}", time.time())
        return [Skew(**meeting.hear(f"clock/{rank}/best", timeout, who))]
    except AbsentError:
        return []  # the pairs' measurements will name it
