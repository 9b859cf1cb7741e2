"""Failing and slow pairs, with the likely cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.loss import GIVEN_UP, LOST
from rocenante.doctor.pairs import Measured, bandwidth_factor, latency_factor
from rocenante.doctor.peer import Peer

# A share of lost packets that go-back-N turns into lost bandwidth; a single one may be an accident.
LOSS_SHARE, LOSS_MIN = 1e-4, 2

# What an error's text tells of its cause -> what to do.
_CAUSES = (
    (r"must be locked|memlock|ulimit -l", "raise the limit of locked memory: ulimit -l unlimited"),
    (r"/dev/infiniband", "make /dev/infiniband readable and writable for this user"),
    (r"packets of \d+ bytes do not reach", "set the same MTU at both ends and on the switch"),
    (r"own port \S+ is down", "plug the cable in, or: ip link set <interface> up"),
    (r"no two RDMA ports of theirs fit", "give both a port in the same subnet"),
    (r"is set alike|set it alike|differs", "set the variable alike on all ranks"),
    (r"protocol version", "install the same rocenante on every host"),
    (r"does not answer|did not arrive|is lost|retry exceeded", "ping the address from the other "
     "host; check that UDP port 4791 is open and that both processes live"),
)  # fmt: skip


def diagnose(peers: dict[int, Peer], measured: Sequence[Measured]) -> list[Finding]:
    """What is wrong with pairs; one OK line if nothing is."""
    found = [*_failed(peers, measured), *_lossy(peers, measured), *_slow(peers, measured)]
    if measured and not found:
        ways = f"all {len(measured)} ways between ranks work alike"
        text = ways if len(measured) > 1 else "the one way between the ranks works"
        found.append(Finding("pairs", Level.OK, text))
    return found


def _subject(one: Measured) -> str:
    return f"ranks {one.task.low} - {one.task.high}"


def _hosts(peers: dict[int, Peer], one: Measured) -> str:
    return f"{peers[one.task.low].host} - {peers[one.task.high].host}"


def _over(one: Measured) -> str:
    return f" over {one.task.rail.name}" if one.task.rail.network else ""


def _failed(peers: dict[int, Peer], measured: Sequence[Measured]) -> Iterator[Finding]:
    failed = [one for one in measured if one.error]
    counts = Counter(rank for one in failed for rank in (one.task.low, one.task.high))
    tried = Counter(rank for one in measured for rank in (one.task.low, one.task.high))
    for one in failed:
        text = one.error.strip()
        cause = next((fix for pattern, fix in _CAUSES if re.search(pattern, text)), "")
        common = [
            rank
            for rank in (one.task.low, one.task.high)
            if len(peers) > 2 and counts[rank] == tried[rank] > 1
        ]
        hint = f" (no pair of rank {common[0]} works: look there)" if len(common) == 1 else ""
        yield Finding(
            "pairs",
            Level.ERROR,
            f"{_hosts(peers, one)}{_over(one)}: {text}{hint}",
            cause or "see rocenante doctor on each of the two hosts",
            _subject(one),
        )


def _lossy(peers: dict[int, Peer], measured: Sequence[Measured]) -> Iterator[Finding]:
    ports: Counter[tuple[int, str]] = Counter()
    lossy = []
    for one in measured:
        lost = sum(one.lost.get(name, 0) for name in LOST)
        given_up = sum(one.lost.get(name, 0) for name in GIVEN_UP)
        many = lost >= LOSS_MIN and lost > LOSS_SHARE * one.packets
        if not one.error and (many or given_up):
            lossy.append(one)
            ports.update(_ends(one))
    all_ports = Counter(end for one in measured if one.task.rail.low for end in _ends(one))
    for one in lossy:
        told = ", ".join(f"{name} {value}" for name, value in one.lost.items())
        # A port that loses with every peer, while the other end does not, is where to look.
        bad = [end for end in _ends(one) if ports[end] == all_ports[end] > 1]
        at = f"; {_place(peers, bad[0])} loses with every peer" if len(bad) == 1 else ""
        yield Finding(
            "pair-loss",
            Level.WARNING,
            f"{_hosts(peers, one)}{_over(one)} loses packets: {told} in {one.packets} while "
            f"measuring{at}",
            "check cable, transceiver, flow control (PFC/ECN) and the drops of the switch's ports; "
            "tc qdisc show, ethtool -S",
            _subject(one),
        )


def _ends(one: Measured) -> list[tuple[int, str]]:
    return [(one.task.low, one.task.rail.low), (one.task.high, one.task.rail.high)]


def _place(peers: dict[int, Peer], end: tuple[int, str]) -> str:
    return f"{peers[end[0]].host} {end[1]}"


def _slow(peers: dict[int, Peer], measured: Sequence[Measured]) -> Iterator[Finding]:
    for one in measured:
        if one.error:
            continue
        latency, bandwidth = latency_factor(one, measured), bandwidth_factor(one, measured)
        if not latency and not bandwidth:
            continue
        parts = []
        if latency:
            parts.append(f"latency {one.latency_us:.0f} µs, {latency:.1f} times the others'")
        if bandwidth:
            worse = min(v for v in (one.up_mib_s, one.down_mib_s) if v is not None)
            parts.append(f"bandwidth {worse:.0f} MiB/s, 1/{bandwidth:.1f} of the others'")
        yield Finding(
            "pair-slow",
            Level.WARNING,
            f"{_hosts(peers, one)}{_over(one)}: {', '.join(parts)}{_one_way(one)}",
            _slow_cause(peers, one),
            _subject(one),
        )


def _one_way(one: Measured) -> str:
    up, down = one.up_mib_s or 0.0, one.down_mib_s or 0.0
    if not up or not down or max(up, down) < 2 * min(up, down):
        return ""
    low, high = one.task.low, one.task.high
    return f"; only from {low} to {high}" if up < down else f"; only from {high} to {low}"


def _slow_cause(peers: dict[int, Peer], one: Measured) -> str:
    if one.lost:
        return "it loses packets, see above"
    ends: dict[str, list[float]] = defaultdict(list)
    for rank, name in _ends(one):
        for port in peers[rank].ports:
            if port.name == name:
                ends["mtu"].append(port.active_mtu)
                ends["speed"].append(port.gbit_s)
    if len(set(ends["mtu"])) > 1:
        return f"the MTU differs between its ends: RoCE {ends['mtu'][0]:g} and {ends['mtu'][1]:g}"
    if len(set(ends["speed"])) > 1:
        return f"the links' speeds differ: {ends['speed'][0]:g} and {ends['speed'][1]:g} Gbit/s"
    return "look for load on the two hosts, a link at reduced speed (ethtool), PCIe lanes (lspci)"
