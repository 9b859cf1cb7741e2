"""What a peer says of itself at init may be of another build, damaged, or no address at all.

Each must end in an exception that says so, at once; never in a crash or a time-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

import rocenante
from rocenante import Communicator

_KEY = "rocenante/default/1/hello/{}"  # csrc/torch/store.h, csrc/transport/meet.cc
_VERSION = 4  # where a blob has its protocol's version
_PATIENCE = 20.0


def _hello() -> bytes:
    """What rank 0 of two says of itself."""
    store = dist.HashStore()
    with pytest.raises(rocenante.TimeoutError, match="rank 1 of 2 did not arrive"):
        Communicator(0, 2, store, timeout=0.1)
    return store.get(_KEY.format(0))


def _signed(body: bytes) -> bytes:
    """With the checksum that the blob ends with: FNV-1a."""
    value = 2166136261
    for byte in body:
        value = (value ^ byte) * 16777619 % 2**32
    return body + value.to_bytes(4, "little")


def _other_version(blob: bytes) -> bytes:
    version = int.from_bytes(blob[_VERSION : _VERSION + 4], "little") + 1
    return _signed(blob[:_VERSION] + version.to_bytes(4, "little") + blob[_VERSION + 4 : -4])


FOREIGN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "of another version": (_other_version, r"protocol version \d+.*install the same rocenante"),
    "of a future version, of another form": (
        lambda b: _other_version(b)[:12] + b"x" * 5000,
        r"protocol version \d+.*install the same rocenante",
    ),
    "truncated": (lambda b: b[: len(b) // 2], "malformed"),
    "empty": (lambda b: b"", "malformed"),
    "of one bit changed": (lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], "checksum is wrong"),
    "with a length of 4 GiB": (lambda b: _signed(b[:28] + b"\xff" * 4 + b[32:-4]), "too long"),
    "something else": (lambda b: b'{"host": "spark-2", "port": 29500}', "not an address"),
    "of settings unknown here": (
        lambda b: _signed(b[:-4].replace(b"ROCENANTE_SLOT_BYTES", b"ROCENANTE_SLOT_LINES")),
        "same settings to agree on.*install the same rocenante",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_peer(what: str) -> None:
    change, text = FOREIGN[what]
    blob = change(_hello())
    store = dist.HashStore()
    # As rank 1: its number and the nonce follow the version; both are read after what is wrong.
    store.set(_KEY.format(1), blob if len(blob) < 32 else _as_rank_1(blob))
    start = time.monotonic()
    with pytest.raises(rocenante.Error, match=text) as caught:
        Communicator(0, 2, store, timeout=_PATIENCE)
    assert not isinstance(caught.value, rocenante.TimeoutError)
    assert time.monotonic() - start < _PATIENCE / 2


def _as_rank_1(blob: bytes) -> bytes:
    """The same with rank 1 as its first number, if its checksum is right."""
    if _signed(blob[:-4]) != blob:
        return blob
    return _signed(blob[:8] + (1).to_bytes(4, "little") + blob[12:-4])


def test_the_hello_of_another_rank() -> None:
    """Two ranks started with one number, say: told of when the time is up."""
    store = dist.HashStore()
    store.set(_KEY.format(1), _hello())
    with pytest.raises(rocenante.TimeoutError, match="rank 1 announced itself as rank 0 of 2"):
        Communicator(0, 2, store, timeout=0.2)
