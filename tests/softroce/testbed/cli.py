"""The command lines of ``run`` and ``prepare``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from testbed import guest, kernel
from testbed.host import (
    EXIT_UNAVAILABLE,
    NEEDS_RUN,
    NEEDS_TESTS,
    BedError,
    GuestUnavailableError,
    Interrupted,
    cache_root,
    install,
    require,
    signals_raise,
)
from testbed.machine import Machine, Spec
from testbed.qemu import NEEDS_QEMU, Qemu
from testbed.uml import UserModeLinux

_START_LIMIT_S = 240.0  # QEMU on a busy machine
_KIND_VARIABLE = "ROCENANTE_SOFTROCE_GUEST"
_KINDS: dict[str, Callable[[], Machine]] = {"uml": UserModeLinux.prepare, "qemu": Qemu.prepare}


def choose(kind: str, *, check: bool = False) -> Machine:
    """The machine to run guests on, made ready: User-mode Linux, else QEMU, or the kind named.

    That a guest starts is tried once after each boot of the host, or if ``check`` is set. Raises
    GuestUnavailableError with the reason of each kind if none can be had.
    """
    if kind != "auto" and kind not in _KINDS:
        raise BedError(f"{_KIND_VARIABLE}={kind} is none of auto, {', '.join(_KINDS)}")
    reasons = []
    for name in [kind] if kind != "auto" else list(_KINDS):
        try:
            machine = _KINDS[name]()
            _check_start(machine, anew=check)
        except BedError as error:
            reasons.append(f"{name}: {error}")
            continue
        if reasons:
            guest.note(f"falling back to {name}, which is 10 times slower ({reasons[0]})")
        return machine
    raise GuestUnavailableError("no guest with Soft-RoCE can be had here.\n" + "\n".join(reasons))


def _check_start(machine: Machine, *, anew: bool) -> None:
    """Starts a guest unless that is known to work. Raises GuestUnavailableError if it does not."""
    stamp = cache_root() / f"{machine.name}-starts"
    now = f"{kernel.recipe_hash()} {Path('/proc/sys/kernel/random/boot_id').read_text()}"
    if not anew and stamp.is_file() and stamp.read_text() == now:
        return
    code = guest.run(Spec(command=("true",), devices=2, timeout=_START_LIMIT_S), machine)
    if code:
        stamp.unlink(missing_ok=True)
        raise GuestUnavailableError(f"a guest does not start (exit code {code}; reason above)")
    stamp.write_text(now)


def run_main(arguments: list[str]) -> int:
    """``run``: a command in guests. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="run",
        description="Run a command in a Linux guest that has RoCE devices. The host's files are "
        "the guest's files; what the command writes is lost, except below --rw.",
        epilog="Exit code: the command's (of several nodes, the first that is not 0); 124 if the "
        "time ran out; 125 if the guest died or its network could not be set up; 77 if no guest "
        "can be had on this machine; 2 for a wrong command line.",
    )
    add = parser.add_argument
    add(
        "--devices",
        type=_count(32),
        default=None,
        metavar="N",
        help="RoCE devices per node: rxe0 ... (default 2 with one node, 1 with several)",
    )
    add(
        "--nodes",
        type=_count(32),
        default=1,
        metavar="N",
        help="guests on one private switch, "
        "each of which runs the command; SOFTROCE_NODE tells them apart (default 1)",
    )
    add(
        "--netem",
        default="",
        metavar="SPEC",
        help='disturbance of every link, as tc-netem(8) has it: "loss 1%%", "delay 1ms"',
    )
    add(
        "--mtu",
        type=_mtu,
        default=4200,
        metavar="BYTES",
        help="of the Ethernet links; RoCE's own "
        "is the next lower of 1024, 2048, 4096 less headers (default 4200: 4096)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds for the whole run (default 300)",
    )
    add(
        "--rw",
        action="append",
        default=[],
        metavar="DIR",
        help="folder of the host that the guest may write; can be repeated",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="K[=V]",
        help="variable for the command; K alone passes the caller's on; can be repeated",
    )
    add(
        "--guest",
        choices=["auto", *_KINDS],
        default=os.environ.get(_KIND_VARIABLE, "auto"),
        help=f"kind of guest (default: {_KIND_VARIABLE} or auto: User-mode Linux, else QEMU)",
    )
    add("--verbose", action="store_true", help="say on stderr how each node went")
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    args = parser.parse_args(arguments)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command; put it after --")
    environment = {}
    for entry in args.env:
        name, given, value = entry.partition("=")
        if not name.isidentifier():
            parser.error(f"--env {entry}: {name!r} is no variable's name")
        if given or name in os.environ:
            environment[name] = value if given else os.environ[name]
    spec = Spec(
        command=tuple(command),
        nodes=args.nodes,
        devices=args.devices or (2 if args.nodes == 1 else 1),
        netem=args.netem,
        mtu=args.mtu,
        timeout=args.timeout,
        writable=tuple(Path(folder).absolute() for folder in args.rw),
        environment=environment,
    )

    def body() -> int:
        require(NEEDS_RUN, "a guest with RoCE devices")
        return guest.run(spec, choose(args.guest), verbose=args.verbose)

    return _guarded(body)


def prepare_main(arguments: list[str]) -> int:
    """``prepare``: makes everything ready for ``run`` and the tests. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="prepare",
        description="Make the guest kernel ready (built once, then cached) and check that a guest "
        "with RoCE devices starts. Names the apt command if a package is missing.",
    )
    parser.add_argument("--install", action="store_true", help="install missing packages with apt")
    parser.add_argument(
        "--guest",
        choices=["auto", *_KINDS],
        default=os.environ.get(_KIND_VARIABLE, "auto"),
        help=f"kind of guest (default: {_KIND_VARIABLE} or auto)",
    )
    args = parser.parse_args(arguments)

    def body() -> int:
        needs = [*NEEDS_RUN, *NEEDS_TESTS]
        if args.guest == "qemu":
            needs += NEEDS_QEMU
        elif not kernel.cached():
            needs += kernel.NEEDS_BUILD
        if args.install:
            install(needs)
        require(needs, "the Soft-RoCE test-bed")
        print(f"softroce: {choose(args.guest, check=True).name} guest ready")
        return 0

    return _guarded(body)


def _guarded(body: Callable[[], int]) -> int:
    try:
        with signals_raise():
            return body()
    except BedError as error:
        guest.note(str(error))
        return EXIT_UNAVAILABLE
    except Interrupted as stop:
        return 128 + stop.number
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _count(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not within 1 and {most}")
        return value

    return parse


def _mtu(text: str) -> int:
    value = int(text)
    if not 576 <= value <= 9000:
        raise argparse.ArgumentTypeError(f"{value} is not within 576 and 9000")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
