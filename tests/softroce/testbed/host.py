"""What this machine offers to the test-bed: programs, packages, folders; and the errors."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

EXIT_UNAVAILABLE = 77
EXIT_TIMEOUT = 124
EXIT_GUEST_DIED = 125

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class BedError(Exception):
    """The test-bed cannot do what was asked; the text says why and what to do."""


class GuestUnavailableError(BedError):
    """This machine can start no guest of the kind that was asked for."""


class Interrupted(BaseException):
    """The launcher was told to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP raise Interrupted, so that everything is cleaned up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def handler(number: int, _: object) -> None:
        for other in numbers:  # a second one must not break the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@dataclass(frozen=True)
class Need:
    """Something a guest or a build needs, and the Debian package that has it."""

    package: str
    commands: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # glob patterns, one match is enough

    def met(self) -> bool:
        """Whether all commands are on the path and, if files are named, one of them exists."""
        return all(find_program(c) for c in self.commands) and (
            not self.files or any(glob.glob(f) for f in self.files)
        )


# In the guest's root, which is the host's.
NEEDS_RUN = (
    Need("iproute2", commands=("ip", "tc", "rdma")),
    Need("libibverbs1", files=("/usr/lib/*/libibverbs.so.1", "/usr/lib64/libibverbs.so.1")),
    Need(
        "ibverbs-providers",
        files=(
            "/usr/lib/*/libibverbs/librxe-rdmav*.so",
            "/usr/lib64/libibverbs/librxe-rdmav*.so",
        ),
    ),
)
NEEDS_TESTS = (
    Need("ibverbs-utils", commands=("ibv_devinfo",)),
    Need("perftest", commands=("ib_write_lat",)),
    Need(
        "python3-pyverbs",
        files=("/usr/lib/python3/dist-packages/pyverbs/__init__.py",),
    ),
)


def find_program(name: str) -> str | None:
    """The path of a program, also in the sbin folders that a user's PATH may lack."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def missing_packages(needs: Iterable[Need]) -> list[str]:
    """The packages that would meet what is not met, in order, each once."""
    return list(dict.fromkeys(need.package for need in needs if not need.met()))


def apt_line(packages: Iterable[str]) -> str:
    """The one command that installs the packages."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return (
        f"{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends "
        f"{' '.join(packages)}"
    )


def require(needs: Iterable[Need], purpose: str) -> None:
    """Raises BedError naming the apt command unless all needs are met."""
    packages = missing_packages(needs)
    if packages:
        raise BedError(f"{purpose} needs {', '.join(packages)}; run\n  {apt_line(packages)}")


def install(needs: Iterable[Need]) -> None:
    """Installs with apt-get what the needs lack. Raises BedError if that fails."""
    packages = missing_packages(needs)
    if not packages:
        return
    if not find_program("apt-get"):
        raise BedError(f"no apt-get here to install {', '.join(packages)} with")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["sh", "-c", apt_line(packages)], env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BedError(f"exit status {done.returncode} from: {apt_line(packages)}")


def cache_root() -> Path:
    """Where built kernels are kept: outside the tree, shared by all clones of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rocenante"


def is_x86_64() -> bool:
    """Whether this machine can run User-mode Linux as it is built here."""
    return platform.machine() in ("x86_64", "AMD64")


def die_with_parent() -> None:
    """In a forked child before exec: be killed when the parent ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
