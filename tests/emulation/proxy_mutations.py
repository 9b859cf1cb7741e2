"""Plants each bug of the proxy (csrc/device/planted.h) in turn; the test for it must fail.

The programs are test_proxy, plain and under ThreadSanitizer. A test that does not end is caught as
well: a kernel then waits that should have been told to give up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LIMIT_SECONDS = 15
# Bug, the tests that must find it, and whether they need ThreadSanitizer.
MUTATIONS = [
    ("bell_without_acquire", "Proxy.ServesRandomCalls", True),
    ("no_last_look", "Proxy.SendsWhatWasRungForBeforeItStops", False),
    ("never_naps", "Proxy.SleepsWhileIdle*", False),
    ("lost_peers_unseen", "Proxy.EndsKernelsThatWaitForAPeerThatLeft", False),
    ("record_unread", "Proxy.TellsOfRanksThatMadeDifferentCalls", False),
    ("kernels_not_aborted", "Proxy.EndsKernelsThatWaitForAPeerThatLeft", False),
    ("peers_not_told", "Proxy.EndsKernelsThatWaitForAPeerThatFailed", False),
    ("sends_after_failure", "Proxy.SendsNothingAfterAFailure", False),
    ("one_peer_forgotten", "Proxy.ServesRandomCalls", False),
]


def passes(program: str, bug: str, tests: str) -> bool:
    """Whether `tests` pass with the bug planted. Raises RuntimeError if they do not even run."""
    options = "halt_on_error=1 exitcode=66 report_signal_unsafe=0"
    try:
        done = subprocess.run(
            [program, f"--gtest_filter={tests}", "--bug", bug],
            env={**os.environ, "TSAN_OPTIONS": options},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 66) or "[ RUN      ]" not in done.stdout:
        raise RuntimeError(f"{program} --bug {bug}: exit status {done.returncode}\n{done.stderr}")
    return done.returncode == 0


def main() -> int:
    plain, thread = sys.argv[1:]
    listed = {bug for bug, _, _ in MUTATIONS}

    def verdict(mutation: tuple[str, str, bool]) -> str:
        bug, tests, sanitized = mutation
        found = not passes(thread if sanitized else plain, bug, tests)
        print(f"{bug:<24} {'caught' if found else 'NOT CAUGHT'}", flush=True)
        return "" if found else bug

    with ThreadPoolExecutor(4) as pool:
        missed = [bug for bug in pool.map(verdict, MUTATIONS) if bug]
    for bug, tests, sanitized in MUTATIONS:
        if not passes(thread if sanitized else plain, "none", tests):
            missed.append(f"{tests} fails without {bug}")
    print("\n".join(missed) or f"all {len(listed)} bugs are caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
