# SPDX-License-Identifier: Apache-2.0
"""Transactions: publishes and acknowledgements over any number of queues, committed atomically."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from lockstep_mq import _rpc, errors, message
from lockstep_mq._calls import Caller, Identity
from lockstep_mq._fleet import Pair
from lockstep_mq._locator import Target
from lockstep_mq._partition import partition, partition_name
from lockstep_mq._proto import queue_pb2, types_pb2
from lockstep_mq.consumer import Delivery, ranges
from lockstep_mq.message import Publishable

if TYPE_CHECKING:
    from typing import TypeVar

    from google.protobuf.message import Message
    from typing_extensions import Self

    Resp = TypeVar("Resp", bound=Message)


@dataclass(frozen=True)
class OperationResult:
    """The result of one operation of a transaction.

    Attributes:
        first_sequence: Sequence of the first published message; for a partitioned queue, in one of the partitions.
        changed: Number of messages changed by an acknowledgement or release.
        discarded: Number of published messages that were not stored, as in a Receipt.
    """

    first_sequence: int
    changed: int
    discarded: int = 0


@dataclass(frozen=True)
class TransactionResult:
    """The result of a transaction.

    Attributes:
        lsn: LSN of the transaction, or, for a pair with sites, its logical number, which is equal at all sites.
        results: One element per operation, in the order of the calls.
        duplicate: Whether the result is that of an earlier attempt.
    """

    lsn: int
    results: tuple[OperationResult, ...]
    duplicate: bool


@dataclass
class Sent:
    """The operations that are sent for a transaction. While the outcome of an attempt is unknown, they do not change.

    Attributes:
        operations: The sent operations.
        parts: Number of these operations for each operation of the transaction.
    """

    operations: list[queue_pb2.Operation] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def results(self, received: Iterable[queue_pb2.OperationResult]) -> tuple[OperationResult, ...]:
        """Return the results of the operations of the transaction."""
        left, out = iter(received), []
        for n in self.parts:
            some = list(itertools.islice(left, n))
            out.append(
                OperationResult(
                    some[0].first_sequence if some else 0,
                    sum(r.changed for r in some),
                    sum(len(r.duplicates) for r in some),
                )
            )
        return tuple(out)


class Transaction:
    """Collects operations and commits them atomically. Created by Client.transaction().

    As a context manager, a transaction calls commit() at the end of the block, or rollback() if the block raises.
    """

    def __init__(self, caller: Caller, max_message_bytes: int, timeout: float | None) -> None:
        self._caller, self._max_message_bytes, self._timeout = caller, max_message_bytes, timeout
        self._operations: list[queue_pb2.Operation] = []
        self._acked: list[Delivery] = []
        self._released: list[Delivery] = []
        self._sent = Sent()
        self._identity = Identity()
        self._ended = False
        self._xid: str | None = None  # of the last prepare(); None for commit()
        self.result: TransactionResult | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._ended and self._operations:
            await self.commit()

    def publish(self, queue: str, *ms: Publishable) -> Self:
        """Publish messages to one queue when the transaction commits.

        The call counts as one operation, and for a partitioned queue, as one operation per partition of the messages.
        The results contain one element in both cases. All partitions of the messages must be at one pair.
        """
        self._may_add()
        if not ms:
            raise errors.InvalidRequest("no messages")
        messages = [message.encode(m, self._max_message_bytes) for m in ms]
        self._operations.append(queue_pb2.Operation(publish=queue_pb2.PublishOperation(queue=queue, messages=messages)))
        return self

    def take(self, *ds: Delivery) -> Self:
        """Acknowledge deliveries of one subscription, on the condition that no message is already acknowledged.

        Messages reserved by a prepared transaction do not meet the condition either. If the condition is not met,
        commit() raises Processed. The call counts as one operation.
        """
        self._ack(ds, required=True)
        return self

    def ack(self, *ds: Delivery) -> Self:
        """Acknowledge deliveries of one subscription unconditionally. The call counts as one operation."""
        self._ack(ds, required=False)
        return self

    def release(self, *ds: Delivery) -> Self:
        """Requeue deliveries of one subscription when the transaction commits. The call counts as one operation."""
        self._may_add()
        queue, subscription, queue_id = _origin(ds)
        self._operations.append(
            queue_pb2.Operation(
                release=queue_pb2.ReleaseOperation(
                    queue=queue,
                    subscription=subscription,
                    queue_id=queue_id,
                    ranges=_ranges(ds),
                    site_epoch=_site_epoch(ds),
                )
            )
        )
        self._released.extend(ds)
        return self

    def _ack(self, ds: tuple[Delivery, ...], *, required: bool) -> None:
        self._may_add()
        queue, subscription, queue_id = _origin(ds)
        self._operations.append(
            queue_pb2.Operation(
                ack=queue_pb2.AckOperation(
                    queue=queue,
                    subscription=subscription,
                    queue_id=queue_id,
                    ranges=_ranges(ds),
                    required=required,
                    site_epoch=_site_epoch(ds),
                )
            )
        )
        self._acked.extend(ds)

    async def commit(self, *, timeout: float | None = None) -> TransactionResult:
        """Commit the transaction, and return after every in-sync node has stored it.

        Raises:
            Processed: The condition of take() is not met. Nothing was stored, and the transaction is rolled back.
            InvalidRequest: A delivery of the transaction is outdated (see Delivery.outdated). Nothing was stored. After
                an attempt without a response, the error is OutcomeLost.
            NotDone: Nothing was stored. Another call is a new attempt.
            OutcomeUnknown: The transaction may or may not be stored. Another call retries the same transaction, which
                is committed at most once.
        """
        self._ready(None)
        try:
            response = await self._send(
                "commit",
                "Commit",
                lambda operations: queue_pb2.CommitRequest(operations=operations),
                queue_pb2.CommitResponse,
                timeout,
            )
        except errors.Processed:
            self.rollback()
            raise
        self._done(committed=True)
        self.result = TransactionResult(
            lsn=response.lsn,
            results=self._sent.results(response.results),
            duplicate=response.duplicate,
        )
        return self.result

    async def prepare(self, xid: str, *, timeout: float | None = None) -> int:
        """Execute the first phase of a two-phase commit, and return its `lsn`, as in TransactionResult.

        The transaction is stored on every in-sync node, and has no visible effect until Admin.commit_prepared() or
        Admin.rollback_prepared(), but the messages that it acknowledges are not delivered in the meantime. It must not
        contain a release(), and ack() has the condition of take(). After OutcomeUnknown, the call may be repeated with
        the same xid.

        Args:
            xid: Identifies the transaction: 1 to 128 bytes of printable UTF-8, unique for each transaction.
            timeout: Seconds to wait for a node.
        """
        self._ready(xid)
        prepared = False
        try:
            response = await self._send(
                f"prepare {xid}",
                "Prepare",
                lambda operations: queue_pb2.PrepareRequest(xid=xid, operations=operations),
                queue_pb2.PrepareResponse,
                timeout,
            )
            prepared = True
        finally:
            pair = self._identity.pair
            if pair is not None and (prepared or self._identity.outcome.unknown):
                self._caller.fleet.record_prepared(xid, pair)
        self._done(committed=False)
        return response.lsn

    def rollback(self) -> None:
        """Discard the transaction and requeue its deliveries.

        Unacknowledged messages are redelivered with a higher delivery_count. The call has no effect after a successful
        commit() or prepare(). It is also safe after OutcomeUnknown: if the commit took effect, acknowledged messages
        are not redelivered.
        """
        if self._ended:
            return
        self._ended = True
        for d in self._acked + self._released:
            d.nack()

    async def _send(
        self,
        op: str,
        method: str,
        request: Callable[[list[queue_pb2.Operation]], Message],
        response: type[Resp],
        timeout: float | None,
    ) -> Resp:
        """Send the operations, again if a queue has turned out to be partitioned."""
        deadline = self._caller.deadline(self._timeout if timeout is None else timeout)
        partitions = self._caller.fleet.partitions
        self._identity.outcome.check = self._check if self._acked or self._released else None
        while True:
            if not self._identity.outcome.unknown or not self._sent.operations:
                self._sent = self._divide()
            left = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)
            try:
                return await self._caller.change(
                    op,
                    _rpc.QUEUE + method,
                    request(self._sent.operations),
                    response,
                    timeout=left,
                    identity=self._identity,
                    pair=self._pair(),
                )
            except errors.LockstepError as err:
                if not err.partitions or self._identity.outcome.unknown:
                    raise
                queue = err.partitioned_queue
                if all(o.publish.queue != queue for o in self._sent.operations):
                    raise
                partitions.learn(types_pb2.QueuePartitioned(queue=queue, count=err.partitions))

    def _divide(self) -> Sent:
        """Return the operations to send: a publish to a partitioned queue becomes one operation per partition."""
        sent = Sent()
        for o in self._operations:
            count = self._caller.fleet.partitions.of(o.publish.queue) if o.HasField("publish") else 0
            divided = self._divide_publish(o.publish, count) if count else [o]
            sent.operations += divided
            sent.parts.append(len(divided))
        return sent

    def _divide_publish(self, publish: queue_pb2.PublishOperation, count: int) -> list[queue_pb2.Operation]:
        """Return one operation per partition, in the order of the first message of each partition."""
        found: dict[int, queue_pb2.Operation] = {}
        without_group = self._partition_without_group(count)
        for m in publish.messages:
            at = partition(m.group, count) if m.group else without_group
            if at not in found:
                to = queue_pb2.PublishOperation(queue=partition_name(publish.queue, at, count))
                found[at] = queue_pb2.Operation(publish=to)
            found[at].publish.messages.append(m)
        return list(found.values())

    def _partition_without_group(self, count: int) -> int:
        """Return the partition for messages without a group.

        If the transaction acknowledges messages of a queue with the same number of partitions, it is the partition of
        the first of these messages, otherwise a random one.
        """
        for d in self._acked:
            index, _, number = d.partition.partition("#")[2].partition("/")
            if number == str(count):
                return int(index)
        return random.randrange(count)  # noqa: S311 # not for security

    def _pair(self) -> Pair:
        """Return the pair of the first attempt: that of the deliveries, or of the first queue with a known owner."""
        fleet = self._caller.fleet
        for d in self._acked + self._released:
            return d.consumer._pair
        owners = (fleet.owner(o.publish.queue) for o in self._sent.operations)
        return next((p for p in owners if p is not None), fleet.home)

    def _check(self, target: Target | None) -> None:
        for d in self._acked + self._released:
            d.consumer._check_era(d, target)

    def _may_add(self) -> None:
        if self._ended:
            raise errors.InvalidRequest("the transaction has ended")
        if self._identity.outcome.unknown:
            raise errors.InvalidRequest(
                "the outcome of commit() is unknown: call it again, and use another transaction for new operations"
            )

    def _ready(self, xid: str | None) -> None:
        """Raise InvalidRequest if the transaction cannot be committed, or prepared under an xid."""
        if self._ended:
            raise errors.InvalidRequest("the transaction has ended")
        if self._identity.outcome.unknown and self._xid != xid:
            earlier = f"prepare({self._xid!r})" if self._xid is not None else "commit()"
            raise errors.InvalidRequest(f"the outcome of {earlier} is unknown: call it again")
        self._xid = xid
        if not self._operations:
            raise errors.InvalidRequest("the transaction is empty")

    def _done(self, *, committed: bool) -> None:
        """Record that the transaction is committed or prepared: the consumers no longer hold its deliveries."""
        self._ended = True
        for d in self._acked:
            d.consumer._answered_elsewhere(d, "ack", committed=committed)
        for d in self._released:
            d.consumer._answered_elsewhere(d, "nack", committed=committed)


def _site_epoch(ds: Iterable[Delivery]) -> int:
    return min(d.consumer._epoch for d in ds)


def _origin(ds: Iterable[Delivery]) -> tuple[str, str, int]:
    found = {(d.consumer.queue, d.consumer.subscription, d.consumer.queue_id) for d in ds}
    if len(found) != 1:
        raise errors.InvalidRequest(
            "no deliveries" if not found else "deliveries of different subscriptions: use one operation for each"
        )
    return found.pop()


def _ranges(ds: Iterable[Delivery]) -> list[types_pb2.SequenceRange]:
    return ranges([d.sequence for d in ds])
