"""What frameworks call beside plain collectives: objects, batches, coalescing, functional forms."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from harness import run_ranks


def objects(rank: int, world: int) -> None:
    """Pickled objects of different sizes, up to a megabyte."""
    mine = {"rank": rank, "data": bytes(rank * 300_000), "list": list(range(rank))}
    everyones = [
        {"rank": r, "data": bytes(r * 300_000), "list": list(range(r))} for r in range(world)
    ]
    gathered: list[object] = [None] * world
    dist.all_gather_object(gathered, mine)
    assert gathered == everyones
    at_root: list[object] | None = [None] * world if rank == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    assert at_root == (everyones if rank == 1 else None)
    parts: list[object] = [None]
    dist.scatter_object_list(parts, everyones if rank == 1 else None, src=1)
    assert parts == [everyones[rank]]
    box = [mine, None if rank else "only rank 0 knows"]
    dist.broadcast_object_list(box, src=0)
    assert box == [everyones[0], "only rank 0 knows"]
    if rank == 0:
        dist.send_object_list([mine, "text"], 1)
    elif rank == 1:
        got: list[object] = [None, None]
        assert dist.recv_object_list(got, 0) == 0
        assert got == [everyones[0], "text"]


def batches(rank: int, world: int) -> None:
    """Everyone exchanges with everyone in one batch, receives first, in different orders."""
    sizes = [1, 5000, 100_001]
    operations, received = [], {}
    for peer in range(world):
        if peer == rank:
            continue
        for tag, size in enumerate(sizes):
            received[peer, tag] = torch.empty(size)
            operations.append(dist.P2POp(dist.irecv, received[peer, tag], peer, tag=tag))
    for peer in reversed(range(world)):
        if peer == rank:
            continue
        for tag, size in reversed(list(enumerate(sizes))):
            sent = torch.full((size,), float(100 * rank + 10 * peer + tag))
            operations.append(dist.P2POp(dist.isend, sent, peer, tag=tag))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for (peer, tag), tensor in received.items():
        expected = float(100 * peer + 10 * rank + tag)
        assert torch.equal(tensor, torch.full_like(tensor, expected))


def coalescing(rank: int, world: int) -> None:
    """Asynchronous, so that the manager gives out the Work; dtypes mixed."""
    tensors = [torch.full((n,), float(rank + n), dtype=t) for n, t in _MIXED]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, (n, t) in zip(tensors, _MIXED, strict=True):
        expected = torch.full((n,), float(sum(r + n for r in range(world))), dtype=t)
        assert torch.equal(tensor, expected)
    if dist.get_world_size() < 2:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    got = torch.empty(3)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
            dist.P2POp(dist.irecv, got, left),
        ]
    ):
        work.wait()
    assert got.tolist() == [left] * 3


_MIXED = [(3, torch.float32), (70_000, torch.bfloat16), (1, torch.int64), (0, torch.float32)]


def functional_forms(rank: int, world: int) -> None:
    group = list(range(world))
    x = torch.arange(4.0) + rank
    total = torch.arange(4.0) * world + sum(group)
    torch.testing.assert_close(functional.all_reduce(x, "sum", group) + 0, total)
    torch.testing.assert_close(functional.all_reduce(x, "avg", group) + 0, total / world)
    gathered = functional.all_gather_tensor(x, 0, group) + 0
    torch.testing.assert_close(gathered, torch.cat([torch.arange(4.0) + r for r in group]))
    columns = functional.all_gather_tensor(x.reshape(2, 2), 1, group) + 0
    expected = torch.cat([(torch.arange(4.0) + r).reshape(2, 2) for r in group], 1)
    torch.testing.assert_close(columns, expected)
    share = functional.reduce_scatter_tensor(torch.arange(2.0 * world), "sum", 0, group) + 0
    torch.testing.assert_close(share, torch.arange(2.0 * rank, 2 * rank + 2) * world)
    lists = functional.all_reduce_coalesced([x, x + 1], "max", group)
    torch.testing.assert_close(lists[1] + 0, torch.arange(4.0) + world)
    exchanged = functional.all_to_all_single(
        torch.full((world,), float(rank)), [1] * world, [1] * world, group
    )
    torch.testing.assert_close(exchanged + 0, torch.arange(float(world)))
    permuted = functional.permute_tensor(x, [(r + 1) % world for r in group], group) + 0
    torch.testing.assert_close(permuted, torch.arange(4.0) + (rank - 1) % world)
    sent = functional.broadcast(x, world - 1, group) + 0
    torch.testing.assert_close(sent, torch.arange(4.0) + world - 1)


def differentiable_forms(rank: int, world: int) -> None:
    """Gradients go the collective's way back."""
    x = torch.full((3,), float(rank + 1), requires_grad=True)
    (differentiable.all_reduce(x).sum() * (rank + 1)).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full((3,), float(sum(range(1, world + 1)))))
    x.grad = None
    parts = differentiable.all_gather(x)
    sum((r + 1) * part.sum() for r, part in enumerate(parts)).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), float(world * (rank + 1))))
    rows = torch.full((world, 2), float(rank), requires_grad=True)
    out = differentiable.all_to_all_single(torch.empty(world, 2), rows)
    (out * (rank + 1)).sum().backward()
    torch.testing.assert_close(
        rows.grad, torch.arange(1.0, world + 1).unsqueeze(1).expand(world, 2)
    )


