"""The one exception of this package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlanError(ValueError):
    """An input that cannot be planned with; its text says what to change. Exit code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known word closest to `word`, or ""."""
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.4)
    return f" Did you mean {found[0]!r}?" if found else ""
