"""rocenante.Communicator on numpy arrays, torch tensors and whatever else has __dlpack__."""

from __future__ import annotations

import array
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import (
    Transport,
    groups,
    no_leftovers,
    run_communicators,
    run_ranks,
    run_threads,
)

import rocenante
from rocenante import Communicator

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def mine(c: Communicator, shape: tuple[int, ...], dtype: str, rank: int | None = None) -> Any:
    rank = c.rank if rank is None else rank
    return ((np.arange(int(np.prod(shape))) + rank) % 3).reshape(shape).astype(dtype)


def total(c: Communicator, shape: tuple[int, ...], dtype: str) -> Any:
    parts = [mine(c, shape, dtype, r) for r in range(c.world_size)]
    return np.any(parts, axis=0) if dtype == "bool" else np.sum(parts, axis=0).astype(dtype)


def numpy_collectives(c: Communicator) -> None:
    n = c.world_size
    for dtype in DTYPES:
        for shape in ((), (0,), (5,), (2, 3), (40_000,)):
            a = mine(c, shape, dtype)
            assert c.all_reduce(a) is a
            np.testing.assert_array_equal(a, total(c, shape, dtype))
            a = mine(c, shape, dtype)
            out = np.empty_like(a)
            assert c.all_reduce(a, out=out) is out
            np.testing.assert_array_equal(a, mine(c, shape, dtype))
            np.testing.assert_array_equal(out, total(c, shape, dtype))
            gathered = c.all_gather(a)
            assert gathered.dtype == a.dtype
            assert gathered.shape == (n, *shape)
            stack = np.stack([mine(c, shape, dtype, r) for r in range(n)])
            np.testing.assert_array_equal(gathered, stack)
            root = c.gather(a, n - 1)
            if c.rank == n - 1:
                np.testing.assert_array_equal(root, stack)
            else:
                assert root is None
            b = mine(c, shape, dtype)
            assert c.broadcast(b, n - 1) is b
            np.testing.assert_array_equal(b, mine(c, shape, dtype, n - 1))
            b = mine(c, shape, dtype)
            c.reduce(b, 0)
            expected = total(c, shape, dtype) if c.rank == 0 else mine(c, shape, dtype)
            np.testing.assert_array_equal(b, expected)
        rows = mine(c, (n * 2, 3), dtype)
        part = c.reduce_scatter(rows)
        np.testing.assert_array_equal(part, total(c, (n * 2, 3), dtype)[2 * c.rank :][:2])
        turned = c.all_to_all(rows)
        expected = np.concatenate(
            [mine(c, (n * 2, 3), dtype, r)[2 * c.rank :][:2] for r in range(n)]
        )
        np.testing.assert_array_equal(turned, expected)
        dealt = c.scatter(rows) if c.rank == 0 else c.scatter(out=np.empty((2, 3), dtype))
        np.testing.assert_array_equal(dealt, mine(c, (n * 2, 3), dtype, 0)[2 * c.rank :][:2])
    c.barrier()


def operators(c: Communicator) -> None:
    n = c.world_size
    floats = np.full(3, float(c.rank + 1))
    values = [float(r + 1) for r in range(n)]
    for op, expected in {
        "sum": sum(values),
        "avg": sum(values) / n,
        "product": float(np.prod(values)),
        "min": 1.0,
        "max": float(n),
    }.items():
        np.testing.assert_array_equal(c.all_reduce(floats.copy(), op), np.full(3, expected))
    np.testing.assert_array_equal(
        c.all_reduce(floats.copy(), "premul_sum", factor=2), np.full(3, 2 * sum(values))
    )
    bits = np.full(3, 1 << c.rank, np.int32)
    for op, expected in {
        "band": int(n == 1),
        "bor": (1 << n) - 1,
        "bxor": (1 << n) - 1,
    }.items():
        np.testing.assert_array_equal(c.all_reduce(bits.copy(), op), np.full(3, expected))


def layouts(c: Communicator) -> None:
    n = c.world_size
    for view in (
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a[1:, 1:],
        lambda a: np.asfortranarray(a),
    ):
        base = mine(c, (4, 6), "float32")
        expected = base.copy()
        parts = [view(mine(c, (4, 6), "float32", r)) for r in range(n)]
        target = view(base)
        shares = target.base is base or target.base is base.base
        if shares:
            view(expected)[...] = np.sum(parts, axis=0)
        c.all_reduce(target)
        np.testing.assert_array_equal(target, np.sum(parts, axis=0))
        if shares:  # and nothing else was touched
            np.testing.assert_array_equal(base, expected)
        strided = np.zeros((n, *target.shape, 2), "float32")
        c.all_gather(view(mine(c, (4, 6), "float32")), out=strided[..., 1])
        np.testing.assert_array_equal(strided[..., 1], np.stack(parts))
        assert not strided[..., 0].any()
    # out overlaps the input.
    base = np.zeros(100_001, "float32")
    base[1:] = mine(c, (100_000,), "float32")
    c.all_reduce(base[1:], out=base[:-1])
    np.testing.assert_array_equal(base[:-1], total(c, (100_000,), "float32"))


