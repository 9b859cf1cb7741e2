"""What the hardware counters of a port tell of lost packets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A packet arrived out of order, or a time-out or a negative acknowledgement made it go again:
# counters of mlx5, then those of Soft-RoCE.
LOST = (
    "packet_seq_err",
    "out_of_sequence",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rx_discards_phy",
    "out_of_seq_request",
    "rcvd_seq_err",
)
# Sent again until the limit, and the connection lost.
GIVEN_UP = ("req_transport_retries_exceeded", "retry_exceeded_err")
NOT_READY = ("rnr_nak_retry_err", "out_of_buffer", "send_rnr_err", "rcvd_rnr_err")
PACKETS = ("port_xmit_packets", "port_rcv_packets", "sent_pkts", "rcvd_pkts")

TOLERATED = 1e-5  # a link at the bit error rate of 802.3 loses far fewer


@dataclass(frozen=True)
class Lost:
    """Packets that did not arrive, or not in order."""

    counts: Mapping[str, int]  # those of LOST, GIVEN_UP and NOT_READY that are not 0
    packets: int  # sent and received in all

    @property
    def lost(self) -> int:
        return sum(self.counts.get(name, 0) for name in LOST)

    @property
    def given_up(self) -> int:
        return sum(self.counts.get(name, 0) for name in GIVEN_UP)

    @property
    def share(self) -> float:
        """Of all packets; where they are not counted, any loss is the whole."""
        return self.lost / self.packets if self.packets else float(self.lost > 0)

    @property
    def text(self) -> str:
        """packet_seq_err 4830, ... in 1000000 packets; empty if there is nothing to tell."""
        told = ", ".join(f"{name} {value}" for name, value in self.counts.items())
        return f"{told} in {self.packets} packets" if told else ""


def lost_packets(counters: Mapping[str, int], before: Mapping[str, int] | None = None) -> Lost:
    """From a port's counters; with an earlier reading, what was added since then."""
    grown = {name: value - (before or {}).get(name, 0) for name, value in counters.items()}
    names = (*LOST, *GIVEN_UP, *NOT_READY)
    return Lost(
        {name: grown[name] for name in names if grown.get(name, 0) > 0},
        sum(grown.get(name, 0) for name in PACKETS),
    )
