"""What a result depends on: the machine, the software and its state. Host names are left out."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from rocenante.bench.arms import package_version

_ENV_PREFIXES = ("ROCENANTE_", "NCCL_", "GLOO_", "I_MPI_", "OMPI_MCA_", "OMP_", "TORCH_")


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def cpu_model() -> str:
    return (
        _field("/proc/cpuinfo", "model name")
        or _field("/proc/cpuinfo", "CPU part")
        or platform.machine()
    )


def memory_gib() -> float:
    """Physical memory in GiB, one decimal."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)


def describe() -> dict[str, Any]:
    """The machine: processor, cores, memory, kernel."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": memory_gib(),
        "kernel": f"{platform.system()} {platform.release()}",
        "hypervisor": "hypervisor" in (_field("/proc/cpuinfo", "flags") or "").split(),
    }


def one_line(machine: dict[str, Any]) -> str:
    """For headings of tables and plots."""
    size = f"{machine['usable_cores']} cores, {machine['memory_gib']:g} GiB"
    return f"{machine['cpu']}, {size}, {machine['kernel']}"


def versions() -> dict[str, str]:
    names = ("rocenante", "torch", "numpy", "mpi4py")
    return {"python": platform.python_version(), **{name: package_version(name) for name in names}}


def git_revision() -> str | None:
    """The commit of the source folder that this runs from; "+changes" when it was edited."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain", "-uno") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


def load_average() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def relevant_env() -> dict[str, str]:
    return {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(_ENV_PREFIXES)
    }


def command_line() -> list[str]:
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
