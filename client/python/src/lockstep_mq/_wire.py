# SPDX-License-Identifier: Apache-2.0
"""Encoding of publish stream requests in protobuf, without a protobuf object for each message.

tests/test_wire.py compares the result and the field numbers with the generated code.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

# Field numbers with their wire types, one byte each.
_NUMBER, _BYTES = 0, 2
_REQUEST_CORRELATION = 1 << 3 | _NUMBER
_REQUEST_PUBLISH = 2 << 3 | _BYTES
_REQUEST_MORE = 3 << 3 | _BYTES
_REQUEST_TAKES_MORE = 4 << 3 | _NUMBER
_REQUEST_RESUMES = 5 << 3 | _NUMBER
_PUBLISH_QUEUE = 1 << 3 | _BYTES
_PUBLISH_MESSAGES = 2 << 3 | _BYTES
_PUBLISH_PRODUCER = 3 << 3 | _BYTES
_PUBLISH_SPLITS = 4 << 3 | _NUMBER
_PRODUCER_ID = 1 << 3 | _BYTES
_PRODUCER_EPOCH = 2 << 3 | _NUMBER
_PRODUCER_SEQUENCE = 3 << 3 | _NUMBER
_PRODUCER_RETRY = 4 << 3 | _NUMBER
_MESSAGE_BODY = 1 << 3 | _BYTES

_TAKES_MORE = bytes((_REQUEST_TAKES_MORE, 1))
_RESUMES = bytes((_REQUEST_RESUMES, 1))
_RETRY = bytes((_PRODUCER_RETRY, 1))
_SPLITS = bytes((_PUBLISH_SPLITS, 1))


def varint(n: int) -> bytes:
    """Encode a non-negative number."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _number(tag: int, n: int) -> bytes:
    return bytes((tag,)) + varint(n) if n else b""


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content


@lru_cache(maxsize=1024)
def body_head(size: int) -> bytes:
    """Return the head of a message of a PublishRequest that consists of a body only."""
    inner = bytes((_MESSAGE_BODY,)) + varint(size) if size else b""
    return bytes((_PUBLISH_MESSAGES,)) + varint(len(inner) + size) + inner


@lru_cache(maxsize=1024)
def message_head(size: int) -> bytes:
    """Return the head of an encoded message of a PublishRequest."""
    return bytes((_PUBLISH_MESSAGES,)) + varint(size)


@lru_cache(maxsize=1024)
def _queue(name: str) -> bytes:
    return _field(_PUBLISH_QUEUE, name.encode())


class Request:
    """One request of a publish frame, in pieces."""

    __slots__ = ("pieces", "size")

    def __init__(
        self,
        queue: str,
        messages: Iterable[bytes],
        producer: str,
        epoch: int,
        sequence: int,
        retry: bool,
        splits: bool = False,
        resumes: bool = False,
    ) -> None:
        who = _field(_PRODUCER_ID, producer.encode()) + _number(_PRODUCER_EPOCH, epoch)
        who = _field(_PUBLISH_PRODUCER, who + _number(_PRODUCER_SEQUENCE, sequence) + (_RETRY if retry else b""))
        self.pieces = [b"", _queue(queue), *messages, who + _SPLITS if splits else who]
        size = sum(map(len, self.pieces))
        head = _number(_REQUEST_CORRELATION, sequence) + bytes((_REQUEST_PUBLISH,)) + varint(size)
        self.pieces[0] = head
        end = _TAKES_MORE + _RESUMES if resumes else _TAKES_MORE
        self.pieces.append(end)
        self.size = len(head) + size + len(end)


def bundle(requests: list[Request]) -> bytes:
    """Encode a PublishStreamRequest with the first request, and the others in `more`."""
    pieces = requests[0].pieces
    for r in requests[1:]:
        pieces.append(bytes((_REQUEST_MORE,)) + varint(r.size))
        pieces += r.pieces
    return b"".join(pieces)
