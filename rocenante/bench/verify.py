"""Inputs with exactly known answers, and the comparison of every element of a result.

All values are small integers, chosen per dtype so that every partial result is representable: the
answer does not depend on the order of the reduction and needs no tolerance. The pattern repeats
after a prime number of elements, so a piece that lands at a wrong place does not match.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rocenante.bench.case import PREMUL_FACTOR, Case

Values = npt.NDArray[Any]

PERIOD = 4099
CHUNK = 1 << 20

# The largest integer up to which a dtype holds every integer.
_EXACT = {
    "bool": 1,
    "uint8": 255,
    "int8": 127,
    "int16": 32767,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3fn": 16,
    "float8_e5m2": 8,
}
_FACTOR_RANKS = 4


def wide_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that values travel in; dtypes unknown to numpy travel as float32."""
    return np.dtype("float32" if dtype.startswith(("bfloat", "float8")) else dtype)


def _limit(dtype: str) -> int:
    return min(_EXACT.get(dtype, 1 << 15), 1 << 15)


def _noise(rank: int) -> npt.NDArray[np.uint64]:
    index = np.arange(PERIOD, dtype=np.uint64)
    mixed = (index + np.uint64(977 * rank + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(mixed >> np.uint64(33), dtype=np.uint64)


@lru_cache(maxsize=256)
def _period(dtype: str, op: str, rank: int, size: int) -> Values:
    """One period of rank `rank`'s input, in the wide dtype."""
    noise, limit = _noise(rank), _limit(dtype)
    if dtype == "bool" or op == "move":
        values = noise % np.uint64(min(limit, 100) + 1)
    elif op in ("sum", "premul_sum"):
        room = limit // (size * (2 if op == "premul_sum" else 1))
        values = noise % np.uint64(max(1, min(room, 30)) + 1)
        if room == 0 and rank >= limit:
            values = values * np.uint64(0)
    elif op == "product":
        # At most four ranks contribute a two, so that the product stays small.
        turn = np.arange(PERIOD, dtype=np.uint64) % np.uint64(_FACTOR_RANKS)
        twos = (turn == np.uint64(rank % _FACTOR_RANKS)) & (rank < _FACTOR_RANKS**2)
        values = np.where(twos, 2, 1).astype(np.uint64)
    elif op == "avg":
        # The mean of base + rank is base + (size-1)/2: exact, whatever the number of ranks.
        room = max(0, limit // 2 - size)
        values = _noise(0) % np.uint64(min(room, 30) + 1) + np.uint64(rank if size <= limit else 0)
    else:
        values = noise % np.uint64(min(limit, 100) + 1)
    wide = wide_dtype(dtype)
    result = values.astype(wide)
    if op in ("min", "max") and wide.kind in "if":
        result = result - wide.type(min(limit, 100) // 2)
    if wide.kind == "c" and op in ("sum", "premul_sum", "move", "avg"):
        result = result + result[::-1] * wide.type(1j)
    return np.asarray(result, dtype=wide)


@lru_cache(maxsize=64)
def _reduced(dtype: str, op: str, size: int) -> Values:
    """One period of the reduction over all ranks."""
    parts = [_period(dtype, op, rank, size) for rank in range(size)]
    wide = wide_dtype(dtype)
    if wide.kind == "b":
        both: np.ufunc = np.logical_and if op in ("product", "min", "band") else np.logical_or
        if op == "bxor":
            both = np.logical_xor
        return np.asarray(both.reduce(parts), dtype=wide)
    if op in ("sum", "avg", "premul_sum"):
        # fp8 contributions are summed in float32, the integers wrap: both as the backends must.
        total = np.add.reduce(parts, dtype=wide)
        if op == "avg":
            total = total / wide.type(size)
        return np.asarray(
            total * wide.type(PREMUL_FACTOR) if op == "premul_sum" else total, dtype=wide
        )
    reducers: dict[str, np.ufunc] = {
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    return np.asarray(reducers[op].reduce(parts, dtype=wide), dtype=wide)


def _repeat(period: Values, start: int, stop: int) -> Values:
    return np.resize(np.roll(period, -(start % PERIOD)), stop - start)


def _key(case: Case) -> str:
    return case.op if case.collective in ("all_reduce", "reduce_scatter", "reduce") else "move"


def input_values(case: Case, rank: int, size: int) -> Values:
    """What rank `rank` hands in, in the wide dtype."""
    return _repeat(_period(case.dtype, _key(case), rank, size), 0, case.in_elements(size))


def _expected_piece(case: Case, rank: int, size: int, piece: int, start: int, stop: int) -> Values:
    """Elements [start, stop) of piece `piece` of rank `rank`'s result."""
    key, count = _key(case), case.count
    if case.collective in ("all_reduce", "reduce"):
        return _repeat(_reduced(case.dtype, key, size), start, stop)
    if case.collective == "reduce_scatter":
        return _repeat(_reduced(case.dtype, key, size), rank * count + start, rank * count + stop)
    offset = 0
    if case.collective in ("all_gather", "gather"):
        source = piece
    elif case.collective == "all_to_all":
        source, offset = piece, rank * count
    elif case.collective == "broadcast":
        source = case.root
    elif case.collective == "scatter":
        source, offset = case.root, rank * count
    else:  # sendrecv: around a ring
        source = (rank - 1) % size
    return _repeat(_period(case.dtype, key, source, size), offset + start, offset + stop)


def count_wrong(case: Case, rank: int, size: int, result: Values) -> int:
    """Elements of `result` (this rank's, wide dtype) that differ from the exact answer."""
    expected_length = case.out_elements(size)
    if result.size != expected_length:
        return expected_length
    wrong = 0
    for piece in range(expected_length // case.count if case.count else 0):
        for start in range(0, case.count, CHUNK):
            stop = min(start + CHUNK, case.count)
            expected = _expected_piece(case, rank, size, piece, start, stop)
            got = result[piece * case.count + start : piece * case.count + stop]
            wrong += int(np.count_nonzero(got != expected))
    return wrong
