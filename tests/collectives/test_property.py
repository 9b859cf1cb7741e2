"""all_reduce on random worlds, dtypes, operators, shapes and strides, against an exact reference.

The inputs are such that every operator's result is exact in the type it is computed in (float for
all floats of up to 32 bits), so the one right answer is the float64 or int64 result rounded once,
on every rank. Profiles: "ci" runs a few hundred cases, "long" 10,000 (`make property-long`).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import TRANSPORTS, Transport, environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

WAIT_SECONDS = 60

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOATS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
COMPLEX = [torch.complex64, torch.complex128]
FOR_FLOATS = ["sum", "avg", "product", "min", "max", "premul_sum"]
FOR_INTEGERS = ["sum", "product", "min", "max", "band", "bor", "bxor"]
FACTOR = 0.5
# Products of five of these are exact in every floating type's accumulator.
FACTORS = [0.5, -0.5, 1.0, -1.0, 2.0, 1.5, -3.0, 0.0]
C10D_OPS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}


@dataclass(frozen=True)
class Case:
    world_size: int
    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    layout: str  # of the tensor in memory
    through: str  # which interface
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from([torch.bool, *INTEGERS, *UNSIGNED, *FLOATS, *COMPLEX]))
    if dtype in FLOATS:
        op = draw(st.sampled_from(FOR_FLOATS))
    elif dtype in COMPLEX:
        op = draw(st.sampled_from(["sum", "avg", "premul_sum"]))
    else:
        op = draw(st.sampled_from(FOR_INTEGERS))
    big = draw(st.integers(0, 19)) == 0  # now and then more than one slot
    shape = draw(
        st.sampled_from([(70_001,), (300, 211)])
        if big
        else st.lists(st.integers(0, 17), max_size=3).map(tuple)
    )
    return Case(
        world_size=draw(st.integers(1, 5)),
        dtype=dtype,
        op=op,
        shape=shape,
        layout=draw(st.sampled_from(["contiguous", "transposed", "stepped", "offset"])),
        through=draw(st.sampled_from(["c10d", "c10d async", "in place", "out of place"])),
        seed=draw(st.integers(0, 2**31)),
    )


def values(case: Case, rank: int) -> torch.Tensor:
    """This rank's contribution, contiguous."""
    generator = torch.Generator().manual_seed(case.seed * 8 + rank)
    size = case.shape

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator)

    if case.dtype == torch.bool:
        return integers(0, 2) != 0
    if case.dtype in COMPLEX:
        parts = torch.stack([integers(-128, 129), integers(-128, 129)], -1) / 8.0
        return torch.view_as_complex(parts.to(torch.float64).contiguous()).to(case.dtype)
    if case.dtype not in FLOATS:  # every bit pattern: integers wrap
        return integers(-(2**62), 2**62).to(torch.int64).mul(2).to(case.dtype)
    if case.op == "product":
        return torch.tensor(FACTORS, dtype=torch.float64)[integers(0, len(FACTORS))].to(case.dtype)
    data = (integers(-128, 129) / 8.0).to(case.dtype)
    if case.op in ("min", "max") and data.numel() > 2:
        flat = data.view(-1)
        flat[case.seed % flat.numel()] = float("nan") if rank == case.seed % 5 else 1.0
    return data


def expected(case: Case) -> torch.Tensor:
    all_ranks = [values(case, r) for r in range(case.world_size)]
    if case.dtype == torch.bool:
        names = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
        return fold(names.get(case.op, case.op), all_ranks)
    if case.dtype in COMPLEX:
        wide = [t.to(torch.complex128) for t in all_ranks]
    elif case.dtype in FLOATS:
        wide = [t.to(torch.float64) for t in all_ranks]
    elif (
        case.dtype in UNSIGNED
    ):  # of the same width and wrap-around; torch has no arithmetic for them
        return unsigned(case, all_ranks)
    else:
        wide = all_ranks
    result = fold(case.op, wide)
    if case.op == "avg":
        # The division is done in the accumulator's type, as the sum before it. Real and imaginary
        # part apart: torch's own complex division rounds more than once.
        double = case.dtype in (torch.float64, torch.complex128)
        real = torch.view_as_real(result) if case.dtype in COMPLEX else result
        real = real.to(torch.float64 if double else torch.float32) / case.world_size
        result = torch.view_as_complex(real) if case.dtype in COMPLEX else real
    return result.to(case.dtype)


