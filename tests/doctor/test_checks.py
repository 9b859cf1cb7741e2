"""The checks of one host, on machines made of files.

A healthy machine gives no finding; each test breaks one thing and demands just the finding for it,
so a check that says nothing, or too much, fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_host import Machine, bad, ok, the

from rocenante.doctor.checks import CHECKS, run_checks
from rocenante.doctor.finding import Finding, Level, exit_code


def test_a_healthy_spark(machine: Machine) -> None:
    findings = run_checks(machine.facts())
    assert [f for f in findings if f.level is not Level.OK] == []
    assert exit_code(findings) == 0
    assert "GPU 0: NVIDIA GB10, sm_121, integrated, 119.6 GiB; driver 580.142, CUDA 13.0" in ok(
        machine, "gpu"
    )
    assert "no GPUDirect RDMA" in ok(machine, "gpu-memory")
    assert "rocep1s0f0: mlx5_core, firmware 28.45.4028, 1 port" in ok(machine, "rdma-devices")
    assert "rocep1s0f0:1: active, 200 Gbit/s (4X) on enp1s0f0np0" in ok(machine, "ports")
    assert "10.0.1.1/24 (GID 3)" in ok(machine, "gid")
    assert "2: 10.0.1.0/24, 10.0.2.0/24" in ok(machine, "subnets")
    # Gen5 x4 carries half of what the port can: the twin is for that.
    assert "32 GT/s x4 (126 Gbit/s): less than the link's 200 Gbit/s" in ok(machine, "pci")
    assert "rocep1s0f0, roceP2p1s0f0 are one card" in ok(machine, "cards").replace(
        "roceP2p1s0f0, rocep1s0f0", "rocep1s0f0, roceP2p1s0f0"
    )
    assert "RoCE 4096 of 9000" in ok(machine, "mtu")


def test_an_empty_machine(tmp_path: Path) -> None:
    """A laptop: no RDMA, no GPU."""
    laptop = Machine(tmp_path)
    found = the(laptop, "rdma-devices", Level.WARNING)
    assert "shared memory" in found.why
    assert "CPU tensors only" in ok(laptop, "gpu")
    assert exit_code([found]) == 1


def test_nothing_at_all(tmp_path: Path) -> None:
    """Neither /proc nor /sys: no check fails of itself."""
    nothing = Machine(tmp_path)
    nothing.remove("/proc")
    nothing.remove("/sys")
    assert "this check failed" not in str(bad(nothing))


@pytest.mark.parametrize("check", list(CHECKS))
def test_a_check_that_fails_is_a_finding(
    machine: Machine, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(facts: object) -> list[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setitem(CHECKS, check, broken)
    assert "boom" in the(machine, check, Level.WARNING).why


def test_garbage_in_sysfs(machine: Machine) -> None:
    """Files that hold what no kernel writes."""
    for path in sorted(machine.root.rglob("*")):
        if path.is_file() and path.parts[-2] != "types":
            path.write_bytes(b"\xff\xfe garbage 1:2:3\n\x00")
    run_checks(machine.facts())


@pytest.mark.parametrize(
    ("state", "physical", "fix"),
    [
        ("1: DOWN", "2: Polling", "cable"),
        ("1: DOWN", "3: Disabled", "ip link set enP2p1s0f0np0 up"),
    ],
)
def test_down_port(machine: Machine, state: str, physical: str, fix: str) -> None:
    machine.state("roceP2p1s0f0", state, physical)
    assert fix in the(machine, "ports", Level.WARNING, "roceP2p1s0f0:1").fix


def test_down_port_that_a_variable_asks_for(machine: Machine) -> None:
    machine.state("roceP2p1s0f0", "1: DOWN", "2: Polling")
    machine.environ["NCCL_IB_HCA"] = "rocep1s0f0,roceP2p1s0f0"
    assert "NCCL_IB_HCA asks for it" in the(machine, "ports", Level.ERROR, "roceP2p1s0f0:1").why


def test_infiniband_port(machine: Machine) -> None:
    machine.write("/sys/class/infiniband/roceP2p1s0f0/ports/1/link_layer", "InfiniBand")
    assert bad(machine) == []
    assert "InfiniBand" in ok(machine, "ports")
    machine.environ["ROCENANTE_IB_HCA"] = "roceP2p1s0f0"
    the(machine, "ports", Level.WARNING, "roceP2p1s0f0:1")


def test_narrow_bus(machine: Machine) -> None:
    machine.write("/sys/devices/pci/0002:01:00.0/current_link_width", "2")
    found = the(machine, "pci", Level.WARNING, "roceP2p1s0f0")
    assert "x2 (63 Gbit/s), but the card can do 32 GT/s x4" in found.why


def test_small_mtu(machine: Machine) -> None:
    machine.write("/sys/class/net/enp1s0f0np0/mtu", "1500")
    found = the(machine, "mtu", Level.WARNING, "rocep1s0f0:1")
    assert "Ethernet MTU 1500 leaves RoCE 1024" in found.why
    assert "enp1s0f0np0" in found.fix


def test_active_mtu_from_libibverbs(machine: Machine) -> None:
    """What the library says counts, not what the interface has room for."""
    machine.answers["probe_verbs"] = '{"devices": {"rocep1s0f0": {"1": {"active_mtu": 1024}}}}'
    assert "leaves RoCE 1024" in the(machine, "mtu", Level.WARNING, "rocep1s0f0:1").why


def test_no_roce_v2_address(machine: Machine) -> None:
    machine.no_gid("rocep1s0f0", 1, 3)
    assert "no RoCE v2 address" in the(machine, "gid", Level.ERROR, "rocep1s0f0:1").why


def test_link_local_address_only(machine: Machine) -> None:
    machine.no_gid("rocep1s0f0", 2, 3)
    found = the(machine, "gid", Level.WARNING, "rocep1s0f0:1")
    assert "link-local address fe80::" in found.why
    assert "enp1s0f0np0" in found.fix


def test_drifted_gid_index(machine: Machine) -> None:
    machine.environ["NCCL_IB_GID_INDEX"] = "3"
    assert bad(machine) == []
    machine.environ["NCCL_IB_GID_INDEX"] = "0"
    found = bad(machine)
    assert [f.subject for f in found] == ["NCCL_IB_GID_INDEX=0"] * 2
    assert all("error 12" in f.why and "would be 3" in f.fix for f in found)


def test_twins_in_one_subnet(machine: Machine) -> None:
    machine.nic("roceP2p1s0f0", "enP2p1s0f0np0", "10.0.1.2/24", index=1, pci="0002:01:00.0")
    found = bad(machine)
    assert [f.check for f in found] == ["subnets"]
    assert "10.0.1.0/24" in found[0].why
    assert set(found[0].subject.split(", ")) == {"rocep1s0f0:1", "roceP2p1s0f0:1"}


def test_overlapping_subnets(machine: Machine) -> None:
    """10.0.0.0/16 holds 10.0.1.0/24."""
    machine.route("enP2p1s0f0np0", "10.0.2.1/16")
    assert [f.check for f in bad(machine)] == ["subnets"]


def test_lossy_fabric(machine: Machine) -> None:
    """The figures that four Sparks without PFC showed."""
    machine.counters(
        "rocep1s0f0",
        packet_seq_err=4830,
        out_of_sequence=5057,
        req_transport_retries_exceeded=8,
        port_xmit_packets=10**6,
    )
    found = the(machine, "loss", Level.WARNING, "rocep1s0f0:1")
    assert "packet_seq_err 4830, out_of_sequence 5057" in found.why


def test_a_few_old_losses_are_no_finding(machine: Machine) -> None:
    machine.counters("rocep1s0f0", packet_seq_err=3)
    assert bad(machine) == []
    assert "packet_seq_err 3" in ok(machine, "loss")


def test_flow_control(machine: Machine) -> None:
    machine.answers["dcb"] = '{"prio-pfc":[false,false,false,false]}'
    machine.answers["ethtool"] = (
        "Pause parameters for x:\nAutonegotiate:\ton\nRX:\t\toff\nTX:\toff\n"
    )
    for interface in ("enp1s0f0np0", "enP2p1s0f0np0"):
        machine.write(f"/sys/class/net/{interface}/ecn/roce_np/enable/3", "0")
    assert [f.check for f in bad(machine)] == ["flow-control"] * 2
    machine.answers["dcb"] = '{"prio-pfc":[false,false,false,true]}'
    assert bad(machine) == []
    assert "PFC on, ECN off, pause off" in ok(machine, "flow-control")


def test_memlock(machine: Machine) -> None:
    machine.memlock("65536")
    found = the(machine, "memlock", Level.ERROR)
    assert "may lock 64 KiB" in found.why
    assert "ulimit -l unlimited" in found.fix
    machine.memlock(str(16 << 20))
    the(machine, "memlock", Level.WARNING)
    machine.memlock(str(1 << 30))
    assert bad(machine) == []


def test_memlock_does_not_bind_root(machine: Machine) -> None:
    """CAP_IPC_LOCK overrides the limit, but not in a user namespace."""
    machine.memlock("65536")
    machine.write("/proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-19")
    assert bad(machine) == []
    machine.write("/proc/self/uid_map", "         0       1000          1")
    the(machine, "memlock", Level.ERROR)


def test_no_dev_infiniband(machine: Machine) -> None:
    machine.remove("/dev/infiniband")
    found = the(machine, "rdma-access", Level.ERROR)
    assert "no /dev/infiniband" in found.why
    assert "--device=/dev/infiniband" in found.fix


def test_one_device_file_is_missing(machine: Machine) -> None:
    machine.remove("/dev/infiniband/uverbs1")
    assert "uverbs1" in the(machine, "rdma-access", Level.ERROR, "roceP2p1s0f0").why


def test_no_permission(machine: Machine) -> None:
    machine.denied.add("/dev/infiniband/uverbs0")
    found = the(machine, "rdma-access", Level.ERROR, "rocep1s0f0")
    assert "may not read and write /dev/infiniband/uverbs0" in found.why


def test_container_with_a_network_of_its_own(machine: Machine) -> None:
    """Docker without --net=host: the devices are there, their interfaces and addresses are not."""
    machine.write("/.dockerenv", "")
    for device, interface in (("rocep1s0f0", "enp1s0f0np0"), ("roceP2p1s0f0", "enP2p1s0f0np0")):
        machine.remove(f"/sys/class/net/{interface}")
        machine.no_gid(device, 0, 1, 2, 3)
    found = bad(machine)
    assert {f.check for f in found} == {"gid", "mtu", "container"}
    (first, _) = [f for f in found if f.check == "container"]
    assert "docker container" in first.why
    assert "--net=host" in first.fix


def test_container_that_hides_nothing(machine: Machine) -> None:
    machine.write("/run/.containerenv", "")
    assert bad(machine) == []
    assert "podman" in ok(machine, "container")


@pytest.mark.parametrize(
    ("release", "level"), [("3.10.0-1160.el7", "error"), ("4.18.0", "warning")]
)
def test_old_kernel(machine: Machine, release: str, level: str) -> None:
    machine.kernel(release)
    assert release in the(machine, "kernel", Level(level)).why


def test_a_kernel_without_gid_types(machine: Machine) -> None:
    """Linux 3.10 has no gid_attrs: there is no telling RoCE v2, and no traceback."""
    machine.kernel("3.10.0-1160.el7")
    for device in ("rocep1s0f0", "roceP2p1s0f0"):
        machine.remove(f"/sys/class/infiniband/{device}/ports/1/gid_attrs")
    assert {f.check for f in bad(machine)} == {"gid", "kernel"}


def test_cpu(machine: Machine) -> None:
    machine.governor("powersave")
    assert "powersave on 20 processors" in the(machine, "cpu", Level.WARNING).why
    machine.governor("performance")
    machine.write("/proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t3")
    assert "1 of 20 usable" in the(machine, "cpu", Level.WARNING).why


def test_nic_on_another_socket(machine: Machine) -> None:
    machine.write("/sys/devices/pci/0002:01:00.0/numa_node", "1")
    machine.write("/sys/devices/pci/0002:01:00.0/local_cpulist", "20-39")
    assert "--cpunodebind=1" in the(machine, "cpu", Level.WARNING, "roceP2p1s0f0").fix


def test_hca_lists(machine: Machine) -> None:
    machine.environ["ROCENANTE_IB_HCA"] = "=rocep1s0f0,mlx5_7:1"
    found = the(machine, "hca-list", Level.WARNING, "ROCENANTE_IB_HCA==rocep1s0f0,mlx5_7:1")
    assert "no port mlx5_7:1" in found.why
    machine.environ["ROCENANTE_IB_HCA"] = "mlx5"
    the(machine, "hca-list", Level.ERROR, "ROCENANTE_IB_HCA=mlx5")
    machine.environ["ROCENANTE_IB_HCA"] = "^roce"
    assert (
        "excludes every port" in the(machine, "hca-list", Level.ERROR, "ROCENANTE_IB_HCA=^roce").why
    )
    machine.environ["ROCENANTE_IB_HCA"] = "^roceP2"
    assert "rocenante uses rocep1s0f0:1" in ok(machine, "hca-list")
    assert bad(machine) == []


def test_variables_of_nccl(machine: Machine) -> None:
    machine.environ["NCCL_SOCKET_IFNAME"] = "enP7s7"
    assert (
        "no interface enP7s7"
        in the(machine, "nccl-variables", Level.WARNING, "NCCL_SOCKET_IFNAME=enP7s7").why
    )
    machine.environ["NCCL_SOCKET_IFNAME"] = "enp1"  # a prefix is enough for NCCL
    machine.environ["NCCL_IB_TC"] = "106"
    the(machine, "nccl-variables", Level.WARNING, "NCCL_IB_TC=106")
    machine.environ["ROCENANTE_IB_TC"] = "106"
    machine.environ["NCCL_IB_DISABLE"] = "1"
    assert "TCP" in {f.check: f for f in bad(machine)}["nccl-variables"].why


def test_hostname_that_leads_to_itself(machine: Machine) -> None:
    machine.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 spark-1.local spark-1 # Debian's")
    assert "spark-1 is 127.0.1.1" in the(machine, "hostname", Level.WARNING).why
    machine.environ["GLOO_SOCKET_IFNAME"] = "=enp1s0f0np0"
    machine.environ["GLOO_SOCKET_IFNAME"] = "enp1s0f0np0"
    assert bad(machine) == []


def test_unknown_and_malformed_settings(machine: Machine) -> None:
    machine.environ["ROCENANTE_TRANSPROT"] = "shm"
    the(machine, "settings", Level.WARNING, "ROCENANTE_TRANSPROT")
    machine.software = dataclasses.replace(machine.software, config_problem='X="y" is not valid')
    assert "not valid" in the(machine, "settings", Level.ERROR).why


def test_software_that_cannot_be_used(machine: Machine) -> None:
    machine.software = dataclasses.replace(machine.software, problem="built against torch 2.13")
    assert "torch 2.13" in the(machine, "software", Level.ERROR).why
    machine.software = dataclasses.replace(machine.software, problem="", no_verbs="no libibverbs")
    assert "no libibverbs" in the(machine, "software", Level.ERROR).why


CHANGES: list[Callable[[Machine], object]] = [
    lambda m: m.state("rocep1s0f0", "1: DOWN", "3: Disabled"),
    lambda m: m.no_gid("rocep1s0f0", 1, 3),
    lambda m: m.memlock("65536"),
    lambda m: m.remove("/dev/infiniband"),
]


def test_every_finding_names_a_check_of_the_table(machine: Machine) -> None:
    for change in CHANGES:
        change(machine)
    findings = run_checks(machine.facts())
    assert {f.check for f in findings} <= set(CHECKS)
    assert all(bool(f.fix) for f in findings if f.level is not Level.OK)
