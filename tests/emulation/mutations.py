"""Plants every bug of csrc/device/planted.h in turn and demands that the tests find it.

A test-suite that has never failed proves nothing. The program given runs under ThreadSanitizer; a
bug counts as caught if one of a bounded number of seeds ends with a wrong result, a race, a fault
or no end, and the run without a bug must end well on the same seeds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

WRONG = 1  # emulation's own verdict
STUCK = 3  # the emulator's: a run without end
SANITIZER = 66  # ThreadSanitizer's, as asked for below: a race or a fault
VERDICTS = {WRONG: "wrong", STUCK: "stuck", SANITIZER: "sanitizer"}


def run(program: str, bug: str, seeds: int) -> subprocess.CompletedProcess[str]:
    """Runs the scenarios for `seeds` seeds with one bug planted."""
    options = f"halt_on_error=1 exitcode={SANITIZER} report_signal_unsafe=0"
    return subprocess.run(
        [program, "--bug", bug, "--seeds", str(seeds)],
        env={**os.environ, "TSAN_OPTIONS": options},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def evidence(result: subprocess.CompletedProcess[str]) -> str:
    """The line of a run's output that says what was found."""
    for line in (result.stdout + result.stderr).splitlines():
        if "SUMMARY: " in line:
            return line.split("/")[-1].split("(")[0][:100]
        if result.returncode in (WRONG, STUCK) and line.strip():
            return line.strip()[:100]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the emulation tests, built with -fsanitize=thread")
    parser.add_argument("--seeds", type=int, default=40, help="how many may be needed (default 40)")
    parser.add_argument("--good-seeds", type=int, default=5, help="seeds without a bug (default 5)")
    arguments = parser.parse_args()

    listed = subprocess.run(
        [arguments.program, "--list-bugs"], capture_output=True, text=True, check=True
    )
    bugs = listed.stdout.split()
    if bugs[:1] != ["none"] or len(bugs) < 2:
        print(f"{arguments.program} lists no bugs", file=sys.stderr)
        return 2
    missed = []
    for bug in bugs:
        begin = time.monotonic()
        seeds = arguments.good_seeds if bug == "none" else arguments.seeds
        result = run(arguments.program, bug, seeds)
        seconds = time.monotonic() - begin
        if bug == "none":
            good = result.returncode == 0
            verdict = "well" if good else f"NOT WELL ({result.returncode})"
        else:
            good = result.returncode in VERDICTS
            verdict = VERDICTS.get(result.returncode, f"NOT CAUGHT ({result.returncode})")
        print(f"{bug:<26} {verdict:<16} {seconds:6.1f} s  {evidence(result)}", flush=True)
        if not good:
            missed.append(bug)
            print(result.stdout[-2000:] + result.stderr[-2000:])
    if missed:
        print(f"{len(missed)} of {len(bugs)} not as they should be: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
