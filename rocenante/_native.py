"""Loads the extension module, on first use, or says why it can't be."""

from __future__ import annotations

import atexit
import functools
from importlib import import_module
from types import ModuleType

REBUILD = "rebuild it in this environment: pip install --no-build-isolation <rocenante's folder>"


def _release(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


def why_not() -> str | None:
    """Why the extension can't be loaded here; None if nothing speaks against it."""
    try:
        import torch
    except ImportError as error:
        return f"rocenante needs torch, which can't be imported ({error}): pip install torch"
    try:
        from rocenante import _build
    except ImportError:
        return f"rocenante is here without its compiled part, rocenante._C: {REBUILD}"
    if _release(_build.TORCH_VERSION) != _release(torch.__version__):
        return (
            f"rocenante was built against torch {_build.TORCH_VERSION}, but found torch "
            f"{torch.__version__}: {REBUILD}"
        )
    return None


@functools.cache
def load() -> ModuleType:
    """The module rocenante._C. Raises ImportError with what to do about it."""
    if reason := why_not():
        raise ImportError(reason, name="rocenante._C")
    try:
        native = import_module("rocenante._C")
    except ImportError as error:
        raise ImportError(f"rocenante._C can't be loaded ({error}): {REBUILD}") from error
    # Groups that are still there at exit leave in good order, while threads run and Python works.
    atexit.register(native.shutdown_all)
    return native
