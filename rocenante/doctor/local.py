"""`--ranks N`: the doctor's ranks as processes of this host, for a try."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

_END_S = 10.0
_START_S = 300.0  # for the ranks to gather what is here, all at once on few cores
_NAP_S = 0.01


def run_local(ranks: int, timeout: float, png: Path | None, as_json: bool) -> int:
    """Forks the ranks and waits for them; rank 0 prints. Its exit code."""
    # Imported here once, not by each rank; they are forked before the store has its threads.
    from torch._C._distributed_c10d import TCPStore

    sys.stdout.flush()
    sys.stderr.flush()
    children: dict[int, int] = {}  # rank -> process
    pipes: list[int] = []
    code = 1
    try:
        for rank in range(ranks):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                for pipe in (write, *pipes):  # or the ranks before would not see this process end
                    os.close(pipe)
                _be_rank(rank, ranks, read, timeout, png, as_json)
            os.close(read)
            children[rank] = child
            pipes.append(write)
        store = TCPStore(
            "127.0.0.1", 0, None, True, timedelta(seconds=timeout), wait_for_workers=False
        )
        for pipe in pipes:
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, f"{store.port}\n".encode())
        # Each rank bounds its own waits; this is for one that is stopped.
        limit = _START_S + 4 * timeout * ranks * ranks
        code = _wait(children, 0, limit)
        deadline = time.monotonic() + _END_S
        for rank in range(1, ranks):
            _wait(children, rank, max(deadline - time.monotonic(), 0.0))
    finally:
        for child in children.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for pipe in pipes:
            os.close(pipe)
    return code if code in (0, 1, 2) else 1


def _wait(children: dict[int, int], rank: int, limit: float) -> int:
    """A rank's exit code, and forgets it; 1 if it does not end in time."""
    deadline = time.monotonic() + limit
    while True:
        child, status = os.waitpid(children[rank], os.WNOHANG)
        if child:
            del children[rank]
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return 1
        time.sleep(_NAP_S)


def _be_rank(
    rank: int, ranks: int, pipe: int, timeout: float, png: Path | None, as_json: bool
) -> NoReturn:
    """What torchrun would have started; the pipe tells the store's port, or ends."""
    code = 1
    try:
        port = os.read(pipe, 16).decode().strip()
        if port:
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                TORCHELASTIC_USE_AGENT_STORE="True",
            )
            from rocenante.doctor.cluster import run_cluster

            code = run_cluster(timeout, png, as_json)
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
