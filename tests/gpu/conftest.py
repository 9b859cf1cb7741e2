"""Tests that need a GPU: skipped, with the reason, where there is none. Not yet run on one."""

from __future__ import annotations

import os

# Several ranks share the GPU here: a kernel that is loaded when it is first launched would wait for
# kernels of other ranks that wait for it.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

import pytest
import torch

import rocenante


def why_not() -> str | None:
    """Why these tests can't run here; None if they can."""
    if not torch.cuda.is_available():
        return "torch sees no GPU (torch.cuda.is_available() is False)"
    if not rocenante.build_info()["cuda"]:
        return "rocenante was built without CUDA kernels: no nvcc was found"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if reason is None:
        return
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.skip(reason=reason))