def monitored_barrier(rank: int, world: int) -> None:
    """torch's own entry (2.14 takes any backend for CPU tensors); the missing rank is named."""
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    if rank == world - 1:
        dist.barrier(dist.new_group())
        return
    if rank == 0:
        with pytest.raises(RuntimeError, match=f"Rank {world - 1} failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    else:
        with pytest.raises(RuntimeError, match=f"Rank {rank} successfully reached"):
            dist.monitored_barrier(timeout=timedelta(seconds=0.5))
    dist.barrier(dist.new_group())


def profiled(rank: int, world: int) -> None:
    """A collective shows up with its name and size."""
    with torch.autograd.profiler.profile(record_shapes=True, use_kineto=False) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_gather_into_tensor(torch.empty(world * 6), torch.ones(6), async_op=True).wait()
        dist.broadcast(torch.ones(7), 0)
        if rank < 2:
            if rank == 0:
                dist.send(torch.ones(9), 1)
            else:
                dist.recv(torch.ones(9), 0)
    shapes = {e.name: e.input_shapes for e in profiler.function_events}
    assert shapes["rocenante:all_reduce"] == [[3, 4]]
    assert shapes["rocenante:_all_gather_base"] == [[6]], sorted(shapes)
    assert shapes["rocenante:broadcast"] == [[7]]
    if rank < 2:
        assert shapes["rocenante:send" if rank == 0 else "rocenante:recv"] == [[9]]


def traced(rank: int, world: int, folder: str) -> None:
    """torch's execution trace tells name, size, dtype, group and ranks of every call."""
    odd = dist.new_group([r for r in range(world) if r % 2], group_desc="the odd ones")
    file = f"{folder}/{rank}.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(file)
    observer.start()
    dist.all_reduce(torch.ones(3, 4))
    dist.all_gather_into_tensor(torch.empty(world * 6), torch.ones(6, dtype=torch.float))
    dist.reduce(torch.ones(5, dtype=torch.int64), 0, async_op=True).wait()
    if rank % 2:
        dist.broadcast(torch.ones(7), 1, group=odd)
    observer.stop()
    observer.unregister_callback()
    nodes = json.loads(Path(file).read_text())["nodes"]
    found = {}
    for node in nodes:
        if node["name"] == "record_param_comms":
            about = {a["name"]: a["value"] for a in node["attrs"]}
            found[about["collective_name"]] = about
    sizes = {name: (a["in_msg_nelems"], a["out_msg_nelems"]) for name, a in found.items()}
    expected = {"all_reduce": (12, 12), "_all_gather_base": (6, 6 * world), "reduce": (5, 5)}
    assert sizes == (expected | {"broadcast": (7, 7)} if rank % 2 else expected)
    assert found["reduce"]["dtype"] == "Long"
    assert found["all_reduce"]["pg_size"] == world
    if rank % 2:
        assert found["broadcast"]["pg_desc"] == "the odd ones"
        assert found["broadcast"]["pg_size"] == world // 2
        names = {found[name]["pg_name"] for name in ("broadcast", "all_reduce")}
        assert len(names) == 2


@pytest.mark.parametrize("world", [2, 4])
def test_execution_trace(world: int, tmp_path: Path) -> None:
    run_ranks(traced, world, str(tmp_path))


CASES = [
    objects,
    batches,
    coalescing,
    functional_forms,
    differentiable_forms,
    pytest.param(
        monitored_barrier,
        marks=pytest.mark.skipif(
            torch.__version__ < "2.14", reason="torch 2.13 refuses it for every backend but gloo"
        ),
    ),
    profiled,
]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_call(case: Callable[[int, int], None], world: int) -> None:
    run_ranks(case, world)


def debugged(rank: int, world: int) -> list[str]:
    """In torch's debug mode every call is compared between ranks, over gloo, before it is made."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    store = dist.HashStore() if world == 1 else dist.FileStore(os.environ["DEBUGGED_STORE"], world)
    dist.init_process_group("rocenante", store=store, rank=rank, world_size=world)
    tensor = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    assert tensor.tolist() == [float(world**3)] * 4
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(tensor).sum().backward()
    texts = []
    try:
        if rank == 0:
            dist.all_reduce(tensor)
        else:
            dist.broadcast(tensor, 0)
    except RuntimeError as error:
        texts.append(str(error))
    dist.destroy_process_group()
    return texts


@pytest.mark.parametrize("world", [2, 4])
def test_debug_mode(world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGGED_STORE", f"{tmp_path}/store")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for rank, texts in enumerate(run_ranks(debugged, world, backend=None)):
        assert len(texts) == 1, f"rank {rank} raised nothing"
        assert re.search(r"mismatch", texts[0]), texts[0]
        assert "ALLREDUCE" in texts[0] or "BROADCAST" in texts[0]
