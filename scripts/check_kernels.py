"""Checks compiled CUDA kernels for what no test on a CPU can see.

From the PTX (one copy is always in the object): every ordered access has system scope, since its
other side is a NIC or a CPU, and no load goes through the read-only cache, which never sees what
the NIC wrote. From the machine code of every architecture: nothing is spilled, the hot kernels fit
into the registers that let two blocks share a multiprocessor, and they move 16 bytes at a time.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOT_REGISTERS = 64  # 512 threads twice in the 65536 registers of a multiprocessor
HOT = "SumOp"  # in the mangled name of every kernel that decoding spends its time in
# For rarer kernels, and hot ones of two exchanges or the LL protocol, one block at a time will do.
OTHER_REGISTERS = 128
SCOPED = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((?:ld|st|atom|red|fence)\.[\w.:]*"
    r"(?:acquire|release|relaxed|acq_rel|\bsc\b)[\w.:]*)",
    re.MULTILINE,
)
FOREIGN = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((?:membar|fence\.proxy|ld\.[\w.]*\bnc\b|(?:ld|st)\.volatile)[\w.]*)",
    re.MULTILINE,
)


def find_cuobjdump() -> str:
    """The path of cuobjdump, from PATH, the CUDA toolkit or triton."""
    toolkit = "/usr/local/cuda/bin"
    found = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=toolkit)
    if found:
        return found
    triton = importlib.util.find_spec("triton")
    if triton and triton.submodule_search_locations:
        beside = Path(triton.submodule_search_locations[0], "backends/nvidia/bin/cuobjdump")
        if beside.exists():
            return str(beside)
    sys.exit("check_kernels: no cuobjdump: put the CUDA toolkit's on PATH, or install triton")


def dump(tool: str, option: str, path: str) -> str:
    """What cuobjdump prints."""
    return subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout


def check_ptx(ptx: str) -> list[str]:
    """Complaints about the PTX."""
    complaints = []
    scoped = SCOPED.findall(ptx)
    for instruction in sorted(set(scoped)):
        if ".sys" not in instruction:
            complaints.append(f"PTX: {instruction} has not system scope")
    complaints += [f"PTX: {i} is no word of the dialect" for i in sorted(set(FOREIGN.findall(ptx)))]
    for needed in ("ld.acquire.sys", "st.release.sys", "fence.acq_rel.sys"):
        if not any(i.startswith(needed) for i in scoped):
            complaints.append(f"PTX: {needed} occurs nowhere")
    return complaints


def check_usage(usage: str) -> tuple[list[str], dict[str, dict[str, int]]]:
    """Complaints about registers and spills; registers of each hot kernel by architecture."""
    complaints = []
    registers: dict[str, dict[str, int]] = {}
    arch = name = ""
    for line in usage.splitlines():
        if match := re.match(r"\s*arch = (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", line):
            count, stack, local = (int(n) for n in match.groups())
            hot = HOT in name
            one_shot = "OneShot" in name
            most = HOT_REGISTERS if hot and one_shot else OTHER_REGISTERS
            if count > most:
                complaints.append(f"{arch}: {name} takes {count} registers, more than {most}")
            if hot and (stack or local):
                complaints.append(f"{arch}: {name} spills ({stack} bytes of stack, {local} local)")
            if hot:
                registers.setdefault(name, {})[arch] = count
    return complaints, registers


def check_sass(sass: str) -> list[str]:
    """Complaints about the machine code of the hot kernels."""
    complaints = []
    arch = ""
    for part in re.split(r"^\s*(?=Function : |code for |arch = )", sass, flags=re.MULTILINE):
        if match := re.match(r"(?:arch = |code for )(sm_\w+)", part):
            arch = match[1]
        match = re.match(r"Function : (\S+)", part)
        if not match or HOT not in match[1]:
            continue
        low_latency = "LowLatency" in match[1]
        needed = {
            "16-byte loads": r"\bLDG?\.E\.128\b",
            "16-byte stores": r"\bSTG?\.E\.128\b",
            "a system-scope load of signals": r"\bLDG\.E\.(?:64|128)\.STRONG\.SYS\b",
            "a system-scope fence": r"\bMEMBAR\.\w+\.SYS\b",
            "a system-scope store of the bell": r"\bSTG\.E\.64\.STRONG\.SYS\b",
        }
        if low_latency:  # data come in LL words
            needed["16-byte loads"] = r"\bLDG\.E\.128\.STRONG\.SYS\b"
        complaints += [
            f"{arch}: {match[1]} has not {what}"
            for what, pattern in needed.items()
            if not re.search(pattern, part)
        ]
    return complaints


def short(name: str) -> str:
    """A kernel's name for people."""
    kind = re.search(r"(OneShot|TwoShot|LowLatency)[A-Za-z]+?(?=I)", name)
    types = {"BFloat16": "bfloat16", "SmallFormat": "float16", "If": "float32"}
    dtype = next((text for key, text in types.items() if key in name), "?")
    return f"{kind[0] if kind else name} {dtype}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("object", help="object file or extension with the kernels in it")
    parser.add_argument(
        "--arch", nargs="+", default=["sm_80", "sm_90", "sm_100", "sm_120", "sm_121"]
    )
    arguments = parser.parse_args()

    tool = find_cuobjdump()
    present = set(re.findall(r"\.(sm_\w+)\.cubin", dump(tool, "--list-elf", arguments.object)))
    complaints = [f"no code for {arch}" for arch in arguments.arch if arch not in present]
    complaints += check_ptx(dump(tool, "--dump-ptx", arguments.object))
    usage, registers = check_usage(dump(tool, "--dump-resource-usage", arguments.object))
    complaints += usage + check_sass(dump(tool, "--dump-sass", arguments.object))
    if not registers:
        complaints.append("no hot kernel found")

    archs = sorted(present, key=lambda arch: int(re.sub(r"\D", "", arch)))
    print(f"{'registers':<32}" + "".join(f"{arch:>8}" for arch in archs))
    for name in sorted(registers, key=short):
        print(
            f"{short(name):<32}" + "".join(f"{registers[name].get(arch, 0):>8}" for arch in archs)
        )
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
