"""The test-bed itself, two guests on one switch: separate kernels on one RoCE network?"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
from cluster import Cluster
from rc_endpoint import Address, RcEndpoint

pytestmark = pytest.mark.softroce(nodes=2, devices=2)


def test_nodes_are_separate_kernels(cluster: Cluster) -> None:
    """Each node has a boot of its own."""
    assert cluster.nodes == 2
    assert os.uname().nodename == f"softroce{cluster.node}"
    mine = Path("/proc/sys/kernel/random/boot_id").read_text()
    cluster.publish("boot", mine)
    assert cluster.fetch("boot", 1 - cluster.node) != mine


@pytest.mark.parametrize("rail", [0, 1])
def test_rc_write_between_nodes(pyverbs: ModuleType, cluster: Cluster, rail: int) -> None:
    """Each node's write lands in the other's memory, over each of their devices."""
    size = 1 << 16
    peer = 1 - cluster.node
    end = RcEndpoint(f"rxe{rail}", 2 * size)
    cluster.publish(f"address{rail}", json.dumps(asdict(end.address)))
    other = Address(**json.loads(cluster.fetch(f"address{rail}", peer)))
    assert other.gid.endswith(f"0a4e:{rail:02x}{peer + 1:02x}")
    end.connect(other)
    cluster.barrier(f"connected{rail}")
    end.memory.write(bytes(2 * size), 2 * size)
    cluster.barrier(f"cleared{rail}")
    target = Address(other.gid, other.qp, other.buffer + size, other.key)
    end.write(target, bytes([cluster.node + 1]) * size)
    cluster.barrier(f"written{rail}")
    assert bytes(end.memory.read(size, size)) == bytes([peer + 1]) * size
    cluster.barrier(f"checked{rail}")
    end.close()
