"""Runs PyTorch's own DistributedTest suite, as it lies in the wheel, against a backend.

    python tests/torch_suite/runner.py --world-size 2 --profile union [-k PATTERN] [--backend NAME]

The suite decides by the backend's name which tests apply (`BACKEND == "gloo"`). The profile says
which name it sees; the group is always made with --backend:
  native  the backend's own name, which most conditions do not know
  gloo    "gloo" as well: opens tests of timeouts, monitored barriers, sparse tensors, debug mode
  union   "gloo" and "mpi" as well: opens, besides those, all_to_all on CPU tensors
Exit status 0 if the tests that fail are those in expected_failures.txt, no more and no fewer.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import logging
import os
import re
import sys
import tempfile
import time
import types
import unittest
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SUITE = "torch.testing._internal.distributed.distributed_test"
NAMES = "rocenante_suite_names"  # the module through which the suite gets its BACKEND
EXPECTED = Path(__file__).with_name("expected_failures.txt")
PROFILES = {"native": (), "gloo": ("gloo",), "union": ("gloo", "mpi")}


class ManyNames(str):
    """Text that equals other names too, in ==, != and `in`."""

    __slots__ = ("others",)
    others: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other in self.others

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # that of the set member it is mostly looked up as
        return hash(self.others[0]) if self.others else str.__hash__(self)


@dataclass
class Row:
    test: str
    status: str  # passed, failed or skipped
    seconds: float
    text: str = ""


def prepare(backend: str, world_size: int, folder: str) -> None:
    """What the suite reads from the environment when it is imported."""
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(world_size),
        TEMP_DIR=folder,
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")


def load_suite(backend: str, world_size: int, profile: str, limit: float) -> types.ModuleType:
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    torch.set_num_threads(1)
    register = getattr(dist.Backend, "_ensure_backend_registered", None)
    if register:
        register(backend)
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(backend)
    common_distributed.TIMEOUT_DEFAULT = int(limit)
    if profile == "union":
        # Made for gloo's default of 4 ranks; what these tests need is the group [1, 2].
        def small(function: Any) -> Any:
            return function if world_size >= 3 else unittest.skip("small world size")(function)

        common_distributed.skip_if_small_worldsize = small

    names = types.ModuleType(NAMES)
    name = ManyNames(backend)
    name.others = PROFILES[profile]
    names.BACKEND = name  # type: ignore[attr-defined]
    sys.modules[NAMES] = names
    spec = importlib.util.find_spec(SUITE)
    assert spec
    assert spec.origin
    source = Path(spec.origin).read_text()
    seen, count = re.subn(
        r'(?m)^(\s*)(BACKEND|backend) = os\.environ\["BACKEND"\]',
        rf'\1\2 = __import__("{NAMES}").BACKEND',
        source,
    )
    assert count > 0, "this torch's suite reads the backend's name in another way"
    suite = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = suite
    exec(compile(seen, spec.origin, "exec", dont_inherit=True), suite.__dict__)
    suite.default_pg_timeout = min(60, int(limit))  # type: ignore[attr-defined]
    for known in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        known.append(backend)
    return suite


def make_case(suite: types.ModuleType, limit: float) -> type[unittest.TestCase]:
    import torch.multiprocessing as mp

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            sys.stdout.flush()
            sys.stderr.flush()
            # Forked ranks find torch imported: 0.3 s a test instead of 10.
            self._start_processes(mp.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments: Any, **named: Any) -> None:
            faulthandler.dump_traceback_later(max(5.0, limit - 10), exit=False)
            super()._run(*arguments, **named)

        def _barrier(self, *arguments: Any, **named: Any) -> None:
            named.setdefault("timeout", 60)
            suite.Barrier.sync(*arguments, **named)

    return TorchSuite


class Result(unittest.TestResult):
    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._verbose = verbose
        self._begin = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin = time.monotonic()

    def _add(self, test: unittest.TestCase, status: str, text: str = "") -> None:
        seconds = round(time.monotonic() - self._begin, 2)
        self.rows.append(Row(test._testMethodName, status, seconds, text))
        if self._verbose or status == "failed":
            print(f"{status:7} {seconds:6.2f} s  {test._testMethodName}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._add(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        super().addFailure(test, error)
        self._add(test, "failed", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        super().addError(test, error)
        self._add(test, "failed", self.errors[-1][1])


def expected_failures(backend: str) -> dict[str, str]:
    """Test -> why it fails; lines of "test | why", or "test [torch release] | why"."""
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    expected = {}
    for line in EXPECTED.read_text().splitlines() if backend == "rocenante" else ():
        if not line.strip() or line.startswith("#"):
            continue
        test, _, why = line.partition("|")
        name, _, only = test.strip().partition(" ")
        if not only or only.strip("[]") == release:
            expected[name] = why.strip()
    return expected


def last_error(text: str) -> str:
    """The last exception's line, and the two after it: "Expected 1 but got 2." is one of those."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    starts = [i for i, x in enumerate(lines) if re.match(r"^[\w.]*(Error|Exception)\b", x)]
    at = (starts or [len(lines) - 1])[-1]
    return " ".join(lines[at : at + 3])[:300]


def run(
    backend: str,
    world_size: int,
    profile: str,
    patterns: list[str],
    folder: str,
    limit: float = 60,
    verbose: bool = False,
) -> list[Row]:
    """Runs the suite in this process; once per process, since the suite reads the environment."""
    prepare(backend, world_size, folder)
    case = make_case(load_suite(backend, world_size, profile, limit), limit)
    logging.disable(logging.INFO)
    chosen = [
        name
        for name in unittest.TestLoader().getTestCaseNames(case)
        if not patterns or any(re.search(p, name) for p in patterns)
    ]
    result = Result(verbose)
    unittest.TestSuite(case(name) for name in chosen).run(result)
    return result.rows


def report(rows: list[Row], backend: str, whole: bool) -> int:
    """Prints what happened; the number of surprises."""
    expected = expected_failures(backend)
    failed = {row.test: row for row in rows if row.status == "failed"}
    for row in failed.values():
        mark = f"expected: {expected[row.test]}" if row.test in expected else last_error(row.text)
        print(f"FAILED {row.test}: {mark}")
    ran = {row.test for row in rows if row.status == "passed"}
    fixed = [test for test in expected if test in ran]
    for test in fixed:
        print(f"PASSED, though expected to fail (take it off the list): {test}")
    counts = Counter(row.status for row in rows)
    print(", ".join(f"{counts[s]} {s}" for s in ("passed", "failed", "skipped")))
    if whole and not counts["passed"]:
        print("nothing ran")
        return 1
    return len(failed.keys() - expected.keys()) + len(fixed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="rocenante")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--profile", choices=PROFILES, default="union")
    parser.add_argument("-k", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--limit", type=float, default=60, help="seconds a test may take")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("-v", action="store_true", help="print every test")
    options = parser.parse_args()
    start = time.monotonic()
    # The ranks meet in files of fixed names: a folder shared with another run mixes up the two.
    with tempfile.TemporaryDirectory() as folder:
        rows = run(
            options.backend,
            options.world_size,
            options.profile,
            options.k,
            folder,
            options.limit,
            options.v,
        )
    if options.v:
        for why, count in Counter(r.text for r in rows if r.status == "skipped").most_common():
            print(f"  skipped {count}: {why[:120]}")
    surprises = report(rows, options.backend, not options.k)
    print(
        f"{options.backend}, world {options.world_size}, profile {options.profile}, "
        f"{time.monotonic() - start:.0f} s"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
