"""all_reduce(stream=...) and what is told of GPUs, on a machine that has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from harness import run_threads

import rocenante
from rocenante import Communicator


def refused(c: Communicator, array: Any, stream: Any, text: str) -> None:
    with pytest.raises(rocenante.UsageError, match=text):
        c.all_reduce(array, stream=stream)
    # A wrong call is no failure.
    assert c.failure is None
    assert c.all_reduce(np.ones(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("array", [np.ones(3), torch.ones(3)], ids=["numpy", "torch"])
def test_a_stream_with_an_array_in_cpu_memory(array: Any) -> None:
    """Says which argument to leave out."""
    run_threads(refused, 1, array, 7, r"the array is a .* not in GPU memory: leave out stream=")


def test_something_that_is_no_stream() -> None:
    """Says what is one."""
    run_threads(refused, 1, np.ones(3), "main", "stream= takes a torch.cuda.Stream.*not a str")


def failing(c: Communicator) -> str | None:
    assert c.failure is None
    c.abort("enough")
    return c.failure


def test_failure_tells_why() -> None:
    """Without another call."""
    assert run_threads(failing, 1) == ["aborted: enough"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_build_imports_and_says_why_no_kernel_runs() -> None:
    """It names CUDA's call and what to do, or that there are no kernels in this build."""
    info = rocenante.build_info()
    assert info["problem"] is None
    expected = "cudaGetDeviceProperties failed: " if info["cuda"] else "no CUDA kernels"
    assert expected in str(info["gpu"])
