"""The table of checks of one host, and running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rocenante.doctor.checks import cpu, environment, gpu, limits, link, network, software
from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level

# Name, as in the report and in docs/doctor.md -> what looks.
CHECKS: dict[str, Callable[[Facts], Iterable[Finding]]] = {
    "software": software.installed,
    "settings": software.settings,
    "gpu": gpu.devices,
    "gpu-memory": gpu.memory_for_rdma,
    "rdma-devices": link.devices,
    "rdma-access": limits.device_files,
    "memlock": limits.memlock,
    "ports": link.ports,
    "pci": link.pci,
    "cards": link.cards,
    "mtu": network.mtu,
    "gid": network.gids,
    "subnets": network.subnets,
    "loss": network.loss,
    "flow-control": network.flow_control,
    "hca-list": environment.hca_list,
    "nccl-variables": environment.nccl_variables,
    "hostname": environment.hostname,
    "container": limits.container,
    "kernel": limits.kernel,
    "cpu": cpu.processors,
}


def run_checks(facts: Facts) -> list[Finding]:
    """All findings, in the table's order. A check that fails is a finding, not a traceback."""
    found: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            found += check(facts)
        except Exception as error:
            found.append(
                Finding(
                    name,
                    Level.WARNING,
                    f"this check failed: {type(error).__name__}: {error}",
                    "report this with the output of rocenante doctor --json",
                )
            )
    return found
