"""Every collective through torch.distributed: worlds, dtypes, operators, strides, sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from expected import COUNTS, EVERY, FLOATS, INTEGERS, LARGE, SHAPES, reduced, same, tensor
from harness import Transport, groups, run_ranks
from torch.distributed import ReduceOp

# The names that torch 2.13 has, too.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def all_reduce_dtypes(rank: int, world: int) -> None:
    for dtype in EVERY:
        for count in COUNTS:
            t = tensor(rank, count, dtype)
            dist.all_reduce(t)
            same(t, reduced(ReduceOp.SUM, world, count, dtype))
    for dtype in (torch.bool, torch.bfloat16, torch.float32, torch.complex128):
        t = tensor(rank, LARGE, dtype)
        dist.all_reduce(t)
        same(t, reduced(ReduceOp.SUM, world, LARGE, dtype))


def all_reduce_operators(rank: int, world: int) -> None:
    ordered = [ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    bitwise = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    for count in (7, 5000):
        for dtypes, operators in (
            ([torch.bool, *INTEGERS], ordered + bitwise),
            (FLOATS, [*ordered]),
            ([t for t in FLOATS if t != torch.float64], [ReduceOp.AVG]),
        ):
            for dtype in dtypes:
                for op in operators:
                    t = tensor(rank, count, dtype)
                    dist.all_reduce(t, op)
                    same(t, reduced(op, world, count, dtype))
    t = tensor(rank, 9, torch.float64)
    dist.all_reduce(t, ReduceOp.AVG)
    same(t, sum(tensor(r, 9, torch.float64) for r in range(world)) / world)


def premultiplied(rank: int, world: int) -> None:
    for factor in (0.5, torch.tensor(0.5)):
        t = tensor(rank, 100, torch.float32)
        dist.all_reduce(t, dist._make_nccl_premul_sum(factor))
        same(t, reduced(ReduceOp.SUM, world, 100, torch.float32) * 0.5)
    # Each rank has its own factor.
    t = torch.ones(4, dtype=torch.bfloat16)
    dist.all_reduce(t, dist._make_nccl_premul_sum(float(rank + 1)))
    same(t, torch.full((4,), world * (world + 1) / 2, dtype=torch.bfloat16))


def strided(rank: int, world: int) -> None:
    """Results land in the elements of the view, whatever its strides, and nowhere else."""
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[1:, 3],
        lambda t: t[:, 1:2],
        lambda t: t.as_strided((3, 2), (12, 1), 2),
    ]
    for view in views:
        base = tensor(rank, (6, 8), torch.float32)
        expected = base.clone()
        count = view(base).numel()
        total = sum(view(tensor(r, (6, 8), torch.float32)) for r in range(world))
        view(expected).copy_(total)
        dist.all_reduce(view(base))
        same(base, expected)
        gathered = [torch.empty(2, count)[1] for _ in range(world)]
        gathered = [g.reshape(view(base).shape) for g in gathered]
        dist.all_gather(gathered, view(tensor(rank, (6, 8), torch.float32)))
        for r in range(world):
            same(gathered[r], view(tensor(r, (6, 8), torch.float32)))
    # Layouts that differ between ranks: elements correspond by index, not by address.
    shape = (2, 3, 4, 5)
    t = tensor(rank, shape, torch.float32)
    t = t.to(memory_format=torch.channels_last) if rank % 2 else t
    dist.all_reduce(t)
    same(t, reduced(ReduceOp.SUM, world, 120, torch.float32).reshape(shape))
    # A lazy conjugate has the memory of its base.
    z = torch.full((3,), complex(rank, 1), dtype=torch.complex64)
    out = [torch.empty(3, dtype=torch.complex64) for _ in range(world)]
    group = dist.distributed_c10d._get_default_group()  # dist itself would refuse it
    group.allgather([out], [z.conj()]).wait()
    same(out[-1], torch.full((3,), complex(world - 1, -1), dtype=torch.complex64))
    # Parameters.
    p = torch.nn.Parameter(torch.ones(4, 4).t()[::2])
    dist.all_reduce(p)
    same(p.detach(), torch.full((2, 4), float(world)))


def gathers(rank: int, world: int) -> None:
    for dtype in EVERY:
        for shape in SHAPES:
            mine = tensor(rank, shape, dtype)
            expected = [tensor(r, shape, dtype) for r in range(world)]
            out = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(out, mine)
            for r in range(world):
                same(out[r], expected[r])
            flat = torch.empty((world, *shape), dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            same(flat, torch.stack(expected))
            root = world - 1
            out = [torch.empty_like(mine) for _ in range(world)]
            dist.gather(mine, out if rank == root else None, dst=root)
            if rank == root:
                for r in range(world):
                    same(out[r], expected[r])
    big = 3_000_001  # of int8: six slots
    flat = torch.empty(world * big, dtype=torch.int8)
    mine = flat[rank * big : (rank + 1) * big]
    mine.copy_(tensor(rank, big, torch.int8))
    dist.all_gather_into_tensor(flat, mine)  # in place
    same(flat, torch.cat([tensor(r, big, torch.int8) for r in range(world)]))
    # Shifted against its place in the output: would be overwritten while it is still read.
    flat = torch.zeros(world * 400_000 + 1, dtype=torch.float32)
    flat[rank : rank + 400_000] = tensor(rank, 400_000, torch.float32)
    dist.all_gather_into_tensor(flat[:-1], flat[rank : rank + 400_000])
    same(flat[:-1], torch.cat([tensor(r, 400_000, torch.float32) for r in range(world)]))


def uneven_lists(rank: int, world: int) -> None:
    sizes = [3 * r + 1 for r in range(world)]
    out = [torch.empty(n) for n in sizes]
    dist.all_gather(out, tensor(rank, sizes[rank], torch.float32))
    for r, n in enumerate(sizes):
        same(out[r], tensor(r, n, torch.float32))
    parts = [tensor(rank, n, torch.float32) for n in sizes]
    result = torch.empty(sizes[rank])
    dist.reduce_scatter(result, parts)
    same(result, reduced(ReduceOp.SUM, world, sizes[rank], torch.float32))


def scatters(rank: int, world: int) -> None:
    for dtype in EVERY:
        for shape in SHAPES:
            out = torch.empty(shape, dtype=dtype)
            parts = [tensor(7, shape, dtype, salt=r) for r in range(world)]
            dist.scatter(out, parts if rank == 0 else None, src=0)
            same(out, tensor(7, shape, dtype, salt=rank))
    big = 700_001
    out = torch.empty(big)
    parts = [tensor(1, big, torch.float32, salt=r) for r in range(world)]
    dist.scatter(out, parts if rank == world - 1 else None, src=world - 1)
    same(out, tensor(1, big, torch.float32, salt=rank))


def reduce_scatters(rank: int, world: int) -> None:
    for dtype in (torch.bool, torch.int32, torch.uint8, *FLOATS, torch.complex64):
        for count in (0, 1, 13, 100_003 if dtype == torch.complex64 else 999):
            parts = [tensor(rank, count, dtype, salt=r) for r in range(world)]
            expected = reduced(ReduceOp.SUM, world, count, dtype, salt=rank)
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(out, parts)
            same(out, expected)
            flat = torch.cat(parts)
            dist.reduce_scatter_tensor(out, flat)
            same(out, expected)
            mine = flat[rank * count : (rank + 1) * count]
            dist.reduce_scatter_tensor(mine, flat)  # in place
            same(mine, expected)
    out = torch.empty(10)
    flat = torch.cat([tensor(rank, 10, torch.float32, salt=r) for r in range(world)])
    dist.reduce_scatter_tensor(out, flat, ReduceOp.AVG)
    same(out, reduced(ReduceOp.AVG, world, 10, torch.float32, salt=rank))


def rooted(rank: int, world: int) -> None:
    for root in range(world):
        for dtype in EVERY:
            for count in (0, 1, 13, 100_003 if dtype == torch.complex128 else 999):
                t = tensor(rank, count, dtype)
                dist.broadcast(t, root)
                same(t, tensor(root, count, dtype))
                t = tensor(rank, count, dtype)
                dist.reduce(t, root)
                own = tensor(rank, count, dtype)
                same(t, reduced(ReduceOp.SUM, world, count, dtype) if rank == root else own)
    # Any dtype may be moved, if not reduced.
    t = torch.full((3,), rank, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    dist.broadcast(t, world - 1)
    same(t.view(torch.uint8), torch.full((3,), world - 1, dtype=torch.uint8))


def all_to_alls(rank: int, world: int) -> None:
    for dtype in EVERY:
        for shape in SHAPES:
            parts = [tensor(rank, shape, dtype, salt=r) for r in range(world)]
            out = [torch.empty(shape, dtype=dtype) for _ in range(world)]
            dist.all_to_all(out, parts)
            for r in range(world):
                same(out[r], tensor(r, shape, dtype, salt=rank))
    flat = torch.arange(world * 2) + 100 * rank
    out = torch.empty_like(flat)
    dist.all_to_all_single(out, flat)
    expected = torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * r for r in range(world)])
    same(out, expected)
    dist.all_to_all_single(flat, flat)  # in place
    same(flat, expected)
    # Uneven: rank a sends a + b rows of two columns to rank b.
    sent = [rank + r for r in range(world)]
    rows = torch.cat([torch.full((n, 2), 10.0 * rank + r) for r, n in enumerate(sent)])
    got = torch.empty((sum(sent), 2))
    dist.all_to_all_single(got, rows, sent, sent)
    same(got, torch.cat([torch.full((n, 2), 10.0 * r + rank) for r, n in enumerate(sent)]))
    # Some ranks see equal parts, and give no sizes, where others see unequal ones.
    if world >= 3:
        to = [1, 1, 1] if rank == 0 else [1, 2, 0] if rank == 1 else [1, 0, 2]
        to += [0] * (world - 3)
        if rank >= 3:
            to = [0] * world
        back = [[1, 1, 1], [1, 2, 0], [1, 0, 2]]
        receive = [back[r][rank] if rank < 3 else 0 for r in range(3)] + [0] * (world - 3)
        got = torch.empty(sum(receive))
        rows = torch.full((sum(to),), float(rank))
        if world == 3 and rank == 0:
            dist.all_to_all_single(got, rows)
        else:
            dist.all_to_all_single(got, rows, receive, to)
        same(got, torch.cat([torch.full((n,), float(r)) for r, n in enumerate(receive)]))
    # More than a slot, empty for some pairs.
    sent = [(r + 1) * 200_000 if (r + rank) % 2 else 0 for r in range(world)]
    receive = [(rank + 1) * 200_000 if (r + rank) % 2 else 0 for r in range(world)]
    got = torch.empty(sum(receive))
    dist.all_to_all_single(got, torch.full((sum(sent),), float(rank)), receive, sent)
    same(got, torch.cat([torch.full((n,), float(r)) for r, n in enumerate(receive)]))


def coalesced(rank: int, world: int) -> None:
    counts = [4, 0, 100_000, 1]
    ts = [tensor(rank, n, torch.float32) for n in counts]
    with dist._coalescing_manager():
        for t in ts:
            dist.all_reduce(t)
    for t, n in zip(ts, counts, strict=True):
        same(t, reduced(ReduceOp.SUM, world, n, torch.float32))
    outs = [torch.empty(world * n) for n in counts]
    with dist._coalescing_manager():
        for o, n in zip(outs, counts, strict=True):
            dist.all_gather_into_tensor(o, tensor(rank, n, torch.float32))
    for o, n in zip(outs, counts, strict=True):
        same(o, torch.cat([tensor(r, n, torch.float32) for r in range(world)]))
    results = [torch.empty(n) for n in counts]
    with dist._coalescing_manager():
        for o, n in zip(results, counts, strict=True):
            flat = torch.cat([tensor(rank, n, torch.float32, salt=r) for r in range(world)])
            dist.reduce_scatter_tensor(o, flat)
    for o, n in zip(results, counts, strict=True):
        same(o, reduced(ReduceOp.SUM, world, n, torch.float32, salt=rank))


def sparse(rank: int, world: int) -> None:
    indices = torch.tensor([[rank, 0], [0, 1]])
    t = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0 + rank]), (world, 2))
    expected = sum(
        torch.sparse_coo_tensor(
            torch.tensor([[r, 0], [0, 1]]), torch.tensor([1.0, 2.0 + r]), (world, 2)
        ).to_dense()
        for r in range(world)
    )
    dist.all_reduce(t)
    same(t.to_dense(), expected)


def objects(rank: int, world: int) -> None:
    got: list[object] = [None] * world
    dist.all_gather_object(got, {"rank": rank, "text": "x" * (1000 * rank)})
    assert [g["rank"] for g in got] == list(range(world))  # type: ignore[index]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=world - 1)
    assert box == [f"from {world - 1}"]


def point_to_point(rank: int, world: int) -> None:
    if world == 1:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    for count in (0, 1, 5000, 1_000_003):
        # All send first: a send must not need its recv to be posted to make room.
        work = dist.isend(tensor(rank, count, torch.float32), right, tag=count)
        got = torch.empty(count)
        dist.recv(got, left, tag=count)
        same(got, tensor(left, count, torch.float32))
        work.wait()
    # Tags are matched whatever the order; strided on both sides.
    if rank == 0:
        works = [dist.isend(torch.full((4,), float(tag)), 1, tag=tag) for tag in (1, 2)]
        [w.wait() for w in works]
    if rank == 1:
        two, one = torch.zeros(4, 2), torch.zeros(4)
        dist.recv(two[:, 0], 0, tag=2)
        dist.recv(one, 0, tag=1)
        same(two, torch.tensor([[2.0, 0.0]] * 4))
        same(one, torch.ones(4))
    # From anyone.
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=9)
    else:
        seen = set()
        for _ in range(world - 1):
            t = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(t, tag=9)
            assert source == int(t)
            seen.add(source)
        assert seen == set(range(1, world))
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
        dist.P2POp(dist.irecv, got := torch.empty(3), left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, torch.full((3,), float(left)))


CASES = [
    all_reduce_dtypes,
    all_reduce_operators,
    premultiplied,
    strided,
    gathers,
    uneven_lists,
    scatters,
    reduce_scatters,
    rooted,
    all_to_alls,
    coalesced,
    sparse,
    objects,
    point_to_point,
]


@groups(shm=[1, 2, 3, 4], mixed=[])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_collective(case: Callable[[int, int], None], transport: Transport, world: int) -> None:
    run_ranks(case, world, transport=transport)


# One of each kind of step; a guest's processor is slow.
@groups(shm=[], verbs=[])
@pytest.mark.parametrize(
    "case",
    [all_reduce_dtypes, gathers, reduce_scatters, rooted, all_to_alls, point_to_point],
    ids=lambda case: case.__name__,
)
def test_collective_among_both(
    case: Callable[[int, int], None], transport: Transport, world: int
) -> None:
    run_ranks(case, world, transport=transport)


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_more_ranks_than_cores(store: str) -> None:
    run_ranks(all_reduce_operators, 8, store=store)


def test_over_two_gigabytes() -> None:
    """Byte counts beyond 32 bits."""
    run_ranks(_large, 2, timeout=120)


def _large(rank: int, world: int) -> None:
    count = (1 << 31) + 5
    t = torch.full((count,), rank + 1, dtype=torch.uint8)
    dist.all_reduce(t)
    assert int(t[0]) == int(t[-1]) == 3
    assert int(t.max()) == int(t.min()) == 3
