"""Works, futures, groups and threads, timeouts, abort and fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import Transport, groups, run_ranks


def out_of_order_waits(rank: int, world: int) -> None:
    works, tensors = [], []
    for i in range(20):
        t = torch.full((1000 * (i + 1),), float(rank + i))
        tensors.append(t)
        works.append(dist.all_reduce(t, async_op=True))
    dist.barrier()  # blocking, behind all of them
    for i in reversed(range(20)):
        works[i].wait()
        assert works[i].is_completed()
        assert works[i].is_success()
        assert works[i].result()[0].data_ptr() == tensors[i].data_ptr()
        expected = sum(r + i for r in range(world))
        assert torch.equal(tensors[i], torch.full_like(tensors[i], float(expected)))
    pg = dist.group.WORLD
    assert pg._get_sequence_number_for_group() == 21


def futures(rank: int, world: int) -> None:
    t = torch.ones(10)
    work = dist.all_reduce(t, async_op=True)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((10,), 2.0 * world))

    # A callback that waits for a later collective's future.
    first, second = torch.ones(4), torch.ones(4)
    one = dist.all_reduce(first, async_op=True)

    def chained(f: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        two = dist.all_reduce(second.add_(f.value()[0]), async_op=True)
        return two.get_future().wait()[0]

    result = one.get_future().then(chained).wait()
    assert torch.equal(result, torch.full((4,), float(world * (1 + world))))

    # After completion, and for point to point.
    work.wait()
    assert torch.equal(work.get_future().wait()[0], t)
    if world > 1:
        got = torch.zeros(3)
        receive = dist.irecv(got, (rank - 1) % world)
        received = receive.get_future()
        dist.send(torch.full((3,), float(rank)), (rank + 1) % world)
        assert torch.equal(received.wait()[0], torch.full((3,), float((rank - 1) % world)))


def dropped_works(rank: int, world: int) -> None:
    """Nobody keeps the Work or the tensor; the operation must happen all the same."""
    for _ in range(50):
        dist.all_reduce(torch.ones(100), async_op=True)
    if world > 1:
        dist.isend(torch.full((500_000,), float(rank)), (rank + 1) % world)
        t = torch.zeros(500_000)
        dist.recv(t, (rank - 1) % world)
        assert torch.equal(t, torch.full_like(t, float((rank - 1) % world)))
    dist.barrier()


def short_waits(rank: int, world: int) -> None:
    """wait(t) raises after t and leaves the operation under way."""
    if world == 1:
        return
    t = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(t, async_op=True)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="Timed out after 200 ms"):
            work.wait(timedelta(milliseconds=200))
        assert 0.15 < time.monotonic() - start < 2
        assert not work.is_completed()
        work.wait()
        assert work.is_success()
    else:
        time.sleep(0.7)
        dist.all_reduce(t)
    assert torch.equal(t, torch.full((4,), float(world)))


def timeouts(rank: int, world: int) -> None:
    if world == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"rank 0.*all_reduce.*rank 1") as caught:
            dist.all_reduce(torch.ones(3), group=group)
        assert 0.4 < time.monotonic() - start < 3
        assert any(word in str(caught.value) for word in (" Timed out ", " timeout "))
        # It has failed for good.
        with pytest.raises(dist.DistBackendError, match="no longer be used"):
            dist.all_reduce(torch.ones(3), group=group)
    else:
        time.sleep(1.5)
    dist.barrier()  # another group: healthy


def abort_ends_waits(rank: int, world: int) -> None:
    if world == 1:
        return
    if rank == 0:
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
        future = works[1].get_future()
        time.sleep(0.2)
        start = time.monotonic()
        dist.group.WORLD.abort()
        for work in works:
            with pytest.raises(dist.DistBackendError, match="abort"):
                work.wait()
            assert work.is_completed()
            assert not work.is_success()
        with pytest.raises(RuntimeError, match="abort"):
            future.wait()
        assert time.monotonic() - start < 5
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(2))  # rank 0's part of it was there before the end
        with pytest.raises(dist.DistBackendError, match=r"rank 0"):
            dist.all_reduce(torch.ones(2))


def subgroups(rank: int, world: int) -> None:
    evens, odds = list(range(0, world, 2)), list(range(1, world, 2))
    even = dist.new_group(evens)
    odd = dist.new_group(odds) if odds else None
    mine, ranks = (even, evens) if rank % 2 == 0 else (odd, odds)
    t = torch.full((5,), float(rank))
    dist.all_reduce(t, group=mine)
    assert torch.equal(t, torch.full((5,), float(sum(ranks))))
    t = torch.full((5,), float(rank))
    dist.broadcast(t, ranks[-1], group=mine)
    assert torch.equal(t, torch.full((5,), float(ranks[-1])))
    dist.destroy_process_group(mine)
    dist.barrier()


def groups_in_threads(rank: int, world: int) -> None:
    """Groups are independent: each thread drives its own, in an order of its own."""
    groups = [dist.new_group() for _ in range(4)]
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            for i in range(100):
                t = torch.full((50 + number,), float(rank + i))
                dist.all_reduce(t, group=groups[number])
                assert torch.equal(t, torch.full_like(t, float(sum(r + i for r in range(world)))))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(4)]
    for thread in threads[:: 1 if rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def reinit(rank: int, world: int) -> None:
    t = torch.ones(3)
    dist.all_reduce(t)
    pg = dist.group.WORLD
    pg_store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    for _ in range(3):  # through the same store, under the same names
        dist.init_process_group("rocenante", store=pg_store, rank=rank, world_size=world)
        t = torch.ones(3)
        dist.all_reduce(t)
        assert torch.equal(t, torch.full((3,), float(world)))
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.all_reduce(t)
    with pytest.raises(dist.DistBackendError, match=r"closed|shut down"):
        pg.allreduce([t]).wait()


class _Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def data_loader(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(3))
    pending = dist.all_reduce(torch.ones(3), async_op=True)
    loader = torch.utils.data.DataLoader(
        _Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    seen = 0
    for batch in loader:
        total = batch.sum()
        dist.all_reduce(total)
        seen += int(total)
    pending.wait()
    assert seen == world * sum(range(40))


def forked_child_may_not(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(3))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing was raised"
        try:
            dist.all_reduce(torch.ones(3))
        except ValueError as error:
            text = f"ValueError: {error}"
        os.write(write, text.encode())
        dist.destroy_process_group()  # must leave the parent's group alone
        os._exit(0)
    os.close(write)
    text = os.read(read, 4096).decode()
    assert os.waitpid(pid, 0)[1] == 0
    assert text.startswith("ValueError:"), text
    assert "fork" in text
    t = torch.ones(3)
    dist.all_reduce(t)
    assert torch.equal(t, torch.full((3,), float(world)))


def monitored_barriers(rank: int, world: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    for _ in range(3):
        group.monitored_barrier(timedelta(seconds=20))
    if world < 2:
        return
    limit = timedelta(seconds=0.3)
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            group.monitored_barrier(limit)
    elif rank != 1:
        with pytest.raises(RuntimeError, match=f"Rank {rank} successfully reached"):
            group.monitored_barrier(limit)
    if rank == 0:
        names = "Rank 1" if world == 2 else "Ranks 1, 2"
        with pytest.raises(RuntimeError, match=f"{names} failed to pass monitoredBarrier"):
            group.monitored_barrier(limit, True)
    time.sleep(0.5)
    dist.barrier()  # the group is as good as before


def in_profiler(rank: int, world: int) -> None:
    # Not kineto, which spends 10 s on looking for a GPU.
    with torch.autograd.profiler.profile(record_shapes=True, use_kineto=False) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
    events = [e for e in profiler.function_events if e.name == "rocenante:all_reduce"]
    assert [e.input_shapes for e in events] == [[[3, 4]], [[5]]]


def errors_of_calls(rank: int, world: int) -> None:
    pg = dist.distributed_c10d._get_default_group()
    assert pg._get_backend(torch.device("cpu")).name() == "rocenante"
    bad: list[tuple[str, Callable[[], object]]] = [
        ("elements", lambda: dist.all_gather_into_tensor(torch.empty(world + 1), torch.empty(1))),
        ("dtype", lambda: pg._allgather_base(torch.empty(world), torch.empty(1).int())),
        ("one output per rank", lambda: pg.allgather([[torch.empty(1)] * 9], [torch.empty(1)])),
        ("split", lambda: pg.alltoall_base(torch.empty(1), torch.empty(1), [5] * world, [])),
        ("avg", lambda: dist.all_reduce(torch.ones(2).int(), dist.ReduceOp.AVG)),
        ("avg", lambda: dist.all_reduce(torch.ones(2).bool(), dist.ReduceOp.AVG)),
        ("product", lambda: pg.allreduce([torch.ones(2, dtype=torch.cfloat)], _product())),
        ("share memory", lambda: dist.all_reduce(torch.ones(1).expand(4))),
        ("share memory", lambda: dist.all_reduce(torch.ones(6).as_strided((3, 2), (1, 1)))),
    ]
    for text, call in bad:
        with pytest.raises(ValueError, match=text):
            call()
    dist.barrier()  # a wrong call harms nobody


def _product() -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.PRODUCT
    return options


CASES = [
    out_of_order_waits,
    futures,
    dropped_works,
    short_waits,
    timeouts,
    abort_ends_waits,
    subgroups,
    groups_in_threads,
    reinit,
    data_loader,
    forked_child_may_not,
    monitored_barriers,
    in_profiler,
    errors_of_calls,
]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_lifecycle(case: Callable[[int, int], None], world: int) -> None:
    run_ranks(case, world)


# Those that a transport could make a difference to.
@groups(shm=[], mixed=[])
@pytest.mark.parametrize(
    "case",
    [
        out_of_order_waits,
        dropped_works,
        timeouts,
        abort_ends_waits,
        subgroups,
        groups_in_threads,
        reinit,
        data_loader,
        forked_child_may_not,
    ],
    ids=lambda case: case.__name__,
)
def test_lifecycle_over(case: Callable[[int, int], None], transport: Transport, world: int) -> None:
    run_ranks(case, world, transport=transport)
