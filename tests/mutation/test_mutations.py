"""Takes out, one at a time and in a copy, the line that enforces an invariant of the exchange.

The unit test named after the invariant must then fail: one that passes all the same guards nothing.
The copy's one changed source is compiled by hand and linked before the library of the unchanged
rest. I3 (memory order) shows only under ThreadSanitizer, so its library is compiled here with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-pthread"]
# A mutant that hangs is caught as well; no unmutated test takes nearly as long.
LIMIT_SECONDS = 25


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in `source` (under csrc/); `tests` of `program` must then fail."""

    name: str
    source: str
    old: str
    new: str
    program: str
    tests: str
    flags: tuple[str, ...] = ()


MUTATIONS = [
    Mutation(
        "I1-publishes-without-having-seen-all",
        "exchange/exchange.cc",
        "if (!seen_all_)",
        "if (size_ < 0)",
        "test_exchange",
        "I1.*",
    ),
    Mutation(
        "I2-does-not-wait-for-its-turn",
        "collective/executor.cc",
        "while (state_.current != ticket || state_.running)",
        "while (state_.current > ticket)",
        "test_executor",
        "I2.*",
    ),
    Mutation(
        "I3-signals-without-release",
        "transport/shm/transport.cc",
        "h.lines[epoch].signal.store(p.signal, std::memory_order_seq_cst)",
        "h.lines[epoch].signal.store(p.signal, std::memory_order_relaxed)",
        "test_exchange",
        "I3.*",
        ("-fsanitize=thread",),
    ),
    Mutation(
        "I3-takes-the-signal-for-all-stripes",
        "exchange/exchange.cc",
        "!rocenante::arrived(line, signal, step)",
        "!same_step(signal, step)",
        "test_rails",
        "Rails.ASignal*",
    ),
    Mutation(
        "I3-sends-again-before-the-peer-has-given-the-rail-up",
        "transport/rails.cc",
        "theirs.dropped.load(std::memory_order_acquire) != 0 &&",
        "",
        "test_rails",
        "Rails.Nothing*",
    ),
    Mutation(
        "I3-sends-again-what-has-come",
        "transport/rails.cc",
        "!same_step(theirs.steps[sent.step & 1][stripe], sent.step)",
        "true",
        "test_rails",
        "Rails.Nothing*",
    ),
    Mutation(
        "I4-reduces-in-an-order-of-its-own",
        "collective/all_reduce.cc",
        "parts[r] = r == rank ?",
        "parts[(r + rank) % size] = r == rank ?",
        "test_exchange",
        "I4.*",
    ),
    Mutation(
        "I5-does-not-compare-fingerprints",
        "exchange/exchange.cc",
        "!= expected) settle(peer, step, expected)",
        "!= expected && size_ < 0) settle(peer, step, expected)",
        "test_exchange",
        "I5.*",
    ),
    Mutation(
        "I6-never-gives-up",
        "exchange/exchange.cc",
        "if (deadline_.passed() &&",
        "if (size_ < 0 &&",
        "test_exchange",
        "I6.*",
    ),
    Mutation(
        "I6-does-not-notice-a-lost-peer",
        "exchange/exchange.cc",
        "if (lost &&",
        "if (lost && size_ < 0 &&",
        "test_exchange",
        "I6.*",
    ),
    Mutation(
        "I6-does-not-heed-an-abort",
        "exchange/exchange.cc",
        "if (failed_.load(std::memory_order_acquire)) throw_if_failed();",
        "",
        "test_exchange",
        "I6.Abort*",
    ),
]


