"""Fixtures for tests inside a guest."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cluster import Cluster

_PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs/__init__.py")


@pytest.fixture(scope="session")
def pyverbs() -> ModuleType:
    """The distribution's pyverbs, loaded by path: the rest of its dist-packages stays out."""
    if "pyverbs" in sys.modules:
        return sys.modules["pyverbs"]
    spec = importlib.util.spec_from_file_location("pyverbs", _PYVERBS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The nodes of this run."""
    return Cluster()
