# SPDX-License-Identifier: Apache-2.0
"""Partitioned queues."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

from lockstep_mq import errors
from lockstep_mq._proto import types_pb2

MIN_PARTITIONS, MAX_PARTITIONS = 2, 64  # of a queue
MAX_QUEUES = 10_000  # queues with a recorded number of partitions
_STICKY = 16
"""Messages without a group that are sent to one partition before the next one."""


def partition(group: str, count: int) -> int:
    """Return the partition of a message group in a queue with `count` partitions.

    The hash of a group is the upper half of the CRC-32 (IEEE 802.3) of its UTF-8 bytes. Each partition has a
    contiguous range of hashes.
    """
    return (zlib.crc32(group.encode()) >> 16) * count >> 16


def partition_name(queue: str, index: int, count: int) -> str:
    """Return the name of the queue of a partition, such as `orders#3/8`."""
    return f"{queue}#{index}/{count}"


def tagged(queue: str) -> bool:
    """Report whether a queue name contains a tag, which is the default of the placement group."""
    tag, closed, _ = queue.partition("{")[2].partition("}")
    return bool(tag and closed)


class Partitions:
    """The numbers of partitions of queues, as reported by QUEUE_PARTITIONED."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, queue: str) -> int:
        """Return the number of partitions of a queue; 0 if it is not known to be partitioned."""
        return self._counts.get(queue, 0)

    def learn(self, reported: types_pb2.QueuePartitioned) -> None:
        """Record a response."""
        if len(self._counts) >= MAX_QUEUES:
            self._counts.clear()
        self._counts[reported.queue] = reported.count

    def missing(self, name: str) -> None:
        """Record that a queue, possibly a partition, does not exist."""
        queue, _, number = name.partition("#")
        if number and self.of(queue) == int(number.partition("/")[2]):
            del self._counts[queue]


class Divider:
    """Assigns the publishes of a producer to one queue to its partitions."""

    def __init__(self, queue: str, count: int) -> None:
        self.queue, self.count = queue, count
        self._sticky = random.randrange(count)  # noqa: S311 # not for security
        self._left = _STICKY

    def queue_of(self, groups: Iterable[str], messages: int) -> str:
        """Return the queue for messages of these groups.

        Raises:
            InvalidRequest: The groups belong to different partitions.
        """
        found = {partition(g, self.count) for g in groups}
        if len(found) > 1:
            raise errors.InvalidRequest(
                f"publish to {self.queue}: a batch has messages of the partitions {sorted(found)}: publish one batch "
                "for each, or use a transaction"
            )
        return partition_name(self.queue, found.pop() if found else self._next(messages), self.count)

    def _next(self, messages: int) -> int:
        if self._left <= 0:
            self._sticky, self._left = (self._sticky + 1) % self.count, _STICKY
        self._left -= messages
        return self._sticky
