"""Inputs of the collectives' tests, and what the collectives must make of them."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
HALVES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [*HALVES, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
EVERY = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]
# 0 elements; fewer than ranks; inside a signal's line; odd; beyond it.
COUNTS = [0, 1, 3, 13, 1000]
LARGE = 300_007  # over a slot of 512 KiB in most dtypes; two-shot
SHAPES = [(0,), (), (1, 0, 2), (5,), (3, 4, 5)]


def numbers(rank: int, count: int, salt: int = 0) -> torch.Tensor:
    """Small integers, so that every dtype holds them, their sums and their products exactly."""
    return (torch.arange(count) + 2 * rank + salt) % 3


def tensor(
    rank: int, shape: int | tuple[int, ...], dtype: torch.dtype, salt: int = 0
) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    count = torch.Size(shape).numel()
    return numbers(rank, count, salt).reshape(shape).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    wide = torch.float64 if actual.dtype in FLOATS else None
    if actual.dtype in (torch.uint16, torch.uint32, torch.uint64):
        wide = torch.int64
    a, e = (actual.to(wide), expected.to(wide)) if wide else (actual, expected)
    assert torch.equal(a, e), f"{actual} is not {expected}"


def reduced(op: object, world: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    all_ranks = torch.stack([numbers(r, count, salt) for r in range(world)])
    if dtype == torch.bool:
        all_ranks = all_ranks != 0
        fold = torch.any if op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR) else torch.all
        if op == ReduceOp.BXOR:
            return all_ranks.sum(0) % 2 == 1
        return fold(all_ranks, dim=0)
    if op == ReduceOp.SUM:
        return all_ranks.sum(0).to(dtype)
    if op == ReduceOp.AVG:
        return (all_ranks.sum(0).to(torch.float64) / world).to(torch.float32).to(dtype)
    result = all_ranks[0]
    for other in all_ranks[1:]:
        if op == ReduceOp.PRODUCT:
            result = result * other
        elif op == ReduceOp.MIN:
            result = torch.minimum(result, other)
        elif op == ReduceOp.MAX:
            result = torch.maximum(result, other)
        elif op == ReduceOp.BAND:
            result = result & other
        elif op == ReduceOp.BOR:
            result = result | other
        else:
            assert op == ReduceOp.BXOR
            result = result ^ other
    return result.to(dtype)
