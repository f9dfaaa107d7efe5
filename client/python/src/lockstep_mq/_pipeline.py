# SPDX-License-Identifier: Apache-2.0
"""What goes through a producer."""

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
        self.pieces = pieces  # the messages, encoded
        self.count = count  # of messages
        self.bytes = size
        self.future = future
        self.taken = False  # it is in a request, and may be carried out, or needs nothing more


class Request:
    """What is sent, and repeated, as one."""

    __slots__ = ("bytes", "count", "entries", "last", "queue", "repeated", "sent", "sequence")

    def __init__(self, sequence: int, queue: str) -> None:
        self.sequence = sequence  # of the producer, and the correlation
        self.queue = queue
        self.entries: list[Entry] = []
        self.count = self.bytes = 0  # of their messages
        self.sent = False  # under its present identity
        self.repeated = False  # more than once
        self.last = False  # of those that were sent together
