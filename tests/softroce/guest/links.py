"""Faults of the guest's links, each undone at the end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_LIMIT_S = 10.0
_POLL_S = 0.02


def ip(*commands: str) -> None:
    """Runs commands of ip(8) at once. Raises CalledProcessError with its message."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=False)
    done.check_returncode()


@contextlib.contextmanager
def changed(do: str, undo: str) -> Iterator[None]:
    """A change of the network by ip(8) that is in force in the body."""
    ip(do)
    try:
        yield
    finally:
        ip(undo)


@contextlib.contextmanager
def disturbed(devices: int, specification: str) -> Iterator[None]:
    """All links lose, delay ... packets, as tc-netem(8) has it."""

    def tc(verb: str, more: str) -> None:
        for i in range(devices):
            command = f"tc qdisc {verb} dev ve{i} root {more}"
            subprocess.run(command.split(), check=True)

    tc("add", f"netem {specification}")
    try:
        yield
    finally:
        tc("del", "")


@contextlib.contextmanager
def address_replaced(device: int, new: str | None) -> Iterator[None]:
    """A device's IPv4 address is gone, and `new` there instead; waits for the GIDs."""
    link, old = f"ve{device}", f"10.77.0.{device + 1}"
    ip(f"addr del {old}/24 dev {link}", *([f"addr add {new}/24 dev {link}"] if new else []))
    try:
        await_gids(device, present=new, absent=old)
        yield
    finally:
        ip(*([f"addr del {new}/24 dev {link}"] if new else []), f"addr add {old}/24 dev {link}")
        await_gids(device, present=old, absent=new)


def await_gids(device: int, present: str | None, absent: str | None) -> None:
    """Waits until the kernel's table, which it fills in its own time, is as it must be."""

    def gid(address: str) -> str:
        a, b, c, d = map(int, address.split("."))
        return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"

    folder = Path(f"/sys/class/infiniband/rxe{device}/ports/1/gids")
    deadline = time.monotonic() + _LIMIT_S
    while True:
        table = {file.read_text().strip() for file in folder.iterdir()}
        if (not present or gid(present) in table) and (not absent or gid(absent) not in table):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"GIDs of rxe{device} after {_LIMIT_S:g} s: {sorted(table)}")
        time.sleep(_POLL_S)


def await_traffic(device: int, packets: int) -> None:
    """Waits until a device's link has sent so many packets more."""
    counter = Path(f"/sys/class/net/ve{device}/statistics/tx_packets")
    wanted = int(counter.read_text()) + packets
    deadline = time.monotonic() + _LIMIT_S
    while int(counter.read_text()) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"ve{device} has not sent {packets} packets within {_LIMIT_S:g} s")
        time.sleep(_POLL_S)
