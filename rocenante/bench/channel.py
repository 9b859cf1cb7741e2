"""JSON lines between coordinator and workers: a socket on one host, the Store under torchrun.

A worker with nothing to do blocks in `receive`, so an idle backend takes no processor time from
the one that is being measured.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

Message = dict[str, Any]

# Once one rank refuses a call, how long the others may take to refuse it too.
_REFUSAL_GRACE = 5.0


class PeerClosedError(ConnectionError):
    """The worker's end of a channel was closed: the process has ended."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} closed its connection")
        self.rank = rank


class Channel(Protocol):
    """A worker's end."""

    def send(self, message: Message) -> None: ...

    def receive(self) -> Message: ...


class SocketChannel:
    """Over a connected stream socket; `receive` raises EOFError when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        self.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> Message:
        while True:
            message = self.next_buffered()
            if message is not None:
                return message
            self.fill()

    def fill(self) -> None:
        """Reads once, blocking unless the socket is readable."""
        data = self.connection.recv(1 << 20)
        if not data:
            raise EOFError("connection closed")
        self._buffer += data

    def next_buffered(self) -> Message | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        self.connection.close()


class StoreChannel:
    """Over a torch Store; `role` is "worker" or "coordinator", which read each other's keys."""

    def __init__(self, store: Any, name: str, role: str) -> None:
        self._store = store
        mine, other = ("up", "down") if role == "worker" else ("down", "up")
        self._out, self._in = f"{name}/{mine}", f"{name}/{other}"
        self._sent = self._received = 0

    def send(self, message: Message) -> None:
        self._store.set(f"{self._out}/{self._sent}", json.dumps(message))
        self._sent += 1

    def receive(self) -> Message:
        while True:
            message = self.poll(60.0)
            if message is not None:
                return message

    def poll(self, seconds: float) -> Message | None:
        """The next message, or None after `seconds`: the Store's server does the waiting."""
        key = f"{self._in}/{self._received}"
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except Exception as error:
            if "imeout" in str(error) or "imed out" in str(error):
                return None
            raise EOFError(f"the Store is gone: {error}") from error
        message: Message = json.loads(self._store.get(key))
        self._store.delete_key(key)
        self._received += 1
        return message


def gather_sockets(channels: Sequence[SocketChannel], timeout: float) -> list[Message]:
    """One message of every rank. Returns at once, with what is there, when a rank reports an error.

    Raises PeerClosedError when a worker has gone, TimeoutError naming the ranks that said nothing.
    """
    replies: dict[int, Message] = {}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for rank, channel in enumerate(channels):
            selector.register(channel.connection, selectors.EVENT_READ, rank)
        while len(replies) < len(channels):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _silence(replies, len(channels), timeout)
            for key, _ in ready:
                rank = int(key.data)
                try:
                    channels[rank].fill()
                except (EOFError, OSError) as gone:
                    raise PeerClosedError(rank) from gone
                message = channels[rank].next_buffered()
                if message is not None:
                    replies[rank] = message
                    selector.unregister(key.fileobj)
                    if "error" in message:
                        return [message]
                    if "refused" in message:
                        deadline = min(deadline, time.monotonic() + _REFUSAL_GRACE)
    return [replies[rank] for rank in sorted(replies)]


def gather_store(channels: Sequence[StoreChannel], timeout: float) -> list[Message]:
    """As gather_sockets, except that a dead worker shows only as a timeout."""
    replies: dict[int, Message] = {}
    deadline = time.monotonic() + timeout
    while len(replies) < len(channels):
        for rank, channel in enumerate(channels):
            if rank in replies:
                continue
            message = channel.poll(1.0)
            if message is not None:
                replies[rank] = message
                if "error" in message:
                    return [message]
        if time.monotonic() > deadline and len(replies) < len(channels):
            raise _silence(replies, len(channels), timeout)
    return [replies[rank] for rank in sorted(replies)]


def _silence(replies: dict[int, Message], ranks: int, timeout: float) -> TimeoutError:
    silent = ", ".join(str(rank) for rank in range(ranks) if rank not in replies)
    for rank, reply in replies.items():
        if "refused" in reply:
            reason = f"rank {rank} refuses the call ({reply['refused']})"
            return TimeoutError(f"{reason}, rank {silent} does not and waits for it")
    return TimeoutError(f"no answer from rank {silent} within {timeout:g} s")
