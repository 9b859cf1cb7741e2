"""How a User-mode Linux guest is started: the guest's kernel is an ordinary process of the host."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from testbed import kernel
from testbed.host import BedError, GuestUnavailableError, die_with_parent, is_x86_64
from testbed.machine import FILES, Node, Spec

_MAX_MAP_COUNT = 8 << 20
_MAP_COUNT_FILE = Path("/proc/sys/vm/max_map_count")
_SWITCH_LIMIT_S = 10.0


class UserModeLinux:
    """Guests at native user-space speed, one host CPU each; x86-64 only."""

    name = "uml"

    def __init__(self, kernel_path: Path) -> None:
        self._kernel = kernel_path
        self._switch: Path | None = None

    @classmethod
    def prepare(cls) -> UserModeLinux:
        """Builds the kernel if the cache lacks it.

        Raises GuestUnavailableError on another architecture, BedError if the build fails.
        """
        if not is_x86_64():
            raise GuestUnavailableError("User-mode Linux is for x86-64 only")
        return cls(kernel.ensure())

    def start_network(self, spec: Spec, top: Path) -> list[subprocess.Popen[bytes]]:
        """Starts the switch that several nodes share."""
        _allow_many_mappings()
        if spec.nodes == 1:
            return []
        self._switch = top / "switch"
        program = Path(__file__).with_name("switch.py")
        switch = subprocess.Popen(
            [sys.executable, "-S", "-E", str(program), str(self._switch)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + _SWITCH_LIMIT_S
        while not self._switch.exists():
            if switch.poll() is not None or time.monotonic() > deadline:
                switch.kill()
                raise BedError(f"the switch did not start (exit status {switch.wait()})")
            time.sleep(0.005)
        return [switch]

    def environment(self, spec: Spec) -> dict[str, str]:
        """What the guest's job must know of this kind of machine."""
        cards = range(spec.devices if spec.nodes > 1 else 0)
        return {"SOFTROCE_CARDS": " ".join(f"vec{i}" for i in cards)}

    def start(self, spec: Spec, node: Node, memory: int) -> subprocess.Popen[bytes]:
        """Starts one node's kernel; its output goes to the node's pipes and console file."""
        init = node.control / "init"
        init.write_bytes((FILES / "init-uml").read_bytes())
        init.chmod(0o755)
        console, out, err = node.console_fd, node.out_fd, node.err_fd
        command = [
            str(self._kernel),
            f"mem={memory >> 20}M",
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
            f"init={init}",
            f"umid=node{node.index}",
            f"uml_dir={node.control}",
            f"con0=null,fd:{console}",
            f"con1=null,fd:{out}",
            f"con2=null,fd:{err}",
            "con=null",
            f"softroce.control={node.control}",
            f"softroce.mhz={_clock_mhz()}",
        ]
        if self._switch:
            command += [
                f"vec{i}:transport=bess,dst={self._switch},depth=64,mtu={spec.mtu}"
                for i in range(spec.devices)
            ]
        # A guest has one CPU and several host processes that take turns: roaming costs it 3 x.
        cpus = sorted(os.sched_getaffinity(0))
        cpu = cpus[(node.index if spec.nodes > 1 else os.getpid()) % len(cpus)]

        def in_child() -> None:
            die_with_parent()
            os.sched_setaffinity(0, {cpu})
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a kernel that panics calls abort

        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            pass_fds=(console, out, err),
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(node.control.parent)},
            preexec_fn=in_child,
        )


def _allow_many_mappings() -> None:
    """Each page of guest memory can become one mapping of the host: far more than the default."""
    try:
        if int(_MAP_COUNT_FILE.read_text()) < _MAX_MAP_COUNT // 2:
            _MAP_COUNT_FILE.write_text(str(_MAX_MAP_COUNT))
    except OSError:
        print(
            "softroce: cannot raise vm.max_map_count: programs of more than about 200 MB will "
            f"crash in the guest; as root: sysctl vm.max_map_count={_MAX_MAP_COUNT}",
            file=sys.stderr,
        )


def _clock_mhz() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return line.split(":")[1].strip()
    return "2000.000"
