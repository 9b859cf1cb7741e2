"""rocenante.Communicator: collectives on arrays, without torch.distributed."""

from __future__ import annotations

import os
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from rocenante import _native
from rocenante.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from rocenante import _C as _native_module
else:
    _native_module = _native.load()


class Communicator(_native_module.Communicator):
    # The methods are inherited, not wrapped: a second call costs as much as a small exchange.
    __doc__ = _native_module.Communicator.__doc__
    __slots__ = ()

    @classmethod
    def from_env(cls, timeout: float | timedelta = 300.0, name: str = "default") -> Self:
        """The communicator of all processes that torchrun (or mpirun with these variables) started.

        Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; rank 0 serves the store, unless the
        launcher does. Raises UsageError if one of them is missing or malformed, and whatever
        Communicator(...) raises.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        values: dict[str, str] = {}
        for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            try:
                values[variable] = os.environ[variable]
            except KeyError:
                raise UsageError(
                    f"{variable} is not set: start the processes with torchrun, or set RANK, "
                    "WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"
                ) from None
        try:
            rank, size, port = (int(values[v]) for v in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        except ValueError as error:
            raise UsageError(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {error}") from None
        limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        tcp = TCPStore(
            values["MASTER_ADDR"],
            port,
            size,
            is_master=rank == 0 and not by_agent,
            timeout=limit,
            multi_tenant=True,
        )
        # After a restart by torchrun the store still holds what the earlier attempt left there.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(rank, size, PrefixStore(f"attempt_{attempt}", tcp), limit, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An exception on this rank alone would leave the others waiting: tell them.
        if error is not None:
            self.abort(f"{type(error).__name__} on rank {self.rank}: {error}")
        self.close()
