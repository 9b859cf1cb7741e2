"""rocenante: low-latency collectives for small groups of ranks.

As a backend of torch.distributed it needs no import at all:
    torch.distributed.init_process_group("rocenante")
Without torch.distributed, on numpy arrays and torch tensors: rocenante.Communicator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocenante.errors import (
    AbortedError,
    ConfigError,
    Error,
    MismatchError,
    OSFailure,
    PeerLostError,
    TimeoutError,
    UsageError,
)

if TYPE_CHECKING:
    from rocenante._C import Backend, Options
    from rocenante.communicator import Communicator

__all__ = [
    "AbortedError",
    "Backend",
    "Communicator",
    "ConfigError",
    "ConfigRow",
    "Error",
    "MismatchError",
    "OSFailure",
    "Options",
    "PeerLostError",
    "TimeoutError",
    "UsageError",
    "build_info",
    "config",
]


def __getattr__(name: str) -> object:
    # On first use: `import rocenante` must neither take long nor fail for want of the extension.
    if name == "Communicator":
        from rocenante.communicator import Communicator

        return Communicator
    if name in ("Backend", "Options"):
        from rocenante._native import load

        return getattr(load(), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("rocenante")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ConfigRow(NamedTuple):
    """A ROCENANTE_* variable."""

    name: str
    value: str  # in force
    default: str
    meaning: str
    must_agree: bool  # all ranks of a group must have the same


def config() -> list[ConfigRow]:
    """The ROCENANTE_* variables as a communicator made now would have them.

    Raises ConfigError if one is malformed, ImportError if the extension can't be loaded.
    """
    from rocenante._native import load

    return [ConfigRow(*row) for row in load().config_rows()]


def build_info() -> dict[str, object]:
    """Versions, and what is built in; works without the extension, and then says why in "problem".

    Keys: version, torch, torch_built_against, cuda (bool), cuda_version, cuda_archs, compiler,
    build_type, simd (the instruction set in use), transports (name -> "available" or why not), gpu
    (the first GPU and where its window lies, or why no kernel can run) and problem (None, or why
    the extension can't be loaded).
    """
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    from rocenante import _native

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    info: dict[str, object] = {"version": installed("rocenante"), "torch": installed("torch")}
    built = find_spec("rocenante._build") is not None
    if built:
        from rocenante import _build

        info |= {
            "torch_built_against": _build.TORCH_VERSION,
            "cuda": bool(_build.CUDA_VERSION),
            "cuda_version": _build.CUDA_VERSION or None,
            "cuda_archs": list(_build.CUDA_ARCHS),
            "compiler": _build.COMPILER,
            "build_type": _build.BUILD_TYPE,
        }
    problem: str | None = None
    simd: str | None = None
    no_verbs = gpu = ""
    try:
        native = _native.load()
        simd, no_verbs, gpu = native.simd_level(), native.verbs_problem(), native.gpu_status()
    except ImportError as error:
        problem = str(error)
    info["simd"] = simd
    info["transports"] = {
        "shm": problem or "available",
        "verbs": problem or no_verbs or "available",
    }
    info["gpu"] = problem or gpu
    info["problem"] = problem
    return info
