"""Hosts and measurements made up for tests."""

from __future__ import annotations

import ipaddress

from rocenante.doctor.measure import Half, Task
from rocenante.doctor.pairs import Measured
from rocenante.doctor.peer import Peer, RailPort, Way
from rocenante.doctor.rails import Rail

VERSIONS: dict[str, str | None] = {"rocenante": "0.1.0", "torch": "2.14.1", "nccl": None}

RAIL = Rail("a:1", "a:1", "10.0.0.0/24")


def way(address: str) -> Way:
    interface = ipaddress.ip_interface(address)
    return Way(str(interface.ip), str(interface.network))


def port(device: str, *addresses: str, mtu: int = 9000, gbit_s: float = 200.0) -> RailPort:
    active = 4096 if mtu > 4192 else 1024
    ways = tuple(way(address) for address in addresses)
    return RailPort(device, 1, f"net_{device}", mtu, active, gbit_s, ways)


def peer(
    rank: int,
    *ports: RailPort,
    host: str = "",
    versions: dict[str, str | None] | None = None,
    config: dict[str, str] | None = None,
    gpus: tuple[str, ...] = (),
) -> Peer:
    name = host or f"spark-{rank}"
    return Peer(
        rank=rank,
        host=name,
        identity=f"boot of {name}",
        ports=ports,
        no_ports="" if ports else "it has no RDMA device",
        versions=versions or VERSIONS,
        config={"ROCENANTE_TRANSPORT": "auto", **(config or {})},
        must_agree=("ROCENANTE_TRANSPORT",),
        gpus=gpus,
    )


def peers(*of: Peer) -> dict[int, Peer]:
    return {one.rank: one for one in of}


def measured(
    low: int,
    high: int,
    *,
    rail: Rail = RAIL,
    latency: float = 5.0,
    up: float = 20_000.0,
    down: float = 20_000.0,
    lost: dict[str, int] | None = None,
    error: str = "",
) -> Measured:
    task = Task(low, high, rail)
    if error:
        return Measured(task, Half(error=error), Half(error="it failed"))
    first = Half(latency, 2 * latency, out_mib_s=up, in_mib_s=down, lost=lost or {}, packets=10_000)
    return Measured(task, first, Half(latency, 2 * latency, out_mib_s=down, in_mib_s=up))
