"""How ranks exchange what they found: JSON in the store of torch.distributed, never without end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_NAP_S = 0.002


class AbsentError(Exception):
    """A rank did not tell in time; the text says who and how long."""


class StoreGoneError(AbsentError):
    """The store can't be reached, so nobody can be heard any more."""


class Meeting:
    """This rank's end of the exchange."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        # Told before anything else, so that a slow host is not taken for an absent one.
        self.tell(f"arrived/{rank}", None)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], timeout: float) -> Meeting:
        """Under torchrun, or with its variables set. Raises StoreGoneError."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        by_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            tcp = TCPStore(
                address,
                port,
                size,
                is_master=rank == 0 and not by_agent,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
            )
        except (RuntimeError, ValueError) as error:
            raise StoreGoneError(
                f"rank {rank} can't reach the store at {address}:{port} within {timeout:g} s "
                f"({_first_line(error)})"
            ) from None
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(PrefixStore(f"rocenante_doctor_{attempt}", tcp), rank, size)

    def tell(self, key: str, value: Any) -> None:
        """Makes a value known to all ranks."""
        try:
            self.store.set(key, json.dumps(value))
        except RuntimeError as error:
            raise StoreGoneError(f"the store is gone: {_first_line(error)}") from None

    def there(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except RuntimeError as error:
            raise StoreGoneError(f"the store is gone: {_first_line(error)}") from None

    def hear(self, key: str, timeout: float, who: str) -> Any:
        """A value that another rank makes known; waits for it."""
        deadline = time.monotonic() + timeout
        while not self.there(key):
            if time.monotonic() > deadline:
                raise AbsentError(f"{who} did not tell {key} within {timeout:g} s")
            time.sleep(_NAP_S)
        try:
            return json.loads(self.store.get(key))
        except RuntimeError as error:
            raise StoreGoneError(f"the store is gone: {_first_line(error)}") from None

    def hear_all(self, key: str, ranks: list[int], timeout: float) -> dict[int, Any]:
        """key/<rank> of these ranks; those that do not come in time are left out."""
        deadline = time.monotonic() + timeout
        heard: dict[int, Any] = {}
        for rank in ranks:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                heard[rank] = self.hear(f"{key}/{rank}", left, f"rank {rank}")
            except StoreGoneError:
                raise
            except AbsentError:
                continue
        return heard


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
