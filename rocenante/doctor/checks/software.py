"""rocenante, torch and NCCL, and rocenante's own settings."""

from __future__ import annotations

from collections.abc import Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level


def installed(facts: Facts) -> Iterator[Finding]:
    """Can rocenante be loaded, and can it use what is here?"""
    software = facts.software
    versions = ", ".join(f"{name} {v}" for name, v in software.versions.items() if v)
    if software.problem:
        yield Finding(
            "software",
            Level.ERROR,
            f"rocenante can't be used ({versions}): {software.problem}",
            "pip install torch, then pip install --no-build-isolation in rocenante's folder",
        )
        return
    yield Finding("software", Level.OK, versions)
    if software.no_verbs and facts.used_ports:
        yield Finding(
            "software",
            Level.ERROR,
            f"there are RDMA ports, but rocenante can't use them: {software.no_verbs}",
            "install libibverbs1 and ibverbs-providers; if the build lacks RDMA, libibverbs-dev, "
            "and build again",
        )


def settings(facts: Facts) -> Iterator[Finding]:
    """Are the ROCENANTE_* variables well formed and known?"""
    software = facts.software
    if software.config_problem:
        yield Finding(
            "settings",
            Level.ERROR,
            software.config_problem,
            "correct or unset the variable; rocenante info lists all of them",
        )
        return
    if not software.config:
        return
    ours = {n: v for n, v in sorted(facts.host.environ.items()) if n.startswith("ROCENANTE_")}
    for name in ours:
        if name not in software.config:
            yield Finding(
                "settings",
                Level.WARNING,
                "rocenante knows no such variable and ignores it",
                "rocenante info lists those there are",
                name,
            )
    known = [f"{name}={value}" for name, value in ours.items() if name in software.config]
    if known:
        yield Finding("settings", Level.OK, ", ".join(known))
