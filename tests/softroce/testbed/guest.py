"""Runs a command in guests: starts them, passes their output on, and always cleans up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.host import EXIT_GUEST_DIED, EXIT_TIMEOUT, SYSTEM_PATH, BedError
from testbed.machine import FILES, Machine, Node, Spec

_POLL_S = 0.02
_DRAIN_S = 2.0
_CONSOLE_TAIL = 3000
_MEMORY_WANTED = 6 << 30
_MEMORY_LEAST = 512 << 20
_PREFIX = "rocenante-softroce."
_PASSED_ON = ("LANG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
_SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "CONT": signal.SIGCONT}


@dataclass
class Outcome:
    """How one node ended: ``code`` is the command's, None if the node never told one."""

    node: int
    code: int | None
    killed: bool  # by kill-node
    failed: str  # why the command was not started, if the guest could say
    console: str
    boot_s: str


@dataclass
class _Running:
    node: Node
    process: subprocess.Popen[bytes]
    killed: bool = False


def run(spec: Spec, machine: Machine, *, verbose: bool = False) -> int:
    """Runs the command on every node and returns the exit code of the whole.

    That is the first node's that is not 0; 124 if the time ran out; 125 if a guest died or its
    network could not be set up (said on stderr). Nodes that kill-node killed do not count.

    Raises BedError if a guest cannot be started. All processes and files of the run are gone at
    the end, also when an exception (host.Interrupted, say) ends it.
    """
    _check(spec)
    start = time.monotonic()
    with _folder() as top:
        helpers: list[subprocess.Popen[bytes]] = []
        guests: list[_Running] = []
        pump = _Pump(prefix=spec.nodes > 1)
        try:
            (top / "cluster").mkdir()
            helpers = machine.start_network(spec, top)
            memory = _memory(top, spec.nodes)
            for index in range(spec.nodes):
                guests.append(_start_node(spec, machine, top, index, memory, pump))
            in_time = _watch(guests, top / "cluster", pump, start + spec.timeout)
        finally:
            for guest in guests:
                _end(guest.process)
            for helper in helpers:
                _end(helper)
            pump.drain(_DRAIN_S)
            pump.close()
        outcomes = [_outcome(guest) for guest in guests]
    if verbose:
        for o in outcomes:
            state = "killed" if o.killed else f"exit code {o.code}"
            note(f"{machine.name} node {o.node}: {state}, command started at {o.boot_s} s")
        note(f"whole run {time.monotonic() - start:.1f} s")
    return _judge(outcomes, in_time, spec)


def note(text: str) -> None:
    """Says something on stderr in the launcher's own name."""
    print(f"softroce: {text}", file=sys.stderr, flush=True)


