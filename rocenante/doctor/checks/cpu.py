"""The processors that ranks poll on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level

_CPUS = "/sys/devices/system/cpu"


def parse_list(text: str) -> set[int]:
    """The numbers in 0-3,8. Raises ValueError."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def processors(facts: Facts) -> Iterator[Finding]:
    """Clock governor, affinity, and whether the NIC is near."""
    host = facts.host
    online = parse_list(host.read(f"{_CPUS}/online") or "")
    usable = parse_list(host.status("Cpus_allowed_list") or "")
    if online and usable:
        text = f"{len(usable & online)} of {len(online)} usable"
        if len(usable & online) == 1 < len(online):
            yield Finding(
                "cpu",
                Level.WARNING,
                f"{text}: a rank that polls leaves no processor for anything else",
                "start it without taskset or numactl, or with more processors",
            )
        else:
            yield Finding("cpu", Level.OK, text)
    yield from _governor(facts, usable or online)
    for device in facts.devices:
        near = parse_list(device.pci.cpus)
        if device.pci.numa >= 0 and near and usable and not near & usable:
            yield Finding(
                "cpu",
                Level.WARNING,
                f"this process may run on {host.status('Cpus_allowed_list')} alone, the NIC is "
                f"near {device.pci.cpus}: each message crosses between sockets",
                f"numactl --cpunodebind={device.pci.numa}",
                device.name,
            )


def _governor(facts: Facts, cpus: set[int]) -> Iterator[Finding]:
    found = Counter(
        governor
        for cpu in cpus
        if (governor := facts.host.read(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor"))
    )
    if not found:
        return
    slow = {name: number for name, number in found.items() if name != "performance"}
    if slow:
        text = ", ".join(f"{name} on {number}" for name, number in slow.items())
        yield Finding(
            "cpu",
            Level.WARNING,
            f"clock governor {text} processors: waking up costs tens of µs more",
            "cpupower frequency-set -g performance",
        )
    else:
        yield Finding("cpu", Level.OK, "clock governor performance")
