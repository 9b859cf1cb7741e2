"""`rocenante doctor` on two hosts with two rails each: a fault planted on node 1 or its rail 1.

Each test looks at what rank 0 reports of all hosts, and demands the findings that the fault must
give and no others; the healthy set-up's test shows that there are none without a fault. Checked
with the planting taken out of the first five: each failed for want of its finding.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import Cluster
from torch.distributed import TCPStore

from rocenante.doctor.cluster import Examination, examine
from rocenante.doctor.facts import Facts, Software, gather, read_software
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.host import Host
from rocenante.doctor.meeting import Meeting
from rocenante.doctor.rdma import Port, all_ports, read_devices

pytestmark = pytest.mark.softroce(nodes=2, devices=2, timeout=600)

_TIMEOUT_S = 30.0
_FIRST_PORT = 29500
_CAP_IPC_LOCK = 14
_runs = iter(range(1000))


class Ward:
    """This node's end of an examination."""

    def __init__(self, cluster: Cluster, software: Software) -> None:
        self.cluster = cluster
        self.software = software
        self.key = f"doctor{next(_runs)}"

    @property
    def faulty(self) -> bool:
        """Faults are planted on node 1."""
        return self.cluster.node == 1

    def examine(
        self,
        *,
        size: int = 2,
        timeout: float = _TIMEOUT_S,
        change: Callable[[Facts], Facts] = lambda facts: facts,
    ) -> Examination | None:
        """The result on node 0."""
        self.cluster.barrier(f"{self.key}-planted", timeout=120)
        port = _FIRST_PORT + int(self.key.removeprefix("doctor"))
        store = TCPStore(
            self.cluster.address(0),
            port,
            size,
            self.cluster.node == 0,
            timedelta(seconds=60),
            wait_for_workers=False,
        )
        # The nodes start within a barrier of each other; how long gathering takes is not the test.
        facts = change(gather(Host(), self.software))
        self.cluster.barrier(f"{self.key}-gathered", timeout=120)
        meeting = Meeting(store, self.cluster.node, size)
        result = examine(meeting, facts, timeout, lambda share: None)
        self.cluster.barrier(f"{self.key}-examined", timeout=240)
        return result


@pytest.fixture(scope="session")
def software() -> Software:
    return read_software()


@pytest.fixture
def ward(cluster: Cluster, software: Software) -> Iterator[Ward]:
    """Afterwards both rails are as they were."""
    _await_rails(cluster)
    this = Ward(cluster, software)
    yield this
    _await_rails(cluster)
    cluster.barrier(f"{this.key}-healed", timeout=120)


def _await_rails(cluster: Cluster, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        ports = all_ports(read_devices(Host()))
        wanted = [cluster.address(cluster.node, rail) for rail in (0, 1)]
        found = [str(g.address) for p in ports if p.active for g in p.gids]
        if all(address in found for address in wanted):
            return
        assert time.monotonic() < deadline, f"{wanted} not among {found}"
        time.sleep(0.02)


def _rail(number: int) -> Port:
    return all_ports(read_devices(Host()))[number]


def _ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=30)


def _only(
    result: Examination | None, *checks: str, but: tuple[str, ...] = ()
) -> dict[str, Finding]:
    """The findings that are worse than OK, by check; these and, perhaps, `but`, and no others.

    A pair that is slow by accident on a busy machine is no matter.
    """
    assert result is not None
    ignored = ("pair-slow", *but)
    findings = result.all_findings
    found = [f for f in findings if f.level is not Level.OK and f.check not in ignored]
    assert {f.check for f in found} == set(checks), found
    assert all(f.why and f.fix for f in found)
    return {f.check: f for f in found}


def _measured(result: Examination | None) -> list[str]:
    """The networks of the rails that worked."""
    assert result is not None
    return [one.task.rail.network for one in result.measured if not one.error]


