"""A rank of the MPI arm, started by mpiexec, in any Python that has mpi4py and numpy.

    mpiexec -n 2 PYTHON .../rocenante/bench/mpi_worker.py --name NAME --socket PATH [--pin]

It needs neither torch nor an installed rocenante: the modules beside it are loaded from this
file's folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _provide_package() -> None:
    """Makes `rocenante.bench` importable without rocenante/__init__.py, which needs torch."""
    if "rocenante" not in sys.modules:
        package = types.ModuleType("rocenante")
        package.__path__ = [str(Path(__file__).resolve().parents[1])]
        sys.modules["rocenante"] = package


if __name__ == "__main__":
    # The script's own folder would let its modules shadow others of the same name.
    sys.path[:] = [
        entry
        for entry in sys.path
        if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    _provide_package()

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

from rocenante.bench.case import Case, UnsupportedError  # noqa: E402
from rocenante.bench.channel import SocketChannel  # noqa: E402
from rocenante.bench.verify import wide_dtype  # noqa: E402
from rocenante.bench.worker import isolate, pin_to_core, run_worker  # noqa: E402

_OPS = {
    "sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_BOOL_OPS = {
    "sum": "LOR",
    "max": "LOR",
    "bor": "LOR",
    "product": "LAND",
    "min": "LAND",
    "band": "LAND",
    "bxor": "LXOR",
}


class MpiArm:
    """mpi4py on numpy buffers."""

    def __init__(self, name: str, mpi: Any) -> None:
        self.name = name
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self.version = (
            str(mpi.Get_library_version()).split("\n")[0].split(", package")[0].strip(" \0")
        )

    def empty(self, elements: int, dtype: str) -> npt.NDArray[Any]:
        if dtype == "float16" or dtype.startswith(("bfloat", "float8")):
            raise UnsupportedError(f"MPI has no {dtype}")
        return np.zeros(elements, dtype=wide_dtype(dtype))

    def write(self, array: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        array[:] = values

    def read(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def barrier(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        self._mpi.Finalize()

    def _op(self, case: Case) -> Any:
        names = _BOOL_OPS if case.dtype == "bool" else _OPS
        if case.op not in names:
            raise UnsupportedError(f"MPI has no reduction {case.op}")
        return getattr(self._mpi, names[case.op])

    def bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        world, root = self._world, case.root
        at_root = self.rank == root
        same = self._mpi.IN_PLACE if case.in_place else source
        match case.collective:
            case "all_reduce":
                op = self._op(case)
                return lambda: world.Allreduce(same, target, op)
            case "reduce_scatter":
                op = self._op(case)
                if case.in_place:
                    raise UnsupportedError(
                        "MPI leaves an in-place reduce_scatter's result elsewhere than the others"
                    )
                return lambda: world.Reduce_scatter_block(source, target, op)
            case "reduce":
                op = self._op(case)
                send = same if at_root else source
                return lambda: world.Reduce(send, target if at_root else None, op, root)
            case "all_gather":
                return lambda: world.Allgather(same, target)
            case "all_to_all":
                return lambda: world.Alltoall(source, target)
            case "broadcast":
                if case.in_place:
                    return lambda: world.Bcast(target, root)

                def broadcast() -> None:
                    if at_root:
                        target[:] = source
                    world.Bcast(target, root)

                return broadcast
            case "gather":
                send = same if at_root else source
                return lambda: world.Gather(send, target if at_root else None, root)
            case "scatter":
                receive = self._mpi.IN_PLACE if case.in_place and at_root else target
                return lambda: world.Scatter(source if at_root else None, receive, root)
            case "barrier":
                return lambda: world.Barrier()
            case "sendrecv":
                to, by = (self.rank + 1) % self.size, (self.rank - 1) % self.size
                return lambda: world.Sendrecv(source, dest=to, recvbuf=target, source=by)
        raise UnsupportedError(f"the MPI arm has no {case.collective}")


def main() -> int:
    parser = argparse.ArgumentParser(description="A rank of the MPI arm of rocenante bench.")
    parser.add_argument("--name", required=True, help="what the coordinator calls this MPI")
    parser.add_argument("--socket", required=True, help="the coordinator's Unix socket")
    parser.add_argument("--pin", action="store_true", help="confine rank i to core i")
    arguments = parser.parse_args()

    mpi: Any = importlib.import_module("mpi4py.MPI")
    isolate()
    rank = int(mpi.COMM_WORLD.Get_rank())
    if arguments.pin:
        pin_to_core(rank)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(arguments.socket)
    name = arguments.name
    return run_worker(name, rank, SocketChannel(connection), lambda: MpiArm(name, mpi))


if __name__ == "__main__":
    # Without a finaliser: after a failure the peers may never reach MPI_Finalize.
    os._exit(main())