def _check(spec: Spec) -> None:
    for folder in spec.writable:
        if not folder.is_dir():
            raise BedError(f"--rw {folder} is not a folder")
        if "," in str(folder) or "\n" in str(folder):
            raise BedError(f"--rw {folder}: a comma or a line break in the path cannot be mounted")


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder in memory for the run. Those left by launchers that were killed are swept away."""
    base = _folder_base()
    for old in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (old / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    top = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        with (top / "new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (top / "new").rename(top / "lock")  # held before anybody can see it
            yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _folder_base() -> Path:
    """Where guest memory can live: an in-memory file system if it has room and may hold code."""
    for base in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            stat = os.statvfs(base)
            if not stat.f_flag & os.ST_NOEXEC and stat.f_bavail * stat.f_frsize > _MEMORY_LEAST:
                return base
    raise BedError(
        f"neither /dev/shm nor {tempfile.gettempdir()} has {_MEMORY_LEAST >> 20} MiB on a file "
        "system without noexec; in a container use --shm-size"
    )


def _memory(top: Path, nodes: int) -> int:
    stat = os.statvfs(top)
    each = min(_MEMORY_WANTED, stat.f_bavail * stat.f_frsize * 3 // 4 // nodes)
    if each < _MEMORY_LEAST:
        raise BedError(
            f"{nodes} guests would get {each >> 20} MiB each in {top.parent}, "
            f"{_MEMORY_LEAST >> 20} are needed"
        )
    return each >> 20 << 20


def _start_node(
    spec: Spec, machine: Machine, top: Path, index: int, memory: int, pump: _Pump
) -> _Running:
    control = top / f"node{index}"
    control.mkdir()
    (control / "cluster").mkdir()  # where the guest mounts the folder that all nodes share
    path = os.environ.get("PATH", SYSTEM_PATH)
    environment = {
        "HOME": os.path.expanduser("~"),
        "PATH": f"{FILES / 'bin'}:{path}:{SYSTEM_PATH}",
        "TERM": "dumb",
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        **machine.environment(spec),
        **spec.environment,
        "SOFTROCE_NODES": str(spec.nodes),
        "SOFTROCE_NODE": str(index),
        "SOFTROCE_DEVICES": str(spec.devices),
        "SOFTROCE_MTU": str(spec.mtu),
        "SOFTROCE_NETEM": spec.netem,
        "SOFTROCE_CLUSTER": "/run/softroce/cluster",
        "SOFTROCE_DIRECTORY": os.getcwd(),
    }
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    (control / "env").write_text("".join(exports))
    (control / "command").write_text(f"{shlex.join(spec.command)}\n")
    (control / "job").write_bytes((FILES / "job").read_bytes())
    folders = [f.resolve() for f in spec.writable]
    (control / "rw").write_text("".join(f"{folder}\n" for folder in folders))
    console = os.open(control / "console", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # Pipes also keep the guest from making the caller's own output non-blocking.
    out, err = pump.pipe(index, 1), pump.pipe(index, 2)
    try:
        process = machine.start(spec, Node(index, control, console, out, err), memory)
    finally:
        for fd in (console, out, err):
            os.close(fd)
    return _Running(Node(index, control, -1, -1, -1), process)


def _watch(guests: list[_Running], cluster: Path, pump: _Pump, deadline: float) -> bool:
    """Serves the guests until all have ended; False if the deadline came first."""
    while any(guest.process.poll() is None for guest in guests):
        if time.monotonic() > deadline:
            return False
        pump.serve(_POLL_S)
        if all(g.process.poll() is not None or (g.node.control / "code").exists() for g in guests):
            (cluster / "end").touch()  # nodes stay on the network until all are through
        for request in cluster.glob("request.*"):
            name, _, number = request.read_text().strip().partition(" ")
            guest = guests[int(number)]
            if guest.process.poll() is None:
                if name == "KILL":
                    guest.killed = True
                    _end(guest.process)
                else:  # the kernel's own process: nothing of the guest runs without it
                    guest.process.send_signal(_SIGNALS[name])
            request.rename(request.with_name(request.name.replace("request.", "done.", 1)))
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process group whole, also what its leader left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(guest: _Running) -> Outcome:
    control = guest.node.control

    def read(name: str) -> str:
        file = control / name
        return file.read_text(errors="replace").strip() if file.is_file() else ""

    code = read("code")
    return Outcome(
        node=guest.node.index,
        code=int(code) if code else None,
        killed=guest.killed,
        failed=read("failed"),
        console=read("console"),
        boot_s=read("uptime.command") or "?",
    )


def _judge(outcomes: list[Outcome], in_time: bool, spec: Spec) -> int:
    result = 0
    for o in outcomes:
        if o.code is not None:
            result = result or o.code
            continue
        if o.killed:
            continue
        if o.failed:
            note(f"node {o.node}: {o.failed}")
        elif in_time:
            note(f"node {o.node} died before its command ended; the end of its kernel log:")
            print(o.console[-_CONSOLE_TAIL:] or "(empty)", file=sys.stderr)
        else:
            note(f"node {o.node}: the command did not end within {spec.timeout:g} s")
    unfinished = [o for o in outcomes if o.code is None and not o.killed]
    if not in_time and unfinished:
        return EXIT_TIMEOUT
    return EXIT_GUEST_DIED if unfinished else result


class _Pump:
    """Carries the guests' output to stdout and stderr, with the node's number before each line
    when there are several nodes."""

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._selector = selectors.DefaultSelector()
        self._partial: dict[int, bytes] = {}

    def pipe(self, node: int, target: int) -> int:
        """A new pipe whose output goes to the target descriptor; returns its writing end."""
        source, sink = os.pipe()
        self._selector.register(source, selectors.EVENT_READ, (node, target))
        return sink

    def serve(self, limit_s: float) -> None:
        """Carries what is there, waiting up to the limit for it."""
        if not self._selector.get_map():
            time.sleep(limit_s)
            return
        for key, _ in self._selector.select(limit_s):
            node, target = key.data
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                if key.fd in self._partial:
                    data = b"[%d] %s\n" % (node, self._partial.pop(key.fd))
            elif self._prefix:
                lines = (self._partial.pop(key.fd, b"") + data).splitlines(keepends=True)
                if not lines[-1].endswith(b"\n"):
                    self._partial[key.fd] = lines.pop()
                data = b"".join(b"[%d] %s" % (node, line) for line in lines)
            _write(target, data)

    def drain(self, limit_s: float) -> None:
        """Carries the rest after the guests have ended."""
        deadline = time.monotonic() + limit_s
        while self._selector.get_map() and time.monotonic() < deadline:
            self.serve(_POLL_S)

    def close(self) -> None:
        """Closes what is still open."""
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
