"""Rails, rounds, fabrics, comparison and diagnosis, on made-up hosts."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from made_up_hosts import VERSIONS, measured, peer, peers, port
from rich.console import Console

from rocenante.doctor import fabric, heatmap
from rocenante.doctor.clock import Skew
from rocenante.doctor.compare import compare
from rocenante.doctor.diagnose import diagnose
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.pairs import better, slow
from rocenante.doctor.peer import Peer
from rocenante.doctor.rails import Rail, rails_between
from rocenante.doctor.schedule import circle, rounds


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.level is not Level.OK]


@pytest.mark.parametrize("ranks", [[0], [0, 1], [0, 1, 2], [3, 5, 6, 9], list(range(17))])
def test_a_circle_has_every_pair_once(ranks: list[int]) -> None:
    pairs = circle(ranks)
    assert sorted(pairs) == list(itertools.combinations(ranks, 2))


@pytest.mark.parametrize(("size", "needed"), [(2, 1), (3, 3), (4, 3), (8, 7), (64, 63)])
def test_hosts_measure_side_by_side(size: int, needed: int) -> None:
    """With a rank on each host in as few rounds as there can be."""
    found = rounds(circle(range(size)), list(range(size)))
    assert len(found) == needed
    for members in found:
        ranks = [rank for pair in members for rank in pair]
        assert len(set(ranks)) == len(ranks)


def test_ranks_of_one_host_measure_one_after_the_other() -> None:
    found = rounds(circle(range(4)), ["a", "a", "b", "b"])
    assert sum(len(members) for members in found) == 6
    for members in found:
        hosts = ["aabb"[rank] for pair in members for rank in set(pair)]
        assert len(members) == 1 or sorted(hosts) == ["a", "a", "b", "b"]
        assert len(members) == 1 or members in ([(0, 1), (2, 3)], [(2, 3), (0, 1)])


def test_rails_share_subnets_whatever_the_order() -> None:
    one = peer(0, port("a", "10.0.1.1/24"), port("b", "10.0.2.1/24"))
    other = peer(1, port("a", "10.0.2.2/24"), port("b", "10.0.1.2/24"))
    found = rails_between(one, other)
    assert set(found) == {
        Rail("a:1", "b:1", "10.0.1.0/24"),
        Rail("b:1", "a:1", "10.0.2.0/24"),
    }


def test_rails_in_one_subnet_are_paired_by_position() -> None:
    one = peer(0, port("a", "10.0.1.1/24"), port("b", "10.0.1.2/24"))
    other = peer(1, port("a", "10.0.1.3/24"), port("b", "10.0.1.4/24"))
    assert [(r.low, r.high) for r in rails_between(one, other)] == [("a:1", "a:1"), ("b:1", "b:1")]


def test_the_best_kind_of_rail_only() -> None:
    """A shared IPv4 subnet, before routing, before link-local addresses."""
    one = peer(0, port("a", "10.0.1.1/24", "fe80::1/64"), port("b", "10.0.2.1/24", "fe80::2/64"))
    other = peer(1, port("a", "10.0.1.2/24", "fe80::3/64"), port("b", "10.9.9.9/24", "fe80::4/64"))
    assert rails_between(one, other) == [Rail("a:1", "a:1", "10.0.1.0/24")]
    far = peer(1, port("a", "10.8.1.2/24", "fe80::3/64"))
    assert [r.network for r in rails_between(one, far)] == ["routed"]
    local = peer(1, port("a", "fe80::3/64"))
    assert [r.network for r in rails_between(one, local)] == ["link-local"]
    assert rails_between(one, peer(1, port("a", "fd00::1/64"))) == [Rail("", "", "")]


def test_ranks_of_one_host_use_shared_memory_unless_told_otherwise() -> None:
    a = port("a", "10.0.1.1/24")
    assert rails_between(peer(0, a, host="x"), peer(1, a, host="x"))[0].network == "shared memory"
    verbs = {"ROCENANTE_TRANSPORT": "verbs"}
    one, other = (peer(r, a, host="x", config=verbs) for r in (0, 1))
    assert rails_between(one, other) == [Rail("a:1", "a:1", "10.0.1.0/24")]


def ring(size: int) -> dict[int, Peer]:
    """Cable i joins hosts i and i + 1."""
    return peers(
        *(
            peer(
                i,
                port("a", f"10.0.{i}.1/24"),
                port("b", f"10.0.{(i - 1) % size}.2/24"),
            )
            for i in range(size)
        )
    )


def test_shapes() -> None:
    def on(*networks: str, size: int) -> dict[int, Peer]:
        ports = [[port(f"p{n}", f"{net}.{i + 1}/24") for n, net in enumerate(networks)] for i in
                 range(size)]  # fmt: skip
        return peers(*(peer(i, *ports[i]) for i in range(size)))

    assert fabric.tell(on("10.0.1", "10.0.2", size=8)).shape == "switch"
    assert fabric.tell(on("10.0.1", size=2)).shape == "two hosts"
    assert fabric.tell(ring(3)).shape == "direct cables"
    assert fabric.tell(ring(4)).shape == "ring"
    assert "NCCL" in fabric.tell(ring(8)).does
    line = ring(5)
    line[4] = peer(4, port("b", "10.0.3.2/24"))
    assert fabric.tell(line).shape == "chain"
    assert fabric.tell(peers(peer(0, host="x"), peer(1, host="x"))).shape == "one host"
    assert fabric.tell(peers(peer(0), peer(1))).shape == "none"
    switch_of_three = on("10.0.1", size=3) | peers(peer(3, port("a", "10.9.0.1/24")))
    told = fabric.tell(switch_of_three)
    assert told.shape == "mixed"
    assert "spark-0 - spark-3" in told.why
    # Two pairs that know nothing of each other are no line.
    islands = peers(
        *(peer(i, port("a", f"10.0.{i // 2}.{i + 1}/24")) for i in range(4)),
    )
    assert fabric.tell(islands).shape == "mixed"


def test_equal_hosts_compare_well() -> None:
    same = peers(*(peer(i, port("a", f"10.0.1.{i + 1}/24")) for i in range(3)))
    assert bad(compare(same, [Skew(1, 0.01, 0.001), Skew(2, -0.4, 0.01)])) == []


@pytest.mark.parametrize(
    ("odd", "check", "text"),
    [
        (
            peer(2, port("a", "10.0.1.3/24"), versions={**VERSIONS, "torch": "2.13.0"}),
            "versions",
            "torch differs: 2.14.1 on ranks 0, 1; 2.13.0 on rank 2",
        ),
        (
            peer(2, port("a", "10.0.1.3/24"), config={"ROCENANTE_TRANSPORT": "verbs"}),
            "same-settings",
            "ROCENANTE_TRANSPORT differs: auto on ranks 0, 1; verbs on rank 2",
        ),
        (
            peer(2, port("a", "10.0.1.3/24", mtu=1500)),
            "same-mtu",
            "spark-2 a:1 has MTU 1500 (RoCE 1024), spark-0 a:1 has 9000 (RoCE 4096)",
        ),
        (peer(2, port("a", "10.0.1.1/24")), "gid-choice", "spark-0 and spark-2 both have"),
        (peer(2, port("a", "fe80::9/64")), "gid-choice", "link-local IPv6 on rank 2"),
        (peer(2, port("a", "10.0.1.3/24"), gpus=("H200",)), "same-gpus", "H200 on rank 2"),
    ],
)
def test_one_odd_host(odd: Peer, check: str, text: str) -> None:
    hosts = peers(peer(0, port("a", "10.0.1.1/24")), peer(1, port("a", "10.0.1.2/24")), odd)
    (found,) = bad(compare(hosts, []))
    assert found.check == check
    assert text in found.why
    assert found.fix


def test_clock_skew_beyond_its_error_bound() -> None:
    hosts = peers(peer(0), peer(1), peer(2))
    (found,) = bad(compare(hosts, [Skew(1, 3.0, 0.1), Skew(2, 3.0, 2.9)]))
    assert found.subject == "rank 1"
    assert "+3000.0 ms" in found.why


def hosts(number: int) -> dict[int, Peer]:
    return peers(*(peer(i, port("a", f"10.0.0.{i + 1}/24")) for i in range(number)))


def test_pairs_that_are_alike() -> None:
    same = [measured(a, b, latency=5 + a, up=20_000 - 100 * b) for a, b in circle(range(4))]
    (found,) = diagnose(hosts(4), same)
    assert found.level is Level.OK


def test_a_slow_pair_is_named_with_its_direction() -> None:
    all_pairs = [
        measured(a, b, down=2_000 if (a, b) == (1, 3) else 20_000) for a, b in circle(range(4))
    ]
    assert [(m.task.low, m.task.high) for m in slow(all_pairs)] == [(1, 3)]
    (found,) = bad(diagnose(hosts(4), all_pairs))
    assert (found.check, found.subject) == ("pair-slow", "ranks 1 - 3")
    assert "2000 MiB/s, 1/10.0 of the others'; only from 3 to 1" in found.why


def test_the_cause_of_a_slow_pair_is_looked_for() -> None:
    some = hosts(4)
    some[3] = peer(3, port("a", "10.0.0.4/24", gbit_s=25.0))
    all_pairs = [measured(a, b, up=20_000 if b < 3 else 2_500) for a, b in circle(range(4))]
    found = bad(diagnose(some, all_pairs))
    assert [f.subject for f in found] == ["ranks 0 - 3", "ranks 1 - 3", "ranks 2 - 3"]
    assert all("200 and 25 Gbit/s" in f.fix for f in found)


def test_high_latency() -> None:
    all_pairs = [measured(a, b, latency=5 if b < 3 or a else 50) for a, b in circle(range(4))]
    (found,) = bad(diagnose(hosts(4), all_pairs))
    assert "latency 50 µs, 10.0 times the others'" in found.why


def test_shared_memory_is_no_measure_for_rdma() -> None:
    near = measured(0, 1, rail=Rail("", "", "shared memory"), latency=0.5)
    far = [measured(a, b) for a, b in ((0, 2), (1, 2))]
    assert slow([near, *far]) == []


def test_loss_names_the_port_that_all_its_pairs_share() -> None:
    lost = {"out_of_sequence": 40}
    all_pairs = [measured(a, b, lost=lost if 2 in (a, b) else None) for a, b in circle(range(4))]
    found = bad(diagnose(hosts(4), all_pairs))
    assert {f.check for f in found} == {"pair-loss"}
    assert len(found) == 3
    assert all("spark-2 a:1 loses with every peer" in f.why for f in found)
    assert all("out_of_sequence 40 in 10000" in f.why for f in found)
    assert bad(diagnose(hosts(4), [measured(0, 1, lost={"out_of_sequence": 1})])) == []
    assert bad(diagnose(hosts(4), [measured(0, 1, lost={"retry_exceeded_err": 1})])) != []


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("a window of 2068 KiB must be locked and this may lock 64 KiB: ulimit -l", "ulimit -l"),
        ("packets of 4096 bytes do not reach rank 1 from a:1", "same MTU"),
        ("rank 1 is lost: its own port a:1 is down", "ip link set"),
        ("rank 1 did not arrive within 30000 ms", "4791"),
        ("something new", "rocenante doctor on each"),
    ],
)
def test_a_failed_pair_has_a_likely_cause(error: str, fix: str) -> None:
    (found,) = bad(diagnose(hosts(2), [measured(0, 1, error=error)]))
    assert found.level is Level.ERROR
    assert error in found.why
    assert "spark-0 - spark-1 over a:1, 10.0.0.0/24" in found.why
    assert fix in found.fix


def test_a_rank_that_no_pair_reaches() -> None:
    all_pairs = [measured(a, b, error="x" if 2 in (a, b) else "") for a, b in circle(range(4))]
    found = bad(diagnose(hosts(4), all_pairs))
    assert len(found) == 3
    assert all("no pair of rank 2 works" in f.why for f in found)


def test_a_second_attempt_takes_the_better_of_both() -> None:
    old = measured(0, 1, latency=50, up=1_000, lost={"out_of_sequence": 3})
    merged = better(old, measured(0, 1, latency=5, up=900))
    assert (merged.latency_us, merged.up_mib_s, merged.down_mib_s) == (5, 1_000, 20_000)
    assert merged.lost == {"out_of_sequence": 3}
    assert merged.packets == 20_000


def drawn(size: int, missing: tuple[int, int] = (0, 1)) -> str:
    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False)
    all_pairs = [
        measured(a, b, error="x" if (a, b) == missing else "", latency=1.0 + 200 * a)
        for a, b in circle(range(size))
    ]
    heatmap.show(console, hosts(size), all_pairs)
    return text.getvalue()


@pytest.mark.parametrize("size", [2, 3, 10, 11, 64])
def test_heat_maps_fit_into_eighty_columns(size: int) -> None:
    """A line for each rank, none wrapped, and the failed pair twice in each of two matrices."""
    lines = drawn(size).splitlines()
    assert len(lines) == 2 * (size + 2)
    assert max(map(len, lines)) <= 80
    cells = "".join(lines[2 : size + 2]) + "".join(lines[size + 4 :])
    assert cells.count("failed" if size <= 10 else "F") == 4


def test_badness_goes_by_ratio() -> None:
    assert heatmap.badness(5, 5, True) == 0
    assert heatmap.badness(20, 5, True) == 1
    assert heatmap.badness(10, 40, False) == 1
    assert 0 < heatmap.badness(20, 40, False) < 1
    assert heatmap.badness(0, 0, True) == 1


def test_image(tmp_path: Path) -> None:
    file = tmp_path / "pairs.png"
    some = [measured(a, b, error="x" if b == 2 else "") for a, b in circle(range(3))]
    heatmap.draw(file, hosts(3), some)
    assert file.read_bytes().startswith(b"\x89PNG")
    heatmap.draw(file, hosts(1), [])  # nothing was measured


def test_json_round_trip() -> None:
    one = peer(0, port("a", "10.0.1.1/24", "fe80::1/64"), gpus=("GB10",))
    assert Peer.from_json(json.loads(json.dumps(one.as_json()))) == one