def other_arrays(c: Communicator) -> None:
    n = c.world_size
    t = torch.full((2, 3), float(c.rank)).t()
    assert c.all_reduce(t) is t
    assert torch.equal(t, torch.full((3, 2), float(sum(range(n)))))
    gathered = c.all_gather(torch.tensor([c.rank], dtype=torch.bfloat16))
    assert torch.equal(gathered, torch.arange(n, dtype=torch.bfloat16)[:, None])
    f8 = torch.ones(5).to(torch.float8_e4m3fn)
    c.all_reduce(f8)
    assert torch.equal(f8.float(), torch.full((5,), float(n)))
    plain = array.array("d", [1.0, 2.0])
    c.all_reduce(plain)
    assert list(plain) == [n, 2.0 * n]
    c.all_reduce(memoryview(plain))
    assert list(plain) == [n * n, 2.0 * n * n]
    both = np.empty((n, 2))
    c.all_gather(plain, out=both)
    np.testing.assert_array_equal(both, [[n * n, 2.0 * n * n]] * n)

    class Foreign:
        """Only DLPack, as other libraries' arrays have it."""

        def __init__(self) -> None:
            self.tensor = torch.ones(4)

        def __dlpack__(self, **options: object) -> object:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.tensor.__dlpack_device__()

    foreign = Foreign()
    c.all_reduce(foreign)
    assert torch.equal(foreign.tensor, torch.full((4,), float(n)))


def messages(c: Communicator) -> None:
    n = c.world_size
    right, left = (c.rank + 1) % n, (c.rank - 1) % n
    if n == 1:
        return
    if c.rank == 0:
        c.send(np.arange(10.0), right)
    got = np.zeros(20)[::2]
    assert c.recv(got, left) == left
    np.testing.assert_array_equal(got, np.arange(10.0))
    if c.rank:
        c.send(got, right)
    big = np.full(300_000, c.rank, np.int32)
    if c.rank % 2 == 0:
        c.send(big, right, tag=3)
    other = np.empty_like(big)
    if c.rank % 2 == 1:
        assert c.recv(other, tag=3) == left
        assert (other == left).all()
    if n % 2 and c.rank == 0:  # the last rank, an even one, sent to rank 0
        assert c.recv(other, tag=3) == left


@groups(shm=[1, 2, 3], verbs=[])
@pytest.mark.parametrize(
    "case", [numpy_collectives, operators, layouts, other_arrays], ids=lambda f: f.__name__
)
def test_collectives(case: Any, transport: Transport, world: int) -> None:
    run_communicators(case, world, transport=transport)


@groups(shm=[2, 3], mixed=[])
def test_messages(transport: Transport, world: int) -> None:
    run_ranks(_messages, world, transport=transport, backend=None)


def _from_file(rank: int, world: int, path: str) -> Communicator:
    return Communicator(rank, world, dist.FileStore(path, world), timeout=20)


def _messages(rank: int, world: int) -> None:
    with _from_file(rank, world, f"/tmp/rocenante-messages-{os.getppid()}-{world}") as c:
        messages(c)


@groups(shm=[2], mixed=[])
def test_wrong_calls(transport: Transport, world: int) -> None:
    run_communicators(wrong_calls, world, transport=transport)


