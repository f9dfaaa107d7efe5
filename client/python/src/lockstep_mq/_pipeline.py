# SPDX-License-Identifier: Apache-2.0
"""The entries and requests of a producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from lockstep_mq.message import Receipt

    Future = asyncio.Future[Receipt]


class Entry:
    """One publish call."""

    __slots__ = ("bytes", "count", "future", "pieces", "queue", "taken")

    def __init__(self, queue: str, pieces: Sequence[bytes], count: int, size: int, future: Future) -> None:
        self.queue = queue
        self.pieces = pieces  # the encoded messages
        self.count = count  # number of messages
        self.bytes = size
        self.future = future
        self.taken = False  # part of a request, so it may be committed, or completed


class Request:
    """The unit of sending and retrying."""

    __slots__ = ("bytes", "count", "entries", "last", "queue", "repeated", "sent", "sequence")

    def __init__(self, sequence: int, queue: str) -> None:
        self.sequence = sequence  # producer sequence, also the correlation ID
        self.queue = queue
        self.entries: list[Entry] = []
        self.count = self.bytes = 0  # number and size of the messages
        self.sent = False  # under its current identity
        self.repeated = False  # sent more than once
        self.last = False  # last request of its frame