def fold(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "sum": lambda a, b: a + b,
        "avg": lambda a, b: a + b,
        "premul_sum": lambda a, b: a + b,
        "product": lambda a, b: a * b,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    scale = FACTOR if op == "premul_sum" else 1
    result = tensors[0] if scale == 1 else tensors[0] * scale
    for t in tensors[1:]:
        result = steps[op](result, t if scale == 1 else t * scale)
    return result


def unsigned(case: Case, all_ranks: list[torch.Tensor]) -> torch.Tensor:
    bits = {torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}[case.dtype]
    columns = [t.view(-1).tolist() for t in all_ranks]
    steps: dict[str, Callable[[int, int], int]] = {
        "sum": lambda a, b: (a + b) % 2**bits,
        "product": lambda a, b: (a * b) % 2**bits,
        "min": min,
        "max": max,
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    total = columns[0]
    for column in columns[1:]:
        total = [steps[case.op](a, b) for a, b in zip(total, column, strict=True)]
    return torch.tensor(total, dtype=case.dtype).reshape(case.shape)


def laid_out(data: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values and shape in another place of memory."""
    if layout == "transposed" and data.dim() >= 2:
        return data.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "stepped" and data.dim() >= 1:
        twice = torch.zeros((*data.shape[:-1], 2 * data.shape[-1]), dtype=data.dtype)
        view = twice[..., ::2]
        view.copy_(data)
        return view
    if layout == "offset":  # aligned to the element, not to a vector
        flat = torch.zeros(data.numel() + 1, dtype=data.dtype)[1:]
        flat.copy_(data.reshape(-1))
        return flat.view(data.shape)
    return data.clone()


class Ranks:
    """Threads, or processes where each needs its own variables, one a rank.

    They live as long as the test: a case costs no start-up.
    """

    def __init__(self, world_size: int, transport: Transport, folder: str) -> None:
        self.ends: list[Connection] = []
        store: dist.Store | str = (
            dist.HashStore() if transport == "shm" else f"{folder}/{world_size}"
        )
        start: Any = threading.Thread
        if transport != "shm":
            start = multiprocessing.get_context("fork").Process
        for rank in range(world_size):
            mine, its = multiprocessing.Pipe()
            self.ends.append(mine)
            arguments = (rank, world_size, transport, store, its)
            start(target=self.serve, args=arguments, daemon=True).start()

    @staticmethod
    def serve(
        rank: int, world_size: int, transport: Transport, store: Any, requests: Connection
    ) -> None:
        import rocenante

        os.environ.update(environment(transport, rank))
        store = dist.FileStore(store, world_size) if isinstance(store, str) else store
        name = f"property-{world_size}"
        communicator = rocenante.Communicator(rank, world_size, store, timeout=30, name=name)
        backend = rocenante.Backend(
            dist.PrefixStore("c10d", store), rank, world_size, rocenante.Options(), name
        )
        while (case := requests.recv()) is not None:
            try:
                result = run_case(case, rank, communicator, backend)
                # As bytes: multiprocessing would share a tensor's memory.
                requests.send((result.shape, bits(result)))
            except BaseException:
                requests.send(traceback.format_exc())
        communicator.close()
        backend.shutdown()

    def run(self, case: Case) -> list[torch.Tensor]:
        for end in self.ends:
            end.send(case)
        for rank, end in enumerate(self.ends):
            assert end.poll(WAIT_SECONDS), f"rank {rank} has not answered for {WAIT_SECONDS} s"
        replies = [end.recv() for end in self.ends]
        errors = [reply for reply in replies if isinstance(reply, str)]
        assert not errors, errors[0]
        return [tensor_of(case.dtype, *reply) for reply in replies]

    def stop(self) -> None:
        for end in self.ends:
            end.send(None)


def run_case(case: Case, rank: int, communicator: Any, backend: Any) -> torch.Tensor:
    tensor = laid_out(values(case, rank), case.layout)
    factor = FACTOR if case.op == "premul_sum" else None
    if case.through == "in place":
        communicator.all_reduce(tensor, case.op, factor=factor)
        return tensor
    if case.through == "out of place":
        before = tensor.clone()
        out = communicator.all_reduce(tensor, case.op, out=torch.empty_like(before), factor=factor)
        assert bits(tensor) == bits(before), "the input was changed"
        return out
    options = dist.AllreduceOptions()
    options.asyncOp = case.through == "c10d async"
    premultiply = dist._make_nccl_premul_sum  # the only way torch offers to make one
    options.reduceOp = premultiply(FACTOR) if case.op == "premul_sum" else C10D_OPS[case.op]
    work = backend.allreduce([tensor], options)
    if work is not None:
        work.wait()
    return tensor


def bits(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.view(tensor.shape).copy_(tensor)
    return flat.view(torch.uint8).numpy().tobytes()


def tensor_of(dtype: torch.dtype, shape: torch.Size, data: bytes) -> torch.Tensor:
    flat = torch.empty(shape.numel(), dtype=dtype)
    flat.view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)
    return flat.reshape(shape)


# In a guest a process that has torch takes a second to start.
WORLDS = {"shm": range(1, 6), "verbs": [2], "mixed": [3]}


@pytest.fixture(scope="module", params=TRANSPORTS)
def ranks(request: pytest.FixtureRequest) -> Iterator[dict[int, Ranks]]:
    with tempfile.TemporaryDirectory() as folder:
        made = {n: Ranks(n, request.param, folder) for n in WORLDS[request.param]}
        yield made
        for r in made.values():
            r.stop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_property_all_reduce_is_exact_and_alike_on_all_ranks(
    ranks: dict[int, Ranks], case: Case
) -> None:
    if case.world_size not in ranks:
        case = replace(case, world_size=next(iter(ranks)))
    results = ranks[case.world_size].run(case)
    reference = expected(case)
    for result in results:
        assert result.shape == reference.shape
        assert bits(result) == bits(results[0])
    # One NaN pattern stands for all; a zero's sign is the operator's affair only for floats.
    kind = torch.complex128 if case.dtype in COMPLEX else torch.float64
    if case.dtype in FLOATS or case.dtype in COMPLEX:
        assert torch.equal(results[0].to(kind).nan_to_num(7e3), reference.to(kind).nan_to_num(7e3))
    else:
        assert bits(results[0]) == bits(reference)
