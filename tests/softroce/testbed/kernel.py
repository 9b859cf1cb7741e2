"""The User-mode Linux kernel with Soft-RoCE: built once from Debian's source package, then cached.

A build lives in ``<cache>/uml-<source version>-<hash>/linux``, where the hash covers everything in
this tree that shapes the kernel (patch, configuration, recipe). A newer source package alone is no
reason to build again: any build with the right hash serves.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.host import BedError, Need, cache_root, find_program, require

SERIES = "6.12"
SOURCE_PACKAGE = f"linux-source-{SERIES}"
_RECIPE = "1"  # raise it when the steps below change the kernel that comes out
_HERE = Path(__file__).parent / "kernel"
_PATCH = _HERE / f"linux-{SERIES}-uml.patch"
_CONFIG = _HERE / f"linux-{SERIES}-uml.config"
_LOCK_WAIT_S = 1800.0
_BUILD_LIMIT_S = 3600.0
_DISK_NEEDED = 3 << 30

NEEDS_BUILD = (
    Need("gcc", commands=("gcc",)),
    Need("libc6-dev", files=("/usr/include/stdio.h",)),
    Need("binutils", commands=("ld", "strip")),
    Need("make", commands=("make",)),
    Need("patch", commands=("patch",)),
    Need("flex", commands=("flex",)),
    Need("bison", commands=("bison",)),
    Need("bc", commands=("bc",)),
    Need("xz-utils", commands=("xz",)),
)

# Large folders of the source without a Kconfig file, which no User-mode Linux build reads. Plain
# names, since tar compares each of 80,000 files with each pattern.
_LEFT_OUT = ("drivers/gpu/drm/amd/include", "tools/testing", "arch/arm/boot", "arch/arm64/boot")


class Progress:
    """One line that is rewritten on a terminal, and a line now and then elsewhere."""

    def __init__(self, every_s: float = 20.0) -> None:
        self._start = time.monotonic()
        self._tty = sys.stderr.isatty()
        self._every = 0.2 if self._tty else every_s
        self._next = 0.0

    def show(self, text: str, *, now: bool = False) -> None:
        """Shows the text with the time since the start, if it is time to (or ``now``)."""
        elapsed = time.monotonic() - self._start
        if not now and elapsed < self._next:
            return
        self._next = elapsed + self._every
        line = f"softroce: {text} ({elapsed:.0f} s)"
        sys.stderr.write(f"\r\x1b[K{line[:110]}" if self._tty else f"{line}\n")
        if now and self._tty:
            sys.stderr.write("\n")
        sys.stderr.flush()


def recipe_hash() -> str:
    """A short name for everything in this tree that shapes the kernel."""
    digest = hashlib.sha256(_RECIPE.encode())
    for file in (_PATCH, _CONFIG):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def cached() -> Path | None:
    """The newest cached kernel built by this recipe, or None."""
    found = [p for p in cache_root().glob(f"uml-*-{recipe_hash()}/linux") if p.is_file()]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def ensure() -> Path:
    """The kernel's path, building it first if the cache lacks it.

    Raises BedError with what to install or where the log is if it cannot be built.
    """
    kernel = cached()
    if kernel:
        return kernel
    require(NEEDS_BUILD, "building the guest kernel")
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BedError(f"cannot make the cache folder: {error}; set XDG_CACHE_HOME") from None
    with _locked(root / "uml.lock"):
        return cached() or _build(root)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        deadline = time.monotonic() + _LOCK_WAIT_S
        progress = Progress()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BedError(
                        f"another run has held {path} for {_LOCK_WAIT_S:.0f} s; is its build stuck?"
                    ) from None
                progress.show("waiting for another run that builds the guest kernel")
                time.sleep(0.5)
        yield


def _build(root: Path) -> Path:
    free = shutil.disk_usage(root).free
    if free < _DISK_NEEDED:
        raise BedError(
            f"building the guest kernel needs 3 GiB in {root}, {free / 2**30:.1f} GiB are free; "
            "make room or set XDG_CACHE_HOME"
        )
    for old in root.glob("uml-build.*"):  # the lock is ours, so nobody works in these
        shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="uml-build.", dir=root))
    progress = Progress()
    try:
        progress.show(f"building the guest kernel once: fetching {SOURCE_PACKAGE}", now=True)
        version, archive = _source(work)
        tree = work / "tree"
        tree.mkdir()
        progress.show(f"unpacking Linux {version}", now=True)
        excludes = [f"--exclude={SOURCE_PACKAGE}/{folder}" for folder in _LEFT_OUT]
        log = root / "uml-build.log"
        log.unlink(missing_ok=True)
        steps = (
            [
                *("tar", "-C", str(tree), "--strip-components=1", "--anchored", "--no-wildcards"),
                *(*excludes, "-xf", str(archive)),
            ],
            ["patch", "-p1", "-s", "-i", str(_PATCH)],
            ["make", "ARCH=um", "tinyconfig"],
            ["./scripts/kconfig/merge_config.sh", "-m", ".config", str(_CONFIG)],
            ["make", "ARCH=um", "olddefconfig"],
        )
        for step in steps:
            _step(step, tree, log, None)
        _check_config(tree / ".config")
        jobs = str(len(os.sched_getaffinity(0)))
        _step(["make", f"-j{jobs}", "ARCH=um", "linux"], tree, log, progress)
        out = work / "out"
        out.mkdir()
        _step(["strip", "-o", str(out / "linux"), "linux"], tree, log, None)
        shutil.copy(tree / ".config", out / "config")
        final = root / f"uml-{version}-{recipe_hash()}"
        shutil.rmtree(final, ignore_errors=True)
        out.rename(final)
        log.unlink(missing_ok=True)
        progress.show(f"guest kernel built: {final / 'linux'}", now=True)
        return final / "linux"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _source(work: Path) -> tuple[str, Path]:
    """The source package's version and its tar file: the installed one, or one fetched by apt."""
    name = f"{SOURCE_PACKAGE}.tar.xz"
    installed = Path("/usr/src") / name
    if installed.is_file():
        query = ["dpkg-query", "-W", "-f=${Version}", SOURCE_PACKAGE]
        asked = subprocess.run(query, capture_output=True, text=True)
        return _as_name(asked.stdout) or "local", installed
    if not find_program("apt-get") or not find_program("dpkg"):
        raise BedError(
            f"neither {installed} nor apt-get to fetch {SOURCE_PACKAGE} with: on a system other "
            f"than Debian put a Linux {SERIES} source archive there"
        )
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", SOURCE_PACKAGE]
    fetched = subprocess.run(command, cwd=work, capture_output=True, text=True)
    packages = sorted(work.glob(f"{SOURCE_PACKAGE}_*.deb"))
    if fetched.returncode or not packages:
        raise BedError(
            f"apt-get cannot fetch {SOURCE_PACKAGE}: {fetched.stderr.strip()}\n"
            f"  Try `apt-get update`, or put {name} into /usr/src "
            "(Debian 12: from bookworm-security or bookworm-backports; Debian 13: from main)."
        )
    unpacked = subprocess.run(["dpkg", "-x", packages[0].name, "deb"], cwd=work)
    archive = work / "deb" / "usr" / "src" / name
    if unpacked.returncode or not archive.is_file():
        raise BedError(f"{packages[0].name} holds no {name}")
    return _as_name(packages[0].name.split("_")[1].replace("%3a", ":")), archive


