"""One end of a reliable connection, through pyverbs: an eye that shares nothing with our code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

PORT = 1
_DEPTH = 64
_GIDS_MOST = 64
_RETRIES = 6  # 7 would be for ever on rxe


@dataclass(frozen=True)
class Address:
    """What the other end must know."""

    gid: str
    qp: int
    buffer: int
    key: int


class RcEndpoint:
    """A queue pair and a buffer that the peer may write into.

    Takes pyverbs' loaded state for granted: ask for the ``pyverbs`` fixture first.
    """

    def __init__(self, device: str, size: int) -> None:
        import pyverbs.cq
        import pyverbs.device
        import pyverbs.enums as e
        import pyverbs.mr
        import pyverbs.pd
        import pyverbs.qp

        self._context: Any = pyverbs.device.Context(name=device)
        self._domain: Any = pyverbs.pd.PD(self._context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self._access = access
        self.memory: Any = pyverbs.mr.MR(self._domain, size, access)
        self.memory.write(bytes(size), size)
        self._completions: Any = pyverbs.cq.CQ(self._context, _DEPTH)
        cap = pyverbs.qp.QPCap(max_send_wr=_DEPTH, max_recv_wr=1)
        init = pyverbs.qp.QPInitAttr(
            qp_type=e.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=cap
        )
        self._qp: Any = pyverbs.qp.QP(self._domain, init)
        table = self._context.query_gid_table(_GIDS_MOST)
        self._gid_index, self.gid = next(
            (entry.gid_index, entry.gid_str())
            for entry in table
            if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and ":ffff:" in entry.gid_str()
        )
        self.mtu: int = self._context.query_port(PORT).active_mtu

    @property
    def address(self) -> Address:
        """What the peer needs to connect and to write."""
        return Address(self.gid, self._qp.qp_num, self.memory.buf, self.memory.rkey)

    def connect(self, peer: Address) -> None:
        """Brings the queue pair up to the peer's."""
        import pyverbs.addr
        import pyverbs.qp

        route = pyverbs.addr.GlobalRoute(
            dgid=pyverbs.addr.GID(peer.gid), sgid_index=self._gid_index
        )
        attributes = pyverbs.qp.QPAttr(port_num=PORT)
        attributes.qp_access_flags = self._access
        attributes.dest_qp_num = peer.qp
        attributes.path_mtu = self.mtu
        attributes.max_rd_atomic = 1
        attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.timeout = 14
        attributes.retry_cnt = _RETRIES
        attributes.rnr_retry = _RETRIES
        attributes.ah_attr = pyverbs.addr.AHAttr(port_num=PORT, is_global=1, gr=route)
        self._qp.to_rts(attributes)

    def write(self, peer: Address, data: bytes, timeout: float = 30.0) -> float:
        """Writes data to the start of the peer's buffer; returns the seconds to its completion.

        Raises OSError with the status of a failed completion, TimeoutError without one.
        """
        import pyverbs.enums as e
        import pyverbs.wr

        self.memory.write(data, len(data))
        piece = pyverbs.wr.SGE(self.memory.buf, len(data), self.memory.lkey)
        request = pyverbs.wr.SendWR(
            opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED
        )
        request.set_wr_rdma(peer.key, peer.buffer)
        start = time.perf_counter()
        self._qp.post_send(request)
        while True:
            count, done = self._completions.poll(1)
            now = time.perf_counter()
            if count:
                if done[0].status != e.IBV_WC_SUCCESS:
                    raise OSError(f"the write completed with status {done[0].status}")
                return now - start
            if now - start > timeout:
                raise TimeoutError(f"no completion within {timeout:g} s")
            time.sleep(0)

    def read_own(self, length: int) -> bytes:
        """The first bytes of this end's buffer."""
        return bytes(self.memory.read(length, 0))

    def close(self) -> None:
        """Gives everything back, in the order that verbs wants."""
        for thing in (self._qp, self._completions, self.memory, self._domain, self._context):
            thing.close()


def connected_pair(size: int) -> tuple[RcEndpoint, RcEndpoint]:
    """Ends on rxe0 and rxe1 of one guest, connected to each other."""
    first, second = RcEndpoint("rxe0", size), RcEndpoint("rxe1", size)
    first.connect(second.address)
    second.connect(first.address)
    return first, second
