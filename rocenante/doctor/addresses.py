"""GIDs, the networks they are in, and what of an Ethernet MTU is left for RoCE."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass

from rocenante.doctor.host import Host

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What the kernel reserves for the headers of a RoCE v2 packet (iboe_get_mtu in <rdma/ib_addr.h>):
# GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4.
HEADERS = 96
ROCE_MTUS = (4096, 2048, 1024, 512, 256)


def roce_mtu(ethernet: int) -> int:
    """The largest RoCE MTU that an interface's MTU has room for, in bytes; 0 if none has."""
    return next((mtu for mtu in ROCE_MTUS if mtu + HEADERS <= ethernet), 0)


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table."""

    index: int
    text: str  # as in sysfs: eight groups of four digits
    kind: str  # "RoCE v2" or "IB/RoCE v1"
    prefix: int = 128  # bits of the network, of 32 for IPv4

    @property
    def address(self) -> Address:
        whole = ipaddress.IPv6Address(self.text)
        return whole.ipv4_mapped or whole

    @property
    def roce_v2(self) -> bool:
        return self.kind == "RoCE v2"

    @property
    def link_local(self) -> bool:
        return self.address.is_link_local

    @property
    def network(self) -> Network:
        bits = min(self.prefix, self.address.max_prefixlen)
        return ipaddress.ip_network((self.address, bits), strict=False)


def is_address(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def prefix_of(host: Host, interface: str, address: Address) -> int:
    """The length of the network's part of an interface's address, from /proc/net.

    A host's own length (32 or 128) if the kernel has no route for it, as when the link is down.
    """
    try:
        return _prefix(host, interface, address)
    except ValueError:  # these files are not what they were
        return address.max_prefixlen


def _prefix(host: Host, interface: str, address: Address) -> int:
    if address.version == 6:
        digits = f"{int(address):032x}"
        for line in (host.read("/proc/self/net/if_inet6") or "").splitlines():
            fields = line.split()
            if len(fields) >= 6 and fields[0] == digits and fields[5] == interface:
                return int(fields[2], 16)
        return 128
    longest = 0
    for line in (host.read("/proc/self/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[0] != interface or int(fields[2], 16) != 0:
            continue
        # Both are printed as the machine's own numbers: their bytes are in network order.
        network, mask = (_swapped(fields[at]) for at in (1, 7))
        if mask and int(address) & mask == network:
            longest = max(longest, bin(mask).count("1"))
    return longest or 32


def _swapped(digits: str) -> int:
    return int.from_bytes(int(digits, 16).to_bytes(4, sys.byteorder), "big")
