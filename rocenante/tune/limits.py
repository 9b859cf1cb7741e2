"""From measured times to limits, and the file that holds them (csrc/core/tune_file.h reads it)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ROCENANTE_ONE_SHOT_MAX_BYTES"
NEVER = 1  # a limit of one byte: the smallest, since 0 stands for the default


@dataclass(frozen=True)
class Point:
    """One size in bytes: p50 in microseconds in one step, in two, and as the defaults choose."""

    size: int
    one_us: float
    two_us: float
    default_us: float

    def best_us(self) -> float:
        return min(self.one_us, self.two_us)

    def default_loss(self) -> float:
        """How much longer than the better of the two the default takes: 0.1 is a tenth."""
        return self.default_us / self.best_us() - 1


def best_limit(points: Sequence[Point]) -> int:
    """The limit in bytes with the smallest product of times over all sizes.

    Not simply the first size at which two steps win: one disturbed measurement must not decide.
    Among equal ones the largest. Raises ValueError without points.
    """
    if not points:
        raise ValueError("nothing was measured")

    def cost(limit: int) -> float:
        return math.fsum(
            math.log(point.one_us if point.size <= limit else point.two_us) for point in points
        )

    candidates = sorted((NEVER, *(point.size for point in points)), reverse=True)
    return min(candidates, key=cost)


def key(ranks: int, several_hosts: bool) -> str:
    """How a limit's group is written in the setting."""
    return f"{'hosts' if several_hosts else 'host'}/{ranks}"


def parse(value: str) -> dict[str, int]:
    """The limits in a setting's value that `rocenante tune` wrote. Raises ValueError."""
    limits = {}
    for entry in value.split(","):
        group, _, size = entry.partition(":")
        limits[group] = int(size)
    return limits


def content(limits: Mapping[str, int], about: Iterable[str]) -> str:
    """The file: what it is and where it was measured as comments, then the setting."""

    def order(group: str) -> tuple[str, int]:
        kind, _, ranks = group.partition("/")
        return kind, int(ranks)

    value = ",".join(f"{group}:{limits[group]}" for group in sorted(limits, key=order))
    comments = ["Written by `rocenante tune`; rocenante reads it whenever a group is made.", *about]
    return "".join(f"# {line}\n" for line in comments) + f"{VARIABLE}={value}\n"


def limits_in(file: Path) -> dict[str, int]:
    """What an earlier run wrote, so that another number of ranks keeps its limit; empty if there
    is no such file. Raises ValueError, naming the file, if it holds anything else."""
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return {}
    settings = [line for line in lines if line.strip() and not line.startswith("#")]
    if not settings:
        return {}
    name, _, value = settings[0].partition("=")
    try:
        if len(settings) > 1 or name != VARIABLE:
            raise ValueError(settings[-1])
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{file} is not as rocenante tune wrote it ({error}): remove it") from None


def default_file(env: Mapping[str, str]) -> Path:
    """Where rocenante looks for the file. Raises ValueError where it looks nowhere."""
    named = env.get("ROCENANTE_TUNE_FILE")
    if named:
        return Path(named)
    if named == "":
        raise ValueError("ROCENANTE_TUNE_FILE is set to nothing, so that no file is read: unset it")
    xdg = env.get("XDG_CONFIG_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / "rocenante" / "tune.conf"
    if not env.get("HOME"):
        raise ValueError("neither XDG_CONFIG_HOME nor HOME is set: name a file with --file")
    return Path(env["HOME"]) / ".config" / "rocenante" / "tune.conf"


def write(file: Path, text: str) -> None:
    """Replaces the file in one step: a group that is being made reads the old one or the new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_text(text)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
