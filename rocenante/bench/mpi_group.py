"""The MPI arm: where its launcher is, how each MPI wants to be started, and its group of ranks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rocenante.bench.channel import SocketChannel
from rocenante.bench.groups import (
    EXIT_GRACE,
    Children,
    Launch,
    SocketGroup,
    WorkerError,
    check_replies,
    log_tail,
)

_PROBE = """
import mpi4py, numpy
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""
_PROBE_SECONDS = 60.0


class MpiMissingError(RuntimeError):
    """The MPI arm cannot run here; the text says what is missing."""


@dataclass(frozen=True)
class MpiInstallation:
    """A launcher, the Python with mpi4py that goes with it, and the MPI library's version text."""

    mpiexec: Path
    python: Path
    library: str

    def command(self, ranks: int) -> list[str]:
        """mpiexec and Python, without the script. The launcher must not pin: the bench does."""
        command = [str(self.mpiexec), "-n", str(ranks)]
        if "Open MPI" in self.library:
            command += ["--oversubscribe", "--bind-to", "none"]
            if os.geteuid() == 0:
                command += ["--allow-run-as-root"]
        return [*command, str(self.python)]

    def environment(self) -> dict[str, str]:
        """This process's; Intel MPI is told to use shared memory unless the user said otherwise."""
        settings = {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"} if "Intel" in self.library else {}
        return {**settings, **os.environ, "OMP_NUM_THREADS": "1"}


def find_mpi(python: Path | None) -> MpiInstallation:
    """The MPI of `python`'s environment, or of this one. Raises MpiMissingError."""
    # Not resolved: a virtual environment's python is a link, and its folder is what counts.
    chosen = Path(sys.executable) if python is None else Path(os.path.abspath(python))
    where = "this Python" if python is None else str(chosen)
    try:
        probe = subprocess.run(
            [str(chosen), "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpiMissingError(f"{where} could not be asked for mpi4py: {error}") from error
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no output"])[-1]
        raise MpiMissingError(
            f"{where} cannot load mpi4py ({reason}); "
            "pip install mpi4py and an MPI, or use --mpi-python"
        )
    beside = chosen.with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise MpiMissingError(f"{where} has mpi4py but there is no mpiexec beside it or in PATH")
    return MpiInstallation(Path(found), chosen, probe.stdout.strip())


class MpiGroup(SocketGroup):
    """Ranks under mpiexec, which connect to a Unix socket in the launch's folder."""

    def __init__(
        self, name: str, command: Sequence[str], env: dict[str, str], launch: Launch
    ) -> None:
        log = launch.folder / f"{name}-{launch.ranks}.log"
        path = launch.folder / f"{name}-{launch.ranks}.sock"
        channels: list[SocketChannel] = []
        super().__init__(name, channels, Children(log))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(launch.ranks)
        worker = Path(__file__).with_name("mpi_worker.py")
        with listener, log.open("wb") as output:
            self._mpiexec = subprocess.Popen(
                [*command, str(worker), "--name", name, "--socket", str(path)]
                + (["--pin"] if launch.pin else []),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
            try:
                self._accept(listener, launch)
            except BaseException:
                self.close()
                raise

    def _accept(self, listener: socket.socket, launch: Launch) -> None:
        deadline = time.monotonic() + launch.timeout
        listener.settimeout(0.1)
        arrived: dict[int, SocketChannel] = {}
        while len(arrived) < launch.ranks:
            if self._mpiexec.poll() is not None or time.monotonic() > deadline:
                output = log_tail(self._children.log)
                raise WorkerError(
                    f"{self.name}: mpiexec did not start {launch.ranks} ranks:\n{output}"
                )
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(launch.timeout)
                channel = SocketChannel(connection)
                hello = check_replies([channel.receive()])[0]["hello"]
                arrived[int(hello["rank"])] = channel
                self.version = str(hello["version"])
        self._channels = [arrived[rank] for rank in range(launch.ranks)]

    def close(self) -> None:
        super().close()
        with suppress(subprocess.TimeoutExpired):
            self._mpiexec.wait(EXIT_GRACE)
        # Also after a regular end: launchers' helpers may linger in the session.
        with suppress(ProcessLookupError):
            os.killpg(
                self._mpiexec.pid,
                signal.SIGTERM if self._mpiexec.poll() is None else signal.SIGKILL,
            )
        with suppress(subprocess.TimeoutExpired):
            self._mpiexec.wait(EXIT_GRACE)
        if self._mpiexec.poll() is None:
            self._mpiexec.kill()
            self._mpiexec.wait()