def _as_name(version: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+~-]", "_", version.strip())


def _step(command: list[str], tree: Path, log: Path, progress: Progress | None) -> None:
    """Runs one build step at low priority; on failure raises BedError with the log's end."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "ARCH")}
    env.update(LC_ALL="C", KBUILD_BUILD_USER="rocenante", KBUILD_BUILD_HOST="softroce")
    with log.open("a") as out:
        out.write(f"+ {' '.join(command)}\n")
        out.flush()
        child = subprocess.Popen(
            ["nice", "-n", "5", *command],
            cwd=tree,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # make's own children must end with it
        )
        assert child.stdout is not None
        watchdog = threading.Timer(_BUILD_LIMIT_S, os.killpg, (child.pid, signal.SIGKILL))
        watchdog.start()
        objects = 0
        try:
            for line in child.stdout:
                out.write(line)
                if progress and line.startswith("  CC "):
                    objects += 1
                    progress.show(f"{objects} files compiled, now {line.split()[-1]}")
            code = child.wait()
        finally:
            watchdog.cancel()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if code:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-25:])
        raise BedError(
            f"building the guest kernel failed (exit status {code}) at `{' '.join(command[:4])}`; "
            f"whole log: {log}\n{tail}"
        )


def _check_config(config: Path) -> None:
    """Every option asked for must have survived Kconfig, or the guest fails later and obscurely."""
    have = set(config.read_text().splitlines())
    wanted = {x for x in _CONFIG.read_text().splitlines() if x.startswith("CONFIG_")}
    lost = sorted(wanted - have)
    if lost:
        raise BedError(f"this source drops {', '.join(lost)} from the guest kernel's configuration")
