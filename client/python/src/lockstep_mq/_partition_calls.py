# SPDX-License-Identifier: Apache-2.0
"""Administrative calls for a queue or for each of its partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep_mq import _rpc, errors, queues
from lockstep_mq._calls import Caller, Request
from lockstep_mq._partition import partition_name
from lockstep_mq._proto import queue_pb2
from lockstep_mq.queues import Queue

if TYPE_CHECKING:
    from typing import TypeVar

    from google.protobuf.message import Message

    T = TypeVar("T")
    Resp = TypeVar("Resp", bound=Message)


@dataclass(frozen=True)
class Part:
    """The queue of one request: a queue that is not partitioned, or a partition."""

    name: str
    index: int = 0
    count: int = 0  # number of partitions; 0 if the queue is not partitioned


class PartitionCalls:
    """Repeats calls for each partition of a queue."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def _change(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        under: Request | None,
        timeout: float | None,
    ) -> Resp:
        return await self._caller.change(op, _rpc.QUEUE + method, request, response, timeout=timeout, under=under)

    async def _ask(self, op: str, method: str, request: Message, response: type[Resp], timeout: float | None) -> Resp:
        return await self._caller.ask(op, _rpc.QUEUE + method, request, response, timeout)

    async def _each(
        self,
        queue: str,
        call: Callable[[Part, Request | None], Awaitable[T]],
        under: Request | None,
        timeout: float | None,
    ) -> tuple[list[T], bool]:
        """Call a function for a queue or, if the queue is partitioned, for its partitions in order.

        Returns the results, and whether the queue is partitioned. With a Request, calls for partitions that have
        succeeded before are not repeated, and have no result.
        """
        try:
            return [await call(Part(queue), under)], False
        except errors.LockstepError as err:
            count = err.partitions
            if count and err.partitioned_queue != queue:  # the dead-letter queue is partitioned
                count = await self._partitions(queue, timeout)
            if not count:
                raise
        return await self._each_of(queue, count, call, under), True

    async def _each_of(
        self, queue: str, count: int, call: Callable[[Part, Request | None], Awaitable[T]], under: Request | None
    ) -> list[T]:
        """Call a function for each partition of a queue, in order, until it raises an error."""
        requests: list[Request] | list[None] = [None] * count if under is None else under._of_partitions(count)
        out = []
        for i, request in enumerate(requests):
            if request is None or not request._done:
                out.append(await call(Part(partition_name(queue, i, count), i, count), request))
        if under is not None:
            under._done = True
        return out

    async def _change_queue(
        self,
        queue: str,
        call: Callable[[Part, Request | None], Awaitable[Queue]],
        under: Request | None,
        timeout: float | None,
    ) -> Queue:
        """Change a queue or each of its partitions, and return it."""
        changed, partitioned = await self._each(queue, call, under, timeout)
        if not partitioned:
            return changed[0]
        if not changed:  # a retry: all calls had succeeded
            return await self._existing(queue, await self._partitions(queue, timeout), timeout)
        return queues.total(queue, changed)

    async def _partitions(self, queue: str, timeout: float | None) -> int:
        """Return the number of partitions of a queue; 0 if it is not partitioned or does not exist."""
        try:
            await self._get(queue, timeout)
        except errors.QueueNotFound:
            pass
        except errors.LockstepError as err:
            if err.partitioned_queue != queue:
                raise
            return err.partitions
        return 0

    async def _part_of(self, part: Part, other: str, timeout: float | None) -> str:
        """Return the partition of another queue with the same index, if that queue has as many partitions.

        Otherwise, return the name of the other queue.
        """
        if not part.count or not other or await self._partitions(other, timeout) != part.count:
            return other
        return partition_name(other, part.index, part.count)

    async def _existing(self, queue: str, count: int, timeout: float | None) -> Queue:
        """Return the sum of the partitions that exist."""

        async def get(part: Part, _: Request | None) -> Queue | None:
            try:
                return await self._get(part.name, timeout)
            except errors.QueueNotFound:
                return None

        found = [q for q in await self._each_of(queue, count, get, None) if q is not None]
        if not found:
            raise errors.QueueNotFound(f"get queue {queue}: the queue does not exist", reason="QUEUE_NOT_FOUND")
        return queues.total(queue, found)

    async def _get(self, name: str, timeout: float | None) -> Queue:
        response = await self._ask(
            f"get queue {name}",
            "GetQueue",
            queue_pb2.GetQueueRequest(name=name),
            queue_pb2.GetQueueResponse,
            timeout,
        )
        return queues.decode_queue(response.queue)