def run(*command: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Runs a command, output captured; a time-out counts as exit status 124."""
    try:
        return subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as e:
        return subprocess.CompletedProcess(command, 124, str(e.stdout), "timed out")


def compile_object(source: Path, target: Path, *flags: str, include: Path = CSRC) -> None:
    done = run("g++", *FLAGS, *flags, "-I", include, "-c", source, "-o", target)
    assert done.returncode == 0, done.stderr


TESTS_BUILD = ROOT / "build/tests"  # of `make ctest`
PARTS = ("core", "window", "exchange", "transport", "collective")


def newer(made: Path, inputs: list[Path]) -> Path | None:
    """`made`, if it exists and none of `inputs` has changed since."""
    current = made.exists() and all(i.stat().st_mtime <= made.stat().st_mtime for i in inputs)
    return made if current else None


def built_library() -> Path | None:
    """The core as the unit tests were built with it, if it is up to date."""
    inputs = [s for part in PARTS for s in (CSRC / part).rglob("*.[ch]*")]
    return newer(TESTS_BUILD / "librocenante_core.a", inputs)


def built_reduction(source: Path) -> Path | None:
    """The object of a reduction kernel from that build, if it is up to date.

    They take minutes to compile, share nothing between threads and contain no invariant.
    """
    if not source.name.startswith("reduce"):
        return None
    inputs = [*source.parent.glob("reduce*"), *(CSRC / "core").glob("*.h")]
    objects = TESTS_BUILD / "CMakeFiles/rocenante_core.dir"
    return newer(objects / f"{source.relative_to(ROOT)}.o", inputs)


class Library:
    """The unchanged core, compiled once for each set of flags."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, ...], Path] = {}

    def objects(self, flags: tuple[str, ...]) -> Path:
        if flags in self.made:
            return self.made[flags]
        built = None if flags else built_library()
        if built:
            self.made[flags] = built
            return built
        folder = self.folder / f"core{len(self.made)}"
        folder.mkdir()
        sources = [
            s
            for part in PARTS
            for s in sorted((CSRC / part).rglob("*.cc"))
            if s.parent.name != "verbs"  # needs its headers, and devices to run on
        ]
        makefile = folder / "Makefile"
        objects = {folder / (str(s.relative_to(CSRC)).replace("/", "_") + ".o"): s for s in sources}
        lines = [f"core.a: {' '.join(str(o) for o in objects)}\n\tar rcs $@ $^\n"]
        options = " ".join([*FLAGS, *flags, f"-I{CSRC}"])
        for target, source in objects.items():
            done = built_reduction(source)
            command = f"cp {done} $@" if done else f"g++ {options} -c $< -o $@"
            lines.append(f"{target}: {source}\n\t{command}\n")
        makefile.write_text("".join(lines))
        done = run("make", "-s", "-C", folder, f"-j{os.cpu_count()}", "core.a", timeout=1200)
        assert done.returncode == 0, done.stderr
        self.made[flags] = folder / "core.a"
        return self.made[flags]

    def test(self, program: str, flags: tuple[str, ...]) -> Path:
        """The test program's own object."""
        target = self.folder / f"{program}{''.join(flags)}.o"
        if not target.exists():
            compile_object(ROOT / f"tests/unit/{program}.cc", target, *flags)
        return target


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("mutation"))


def build_and_test(
    library: Library, folder: Path, mutation: Mutation, *, mutated: bool
) -> subprocess.CompletedProcess[str]:
    """Links the test program with the (perhaps mutated) source first, and runs the tests."""
    text = (CSRC / mutation.source).read_text()
    assert text.count(mutation.old) >= 1, f"{mutation.source} no longer has: {mutation.old}"
    changed = folder / Path(mutation.source).name
    changed.write_text(text.replace(mutation.old, mutation.new) if mutated else text)
    compile_object(changed, folder / "changed.o", *mutation.flags)
    core = library.objects(mutation.flags)
    test = library.test(mutation.program, mutation.flags)
    program = folder / mutation.program
    linked = run(
        *("g++", *FLAGS, *mutation.flags, folder / "changed.o", test, core),
        *("-lgtest", "-lgtest_main", "-o", program),
    )
    assert linked.returncode == 0, linked.stderr
    return run(program, f"--gtest_filter={mutation.tests}", timeout=LIMIT_SECONDS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_the_named_test_catches_the_mutation(
    library: Library, tmp_path: Path, mutation: Mutation
) -> None:
    if shutil.which("g++") is None:
        pytest.fail("g++ is needed to build the mutants")
    done = build_and_test(library, tmp_path, mutation, mutated=True)
    assert done.returncode != 0, f"{mutation.tests} passed without: {mutation.old}\n{done.stdout}"


@pytest.mark.parametrize("flags", sorted({m.flags for m in MUTATIONS}), ids="".join)
def test_the_same_build_unmutated_passes(
    library: Library, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Otherwise a broken build of this harness would count as caught mutants."""
    for mutation in {m.program: m for m in MUTATIONS if m.flags == flags}.values():
        done = build_and_test(library, tmp_path, mutation, mutated=False)
        assert done.returncode == 0, done.stdout + done.stderr
