"""What all tests share. This folder is on sys.path, so that they can import harness."""

from __future__ import annotations

import os

from hypothesis import settings

# Before torch is imported: forked ranks must not inherit a pool of threads that they do not have.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The defaults are tested, not what `rocenante tune` has found on this machine.
os.environ.setdefault("ROCENANTE_TUNE_FILE", "")

settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile("ci")
