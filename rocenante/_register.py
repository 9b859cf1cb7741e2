"""How torch.distributed finds the backend "rocenante" by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocenante import _native

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions


def register() -> None:
    """The entry point of torch >= 2.14: called when the backend's name is first used."""
    from torch.distributed import Backend

    Backend.register_backend("rocenante", create, extended_api=True, devices=["cpu", "cuda"])


def create(group: _DistributedBackendOptions, options: object = None) -> Backend:
    """Makes this rank's end of a process group; blocks until all its ranks have done so.

    Raises ImportError if the extension is missing or was built for another torch, TypeError for
    options of another backend, and torch's DistBackendError or ValueError if the ranks don't meet.
    """
    native = _native.load()
    if options is None:
        timeout = group.timeout
    elif isinstance(options, native.Options):
        timeout = options._timeout
    else:
        raise TypeError(
            f'pg_options for the backend "rocenante" must be rocenante.Options, not {type(options)}'
        )
    own = native.Options(timeout=timeout)  # a caller may give the same options to several groups
    own.global_ranks_in_group = group.global_ranks_in_group
    backend: Backend = native.Backend(
        group.store, group.group_rank, group.group_size, own, group.group_id
    )
    return backend
