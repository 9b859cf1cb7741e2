"""Ways for a script to end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness import no_leftovers

# Forks two ranks for each ending; these run it and then fall off the end of the script, so that the
# interpreter ends as it does for users, but torch is imported only once.
SCRIPT = """
import json, os, sys, tempfile, time, torch, torch.distributed as dist
endings, folder = json.loads(sys.argv[1]), sys.argv[2]
code, outcomes = None, []
for number, ending in enumerate(endings):
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            code = ending
            os.dup2(os.open(f"{folder}/{number}.{rank}", os.O_CREAT | os.O_WRONLY), 2)
            break
        pids.append(pid)
    if code is not None:
        break
    status = [os.waitpid(pid, 0)[1] for pid in pids]
    text = "".join(open(f"{folder}/{number}.{rank}").read() for rank in range(2))
    outcomes.append((status, text))
if code is None:
    print(json.dumps(outcomes))
else:
    dist.init_process_group(
        "rocenante", init_method=f"file://{folder}/store.{number}", rank=rank, world_size=2
    )
    t = torch.ones(4)
    dist.all_reduce(t)
    exec(code)
"""
ENDINGS = {
    "without destroy": "",
    "with work under way": "dist.all_reduce(t, async_op=True)",
    "with a future and its callback under way": (
        "f = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value())"
    ),
    "destroyed": "dist.destroy_process_group()",
    "destroyed with work under way": (
        "w = dist.all_reduce(t, async_op=True); dist.destroy_process_group()"
    ),
    "aborted": "dist.barrier(); dist.distributed_c10d._abort_process_group() if rank else None",
    "by sys.exit in a forked child first": (
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "dist.barrier()"
    ),
    "with a group kept in a cycle": (
        "class C: pass\nc = C(); c.me = c; c.group = dist.new_group(); dist.barrier(c.group)"
    ),
    "with a transfer never matched": "w = dist.isend(torch.ones(300000), 1 - rank)",
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[int], str]]:
    folder = tmp_path_factory.mktemp("endings")
    with no_leftovers():
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(list(ENDINGS.values())), str(folder)],
            stdout=subprocess.PIPE,
            timeout=180,
            check=True,
        )
    return dict(zip(ENDINGS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit(ending: str, endings: dict[str, tuple[list[int], str]]) -> None:
    """However a script ends: exit code 0, and nothing on stderr that looks like a crash."""
    status, text = endings[ending]
    assert status == [0, 0], text
    assert "terminate" not in text
    assert "Traceback" not in text
