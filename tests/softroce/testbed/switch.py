"""An Ethernet switch between guests: ``switch.py SOCKET [PORTS]``.

For User-mode Linux ("bess" vector ports) each port is a connection to a Unix seqpacket socket; the
switch ends when all have closed. For QEMU ("dgram") PORTS are given, and port i is the Unix
datagram socket ``SOCKET.i``. Either way a packet is one Ethernet frame. The switch learns
addresses, floods what it does not know, and drops what a full port cannot take. It is started as a
program of its own, so it imports nothing of the test-bed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys

_BUFFER = 4 << 20
_BURST = 32  # frames taken from one port before the others get their turn
_FRAME_MAX = 65536
_PORTS_MAX = 64


def serve_datagrams(path: str, count: int) -> None:
    """Switches frames between datagram ports until it is killed."""
    ports: dict[int, socket.socket] = {}
    for i in range(count):
        port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        port.bind(f"{path}.{i}")
        port.setblocking(False)
        ports[port.fileno()] = port
    silent = set(ports)
    port_of: dict[bytes, int] = {}
    poller = select.epoll()
    for fd in ports:
        poller.register(fd, select.EPOLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd in silent:  # the other end's address is known by its first frame
                _, address = ports[fd].recvfrom(1, socket.MSG_PEEK)
                ports[fd].connect(address)
                silent.remove(fd)
            _forward(fd, ports, port_of)


def serve_connections(path: str) -> None:
    """Accepts ports on the socket and switches frames between them until all have closed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(_PORTS_MAX)
    ports: dict[int, socket.socket] = {}
    port_of: dict[bytes, int] = {}
    poller = select.epoll()
    poller.register(listener.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                port, _ = listener.accept()
                port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                port.setblocking(False)
                ports[port.fileno()] = port
                poller.register(port.fileno(), select.EPOLLIN)
            elif not _forward(fd, ports, port_of):
                poller.unregister(fd)
                ports.pop(fd).close()
                port_of = {mac: at for mac, at in port_of.items() if at != fd}
                if not ports:
                    return


def _forward(fd: int, ports: dict[int, socket.socket], port_of: dict[bytes, int]) -> bool:
    """Moves a burst of frames from one port to where they belong; False if the port has closed."""
    for _ in range(_BURST):
        try:
            frame = ports[fd].recv(_FRAME_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not frame:
            return False
        port_of[frame[6:12]] = fd
        known = None if frame[0] & 1 else port_of.get(frame[:6])
        for target in ports if known is None else [known]:
            if target == fd:
                continue
            with contextlib.suppress(OSError):  # full, or closing: the frame is lost, as on a wire
                ports[target].send(frame)
    return True


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_datagrams(sys.argv[1], int(sys.argv[2]))
    else:
        serve_connections(sys.argv[1])
