"""The checks of GPUs, on machines made of files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_host import GB10, Machine, ok, the

from rocenante.doctor.finding import Level


def gpu(change: Mapping[str, object]) -> dict[str, object]:
    return {**GB10, **change}


H200 = {"integrated": 0, "major": 9, "minor": 0}


@pytest.mark.parametrize(
    ("change", "peermem", "expected"),
    [
        ({**H200, "dma_buf": 1}, False, "by dma-buf;"),
        ({**H200, "gpudirect_rdma": 1}, True, "by nvidia-peermem;"),
        ({**H200, "gpudirect_rdma": 1, "dma_buf": 1}, True, "by dma-buf and nvidia-peermem;"),
    ],
)
def test_gpu_memory_that_nics_reach(
    machine: Machine, change: Mapping[str, object], peermem: bool, expected: str
) -> None:
    machine.gpu(**gpu(change))
    if peermem:
        machine.write("/sys/module/nvidia_peermem/refcnt", "0")
    assert expected in ok(machine, "gpu-memory")


def test_gpu_memory_that_nics_do_not_reach(machine: Machine) -> None:
    machine.gpu(**gpu({**H200, "gpudirect_rdma": 1}))
    assert "peermem" in the(machine, "gpu-memory", Level.WARNING, "GPU 0").fix
    machine.gpu(**gpu({**H200, "can_map_host_memory": 0}))
    the(machine, "gpu-memory", Level.ERROR, "GPU 0")


@pytest.mark.parametrize(
    "answer", [None, "no JSON", '{"problem": "cuInit: CUDA_ERROR_NO_DEVICE"}'], ids=str
)
def test_gpu_that_cuda_cannot_use(machine: Machine, answer: str | None) -> None:
    """A probe that hangs or crashes gives no answer at all."""
    if answer is None:
        del machine.answers["probe_gpu"]
    else:
        machine.answers["probe_gpu"] = answer
    assert "CUDA can't use it" in the(machine, "gpu", Level.WARNING).why
