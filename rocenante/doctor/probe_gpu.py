"""Asks libcuda about the GPUs and prints JSON; a program of its own (see probes)."""

from __future__ import annotations

import ctypes
import json
from typing import Any

# CUdevice_attribute in cuda.h.
ATTRIBUTES = {
    "integrated": 18,
    "can_map_host_memory": 19,
    "pci_bus": 33,
    "pci_device": 34,
    "pci_domain": 50,
    "major": 75,
    "minor": 76,
    "host_native_atomics": 86,
    "pageable_memory_access": 88,
    "host_pointer_for_registered_memory": 91,
    "host_register": 99,
    "gpudirect_rdma": 116,
    "dma_buf": 124,
}


class CudaError(Exception):
    """libcuda refused a call."""


def probe() -> dict[str, Any]:
    """Keys: cuda (version of the driver), gpus; or problem."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"problem": f"libcuda.so.1 can't be loaded: {error}", "missing": True}
    try:
        _call(library, "cuInit", 0)
        version, number = ctypes.c_int(), ctypes.c_int()
        _call(library, "cuDriverGetVersion", ctypes.byref(version))
        _call(library, "cuDeviceGetCount", ctypes.byref(number))
        gpus = [_gpu(library, index) for index in range(number.value)]
    except (CudaError, AttributeError) as error:
        return {"problem": str(error)}
    return {"cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "gpus": gpus}


def _gpu(library: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    _call(library, "cuDeviceGetName", name, len(name), device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    found: dict[str, Any] = {"name": name.value.decode(errors="replace")}
    found["memory_gib"] = round(memory.value / (1 << 30), 1)
    for attribute, number in ATTRIBUTES.items():
        # A driver older than an attribute does not know it: None.
        code = library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        found[attribute] = value.value if code == 0 else None
    return found


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    code = getattr(library, function)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(f"{function}: {(text.value or str(code).encode()).decode()}")


if __name__ == "__main__":
    print(json.dumps(probe()))
