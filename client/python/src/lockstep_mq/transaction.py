# SPDX-License-Identifier: Apache-2.0
"""Publishes and acknowledgements over any number of queues, all or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from lockstep_mq import _rpc, errors, message
from lockstep_mq._calls import Caller, Identity
from lockstep_mq._proto import queue_pb2, types_pb2
from lockstep_mq.consumer import Delivery, ranges
from lockstep_mq.message import Publishable

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class OperationResult:
    """What one operation of a transaction did.

    Attributes:
        first_sequence: Of a publish: the sequence of its first message.
        changed: Of an acknowledgement or release: how many messages it changed.
    """

    first_sequence: int
    changed: int


@dataclass(frozen=True)
class TransactionResult:
    """What a transaction did.

    Attributes:
        lsn: Its log sequence number.
        results: One for each operation, in the order of the calls.
        duplicate: An earlier attempt had been committed.
    """

    lsn: int
    results: tuple[OperationResult, ...]
    duplicate: bool


class Transaction:
    """Collects operations, and commits them all or none. Made by Client.transaction().

    As a context manager it commits at the end of the block, and repeats that until a node has answered; if the block
    raises, what was taken is given back, and nothing is stored.
    """

    def __init__(self, caller: Caller, max_message_bytes: int, timeout: float | None) -> None:
        self._caller, self._max_message_bytes, self._timeout = caller, max_message_bytes, timeout
        self._operations: list[queue_pb2.Operation] = []
        self._acked: list[Delivery] = []
        self._released: list[Delivery] = []
        self._taken: list[Delivery] = []
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
        """Publish messages to one queue when the transaction commits. One operation."""
        self._may_add()
        if not ms:
            raise errors.InvalidRequest("no message given")
        messages = [message.encode(m, self._max_message_bytes) for m in ms]
        self._operations.append(queue_pb2.Operation(publish=queue_pb2.PublishOperation(queue=queue, messages=messages)))
        return self

    def take(self, *ds: Delivery) -> Self:
        """Acknowledge deliveries of one subscription, if none of them was processed elsewhere.

        Otherwise commit() ends with Processed. So what is made of a message is published once, however often the
        message was delivered. One operation.
        """
        self._ack(ds, required=True)
        self._taken.extend(ds)
        return self

    def ack(self, *ds: Delivery) -> Self:
        """Acknowledge deliveries of one subscription, processed elsewhere or not. One operation."""
        self._ack(ds, required=False)
        return self

    def release(self, *ds: Delivery) -> Self:
        """Give deliveries of one subscription back when the transaction commits. One operation."""
        self._may_add()
        queue, subscription, queue_id = _origin(ds)
        self._operations.append(
            queue_pb2.Operation(
                release=queue_pb2.ReleaseOperation(
                    queue=queue, subscription=subscription, queue_id=queue_id, ranges=_ranges(ds)
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
                    queue=queue, subscription=subscription, queue_id=queue_id, ranges=_ranges(ds), required=required
                )
            )
        )
        self._acked.extend(ds)

    async def commit(self, *, timeout: float | None = None) -> TransactionResult:
        """Send the transaction, and return when it is durable on every in-sync node.

        Raises:
            Processed: A message that is taken was processed elsewhere. Nothing was stored, and what was taken is given
                back.
            NotDone: Nothing was stored. It may be called again, which is a new attempt.
            OutcomeUnknown: It may or may not be stored. It may be called again: it asks for the same transaction, which
                is committed once at most.
        """
        operations = self._ready(None)
        try:
            response = await self._caller.change(
                "commit",
                _rpc.QUEUE + "Commit",
                queue_pb2.CommitRequest(operations=operations),
                queue_pb2.CommitResponse,
                timeout=self._timeout if timeout is None else timeout,
                identity=self._identity,
            )
        except errors.Processed:
            self.rollback()
            raise
        self._done()
        self.result = TransactionResult(
            lsn=response.lsn,
            results=tuple(OperationResult(r.first_sequence, r.changed) for r in response.results),
            duplicate=response.duplicate,
        )
        return self.result

    async def prepare(self, xid: str, *, timeout: float | None = None) -> int:
        """First phase of a transaction over several resource managers: CommitPrepared will work once it is answered.

        Only publish and take (or ack) are possible. Repeat it after OutcomeUnknown, until it is answered; then call
        Admin.commit_prepared or Admin.rollback_prepared. Returns the log sequence number.
        """
        operations = self._ready(xid)
        response = await self._caller.change(
            f"prepare {xid}",
            _rpc.QUEUE + "Prepare",
            queue_pb2.PrepareRequest(xid=xid, operations=operations),
            queue_pb2.PrepareResponse,
            timeout=self._timeout if timeout is None else timeout,
            identity=self._identity,
        )
        self._done()
        return response.lsn

    def rollback(self) -> None:
        """Give what was taken back, to be delivered again. After OutcomeUnknown it is safe as well."""
        if self._ended:
            return
        self._ended = True
        for d in self._taken:
            d.nack()

    def _may_add(self) -> None:
        if self._ended:
            raise errors.InvalidRequest("the transaction has ended")
        if self._identity.doubt.unknown:
            raise errors.InvalidRequest(
                "the outcome of commit() is not known: call it again, and take another transaction for what is new"
            )

    def _ready(self, xid: str | None) -> list[queue_pb2.Operation]:
        """What to send: to be committed, or to be prepared under an xid."""
        if self._ended:
            raise errors.InvalidRequest("the transaction has ended")
        if self._identity.doubt.unknown and self._xid != xid:
            earlier = f"prepare({self._xid!r})" if self._xid is not None else "commit()"
            raise errors.InvalidRequest(f"the outcome of {earlier} is not known: call it again")
        self._xid = xid
        if not self._operations:
            raise errors.InvalidRequest("the transaction is empty")
        return self._operations

    def _done(self) -> None:
        """Take note that it is committed, or prepared: what it has answered is with the consumers no more."""
        self._ended = True
        for d in self._acked:
            d.consumer._answered_elsewhere(d, "ack")
        for d in self._released:
            d.consumer._answered_elsewhere(d, "nack")


def _origin(ds: Iterable[Delivery]) -> tuple[str, str, int]:
    """Where deliveries come from, which must be one subscription."""
    found = {(d.consumer.queue, d.consumer.subscription, d.consumer.queue_id) for d in ds}
    if len(found) != 1:
        raise errors.InvalidRequest(
            "no delivery given" if not found else "deliveries of different subscriptions: use one operation for each"
        )
    return found.pop()


def _ranges(ds: Iterable[Delivery]) -> list[types_pb2.SequenceRange]:
    return ranges([d.sequence for d in ds])