def wrong_calls(c: Communicator) -> None:
    n = c.world_size
    ones = np.ones(4)
    read_only = np.ones(4)
    read_only.flags.writeable = False
    for text, call in {
        "multiple of the world size": lambda: c.reduce_scatter(np.ones(n * 2 + 1)),
        "but it has none": lambda: c.all_to_all(np.float64(1.0) + np.zeros(())),
        'op="mean" is not known': lambda: c.all_reduce(ones, "mean"),  # type: ignore[arg-type]
        "factor= belongs to": lambda: c.all_reduce(ones, factor=2.0),
        "out is of dtype float32": lambda: c.all_reduce(ones, out=np.ones(4, "float32")),
        "out has 5 elements": lambda: c.all_reduce(ones, out=np.ones(5)),
        "read-only": lambda: c.all_reduce(read_only),
        "share memory": lambda: c.all_reduce(
            np.lib.stride_tricks.as_strided(np.ones(4), (3, 2), (8, 8))
        ),
        "is a list": lambda: c.all_reduce([1, 2]),
        "which are not numbers": lambda: c.all_reduce(np.ones(3, ">f8")),
        'format "O"': lambda: c.all_reduce(np.array(["a", "b"], object)),
        "root": lambda: c.broadcast(ones, 7),
        "timeout must be": lambda: c.all_reduce(ones, timeout=0),
        "out= is needed": lambda: c.all_gather(array.array("d", [1])),
        "sparse": lambda: c.all_reduce(torch.eye(2).to_sparse()),
        "meta": lambda: c.all_reduce(torch.empty(2, device="meta")),
    }.items():
        with pytest.raises(rocenante.UsageError, match=text) as caught:
            call()
        assert isinstance(caught.value, ValueError)
    for call in (
        lambda: c.all_reduce(),  # type: ignore[call-arg]
        lambda: c.all_reduce(ones, "sum", ones),  # type: ignore[misc]
        lambda: c.all_reduce(ones, nonsense=1),  # type: ignore[call-arg]
        lambda: c.all_reduce(ones, array=ones),  # type: ignore[misc]
        lambda: c.broadcast(ones, "x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(rocenante.UsageError, match="Store"):
        Communicator(0, 1, "localhost")  # type: ignore[arg-type]
    np.testing.assert_array_equal(c.all_reduce(ones), np.full(4, n))  # nothing was broken


@groups(shm=[2], mixed=[])
def test_exceptions_by_kind(transport: Transport, world: int) -> None:
    run_communicators(_kinds, world, transport=transport, timeout=30)


def _kinds(c: Communicator) -> None:
    if c.rank == 0:
        with pytest.raises(rocenante.TimeoutError, match="rank 1") as caught:
            c.barrier(timeout=0.3)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(rocenante.AbortedError):
            c.barrier()
    else:
        time.sleep(0.6)
        c.barrier()  # rank 0 was there
        with pytest.raises(rocenante.PeerLostError, match="rank 0"):
            c.barrier()


def test_close_and_context_manager() -> None:
    c = Communicator(0, 1, dist.HashStore())
    assert (c.rank, c.world_size) == (0, 1)
    c.close()
    c.close()
    with pytest.raises(rocenante.AbortedError, match=r"closed|shut down"):
        c.barrier()
    with pytest.raises(RuntimeError, match="on purpose"), Communicator(0, 1, dist.HashStore()):
        raise RuntimeError("on purpose")


def test_several_on_one_store_and_again() -> None:
    def body(c: Communicator) -> None:
        a = np.ones(3)
        c.all_reduce(a)
        np.testing.assert_array_equal(a, np.full(3, c.world_size))

    for _ in range(3):
        run_threads(body, 2)


def test_from_env(tmp_path: Path) -> None:
    code = (
        "import numpy, rocenante\n"
        "with rocenante.Communicator.from_env() as c:\n"
        "    a = c.all_reduce(numpy.full(3, c.rank + 1.0)); print(a.tolist())\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    with no_leftovers():
        out = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node=2", str(script)),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    # The two ranks' lines may run into each other.
    assert out.stdout.count("[3.0, 3.0, 3.0]") == 2, out.stdout + out.stderr
    unset = {k: v for k, v in os.environ.items() if k != "RANK"}
    failed = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=unset, check=False
    )
    assert "RANK is not set: start the processes with torchrun" in failed.stderr


def test_overhead_is_bounded() -> None:
    """A call on a numpy array costs about a microsecond at world 1; loosely, for CI."""
    c = Communicator(0, 1, dist.HashStore())
    a = np.ones(1)
    best = min(_time_calls(c, a) for _ in range(20))
    c.close()
    assert best < 5e-6, f"{best * 1e6:.2f} us"


def _time_calls(c: Communicator, a: Any, count: int = 1000) -> float:
    start = time.perf_counter()
    for _ in range(count):
        c.all_reduce(a)
    return (time.perf_counter() - start) / count


class _OnADevice:
    """What cupy arrays look like to others, without memory behind it."""

    __cuda_array_interface__ = {  # noqa: RUF012 - read by torch as an attribute
        "shape": (4,),
        "typestr": "<f4",
        "data": (4096, False),
        "version": 3,
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_cuda_array_without_a_gpu_is_refused_with_the_reason() -> None:
    def body(communicator: Communicator) -> None:
        with pytest.raises(rocenante.UsageError, match="in CUDA memory, which torch cannot"):
            communicator.all_reduce(_OnADevice())

    run_threads(body, 1)
