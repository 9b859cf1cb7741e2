"""What a rank tells the others of itself before anything is measured."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from rocenante.doctor.addresses import Network
from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding


@dataclass(frozen=True)
class Way:
    """One address of a port."""

    address: str
    network: str

    @property
    def subnet(self) -> Network:
        return ipaddress.ip_network(self.network)

    @property
    def link_local(self) -> bool:
        return ipaddress.ip_address(self.address).is_link_local


@dataclass(frozen=True)
class RailPort:
    """A port that rocenante would use."""

    device: str
    number: int
    interface: str
    mtu: int
    active_mtu: int
    gbit_s: float
    ways: tuple[Way, ...]

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Peer:
    """One rank's host."""

    rank: int
    host: str
    identity: str  # ranks that share it reach each other by shared memory
    ports: tuple[RailPort, ...]
    no_ports: str  # why there are none
    versions: dict[str, str | None]
    config: dict[str, str]
    must_agree: tuple[str, ...]
    gpus: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "findings": [finding.as_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Peer:
        ports = tuple(
            RailPort(**{**port, "ways": tuple(Way(**way) for way in port["ways"])})
            for port in value["ports"]
        )
        findings = tuple(Finding.from_json(finding) for finding in value["findings"])
        rest = {"must_agree": tuple(value["must_agree"]), "gpus": tuple(value["gpus"])}
        return cls(**{**value, **rest, "ports": ports, "findings": findings})


def describe(rank: int, facts: Facts, findings: list[Finding]) -> Peer:
    """This rank's own description."""
    config = facts.software.config
    return Peer(
        rank=rank,
        host=facts.name,
        identity=config.get("ROCENANTE_HOST_ID") or _kernel_and_processes(facts),
        ports=tuple(
            RailPort(
                port.device,
                port.number,
                port.interface,
                port.mtu,
                port.active_mtu,
                port.gigabits,
                tuple(Way(str(g.address), str(g.network)) for g in port.roce_v2_gids),
            )
            for port in facts.used_ports
        ),
        no_ports=facts.software.problem or facts.software.no_verbs,
        versions=facts.software.versions,
        config=config,
        must_agree=facts.software.must_agree,
        gpus=tuple(gpu["name"] for gpu in facts.gpu.facts.get("gpus", [])),
        findings=tuple(findings),
    )


def _kernel_and_processes(facts: Facts) -> str:
    # As rocenante tells hosts apart: the boot, and the process ids that its ranks see.
    boot = facts.host.read("/proc/sys/kernel/random/boot_id") or ""
    try:
        processes = os.readlink(facts.host.path("/proc/self/ns/pid"))
    except OSError:
        processes = ""
    return f"{boot} {processes}"