def test_healthy(ward: Ward) -> None:
    """Nothing is found, not even a slow pair; both rails were measured."""
    result = ward.examine()
    if ward.faulty:
        return
    assert result is not None
    assert [f for f in result.all_findings if f.level is not Level.OK] == []
    assert sorted(_measured(result)) == ["10.78.0.0/24", "10.78.1.0/24"]
    assert result.fabric.shape == "two hosts"
    for one in result.measured:
        assert one.latency_us is not None
        assert one.up_mib_s
        assert one.down_mib_s


def test_down_port(ward: Ward) -> None:
    """The port is named, with what turns it on; the other rail is still measured."""
    card = _rail(1).interface
    if ward.faulty:
        _ip(f"link set {card} down")
        _await(lambda: not _rail(1).active)
    result = ward.examine()
    if ward.faulty:
        _ip(f"link set {card} up")
        return
    found = _only(result, "ports")
    assert found["ports"].subject == "softroce1 rxe1:1"
    assert "ip link" in found["ports"].fix
    assert _measured(result) == ["10.78.0.0/24"]


def test_missing_gid(ward: Ward) -> None:
    """An interface without an address; the kernel leaves a port the link-local one of its MAC."""
    card, address = _rail(1).interface, ward.cluster.address(1, 1)
    if ward.faulty:
        _ip(f"addr del {address}/24 dev {card}")
        _await(lambda: not _rail(1).networks)
    result = ward.examine()
    if ward.faulty:
        _ip(f"addr add {address}/24 dev {card}")
        return
    found = _only(result, "gid")
    assert found["gid"].subject == "softroce1 rxe1:1"
    assert "only the link-local address fe80::" in found["gid"].why
    assert card in found["gid"].fix
    assert _measured(result) == ["10.78.0.0/24"]


def test_rails_in_one_subnet(ward: Ward) -> None:
    """Both ports are named, and the subnet."""
    card, address = _rail(1).interface, ward.cluster.address(1, 1)
    other = "10.78.0.102"
    if ward.faulty:
        _ip(f"addr del {address}/24 dev {card}", f"addr add {other}/24 dev {card}")
        _await(lambda: other in [str(gid.address) for gid in _rail(1).gids])
    result = ward.examine()
    if ward.faulty:
        _ip(f"addr del {other}/24 dev {card}", f"addr add {address}/24 dev {card}")
        return
    found = _only(result, "subnets")
    assert found["subnets"].subject == "softroce1 rxe0:1, rxe1:1"
    assert "10.78.0.0/24" in found["subnets"].why


def test_absent_peer(ward: Ward) -> None:
    """Two ranks of three come: the third is named, and the others are measured."""
    result = ward.examine(size=3, timeout=4.0)
    if ward.faulty:
        return
    found = _only(result, "ranks")
    assert found["ranks"].subject == "rank 2"
    assert "rank 2 of 3 did not come" in found["ranks"].why
    assert sorted(_measured(result)) == ["10.78.0.0/24", "10.78.1.0/24"]


