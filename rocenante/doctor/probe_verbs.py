"""Asks libibverbs, by the distribution's pyverbs, about the ports; a program of its own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

# Loaded by path: the rest of the distribution's packages must stay out of this environment.
PLACES = ("/usr/lib/python3/dist-packages", "/usr/lib64/python3/site-packages")
_MTU_OF_ENUM = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


def _load() -> str:
    """Loads pyverbs; says why it can't be."""
    places = [Path(place, "pyverbs", "__init__.py") for place in PLACES]
    file = next((place for place in places if place.exists()), None)
    if importlib.util.find_spec("pyverbs") is None:
        if file is None:
            return "pyverbs is not installed"
        spec = importlib.util.spec_from_file_location("pyverbs", file)
        if spec is None or spec.loader is None:
            return f"{file} can't be loaded"
        module = importlib.util.module_from_spec(spec)
        sys.modules["pyverbs"] = module
        spec.loader.exec_module(module)
    try:
        import pyverbs.device  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        return f"pyverbs can't be loaded by this Python: {error}"
    return ""


def probe() -> dict[str, Any]:
    """Keys: devices, device -> port -> active_mtu (bytes); or problem."""
    if problem := _load():
        return {"problem": problem}
    from pyverbs.device import (  # type: ignore[import-not-found,unused-ignore]
        Context,
        get_device_list,
    )
    from pyverbs.pyverbs_error import (  # type: ignore[import-not-found,unused-ignore]
        PyverbsError,
    )

    devices: dict[str, Any] = {}
    try:
        names = [device.name.decode() for device in get_device_list()]
        for name in names:
            with Context(name=name) as context:
                attributes = context.query_device()
                devices[name] = {
                    str(number): {
                        "active_mtu": _MTU_OF_ENUM.get(context.query_port(number).active_mtu, 0)
                    }
                    for number in range(1, attributes.phys_port_cnt + 1)
                }
    except PyverbsError as error:
        return {"devices": devices, "problem": f"libibverbs: {error}"}
    return {"devices": devices}


if __name__ == "__main__":
    print(json.dumps(probe()))
