"""Makes torch 2.13 know the backend "rocenante" without rocenante being imported.

torch 2.13 runs every entry point of the group "torch.backends" at the end of `import torch`, and an
exception there makes that import fail. So this module stands outside the package (loading a
submodule would run rocenante/__init__.py, which may itself be what is importing torch), imports
nothing but torch, and leaves all work to the first `init_process_group("rocenante")`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def register() -> None:
    """Registers the backend with torch 2.13; later releases find it by themselves."""
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if release >= (2, 14) or not torch.distributed.is_available():
        return
    torch.distributed.Backend.register_backend(
        "rocenante", _create, extended_api=True, devices=["cpu", "cuda"]
    )


def _create(options: Any, backend_options: Any) -> Any:
    return import_module("rocenante._register").create(options, backend_options)
