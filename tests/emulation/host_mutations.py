"""Plants each HostBug of csrc/device/planted.h in turn; the test for it must fail.

The programs are test_proxy, plain and under ThreadSanitizer, and test_gpu_communicator. A test that
does not end is caught as well: a kernel then waits that should have been told to give up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LIMIT_SECONDS = 10
# Bug, the program and the tests that must find it.
PLAIN, THREAD, EXECUTOR = range(3)
MUTATIONS = [
    ("bell_without_acquire", THREAD, "Proxy.ServesRandomCalls"),
    ("no_last_look", PLAIN, "Proxy.SendsWhatWasRungForBeforeItStops"),
    ("never_naps", PLAIN, "Proxy.SleepsWhileIdle*"),
    ("lost_peers_unseen", PLAIN, "Proxy.EndsKernelsThatWaitForAPeerThatLeft"),
    ("record_unread", PLAIN, "Proxy.TellsOfRanksThatMadeDifferentCalls"),
    ("kernels_not_aborted", PLAIN, "Proxy.EndsKernelsThatWaitForAPeerThatLeft"),
    ("peers_not_told", PLAIN, "Proxy.EndsKernelsThatWaitForAPeerThatFailed"),
    ("sends_after_failure", PLAIN, "Proxy.SendsNothingAfterAFailure"),
    ("one_peer_forgotten", PLAIN, "Proxy.ServesRandomCalls"),
    ("streams_unordered", EXECUTOR, "GpuCommunicator.OrdersStreams*"),
    ("captures_wait", EXECUTOR, "GpuCommunicator.OrdersStreams*"),
    ("failure_unread", EXECUTOR, "GpuCommunicator.TellsOfAFailure*"),
    ("closed_without_abort", EXECUTOR, "GpuCommunicator.ClosesWithAKernel*"),
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
    programs = sys.argv[1:]

    def verdict(mutation: tuple[str, int, str]) -> str:
        bug, program, tests = mutation
        found = not passes(programs[program], bug, tests)
        print(f"{bug:<24} {'caught' if found else 'NOT CAUGHT'}", flush=True)
        return "" if found else bug

    with ThreadPoolExecutor(4) as pool:
        missed = [bug for bug in pool.map(verdict, MUTATIONS) if bug]
    # Without a bug the same tests pass here, which ctest shows beside this.
    print("\n".join(missed) or f"all {len(MUTATIONS)} bugs are caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
