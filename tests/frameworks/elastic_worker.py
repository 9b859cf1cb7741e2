"""A rank under torchrun: at first one rank is killed, after the restart all are there.

    torchrun --standalone --nproc-per-node N --max-restarts 1 elastic_worker.py FOLDER

Writes what it saw into FOLDER/<restarts>.<rank>.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    file = Path(sys.argv[1], f"{restarts}.{rank}")
    # torchrun ends the survivors with SIGTERM; this one shall tell first what it saw.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("rocenante")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if restarts == "0":
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(tensor)
        except dist.DistBackendError as error:
            file.write_text(f"error: {error}")
        return
    file.write_text(f"sum: {tensor.sum().item():.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
