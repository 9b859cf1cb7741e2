"""How a guest is started in QEMU: any Debian kernel, emulated, for where User-mode Linux fails.

User space runs 10 to 20 times slower than in User-mode Linux. The kernel and its modules come from
Debian's package, unpacked and packed into an initial RAM disk in the cache; nothing is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed.host import (
    BedError,
    GuestUnavailableError,
    Need,
    cache_root,
    die_with_parent,
    find_program,
    is_x86_64,
    require,
)
from testbed.machine import FILES, Node, Spec

_META_PACKAGE = "linux-image-amd64"
_PROGRAM = "qemu-system-x86_64"
_EARLY = (*("virtio_pci", "virtio_console", "virtio_rng", "9p", "9pnet_virtio", "overlay"),)
_LATE = (
    *("virtio_net", "veth", "bridge", "sch_netem", "ib_uverbs", "rdma_ucm", "rdma_rxe"),
    *("crc32_generic", "crc32_pclmul", "crc32c_intel"),
)
_MEMORY_MOST = 4 << 30
_BOOT_ARGUMENTS = (
    "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable "
    "clocksource=tsc no_timer_check nowatchdog transparent_hugepage=never"
)

NEEDS_QEMU = (
    Need("qemu-system-x86", commands=(_PROGRAM,)),
    Need("busybox-static", files=("/usr/bin/busybox", "/bin/busybox")),
    Need("kmod", commands=("modprobe", "depmod")),
    Need("cpio", commands=("cpio",)),
)


class Qemu:
    """Guests in an emulated PC, two emulated CPUs each."""

    name = "qemu"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._switch: Path | None = None

    @classmethod
    def prepare(cls) -> Qemu:
        """Fetches the kernel and makes the RAM disk if the cache lacks them.

        Raises GuestUnavailableError on another architecture, BedError naming what is missing.
        """
        if not is_x86_64():
            raise GuestUnavailableError(
                "the guest's programs are the host's, and only x86-64 has been tried"
            )
        require(NEEDS_QEMU, "a guest in QEMU")
        return cls(_ensure())

    def start_network(self, spec: Spec, top: Path) -> list[subprocess.Popen[bytes]]:
        """Starts the switch that several nodes share."""
        if spec.nodes == 1:
            return []
        self._switch = top / "switch"
        program = Path(__file__).with_name("switch.py")
        ports = spec.nodes * spec.devices
        switch = subprocess.Popen(
            [sys.executable, "-S", "-E", str(program), str(self._switch), str(ports)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + 10
        while not Path(f"{self._switch}.{ports - 1}").exists():
            if switch.poll() is not None or time.monotonic() > deadline:
                switch.kill()
                raise BedError(f"the switch did not start (exit status {switch.wait()})")
            time.sleep(0.005)
        return [switch]

    def environment(self, spec: Spec) -> dict[str, str]:
        """Nothing: the guest finds its cards by itself."""
        return {}

    def start(self, spec: Spec, node: Node, memory: int) -> subprocess.Popen[bytes]:
        """Starts one node; its output goes to the node's pipes and console file."""
        program = find_program(_PROGRAM)
        assert program is not None
        out, err = node.out_fd, node.err_fd
        command = [
            program,
            *("-accel", "tcg,thread=multi,tb-size=1024", "-machine", "q35", "-cpu", "max"),
            *("-m", f"{min(memory, _MEMORY_MOST) >> 20}M", "-smp", "2"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-kernel", str(self._folder / "vmlinuz"), "-initrd", str(self._folder / "initrd")),
            *("-append", f"{_BOOT_ARGUMENTS} softroce.node={node.index}"),
            *("-chardev", f"file,id=log,path={node.control}/console,append=on"),
            *("-serial", "chardev:log", "-device", "virtio-serial-pci"),
            *("-add-fd", f"fd={out},set=1", "-add-fd", f"fd={err},set=2"),
            *("-chardev", "file,id=out,path=/dev/fdset/1,append=on"),
            *("-device", "virtserialport,chardev=out,name=softroce.out"),
            *("-chardev", "file,id=err,path=/dev/fdset/2,append=on"),
            *("-device", "virtserialport,chardev=err,name=softroce.err"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom"),
            *("-device", "virtio-rng-pci,rng=rng"),
            *_share("/", "root", ",readonly=on"),
            *_share(node.control.parent, "run"),
        ]
        for i, folder in enumerate(spec.writable):
            command += _share(folder.resolve(), f"rw{i}")
        if self._switch:
            for i in range(spec.devices):
                port = node.index * spec.devices + i
                command += [
                    "-netdev",
                    f"dgram,id=net{i},local.type=unix,local.path={self._switch}.card{port},"
                    f"remote.type=unix,remote.path={self._switch}.{port}",
                    "-device",
                    f"virtio-net-pci,netdev=net{i},host_mtu={spec.mtu}",
                ]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=node.console_fd,
            stderr=node.console_fd,
            pass_fds=(out, err),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _share(path: str | Path, tag: str, more: str = "") -> list[str]:
    return [
        "-virtfs",
        f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}",
    ]


def _ensure() -> Path:
    """The cached folder with kernel and RAM disk; made under a lock if it is not there."""
    digest = hashlib.sha256(repr((_EARLY, _LATE)).encode())
    digest.update((FILES / "init-qemu").read_bytes())
    name = f"qemu-*-{digest.hexdigest()[:12]}"
    root = cache_root()

    def cached() -> Path | None:
        return next((p for p in sorted(root.glob(name)) if (p / "initrd").is_file()), None)

    found = cached()
    if found:
        return found
    root.mkdir(parents=True, exist_ok=True)
    with (root / "qemu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # making it takes seconds
        found = cached()
        if found:
            return found
        with tempfile.TemporaryDirectory(prefix="qemu-build.", dir=root) as work:
            version, made = _make(Path(work))
            final = root / name.replace("*", version)
            made.rename(final)
            return final


def _make(work: Path) -> tuple[str, Path]:
    print(f"softroce: fetching {_META_PACKAGE}'s kernel for the QEMU guest", file=sys.stderr)
    asked = subprocess.run(["apt-cache", "depends", _META_PACKAGE], capture_output=True, text=True)
    match = re.search(r"Depends: (linux-image-\S+)", asked.stdout)
    if not match:
        raise BedError(f"apt-cache knows no {_META_PACKAGE}; run `apt-get update` (Debian only)")
    fetch = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", match[1]]
    fetched = subprocess.run(fetch, cwd=work, capture_output=True, text=True)
    packages = list(work.glob("*.deb"))
    if fetched.returncode or not packages:
        raise BedError(f"apt-get cannot fetch {match[1]}: {fetched.stderr.strip()}")
    _run(["dpkg", "-x", str(packages[0]), str(work / "deb")])
    modules = next(p for p in (work / "deb").glob("**/lib/modules") if p.is_dir())
    version = next(modules.iterdir()).name
    base = modules.parent.parent
    _run(["depmod", "-b", str(base), version])
    tree = work / "tree"
    for folder in ("bin", "dev", "proc", "sys", "modules", "host", "memory", "new", "run"):
        (tree / folder).mkdir(parents=True)
    busybox = shutil.which("busybox", path="/usr/bin:/bin")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin" / "busybox")
    shutil.copy(FILES / "init-qemu", tree / "init")
    (tree / "init").chmod(0o755)
    loaded: set[str] = set()
    for part, names in (("early", _EARLY), ("late", _LATE)):
        order = _with_dependencies(base, version, names)
        files = [path for path in order if path.name not in loaded]
        loaded.update(path.name for path in files)
        plain = []
        for path in files:
            target = tree / "modules" / path.name.removesuffix(".xz")
            data = path.read_bytes()
            target.write_bytes(lzma.decompress(data) if path.suffix == ".xz" else data)
            plain.append(target.name)
        (tree / "modules" / part).write_text("\n".join(plain) + "\n")
    out = work / "out"
    out.mkdir()
    pack = "find . | cpio -o -H newc --quiet | gzip -1 >../out/initrd"
    _run(["sh", "-c", pack], cwd=tree)
    shutil.copy(next((work / "deb" / "boot").glob("vmlinuz-*")), out / "vmlinuz")
    return version, out


def _with_dependencies(base: Path, version: str, names: tuple[str, ...]) -> list[Path]:
    """The files of the modules and of what they need, in loading order; built-in ones are none."""
    order: dict[Path, None] = {}
    for name in names:
        shown = subprocess.run(
            [
                *(find_program("modprobe") or "modprobe", "-d", str(base), "-S", version),
                *("--show-depends", name),
            ],
            capture_output=True,
            text=True,
        )
        if shown.returncode:
            raise BedError(f"the kernel {version} has no module {name}: {shown.stderr.strip()}")
        for line in shown.stdout.splitlines():
            kind, _, path = line.partition(" ")
            if kind == "insmod":
                order[Path(path.strip())] = None
    return list(order)


def _run(command: list[str], cwd: Path | None = None) -> None:
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise BedError(f"`{' '.join(command[:3])}` failed: {done.stderr.strip()}")
