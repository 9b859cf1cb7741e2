"""The exactly known answers: right by another computation, and sensitive to every element."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from rocenante.bench import verify
from rocenante.bench.case import COLLECTIVES, ITEMSIZE, ONLY_OUT_OF_PLACE, Case, allocate

SIZE = 3
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
REDUCTIONS = [
    *(
        (dtype, op)
        for dtype in INTEGERS
        for op in ("sum", "product", "min", "max", "band", "bor", "bxor")
    ),
    *(
        (dtype, op)
        for dtype in FLOATS
        for op in ("sum", "avg", "product", "min", "max", "premul_sum")
    ),
    ("complex64", "sum"),
    ("complex128", "sum"),
    *(("bool", op) for op in ("sum", "product", "min", "max", "band", "bor", "bxor")),
]


def by_hand(op: str, dtype: str, values: list[Any]) -> Any:
    """The reduction in Python's own numbers."""
    if dtype == "bool":
        if op in ("product", "min", "band"):
            return all(values)
        return sum(values) % 2 == 1 if op == "bxor" else any(values)
    steps = {
        "product": lambda a, b: a * b,
        "min": min,
        "max": max,
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    if op in steps:
        return reduce(steps[op], values)
    total = sum(values)
    return total / len(values) if op == "avg" else total * 2 if op == "premul_sum" else total


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
@pytest.mark.parametrize("size", [1, 2, SIZE, 16])
def test_reduction_answers(dtype: str, op: str, size: int) -> None:
    case = Case("all_reduce", 50, dtype, op)
    inputs = [verify.input_values(case, rank, size).tolist() for rank in range(size)]
    answer = [by_hand(op, dtype, [values[i] for values in inputs]) for i in range(50)]
    assert verify.count_wrong(case, 0, size, np.array(answer, dtype=verify.wide_dtype(dtype))) == 0


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
@pytest.mark.parametrize("size", [2, 8, 16])
def test_inputs_and_answers_are_exact_in_the_dtype(dtype: str, op: str, size: int) -> None:
    kind = getattr(torch, dtype)
    case = Case("all_reduce", verify.PERIOD, dtype, op)
    for values in [verify.input_values(case, rank, size) for rank in range(size)]:
        there = torch.from_numpy(values).to(kind)
        assert torch.equal(there.to(torch.from_numpy(values).dtype), torch.from_numpy(values))


@pytest.mark.parametrize("dtype", sorted(ITEMSIZE))
def test_a_single_wrong_element_is_found_anywhere(dtype: str) -> None:
    case = Case("all_gather", 40, dtype)
    right = np.concatenate([verify.input_values(case, rank, SIZE) for rank in range(SIZE)])
    assert verify.count_wrong(case, 1, SIZE, right) == 0
    for index in (0, 41, right.size - 1):
        wrong = right.copy()
        wrong[index] = not wrong[index] if dtype == "bool" else wrong[index] + 1
        assert verify.count_wrong(case, 1, SIZE, wrong) == 1


def test_nan_is_wrong_and_so_is_a_short_result() -> None:
    case = Case("all_reduce", 4)
    assert verify.count_wrong(case, 0, 2, np.full(4, np.nan, dtype=np.float32)) == 4
    assert verify.count_wrong(case, 0, 2, np.zeros(3, dtype=np.float32)) == 4


def test_pieces_in_a_wrong_order_are_found() -> None:
    case = Case("all_gather", 1000)
    pieces = [verify.input_values(case, rank, SIZE) for rank in range(SIZE)]
    assert verify.count_wrong(case, 0, SIZE, np.concatenate(pieces[::-1])) > 1000


def test_chunked_comparison_agrees_over_a_chunk_boundary() -> None:
    case = Case("all_reduce", verify.CHUNK + 5, "int32")
    answer = verify.input_values(case, 0, 2) + verify.input_values(case, 1, 2)
    assert verify.count_wrong(case, 0, 2, answer) == 0
    answer[[verify.CHUNK - 1, verify.CHUNK]] += 1
    assert verify.count_wrong(case, 0, 2, answer) == 2


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c not in ONLY_OUT_OF_PLACE])
def test_in_place_buffers_overlap_where_nccl_tests_puts_them(collective: str) -> None:
    case = Case(collective, 4, "int32", in_place=True)
    source, target = allocate(case, 1, SIZE, lambda n: np.zeros(n, dtype=np.int32))
    assert source.size == case.in_elements(SIZE)
    assert target.size == case.out_elements(SIZE)
    source[:] = 7
    small, large = sorted((source, target), key=len)
    start = 4 if len(small) < len(large) else 0
    assert np.shares_memory(small, large[start : start + len(small)])
    assert not np.shares_memory(small, large[start + len(small) :])