def test_wrong_hca(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's value is named with the ports that there are; the pair has no way."""
    if ward.faulty:
        monkeypatch.setenv("ROCENANTE_IB_HCA", "mlx5_7")
    software = read_software() if ward.faulty else ward.software
    result = ward.examine(change=lambda facts: replace(facts, software=software))
    if ward.faulty:
        return
    found = _only(result, "hca-list", "pairs")
    assert found["hca-list"].subject == "softroce1 ROCENANTE_IB_HCA=mlx5_7"
    assert found["hca-list"].level is Level.ERROR
    assert "rxe0:1, rxe1:1" in found["hca-list"].fix
    assert "softroce0 - softroce1" in found["pairs"].why
    assert _measured(result) == []


def test_version_mismatch(ward: Ward) -> None:
    """Each version is named with its ranks."""

    def older(facts: Facts) -> Facts:
        versions = {**facts.software.versions, "rocenante": "0.0.9"}
        return replace(facts, software=replace(facts.software, versions=versions))

    result = ward.examine(change=older if ward.faulty else lambda facts: facts)
    if ward.faulty:
        return
    found = _only(result, "versions")
    assert found["versions"].level is Level.ERROR
    assert "0.0.9 on rank 1" in found["versions"].why
    assert f"{ward.software.versions['rocenante']} on rank 0" in found["versions"].why


def test_no_dev_infiniband(ward: Ward) -> None:
    """As in a container without --device: sysfs shows the devices, and nothing opens them."""
    folder, hidden = Path("/dev/infiniband"), Path("/dev/infiniband.hidden")
    if ward.faulty:
        folder.rename(hidden)
    software = read_software() if ward.faulty else ward.software
    try:
        result = ward.examine(change=lambda facts: replace(facts, software=software))
    finally:
        if ward.faulty:
            hidden.rename(folder)
    if ward.faulty:
        return
    found = _only(result, "rdma-access", "software", "pairs")
    assert found["rdma-access"].subject == "softroce1"
    assert "/dev/infiniband" in found["rdma-access"].why
    assert "--device=/dev/infiniband" in found["rdma-access"].fix


def test_memlock(ward: Ward) -> None:
    """64 KiB of lockable memory on node 1, as in a container without --ulimit memlock=-1."""
    if ward.faulty:

        def starved() -> None:
            _may_lock(64 << 10)
            ward.examine()

        _forked(starved)
        return
    found = _only(ward.examine(), "memlock", "pairs")
    assert found["memlock"].subject == "softroce1"
    assert "64 KiB" in found["memlock"].why
    assert "ulimit -l" in found["memlock"].fix
    assert "ulimit -l" in found["pairs"].fix


def test_loss_on_one_link(ward: Ward) -> None:
    """The rail that loses is named, the other is not. Afterwards the port's counters tell of it."""
    card = _rail(1).interface
    if ward.faulty:
        netem = ["tc", "qdisc", "add", "dev", card, "root", "netem", "loss", "1%"]
        subprocess.run(netem, check=True, timeout=30)
    result = ward.examine()
    if ward.faulty:
        subprocess.run(["tc", "qdisc", "del", "dev", card, "root"], check=True, timeout=30)
        return
    found = _only(result, "pair-loss")
    assert "rxe1:1, 10.78.1.0/24" in found["pair-loss"].why
    assert found["pair-loss"].subject == "ranks 0 - 1"


def test_mtu_mismatch(ward: Ward) -> None:
    """Both ends' values are named, and the subnet. Last: the guest's cards take no MTU back."""
    card, mtu = _rail(1).interface, _rail(1).mtu
    if ward.faulty:
        _ip(f"link set {card} mtu 1500")
        _await(lambda: _rail(1).mtu == 1500)
    result = ward.examine()
    if ward.faulty:
        return
    found = _only(result, "mtu", "same-mtu", but=("loss",))
    assert found["mtu"].subject == "softroce1 rxe1:1"
    assert found["same-mtu"].subject == "10.78.1.0/24"
    assert "softroce1 rxe1:1 has MTU 1500 (RoCE 1024)" in found["same-mtu"].why
    assert f"softroce0 rxe1:1 has {mtu} (RoCE 4096)" in found["same-mtu"].why


def _await(done: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _forked(body: Callable[[], object], limit_s: float = 240.0) -> None:
    """Runs it in a child, whose limits end with it; an exception there fails the test."""
    child = os.fork()
    if not child:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"the child did not end within {limit_s:g} s")
        time.sleep(0.02)
    assert status == 0


def _may_lock(limit: int) -> None:
    """This process may lock so many bytes, whoever it is."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[0] &= ~(1 << _CAP_IPC_LOCK)  # effective, the lower 32 capabilities
    assert libc.capset(header, data) == 0
