"""The backends that run in a forked process: torch.distributed's, and rocenante.Communicator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from rocenante.bench.case import PREMUL_FACTOR, REDUCTIONS, Case, UnsupportedError
from rocenante.bench.verify import wide_dtype
from rocenante.bench.worker import Arm

_TORCH_OPS = {
    "sum": "SUM",
    "avg": "AVG",
    "product": "PRODUCT",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_GLOO_LACKS = frozenset({"avg", "premul_sum"})


class _TorchBuffers:
    """Buffers as torch tensors on one device."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self._device = device

    def empty(self, elements: int, dtype: str) -> Any:
        return self._torch.zeros(elements, dtype=getattr(self._torch, dtype), device=self._device)

    def write(self, array: Any, values: npt.NDArray[Any]) -> None:
        array.copy_(self._torch.from_numpy(values))

    def read(self, array: Any) -> npt.NDArray[Any]:
        host = array.cpu()
        if (
            host.dtype.is_floating_point
            and host.dtype.itemsize < 4
            and host.dtype != self._torch.float16
        ):
            host = host.float()
        result: npt.NDArray[Any] = host.numpy()
        return result


class TorchArm(_TorchBuffers):
    """A c10d backend through torch.distributed's public functions, synchronous."""

    def __init__(
        self, name: str, rank: int, size: int, store: Any, device: str, timeout: float
    ) -> None:
        import torch
        import torch.distributed as dist

        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        super().__init__(torch.device(device))
        self.name, self.rank, self.size = name, rank, size
        self._dist: Any = dist
        if name == "rocenante" and not dist.is_backend_available(name):
            importlib.import_module("rocenante._register").register()  # a copy not installed by pip
        dist.init_process_group(
            name, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
        self._finish: Callable[[], object] | None = (
            torch.cuda.synchronize if device == "cuda" else None
        )
        if name == "nccl":
            nccl: Any = torch.cuda.nccl
            self.version = "NCCL " + ".".join(str(part) for part in nccl.version())
        elif name == "rocenante":
            self.version = package_version("rocenante")
        else:
            self.version = f"torch {torch.__version__}"

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()

    def _op(self, case: Case) -> Any:
        if self.name == "gloo" and case.op in _GLOO_LACKS:
            raise UnsupportedError(f"gloo has no reduction {case.op}")
        if case.op == "premul_sum":
            return self._dist._make_nccl_premul_sum(PREMUL_FACTOR)
        return getattr(self._dist.ReduceOp, _TORCH_OPS[case.op])

    def bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        call = self._bind(case, source, target)
        finish = self._finish
        if finish is None:
            return call

        def synchronous() -> None:
            call()
            finish()

        return synchronous

    def _bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        dist, root = self._dist, case.root
        at_root = self.rank == root
        op = self._op(case) if case.collective in REDUCTIONS else None
        match case.collective:
            case "all_reduce":
                return _copy_first(
                    not case.in_place, source, target, lambda: dist.all_reduce(target, op)
                )
            case "reduce":
                return _copy_first(
                    not case.in_place, source, target, lambda: dist.reduce(target, root, op)
                )
            case "broadcast":
                copies = not case.in_place and at_root
                return _copy_first(copies, source, target, lambda: dist.broadcast(target, root))
            case "all_gather":
                return lambda: dist.all_gather_into_tensor(target, source)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(target, source, op)
            case "all_to_all":
                return lambda: dist.all_to_all_single(target, source)
            case "gather":
                pieces = list(target.chunk(self.size)) if at_root else None
                return lambda: dist.gather(source, pieces, dst=root)
            case "scatter":
                pieces = list(source.chunk(self.size)) if at_root else None
                return lambda: dist.scatter(target, pieces, src=root)
            case "barrier":
                return lambda: dist.barrier()
            case "sendrecv":
                to, by = (self.rank + 1) % self.size, (self.rank - 1) % self.size

                def exchange() -> None:
                    sending = dist.isend(source, to)
                    dist.recv(target, by)
                    sending.wait()

                return exchange
        raise UnsupportedError(f"the torch arm has no {case.collective}")


def _copy_first(
    copies: bool, source: Any, target: Any, call: Callable[[], object]
) -> Callable[[], object]:
    """Out of place, where torch.distributed works in place only: what its user has to write."""
    if not copies:
        return call

    def copy_and_call() -> None:
        target.copy_(source)
        call()

    return copy_and_call


class CommunicatorArm(_TorchBuffers):
    """rocenante.Communicator on numpy arrays; on CPU tensors for the dtypes that numpy lacks."""

    name = "communicator"

    def __init__(self, rank: int, size: int, store: Any, timeout: float) -> None:
        rocenante: Any = importlib.import_module("rocenante")
        super().__init__("cpu")
        self.rank, self.size = rank, size
        self.version = package_version("rocenante")
        self._comm: Any = rocenante.Communicator(rank, size, store, timeout=timeout, name="bench")

    def empty(self, elements: int, dtype: str) -> Any:
        if dtype.startswith(("bfloat", "float8")):
            return super().empty(elements, dtype)
        return np.zeros(elements, dtype=wide_dtype(dtype))

    def write(self, array: Any, values: npt.NDArray[Any]) -> None:
        if isinstance(array, np.ndarray):
            array[:] = values
        else:
            super().write(array, values)

    def read(self, array: Any) -> npt.NDArray[Any]:
        return array if isinstance(array, np.ndarray) else super().read(array)

    def barrier(self) -> None:
        self._comm.barrier()

    def close(self) -> None:
        self._comm.close()

    def bind(self, case: Case, source: Any, target: Any) -> Callable[[], object]:
        comm, root, op = self._comm, case.root, case.op
        at_root = self.rank == root
        rows = (self.size, case.count)
        match case.collective:
            case "all_reduce":
                if case.op == "premul_sum":
                    return lambda: comm.all_reduce(source, op, out=target, factor=PREMUL_FACTOR)
                if case.in_place:
                    return lambda: comm.all_reduce(target, op)
                return lambda: comm.all_reduce(source, op, out=target)
            case "reduce":
                copies = not case.in_place
                return _copy_array(copies, source, target, lambda: comm.reduce(target, root, op))
            case "broadcast":
                copies = not case.in_place and at_root
                return _copy_array(copies, source, target, lambda: comm.broadcast(target, root))
            case "all_gather":
                gathered = target.reshape(rows)
                return lambda: comm.all_gather(source, out=gathered)
            case "reduce_scatter":
                return lambda: comm.reduce_scatter(source, op, out=target)
            case "all_to_all":
                return lambda: comm.all_to_all(source, out=target)
            case "gather":
                gathered = target.reshape(rows) if at_root else None
                return lambda: comm.gather(source, root, out=gathered)
            case "scatter":
                if at_root:
                    return lambda: comm.scatter(source, root, out=target)
                return lambda: comm.scatter(root=root, out=target)
            case "barrier":
                return lambda: comm.barrier()
            case "sendrecv":
                return self._ring(source, target)
        raise UnsupportedError(f"the communicator arm has no {case.collective}")

    def _ring(self, source: Any, target: Any) -> Callable[[], object]:
        comm = self._comm
        to, by = (self.rank + 1) % self.size, (self.rank - 1) % self.size

        # Blocking calls: were all ranks to send first, each might wait for the next.
        def send_first() -> None:
            comm.send(source, to)
            comm.recv(target, by)

        def receive_first() -> None:
            comm.recv(target, by)
            comm.send(source, to)

        return send_first if self.rank % 2 == 0 else receive_first


def _copy_array(
    copies: bool, source: Any, target: Any, call: Callable[[], object]
) -> Callable[[], object]:
    if not copies:
        return call

    def copy_and_call() -> None:
        target[:] = source
        call()

    return copy_and_call


def package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def start_arm(backend: str, rank: int, size: int, store: Any, device: str, timeout: float) -> Arm:
    """Brings up `backend` on this rank; blocks until all ranks are there.

    The setting in "communicator@NAME=VALUE" goes into this process's environment first.
    """
    import torch

    torch.set_num_threads(1)  # as torchrun does: the ranks share the processors
    name, _, setting = backend.partition("@")
    if setting:
        variable, _, value = setting.partition("=")
        os.environ[variable] = value
    arm: Arm = (
        CommunicatorArm(rank, size, store, timeout)
        if name == "communicator"
        else TorchArm(name, rank, size, store, device, timeout)
    )
    arm.name = backend
    return arm
