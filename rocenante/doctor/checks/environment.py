"""Variables of rocenante, NCCL and gloo that name ports, addresses and interfaces."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level


def hca_list(facts: Facts) -> Iterator[Finding]:
    """Do ROCENANTE_IB_HCA and NCCL_IB_HCA name ports that are here and up?"""
    chosen = facts.chosen
    if not chosen.text:
        return
    subject = f"{chosen.variable}={chosen.text}"
    missing = chosen.unmatched(facts.ports)
    here = ", ".join(port.name for port in facts.ports) or "none"
    for entry in missing:
        yield Finding(
            "hca-list",
            Level.WARNING if facts.used_ports else Level.ERROR,
            f"there is no port {entry} here",
            f"name ports of this host ({here}), or leave {chosen.variable} unset",
            subject,
        )
    if facts.ports and not missing and not any(chosen.allows(port) for port in facts.ports):
        yield Finding(
            "hca-list",
            Level.ERROR,
            "it excludes every port of this host",
            f"allow one of {here}, or leave {chosen.variable} unset",
            subject,
        )
    elif not missing:
        used = ", ".join(port.name for port in facts.used_ports) or "none"
        yield Finding("hca-list", Level.OK, f"rocenante uses {used}", "", subject)


def nccl_variables(facts: Facts) -> Iterator[Finding]:
    """Are NCCL's and gloo's variables about the network what they seem to be?"""
    environ = facts.host.environ
    yield from _gid_index(facts)
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        yield from _interface(facts, variable)
    if environ.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        yield Finding(
            "nccl-variables",
            Level.WARNING,
            "NCCL will use TCP sockets instead of RDMA",
            "unset NCCL_IB_DISABLE",
            f"NCCL_IB_DISABLE={environ['NCCL_IB_DISABLE']}",
        )
    ours, theirs = environ.get("ROCENANTE_IB_TC"), environ.get("NCCL_IB_TC")
    if theirs is not None and theirs != (ours or "0"):
        yield Finding(
            "nccl-variables",
            Level.WARNING,
            "NCCL's packets have this traffic class, rocenante's have "
            f"{ours or '0'}: the switch may treat them differently",
            f"set ROCENANTE_IB_TC={theirs}",
            f"NCCL_IB_TC={theirs}",
        )


def _gid_index(facts: Facts) -> Iterator[Finding]:
    text = facts.host.environ.get("NCCL_IB_GID_INDEX", "")
    if not text.lstrip("-").isdigit() or int(text) < 0:
        return
    for port in facts.ports:
        if not (port.active and port.roce and facts.chosen.allows(port)):
            continue
        wide = [gid for gid in port.roce_v2_gids if not gid.link_local]
        if wide and int(text) not in [gid.index for gid in wide]:
            yield Finding(
                "nccl-variables",
                Level.WARNING,
                f"on {port.name} index {text} is no routable RoCE v2 address (NCCL's error 12)",
                f"unset it: rocenante and NCCL from 2.21 on choose; here it would be "
                f"{wide[0].index}",
                f"NCCL_IB_GID_INDEX={text}",
            )


def _interface(facts: Facts, variable: str) -> Iterator[Finding]:
    text = facts.host.environ.get(variable, "")
    if not text or text.startswith("^"):
        return
    here = facts.host.names("/sys/class/net")
    exact = text.startswith("=") or variable == "GLOO_SOCKET_IFNAME"
    for name in text.lstrip("=").split(","):
        known = name in here if exact else any(n.startswith(name) for n in here)
        if not known:
            yield Finding(
                "nccl-variables",
                Level.WARNING,
                f"there is no interface {name} here",
                f"name one of {', '.join(here) or 'none'}",
                f"{variable}={text}",
            )


def hostname(facts: Facts) -> Iterator[Finding]:
    """Does the host's own name lead to itself alone? gloo and MASTER_ADDR would then fail."""
    for line in (facts.host.read("/etc/hosts") or "").splitlines():
        fields = line.partition("#")[0].split()
        if len(fields) < 2 or facts.name not in fields[1:]:
            continue
        try:
            loopback = ipaddress.ip_address(fields[0]).is_loopback
        except ValueError:
            continue
        told = "GLOO_SOCKET_IFNAME" in facts.host.environ
        if loopback and facts.used_ports and not told:
            yield Finding(
                "hostname",
                Level.WARNING,
                f"/etc/hosts says that {facts.name} is {fields[0]}: gloo would listen there, where "
                "no other host reaches it",
                f"give {facts.name} its network address in /etc/hosts, or set GLOO_SOCKET_IFNAME",
            )
        return
