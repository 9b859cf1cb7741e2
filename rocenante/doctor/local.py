"""`--ranks N`: the doctor's ranks as processes of this host, for a try."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

_END_S = 10.0
_START_S = 300.0  # for processes to start and import torch, all at once on few cores


def run_local(ranks: int, timeout: float, png: Path | None, as_json: bool) -> int:
    """Starts the ranks and waits for them; rank 0 prints. Its exit code."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    options = ["--timeout", str(timeout)]
    options += ["--png", str(png)] if png else []
    options += ["--json"] if as_json else []
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "rocenante", "doctor", *options],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
        )
        for rank in range(ranks)
    ]
    # Each rank bounds its own waits; this is for one that is stopped. A pair meets, and measures.
    limit = _START_S + 4 * timeout * ranks * ranks
    code = 1
    try:
        code = children[0].wait(limit)
        deadline = time.monotonic() + _END_S
        for child in children[1:]:
            child.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        pass  # rank 0 has reported whoever hangs, unless it is the one
    finally:
        for child in children:
            child.kill()
            child.wait()
    return code if code in (0, 1, 2) else 1
