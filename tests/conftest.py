"""What all tests share. This folder is on sys.path, so that they can import harness."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Before torch is imported: forked ranks must not inherit a pool of threads that they do not have.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile("ci")

# Folders whose files take minutes each.
_LONG = ("softroce", "mutation", "torch_suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the long files first, so that parallel workers end at about the same time."""
    items.sort(key=lambda item: not any(part in _LONG for part in item.path.parts))
