"""What all tests share. This folder is on sys.path, so that they can import harness."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent / "softroce"))

from testbed import plugin

# Before torch is imported: forked ranks must not inherit a pool of threads that they do not have.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The defaults are tested, not what `rocenante tune` has found on this machine.
os.environ.setdefault("ROCENANTE_TUNE_FILE", "")

settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10_000, deadline=None)
# Between the ranks of a guest a case takes a hundred times as long.
settings.register_profile("guest", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("guest" if "SOFTROCE_NODE" in os.environ else "ci")

# Folders whose files take minutes each.
_SLOW = ("softroce", "mutation", "torch_suite")


def pytest_configure(config: pytest.Config) -> None:
    """Tests anywhere may ask for a guest with Soft-RoCE."""
    config.pluginmanager.register(plugin, "softroce")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out long tests, and puts slow files first: parallel workers then end together."""
    if "SOFTROCE_NODE" in os.environ:
        return  # whoever booted this guest has chosen already
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items.sort(key=lambda item: not any(part in _SLOW for part in item.path.parts))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file at a time to each worker; all tests in guests to one, which boots each just once."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            in_guest = "softroce/guest/" in nodeid or re.search(r"\[[^]]*\b(verbs|mixed)\b", nodeid)
            return "guests" if in_guest else nodeid.split("::", 1)[0]

    return Scheduling(config, log)
