"""GPUs, and which of their memory a NIC can reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.host import Host

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class of display controllers, with which GPUs count


def has_nvidia_gpu(host: Host) -> bool:
    """Whether the PCI bus shows one, whatever drivers say."""
    folder = "/sys/bus/pci/devices"
    return any(
        host.read(f"{folder}/{name}/vendor") == _NVIDIA
        and (host.read(f"{folder}/{name}/class") or "").startswith(_DISPLAY)
        for name in host.names(folder)
    )


def _gpus(facts: Facts) -> list[dict[str, Any]]:
    found = facts.gpu.facts.get("gpus", [])
    return found if isinstance(found, list) else []


def driver_version(facts: Facts) -> str:
    """The NVIDIA kernel module's; empty if it is not loaded."""
    return facts.host.read("/sys/module/nvidia/version") or ""


def devices(facts: Facts) -> Iterator[Finding]:
    """Which GPUs does CUDA see?"""
    driver = driver_version(facts)
    gpus = _gpus(facts)
    for index, gpu in enumerate(gpus):
        kind = "integrated" if gpu.get("integrated") else "discrete"
        cuda = facts.gpu.facts.get("cuda")
        yield Finding(
            "gpu",
            Level.OK,
            f"{gpu['name']}, sm_{gpu.get('major')}{gpu.get('minor')}, {kind}, "
            f"{gpu.get('memory_gib')} GiB; driver {driver or 'unknown'}, CUDA {cuda}",
            "",
            f"GPU {index}",
        )
    if gpus:
        return
    present = has_nvidia_gpu(facts.host)
    if not present and not driver:
        yield Finding("gpu", Level.OK, "no NVIDIA GPU: CPU tensors only")
    else:
        smi = facts.host.run(["nvidia-smi", "-L"], timeout=10)
        seen = f"; nvidia-smi sees {len(smi.splitlines())}" if smi else ""
        why = facts.gpu.problem or "CUDA lists none"
        yield Finding(
            "gpu",
            Level.WARNING,
            f"there is an NVIDIA GPU, but CUDA can't use it: {why}{seen}",
            "install the driver (nvidia-smi must work); in a container: docker run --gpus all",
        )


def memory_for_rdma(facts: Facts) -> Iterator[Finding]:
    """Can a NIC reach GPU memory, or the GPU host memory?"""
    peermem = facts.host.exists("/sys/module/nvidia_peermem")
    for index, gpu in enumerate(_gpus(facts)):
        subject = f"GPU {index}"
        ways = [
            name
            for name, there in (
                ("dma-buf", gpu.get("dma_buf")),
                ("nvidia-peermem", gpu.get("gpudirect_rdma") and peermem),
            )
            if there
        ]
        mapped = bool(gpu.get("can_map_host_memory"))
        same = bool(gpu.get("host_pointer_for_registered_memory"))
        pinned = "pinned host memory" + (" at the same address" if same else "")
        if ways:
            text = f"NICs reach its memory by {' and '.join(ways)}; it maps {pinned}"
            yield Finding("gpu-memory", Level.OK, text, "", subject)
        elif gpu.get("integrated") and mapped:
            text = f"no GPUDirect RDMA, as is usual on integrated GPUs: windows lie in {pinned}"
            yield Finding("gpu-memory", Level.OK, text, "", subject)
        elif mapped:
            yield Finding(
                "gpu-memory",
                Level.WARNING,
                f"NICs can't reach its memory: data goes by way of {pinned}",
                "open kernel modules of driver 515 or newer offer dma-buf; else modprobe "
                "nvidia_peermem",
                subject,
            )
        else:
            yield Finding(
                "gpu-memory",
                Level.ERROR,
                "it can't map host memory, which rocenante needs",
                "use another GPU, or CPU tensors",
                subject,
            )
