"""The kernels in the installed extension pass scripts/check_kernels.py; others would not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_kernels.py"


def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD_PTX = """
    ld.acquire.sys.global.u64 %rd1, [%rd2];
@%p1 st.release.sys.global.u64 [%rd2], %rd1;
    fence.acq_rel.sys;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3];
"""


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("ld.acquire.sys", "ld.acquire.gpu"),
        ("st.release.sys", "st.release.cta"),
        ("fence.acq_rel.sys", "fence.acq_rel.gpu"),
        ("st.release.sys.global", "st.global"),
        ("ld.global.v4", "ld.global.nc.v4"),
        ("ld.global.v4", "ld.volatile.global.v4"),
    ],
)
def test_ptx_that_must_not_pass(good: str, bad: str) -> None:
    check_ptx = checker().check_ptx
    assert check_ptx(GOOD_PTX) == []
    assert check_ptx(GOOD_PTX.replace(good, bad)) != []


def test_kernels_that_must_not_pass() -> None:
    def complaints(registers: int, stack: int) -> list[str]:
        name = "_Z10collectiveI16OneShotAllReduceIfNS0_5SumOpEEEvv"
        usage = (
            f"arch = sm_90\n Function {name}:\n  REG:{registers} STACK:{stack} SHARED:0 LOCAL:0\n"
        )
        found: list[str] = checker().check_usage(usage)[0]
        return found

    assert complaints(registers=64, stack=0) == []
    assert complaints(registers=65, stack=0) != []
    assert complaints(registers=64, stack=8) != []


def test_compiled_kernels() -> None:
    extension = importlib.util.find_spec("rocenante._C")
    assert extension is not None, "the extension is not built"
    assert extension.origin is not None
    from rocenante import build_info

    if not build_info()["cuda"]:
        pytest.skip("built without nvcc: no kernels")
    result = subprocess.run(
        [sys.executable, str(SCRIPT), extension.origin], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
