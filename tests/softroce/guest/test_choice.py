"""Which device, port and address each pair of ranks uses, checked against what pyverbs sees."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from types import ModuleType

import programs
import pytest
from links import changed

DEVICES = 4
pytestmark = pytest.mark.softroce(devices=DEVICES, timeout=600)

_WAY = re.compile(
    r"rank (\d) reaches rank (\d) from (\w+):(\d+) \((\S+)\) to (\w+):(\d+) \((\S+)\) on softroce0 "
    r"in packets of (\d+) bytes"
)


@dataclass(frozen=True)
class End:
    """What one rank uses."""

    device: str
    port: int
    address: str


def _ways(ranks: int, **environment: str) -> dict[tuple[int, int], tuple[End, End, int]]:
    """By ordered pair of ranks: both ends and the bytes of a packet."""
    words = ("--ranks", str(ranks), "--ops", "20", "--any-device", "yes")
    done = programs.run(
        "verbs_ranks",
        *("soak", *words),
        ROCENANTE_TRANSPORT="verbs",
        ROCENANTE_LOG="info",
        **environment,
    )
    assert done.returncode == 0, done.stdout
    found = {
        (int(m[1]), int(m[2])): (End(m[3], int(m[4]), m[5]), End(m[6], int(m[7]), m[8]), int(m[9]))
        for m in _WAY.finditer(done.stdout)
    }
    pairs = {(a, b) for a in range(ranks) for b in range(ranks) if a != b}
    assert set(found) == pairs, done.stdout
    return found


def _seen(end: End) -> tuple[bool, int, set[str]]:
    """By pyverbs: whether the port is active, the bytes of its packets, its RoCE v2 addresses."""
    import pyverbs.device
    import pyverbs.enums as e

    with pyverbs.device.Context(name=end.device) as context:
        port = context.query_port(end.port)
        addresses = set()
        for entry in context.query_gid_table(64):
            if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and entry.port_num == end.port:
                address = ipaddress.IPv6Address(entry.gid_str().lower())
                addresses.add(str(address.ipv4_mapped or address))
        return port.state == e.IBV_PORT_ACTIVE, 128 << port.active_mtu, addresses


def _check(ways: dict[tuple[int, int], tuple[End, End, int]]) -> None:
    for (a, b), (mine, theirs, bytes_of_packet) in ways.items():
        assert ways[b, a] == (theirs, mine, bytes_of_packet)  # both ends say the same
        packets = []
        for end in (mine, theirs):
            active, most, addresses = _seen(end)
            assert active, end
            assert end.address in addresses, end
            packets.append(most)
        assert bytes_of_packet == min(packets)


def test_the_choice_is_what_pyverbs_sees(pyverbs: ModuleType) -> None:
    """IPv4 addresses of active ports, and pairs are spread over the devices."""
    ways = _ways(4)
    _check(ways)
    used = {end for mine, theirs, _ in ways.values() for end in (mine, theirs)}
    assert len({end.device for end in used}) == DEVICES
    assert all(ipaddress.ip_address(end.address).version == 4 for end in used)


def test_a_port_that_pyverbs_sees_down_is_not_chosen(pyverbs: ModuleType) -> None:
    """The others are."""
    with changed("link set ve2 down", "link set ve2 up"):
        ways = _ways(4)
        _check(ways)
        assert not _seen(End("rxe2", 1, ""))[0]
    used = {end.device for mine, theirs, _ in ways.values() for end in (mine, theirs)}
    assert used == {"rxe0", "rxe1", "rxe3"}


def test_the_smaller_mtu_that_pyverbs_sees_is_taken(pyverbs: ModuleType) -> None:
    """On the pairs that use the device, and on no others."""
    with changed("link set ve1 mtu 1500", "link set ve1 mtu 4200"):
        ways = _ways(4)
        _check(ways)
    for mine, theirs, packet in ways.values():
        assert packet == (1024 if "rxe1" in (mine.device, theirs.device) else 4096)


def test_the_list_of_ports_is_kept_to(pyverbs: ModuleType) -> None:
    """ROCENANTE_IB_HCA, excluding two devices."""
    ways = _ways(3, ROCENANTE_IB_HCA="^rxe0,rxe3")
    _check(ways)
    used = {end.device for mine, theirs, _ in ways.values() for end in (mine, theirs)}
    assert used == {"rxe1", "rxe2"}
