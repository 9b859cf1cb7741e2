"""The extension module. Use rocenante.Communicator; its base here has the methods."""

from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypeVar

from torch._C._distributed_c10d import Backend as _TorchBackend
from torch._C._distributed_c10d import Store

Op: TypeAlias = Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"]
# A torch tensor, a numpy array, or another CPU array with the buffer protocol or __dlpack__.
ArrayT = TypeVar("ArrayT")
Timeout: TypeAlias = float | timedelta | None

class Communicator:
    """One rank's end of a group of ranks; see rocenante.Communicator for the whole text."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        timeout: float | timedelta = 300.0,
        name: str = "default",
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def failure(self) -> str | None:
        """Why the communicator can no longer be used; None while it can."""
    def all_reduce(
        self,
        array: ArrayT,
        op: Op = "sum",
        *,
        out: ArrayT | None = None,
        factor: float | None = None,
        timeout: Timeout = None,
        stream: object = None,
    ) -> ArrayT:
        """Reduces the ranks' arrays; in place unless out is given. The same bits on every rank."""
    def all_gather(
        self, array: ArrayT, *, out: ArrayT | None = None, timeout: Timeout = None
    ) -> ArrayT:
        """All ranks' arrays, stacked: shape (world_size, *array.shape)."""
    def reduce_scatter(
        self,
        array: ArrayT,
        op: Op = "sum",
        *,
        out: ArrayT | None = None,
        factor: float | None = None,
        timeout: Timeout = None,
    ) -> ArrayT:
        """Reduces arrays of shape (world_size * k, ...); this rank's part, (k, ...)."""
    def all_to_all(
        self, array: ArrayT, *, out: ArrayT | None = None, timeout: Timeout = None
    ) -> ArrayT:
        """Of (world_size * k, ...) the r-th k rows go to, and in the result come from, rank r."""
    def broadcast(self, array: ArrayT, root: int = 0, *, timeout: Timeout = None) -> ArrayT:
        """Overwrites array with the root rank's."""
    def reduce(
        self,
        array: ArrayT,
        root: int = 0,
        op: Op = "sum",
        *,
        factor: float | None = None,
        timeout: Timeout = None,
    ) -> ArrayT:
        """As all_reduce, but only the root rank's array is overwritten."""
    def gather(
        self,
        array: ArrayT,
        root: int = 0,
        *,
        out: ArrayT | None = None,
        timeout: Timeout = None,
    ) -> ArrayT | None:
        """As all_gather, on the root rank only; None elsewhere."""
    def scatter(
        self,
        array: ArrayT | None = None,
        root: int = 0,
        *,
        out: ArrayT | None = None,
        timeout: Timeout = None,
    ) -> ArrayT:
        """Deals the root's (world_size * k, ...) out; other ranks give out alone."""
    def barrier(self, *, timeout: Timeout = None) -> None:
        """Returns once all ranks have called it."""
    def send(
        self, array: object, destination: int, tag: int = 0, *, timeout: Timeout = None
    ) -> None:
        """Sends array; returns when it may be changed again."""
    def recv(
        self,
        array: object,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout: Timeout = None,
    ) -> int:
        """Receives into array, from source or from any; returns the rank it came from."""
    def abort(self, reason: str) -> None:
        """Ends all waits and all later calls on this rank; the other ranks are told the reason."""
    def close(self) -> None:
        """Leaves the group. Idempotent."""

class Options(_TorchBackend.Options):
    """What init_process_group(pg_options=...) takes for "rocenante"."""

    def __init__(self, timeout: timedelta = ...) -> None: ...

class Backend(_TorchBackend):
    """The torch.distributed backend."""

    def __init__(self, store: Store, rank: int, size: int, options: Options, name: str) -> None: ...
    def perform_nocolor_split(self, device: Any) -> None: ...

def config_rows() -> list[tuple[str, str, str, str, bool]]: ...
def simd_level() -> str: ...
def verbs_problem() -> str: ...
def gpu_status() -> str: ...
def shutdown_all() -> None: ...
