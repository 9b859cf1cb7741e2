"""Parsing and checking of what the user asks for; every refusal is a sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rocenante.bench.case import COLLECTIVES, ITEMSIZE, OPS, REDUCTIONS, ROOTED

BACKENDS = ("rocenante", "communicator", "gloo", "mpi", "nccl")
OURS = ("rocenante", "communicator")
MAX_RANKS = 64

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DTYPE_ALIASES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_OP_ALIASES = {"prod": "product", "mean": "avg"}

_Item = TypeVar("_Item")


class OptionError(ValueError):
    """An option's value cannot be used; `option` names it, the text says what would be right."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True)
class Options:
    """A checked request: sizes in bytes, times in seconds; adaptive iterations are None."""

    collectives: tuple[str, ...]
    backends: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    iterations: int | None = None
    warmups: int | None = None
    check: bool = True
    pin: bool = False
    device: str = "cpu"
    timeout: float = 120.0
    # Only the placement that comparisons use (Block.typical).
    typical_only: bool = False
    # The MPI backends by name, each with the Python of its environment; None: this Python.
    mpi: tuple[tuple[str, Path | None], ...] = (("mpi", None),)


def parse_size(text: str, option: str = "size") -> int:
    """Bytes of "8", "64K", "1.5M" or "2G" (powers of two)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise OptionError(
            option, f"{text!r} is not a size: write bytes with an optional K, M or G, as in 64K."
        )
    value = float(match[1]) * _UNITS[match[2].upper()]
    if value < 1 or value != int(value):
        raise OptionError(option, f"{text!r} is not a whole, positive number of bytes.")
    return int(value)


def sweep(begin: str, end: str, factor: float | None, step: str | None) -> tuple[int, ...]:
    """The sizes from `begin` to `end`: multiplied by `factor`, or `step` bytes apart."""
    first, last = parse_size(begin, "-b"), parse_size(end, "-e")
    if last < first:
        raise OptionError("-e", f"the last size ({end}) is smaller than the first ({begin}).")
    if step is not None:
        return tuple(range(first, last + 1, parse_size(step, "-i")))
    ratio = 2.0 if factor is None else factor
    if not ratio > 1:
        raise OptionError("-f", f"the factor between sizes must be more than 1, not {ratio:g}.")
    sizes, value = [], float(first)
    while value <= last:
        sizes.append(int(value))
        value = max(value * ratio, value + 1)
    return tuple(sizes)


def choose(text: str, allowed: Iterable[str], option: str, what: str) -> str:
    """`text` if allowed, else an OptionError that names the nearest and all."""
    names = tuple(allowed)
    if text in names:
        return text
    near = difflib.get_close_matches(text, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise OptionError(option, f"unknown {what} {text!r}.{hint} There are: {', '.join(names)}.")


def size_list(text: str) -> tuple[int, ...]:
    """The sizes of "8,10K,1M", in their order."""
    sizes = _distinct(parse_size(part, "--sizes") for part in text.split(","))
    if not sizes:
        raise OptionError("--sizes", "name at least one size.")
    return sizes


def _names(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _distinct(names: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(names))


def parse_collectives(text: str) -> tuple[str, ...]:
    names = [name.replace("-", "_") for name in _names(text)]
    if names == ["all"]:
        return COLLECTIVES
    if not names:
        raise OptionError("COLLECTIVE", "name a collective, several with commas, or all.")
    allowed = (*COLLECTIVES, "all")
    return _distinct(choose(name, allowed, "COLLECTIVE", "collective") for name in names)


def base(backend: str) -> str:
    """The backend without the setting that it is to be measured with."""
    return backend.partition("@")[0]


def _backend(text: str) -> str:
    name, at, setting = text.partition("@")
    choose(name.lower(), BACKENDS, "--backends", "backend")
    if at and (name.lower() not in OURS or not re.fullmatch(r"ROCENANTE_\w+=.*", setting)):
        raise OptionError(
            "--backends",
            f"{text!r}: rocenante and communicator can have a setting, as in "
            "communicator@ROCENANTE_SLOT_BYTES=1M.",
        )
    return f"{name.lower()}{at}{setting}"


def parse_backends(text: str) -> tuple[str, ...]:
    names = _distinct(_backend(part.strip()) for part in text.split(",") if part.strip())
    if not names:
        raise OptionError("--backends", f"name at least one of {', '.join(BACKENDS)}.")
    return names


def parse_mpi(texts: Iterable[str]) -> tuple[tuple[str, Path | None], ...]:
    """The MPI backends: "PYTHON" is called mpi, "NAME=PYTHON" by its name; without any, mpi is the
    one of this Python."""
    arms: dict[str, Path | None] = {}
    for text in texts:
        name, named, python = text.rpartition("=")
        name = name if named else "mpi"
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or (name in BACKENDS and name != "mpi"):
            raise OptionError(
                "--mpi-python",
                f"{name!r} can't name an MPI: write NAME=PYTHON, as in openmpi=venv/bin/python.",
            )
        if name in arms:
            raise OptionError("--mpi-python", f"there are two of the name {name}.")
        if not Path(python).exists():
            raise OptionError("--mpi-python", f"{python} does not exist.")
        arms[name] = Path(python)
    return tuple(arms.items()) or (("mpi", None),)


def with_each_mpi(
    backends: Iterable[str], mpi: tuple[tuple[str, Path | None], ...]
) -> tuple[str, ...]:
    """`backends` with the names of all MPI backends in place of "mpi"."""
    names: list[str] = []
    for backend in backends:
        names += [name for name, _ in mpi] if backend == "mpi" else [backend]
    return tuple(names)


def parse_ranks(text: str) -> tuple[int, ...]:
    values = []
    for part in _names(text):
        if not re.fullmatch(r"[+-]?\d+", part):
            raise OptionError(
                "--ranks", f"{part!r} is not a number of ranks: write for example 2,4,8."
            )
        if not 1 <= int(part) <= MAX_RANKS:
            raise OptionError(
                "--ranks", f"{part} ranks: there must be at least 1 and at most {MAX_RANKS}."
            )
        values.append(int(part))
    if not values:
        raise OptionError("--ranks", "name at least one number of ranks, for example 2,4,8.")
    return tuple(dict.fromkeys(values))


def parse_dtype(text: str) -> str:
    name = text.lower()
    return choose(_DTYPE_ALIASES.get(name, name), ITEMSIZE, "--dtype", "data type")


def parse_op(text: str) -> str:
    name = text.lower()
    return choose(_OP_ALIASES.get(name, name), OPS, "--op", "reduction")


def check(options: Options) -> Options:
    """Refuses what no backend can do. Returns `options`."""
    smallest = min(options.ranks)
    if not 0 <= options.root < smallest and ROOTED.intersection(options.collectives):
        raise OptionError(
            "--root",
            f"root {options.root} is not a rank: with {smallest} ranks it is 0 to {smallest - 1}.",
        )
    if options.iterations is not None and options.iterations < 1:
        raise OptionError("-n", f"{options.iterations} iterations: at least 1 is needed.")
    if options.warmups is not None and options.warmups < 0:
        raise OptionError("-w", f"{options.warmups} warm-up iterations: 0 or more.")
    if options.timeout <= 0:
        raise OptionError("--timeout", "the timeout must be more than 0 seconds.")
    if REDUCTIONS.intersection(options.collectives):
        _check_reduction(options.dtype, options.op)
    return options


def _check_reduction(dtype: str, op: str) -> None:
    floating, is_complex = dtype.startswith(("float", "bfloat")), dtype.startswith("complex")
    if op in ("band", "bor", "bxor") and (floating or is_complex):
        raise OptionError("--op", f"{op} has no meaning for {dtype}: it needs an integer type.")
    if op in ("avg", "premul_sum") and not floating:
        raise OptionError(
            "--op", f"{op} of {dtype} is not defined: it needs a floating-point type."
        )
    if is_complex and op != "sum":
        raise OptionError("--op", f"{op} of {dtype} is not defined: complex types have sum only.")
