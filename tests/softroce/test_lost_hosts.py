"""A whole host that is lost: its kernel killed or frozen from outside, in mid-run.

Nobody tells the survivors, and nothing of the lost host answers any more.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from testbed.bed import Bed, Layout

RANKS = Path(__file__).resolve().parents[2] / "build/tests/tests/softroce/guest/verbs_ranks"
NODES = 3

# Rank 2's host goes; whatever became of it, it is killed at the end, so that the run can end.
SCRIPT = """
mkdir -p $SOFTROCE_CLUSTER/ranks
{ranks} kill --ranks 3 --first $SOFTROCE_NODE --here 1 --store $SOFTROCE_CLUSTER/ranks \
  --timeout {timeout} --do "{fault}"
code=$?
echo >$SOFTROCE_CLUSTER/told.$SOFTROCE_NODE
if [ $SOFTROCE_NODE = 0 ]; then
  for ((try = 0; try < 500; try++)); do [ -e $SOFTROCE_CLUSTER/told.1 ] && break; sleep 0.02; done
  kill-node 2
fi
exit $code
"""


@pytest.mark.parametrize(
    "fault", ["kill-node", "kill-node --signal STOP"], ids=["killed", "frozen"]
)
def test_every_survivor_names_the_ranks_of_a_lost_host(bed: Bed, fault: str) -> None:
    """Within two seconds, as for a rank whose process is killed."""
    if not RANKS.exists():
        pytest.fail(f"{RANKS} is not there: run scripts/ctest.sh (or make ctest)", pytrace=False)
    script = SCRIPT.format(ranks=RANKS, timeout=30_000, fault=fault)
    done = bed.run(["bash", "-c", script], Layout(nodes=NODES, timeout=120))
    assert done.returncode == 0, done.stdout + done.stderr
    raised = dict(re.findall(r"rank (\d): raised after (\d+) ms", done.stdout))
    assert sorted(raised) == ["0", "1"], done.stdout + done.stderr
    assert max(map(int, raised.values())) < 2000, done.stdout
    assert done.stdout.count("rank 2 is lost") == 2, done.stdout
    assert "on softroce2" in done.stdout
    assert "its process or its host died" in done.stdout


def test_a_host_without_a_device_is_told_of_by_all(bed: Bed) -> None:
    """Each rank's message says which host has none."""
    script = f"""
    mkdir -p $SOFTROCE_CLUSTER/ranks
    [ $SOFTROCE_NODE = 1 ] && rdma link del rxe0
    {RANKS} soak --ranks 2 --first $SOFTROCE_NODE --here 1 --store $SOFTROCE_CLUSTER/ranks
    """
    done = bed.run(["bash", "-c", script], Layout(nodes=2, timeout=60))
    assert done.returncode == 3, done.stdout + done.stderr
    for node in (0, 1):
        said = "".join(line for line in done.stdout.splitlines(True) if line[:3] == f"[{node}]")
        assert "rank 0 (softroce0) and rank 1 (softroce1) cannot reach each other" in said
        assert re.search(r"rank 0 \(softroce0\): has rxe0:1 \(.*\b10\.78\.0\.1\b", said), said
        assert "rank 1 (softroce1): it has no RDMA device" in said
