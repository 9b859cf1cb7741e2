"""What the system lets this process do: device files, locked memory, containers, kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rocenante.doctor.facts import Facts
from rocenante.doctor.finding import Finding, Level
from rocenante.doctor.host import Host

_CAP_IPC_LOCK = 14  # in <linux/capability.h>
MIB = 1 << 20
# A window holds two slots for each peer elsewhere and two of its own, 512 KiB each by default.
SMALLEST_WINDOW, LARGEST_WINDOW = 4 * MIB, 72 * MIB  # of 2 and of 64 ranks
DOCKER = "docker run --device=/dev/infiniband --ulimit memlock=-1 --net=host --ipc=host"


def device_files(facts: Facts) -> Iterator[Finding]:
    """May this process open the devices?"""
    host = facts.host
    if not facts.devices:
        return
    if not host.exists("/dev/infiniband"):
        inside = bool(container_kind(host))
        yield Finding(
            "rdma-access",
            Level.ERROR,
            "/sys shows RDMA devices, but there is no /dev/infiniband: they can't be opened",
            DOCKER if inside else "modprobe ib_uverbs; in a container: " + DOCKER,
        )
        return
    for device in facts.devices:
        file = f"/dev/infiniband/{device.node}"
        if not device.node or not host.exists(file):
            yield Finding(
                "rdma-access",
                Level.ERROR,
                f"there is no {file if device.node else 'uverbs file'} for it: it can't be opened",
                f"modprobe ib_uverbs; in a container: {DOCKER}",
                device.name,
            )
        elif not host.may_use(file):
            yield Finding(
                "rdma-access",
                Level.ERROR,
                f"this user may not read and write {file}",
                f"chmod a+rw {file}, for good by a udev rule or the group that owns it",
                device.name,
            )
        else:
            yield Finding("rdma-access", Level.OK, f"{file} can be opened", "", device.name)


def memlock(facts: Facts) -> Iterator[Finding]:
    """May enough memory be locked for the windows that NICs write to?"""
    limit = _memlock(facts.host)
    if limit is None or not facts.devices:
        return
    free = _has_ipc_lock(facts.host)
    if limit < 0 or free:
        text = "unlimited" if limit < 0 else f"{limit // 1024} KiB, which CAP_IPC_LOCK overrides"
        yield Finding("memlock", Level.OK, f"lockable memory: {text}")
        return
    text = f"this process may lock {limit // 1024} KiB"
    fix = (
        "ulimit -l unlimited; for good memlock in /etc/security/limits.conf or LimitMEMLOCK=; "
        "in a container --ulimit memlock=-1"
    )
    if limit < SMALLEST_WINDOW:
        yield Finding("memlock", Level.ERROR, f"{text}: too little for any RDMA window", fix)
    elif limit < LARGEST_WINDOW:
        yield Finding("memlock", Level.WARNING, f"{text}: too little for many ranks", fix)
    else:
        yield Finding("memlock", Level.OK, text)


def _memlock(host: Host) -> int | None:
    """Bytes; -1 for no limit; None if the kernel does not tell."""
    found = re.search(
        r"^Max locked memory\s+(\S+)", host.read("/proc/self/limits") or "", re.MULTILINE
    )
    if not found:
        return None
    return -1 if found[1] == "unlimited" else int(found[1])


def _has_ipc_lock(host: Host) -> bool:
    # Only in the first user namespace does the kernel ask this capability for locking.
    mapped = (host.read("/proc/self/uid_map") or "0 0 4294967295").split()
    effective = int(host.status("CapEff") or "0", 16)
    return mapped[:2] == ["0", "0"] and bool(effective >> _CAP_IPC_LOCK & 1)


def container_kind(host: Host) -> str:
    """docker, podman, kubernetes, lxc ...; empty outside."""
    if host.exists("/.dockerenv"):
        return "docker"
    if host.exists("/run/.containerenv"):
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        return "kubernetes"
    if kind := host.read("/run/systemd/container"):
        return kind
    found = re.search(r"docker|kubepods|libpod|lxc", host.read("/proc/1/cgroup") or "")
    return found[0] if found else ""


def container(facts: Facts) -> Iterator[Finding]:
    """Does a container hide what RDMA needs?"""
    kind = container_kind(facts.host)
    if not kind:
        return
    hidden = [
        port
        for port in facts.ports
        if port.interface and not facts.host.exists(f"/sys/class/net/{port.interface}")
    ]
    nameless = [port for port in facts.ports if port.roce and port.active and not port.interface]
    for port in (*hidden, *nameless):
        yield Finding(
            "container",
            Level.ERROR,
            f"the {kind} container has no interface for it, so no address that others reach",
            "docker run --net=host (Kubernetes: hostNetwork: true)",
            port.name,
        )
    if not hidden and not nameless:
        yield Finding(
            "container",
            Level.OK,
            f"in a {kind} container: ranks of one host need one --pid and --ipc namespace",
        )


def kernel(facts: Facts) -> Iterator[Finding]:
    """Has the kernel what rocenante relies on?"""
    found = re.match(r"(\d+)\.(\d+)", facts.kernel)
    if not found:
        return
    version = (int(found[1]), int(found[2]))
    if version < (4, 5):
        yield Finding(
            "kernel",
            Level.ERROR,
            f"Linux {facts.kernel} is older than RoCE v2 in the kernel (4.5)",
            "run a newer kernel",
        )
    elif version < (5, 3):
        yield Finding(
            "kernel",
            Level.WARNING,
            f"Linux {facts.kernel} has no pidfd_open (5.3): a local rank's death is told of later",
            "run a newer kernel",
        )
    else:
        yield Finding("kernel", Level.OK, f"Linux {facts.kernel}")
