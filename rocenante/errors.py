"""The exceptions of rocenante.Communicator.

Through torch.distributed the same failures are ValueError (a call that is wrong by itself) and
torch.distributed.DistBackendError (all others), with the same texts.
"""

from __future__ import annotations

import builtins

__all__ = [
    "AbortedError",
    "ConfigError",
    "Error",
    "MismatchError",
    "OSFailure",
    "PeerLostError",
    "TimeoutError",
    "UsageError",
]


class Error(RuntimeError):
    """Any failure of rocenante; after all but a UsageError the communicator can't be used again."""


class UsageError(Error, ValueError):
    """This call is wrong by itself: arguments, dtypes, shapes, or a group of another process."""


class ConfigError(Error, ValueError):
    """A ROCENANTE_* variable is malformed, or differs between the ranks."""


class MismatchError(Error):
    """The ranks made different calls; the text lists each rank's."""


class TimeoutError(Error, builtins.TimeoutError):
    """Something took longer than its timeout; the text names the ranks that are missing."""


class PeerLostError(Error):
    """Another rank died, failed or left; the text names it and why."""


class AbortedError(Error):
    """The communicator was aborted or closed, or had failed before."""


class OSFailure(Error, OSError):
    """The operating system refused something, such as memory or a file descriptor."""
