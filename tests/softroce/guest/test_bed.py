"""The test-bed itself, one guest with several devices: is it the RoCE network it claims to be?"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from rc_endpoint import connected_pair

DEVICES = 4
pytestmark = pytest.mark.softroce(devices=DEVICES)

_INFINIBAND = Path("/sys/class/infiniband")
_NO_GID = ":".join(["0000"] * 8)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runs_in_a_guest() -> None:
    """Everything below would be worthless on the host."""
    assert os.environ["SOFTROCE_NODE"] == "0"
    assert os.uname().nodename == "softroce0"


def test_devices_are_active() -> None:
    """sysfs shows as many devices as asked for, each with an active port on Ethernet."""
    names = sorted(p.name for p in _INFINIBAND.iterdir())
    assert names == [f"rxe{i}" for i in range(DEVICES)]
    for name in names:
        port = _INFINIBAND / name / "ports" / "1"
        assert (port / "state").read_text().split(":")[1].strip() == "ACTIVE"
        assert (port / "link_layer").read_text().strip() == "Ethernet"


def test_libibverbs_opens_each_device() -> None:
    """The user-space driver works, not only the kernel's."""
    text = _output("ibv_devinfo")
    assert re.findall(r"hca_id:\s*(\S+)", text) == [f"rxe{i}" for i in range(DEVICES)]
    assert len(re.findall(r"state:\s*PORT_ACTIVE", text)) == DEVICES


def test_each_device_has_a_roce_v2_gid_of_its_address() -> None:
    """A GID of type RoCE v2 maps the IPv4 address of the device's interface."""
    for i in range(DEVICES):
        port = _INFINIBAND / f"rxe{i}" / "ports" / "1"
        gids = {}
        for file in (port / "gids").iterdir():
            gid = file.read_text().strip()
            if gid != _NO_GID:  # an empty entry has no type to read
                kind = (port / "gid_attrs" / "types" / file.name).read_text().strip()
                gids[gid] = kind
        assert gids[f"0000:0000:0000:0000:0000:ffff:0a4d:{i + 1:04x}"] == "RoCE v2"


def test_pyverbs_sees_the_devices(pyverbs: ModuleType) -> None:
    """The distribution's pyverbs works in this interpreter."""
    from pyverbs.device import get_device_list

    names = {device.name.decode() for device in get_device_list()}
    assert names == {f"rxe{i}" for i in range(DEVICES)}


def test_default_mtu_carries_4096() -> None:
    """The default Ethernet MTU leaves room for RoCE's largest."""
    assert re.findall(r"active_mtu:\s*(\d+)", _output("ibv_devinfo")) == ["4096"] * DEVICES


@pytest.mark.softroce(devices=2, mtu=1500, netem="delay 5ms")
def test_mtu_as_asked() -> None:
    """An Ethernet MTU of 1500 leaves 1024 for RoCE."""
    assert Path("/sys/class/net/ve0/mtu").read_text().strip() == "1500"
    assert re.findall(r"active_mtu:\s*(\d+)", _output("ibv_devinfo")) == ["1024"] * 2


@pytest.mark.softroce(devices=2, mtu=1500, netem="delay 5ms")
def test_netem_delays_roce(pyverbs: ModuleType) -> None:
    """A write's completion takes a round trip: both ways pass the delay."""
    first, second = connected_pair(4096)
    times = [first.write(second.address, b"x" * 8) for _ in range(20)]
    first.close()
    second.close()
    assert min(times) > 0.0095


@pytest.mark.softroce(devices=2, netem="loss 2%")
def test_netem_loses_roce_packets_and_rc_recovers(pyverbs: ModuleType) -> None:
    """Packets are dropped on the way, and yet every write arrives whole."""
    size = 65536
    first, second = connected_pair(size)
    for i in range(60):
        data = bytes([i + 1]) * size
        first.write(second.address, data)
        assert second.read_own(size) == data
    first.close()
    second.close()
    dropped = re.search(r"dropped (\d+)", _output("tc", "-s", "qdisc", "show", "dev", "ve0"))
    assert dropped is not None
    assert int(dropped[1]) > 0


def test_rc_write_between_two_devices(pyverbs: ModuleType) -> None:
    """A write lands in the other device's buffer, and the packets crossed the bridge."""

    def sent() -> int:
        return int(Path("/sys/class/net/ve0/statistics/tx_packets").read_text())

    before = sent()
    first, second = connected_pair(1 << 16)
    data = os.urandom(1 << 16)
    first.write(second.address, data)
    assert second.read_own(1 << 16) == data
    second.write(first.address, data[::-1])
    assert first.read_own(1 << 16) == data[::-1]
    first.close()
    second.close()
    assert sent() - before >= (1 << 16) // 4096


def test_perftest_runs_between_two_devices() -> None:
    """The distribution's benchmark of a write's latency makes its round trips.

    Its figures are not looked at: on a busy machine its clock calibration fails and they are "inf".
    """
    common = ["ib_write_lat", "-F", "-x", "1", "-n", "200", "-s", "8"]
    server = subprocess.Popen([*common, "-d", "rxe0"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):  # the server listens a moment after its start
            client = subprocess.run(
                [*common, "-d", "rxe1", "10.77.0.1"], capture_output=True, text=True, timeout=60
            )
            if client.returncode == 0:
                break
        assert client.returncode == 0, client.stderr
        assert server.wait(timeout=30) == 0
    finally:
        server.kill()
        server.wait()
    assert re.search(r"^\s*8\s+200\s", client.stdout, re.M), client.stdout
