"""The `rocenante` command."""

from __future__ import annotations

import sys
from typing import NoReturn

EXTRA = "pip install 'rocenante[bench]'"


def main() -> NoReturn:
    """Runs the command named in sys.argv and exits with its status."""
    try:
        from rocenante.cli.app import build_app
    except ModuleNotFoundError as missing:
        sys.exit(
            f"rocenante: the command line needs {missing.name}, which is not installed: {EXTRA}"
        )
    build_app(sys.argv[1:2])(prog_name="rocenante")
    sys.exit(0)
