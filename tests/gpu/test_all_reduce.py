"""all_reduce(stream=...): one kernel per rank, several ranks as threads on one GPU."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from harness import run_threads

import rocenante
from rocenante import Communicator

WORLDS = [1, 2, 4]
CASES = [
    (torch.float16, "sum"),
    (torch.bfloat16, "sum"),
    (torch.float32, "sum"),
    (torch.float32, "avg"),
    (torch.float32, "max"),
    (torch.float64, "product"),
    (torch.int32, "min"),
    (torch.int64, "sum"),
    (torch.uint8, "bxor"),
    (torch.bool, "sum"),
    (torch.complex64, "sum"),
    (torch.float8_e4m3fn, "sum"),
]
COUNTS = [1, 7, 1000, 4096, 100_003, 1_000_000]


def values(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Random elements on the CPU whose sums round."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, generator=generator) * 3
    if dtype == torch.bool:
        return numbers > 0
    if dtype == torch.complex64:
        return torch.complex(numbers, numbers.flip(0))
    return (numbers * 20).to(dtype) if not dtype.is_floating_point else numbers.to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def reduce_all(c: Communicator, dtype: torch.dtype, op: Any) -> None:
    stream = torch.cuda.Stream()
    for count in COUNTS:
        host = values(dtype, count, seed=count * 100 + c.rank)
        with torch.cuda.stream(stream):
            device = host.cuda()
            c.all_reduce(device, op, stream=stream)
        stream.synchronize()
        assert c.failure is None
        c.all_reduce(host, op)
        assert torch.equal(bits(device), bits(host)), (dtype, op, count)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("dtype", "op"), CASES, ids=str)
def test_bits_are_those_of_the_cpu(world: int, dtype: torch.dtype, op: str) -> None:
    """Every size from one element to several rounds of the window."""
    run_threads(reduce_all, world, dtype, op, timeout=60)


def out_and_alignment(c: Communicator) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        whole = torch.full((1001,), float(c.rank + 1), device="cuda")
        result = torch.zeros(1003, device="cuda")
        c.all_reduce(whole[1:], out=result[2:1002], stream=stream)
    stream.synchronize()
    total = c.world_size * (c.world_size + 1) / 2
    assert result.tolist() == [0.0] * 2 + [total] * 1000 + [0.0]


def test_out_and_unaligned_memory() -> None:
    """Neither begins at a multiple of 16 bytes, and nothing beyond `out` is written."""
    run_threads(out_and_alignment, 2)


def replay(c: Communicator) -> None:
    stream = torch.cuda.Stream()
    data = torch.zeros(5000, device="cuda")
    with torch.cuda.stream(stream):
        c.all_reduce(data, stream=stream)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        c.all_reduce(data, stream=stream)
        c.all_reduce(data, stream=stream)
    with torch.cuda.stream(stream):
        for turn in range(1000):
            data.fill_(turn + c.rank)
            graph.replay()
            if turn % 100 == 0:
                expected = c.world_size * sum(turn + r for r in range(c.world_size))
                assert data.eq(expected).all().item(), turn
    stream.synchronize()
    assert c.failure is None


@pytest.mark.parametrize("world", [1, 2])
def test_a_graph_replayed_a_thousand_times(world: int) -> None:
    """With new inputs each time."""
    run_threads(replay, world, timeout=120)


def capture_first(c: Communicator) -> None:
    stream = torch.cuda.Stream()
    data = torch.zeros(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(rocenante.UsageError, match="cannot be captured"),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        c.all_reduce(data, stream=stream)


def test_the_first_call_cannot_be_captured() -> None:
    """It says what to do."""
    run_threads(capture_first, 1)


def wait_in_vain(c: Communicator, abort: bool) -> tuple[float, str]:
    stream = torch.cuda.Stream()
    data = torch.zeros(100, device="cuda")
    c.all_reduce(data, stream=stream)
    stream.synchronize()
    c.barrier()
    if c.rank == 1:
        c.barrier(timeout=60)
        return 0.0, ""
    start = time.monotonic()
    c.all_reduce(data, stream=stream, timeout=3600 if abort else 0.5)
    killer = threading.Timer(0.5, c.abort, ["enough"]) if abort else None
    if killer:
        killer.start()
    stream.synchronize()
    ended = time.monotonic() - start
    failure = c.failure or ""
    if abort:
        return ended, failure
    c.barrier()
    return ended, failure


def test_a_kernel_that_waits_in_vain_times_out() -> None:
    """And names the rank that it waited for."""
    ended, failure = run_threads(wait_in_vain, 2, False)[0]
    assert 0.4 < ended < 10
    assert "Timed out waiting for rank 1" in failure


def aborting(c: Communicator) -> tuple[float, str]:
    try:
        return wait_in_vain(c, abort=True)
    except rocenante.PeerLostError as error:
        assert c.rank == 1
        return 0.0, str(error)


def test_abort_ends_a_kernel_that_waits() -> None:
    """Within moments, though its own patience is an hour; the peer learns why."""
    (ended, failure), (_, theirs) = run_threads(aborting, 2)
    assert ended < 10
    assert "aborted: enough" in failure
    assert "enough" in theirs


def two_groups(c: Communicator, others: list[Communicator]) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a = torch.full((3000,), 1.0, device="cuda")
    b = torch.full((3000,), 2.0, device="cuda")
    torch.cuda.synchronize()
    for _ in range(10):
        c.all_reduce(a, stream=first)
        others[c.rank].all_reduce(b, stream=second)
    first.synchronize()
    second.synchronize()
    assert a.eq(2.0**10).all().item()
    assert b.eq(2.0**11).all().item()


def test_two_groups_on_two_streams() -> None:
    """Their kernels run side by side."""
    import torch.distributed as dist

    store = dist.HashStore()
    others: list[Any] = [None, None]

    def make(rank: int) -> None:
        others[rank] = Communicator(rank, 2, store, 60, "other")

    threads = [threading.Thread(target=make, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run_threads(two_groups, 2, others)
    for other in others:
        other.close()


def cupy_arrays(c: Communicator) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        data = cupy.full(1000, c.rank + 1, dtype=cupy.float32)
        assert c.all_reduce(data, stream=stream) is data
    stream.synchronize()
    assert (data.get() == c.world_size * (c.world_size + 1) / 2).all()


def test_cupy_arrays_and_streams() -> None:
    """In place, without torch's tensors."""
    pytest.importorskip("cupy")
    run_threads(cupy_arrays, 2)


def test_info_names_the_gpu() -> None:
    """And where the window lies."""
    assert torch.cuda.get_device_name(0) in str(rocenante.build_info()["gpu"])
    assert "pinned host memory" in str(rocenante.build_info()["gpu"])
