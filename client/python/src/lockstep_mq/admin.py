# SPDX-License-Identifier: Apache-2.0
"""Queues, subscriptions, prepared transactions, and the status of the pair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Literal

from google.protobuf.field_mask_pb2 import FieldMask

from lockstep_mq import _rpc, errors, message
from lockstep_mq._calls import Caller
from lockstep_mq._failure import Failure
from lockstep_mq._proto import admin_pb2, queue_pb2, types_pb2

Overflow = Literal["reject", "drop-head", "dead-letter-head"]
Start = Literal["latest", "earliest"]

_OVERFLOW: dict[Overflow, types_pb2.Overflow] = {
    "reject": types_pb2.OVERFLOW_REJECT,
    "drop-head": types_pb2.OVERFLOW_DROP_HEAD,
    "dead-letter-head": types_pb2.OVERFLOW_DEAD_LETTER_HEAD,
}
_START: dict[Start, types_pb2.StartPosition] = {
    "latest": types_pb2.START_POSITION_LATEST,
    "earliest": types_pb2.START_POSITION_EARLIEST,
}


@dataclass(frozen=True)
class QueueConfig:
    """What can be altered on a queue. The default has no limits; docs/queues.md has the meaning of each."""

    max_messages: int = 0
    max_bytes: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""
    ttl: timedelta = timedelta()
    delay: timedelta = timedelta()
    redelivery_delay: timedelta = timedelta()
    redelivery_multiplier: float = 0
    redelivery_max_delay: timedelta = timedelta()
    retention_age: timedelta = timedelta()
    retention_bytes: int = 0
    retention_messages: int = 0
    overflow: Overflow = "reject"
    priorities: bool = False
    exclusive: bool = False
    dead_letter_expired: bool = False
    temporary_grace: timedelta = timedelta()


@dataclass(frozen=True)
class Subscription:
    """A durable cursor on a queue. `backlog` is what it has still to acknowledge, an upper bound if it has a filter."""

    name: str
    floor: int
    backlog: int
    in_flight: int
    consumers: int
    filter: str


@dataclass(frozen=True)
class Queue:
    """A queue as it is now."""

    name: str
    id: int
    config: QueueConfig
    next_sequence: int
    messages: int
    bytes: int
    delayed: int
    dropped: int
    expired: int
    subscriptions: tuple[Subscription, ...] = field(default=())


@dataclass(frozen=True)
class NodeStatus:
    """What a node says of itself."""

    address: str
    name: str
    role: str
    reason: str
    term: int
    version: str
    conditions: tuple[str, ...]


def _encode_config(c: QueueConfig) -> types_pb2.QueueConfig:
    out = types_pb2.QueueConfig()
    for f in fields(c):
        value = getattr(c, f.name)
        if f.name == "overflow":
            if value not in _OVERFLOW:
                raise errors.InvalidRequest(f"overflow {value!r} is none of {', '.join(_OVERFLOW)}")
            out.overflow = _OVERFLOW[value]
        elif isinstance(value, timedelta):
            if value:
                getattr(out, f.name).CopyFrom(message.duration(value))
        elif value:
            setattr(out, f.name, value)
    return out


def _decode_config(c: types_pb2.QueueConfig) -> QueueConfig:
    out = QueueConfig()
    for f in fields(out):
        value = getattr(c, f.name)
        if f.name == "overflow":
            names = {number: name for name, number in _OVERFLOW.items()}
            out = replace(out, overflow=names.get(value, "reject"))
        elif isinstance(getattr(out, f.name), timedelta):
            out = replace(out, **{f.name: value.ToTimedelta()})
        else:
            out = replace(out, **{f.name: value})
    return out


def _decode_queue(q: types_pb2.Queue) -> Queue:
    return Queue(
        name=q.name,
        id=q.id,
        config=_decode_config(q.config),
        next_sequence=q.next_sequence,
        messages=q.messages,
        bytes=q.bytes,
        delayed=q.delayed,
        dropped=q.dropped,
        expired=q.expired,
        subscriptions=tuple(_decode_subscription(s) for s in q.subscriptions),
    )


def _decode_subscription(s: types_pb2.Subscription) -> Subscription:
    return Subscription(s.name, s.floor, s.backlog, s.in_flight, s.consumers, s.filter)


class Admin:
    """Queues, subscriptions and status, as Client.admin.

    What changes something is repeated with its own sequence until it is answered, so that it is done once. Errors are
    those of lockstep_mq.errors; a timeout is in seconds.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def create_queue(
        self,
        name: str,
        config: QueueConfig | None = None,
        *,
        subscriptions: Iterable[str] = (),
        topic: bool = False,
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> Queue:
        """Make a queue with its first subscriptions: "default" if none is named; `topic` begins with none."""
        encoded, names = _encode_config(config or QueueConfig()), list(subscriptions)
        response = await self._caller.change(
            f"create queue {name}",
            lambda producer: (
                _rpc.QUEUE + "CreateQueue",
                queue_pb2.CreateQueueRequest(
                    name=name,
                    config=encoded,
                    subscriptions=names,
                    topic=topic,
                    if_not_exists=if_not_exists,
                    producer=producer,
                ),
                queue_pb2.CreateQueueResponse,
            ),
            timeout=timeout,
        )
        return _decode_queue(response.queue)

    async def alter_queue(
        self, name: str, config: QueueConfig, change: Iterable[str], *, timeout: float | None = None
    ) -> Queue:
        """Change those fields of a queue's configuration that `change` names; "*" is all of them."""
        encoded, mask = _encode_config(config), FieldMask(paths=list(change))
        response = await self._caller.change(
            f"alter queue {name}",
            lambda producer: (
                _rpc.QUEUE + "AlterQueue",
                queue_pb2.AlterQueueRequest(name=name, config=encoded, update_mask=mask, producer=producer),
                queue_pb2.AlterQueueResponse,
            ),
            timeout=timeout,
        )
        return _decode_queue(response.queue)

    async def delete_queue(self, name: str, *, if_empty: bool = False, timeout: float | None = None) -> int:
        """Remove a queue with its messages; returns how many there were."""
        response = await self._caller.change(
            f"delete queue {name}",
            lambda producer: (
                _rpc.QUEUE + "DeleteQueue",
                queue_pb2.DeleteQueueRequest(name=name, if_empty=if_empty, producer=producer),
                queue_pb2.DeleteQueueResponse,
            ),
            timeout=timeout,
        )
        return response.messages

    async def purge_queue(self, name: str, subscription: str = "", *, timeout: float | None = None) -> int:
        """Acknowledge everything that a subscription, or all of them, have still to acknowledge."""
        response = await self._caller.change(
            f"purge {name}",
            lambda producer: (
                _rpc.QUEUE + "PurgeQueue",
                queue_pb2.PurgeQueueRequest(name=name, subscription=subscription, producer=producer),
                queue_pb2.PurgeQueueResponse,
            ),
            timeout=timeout,
        )
        return response.messages

    async def get_queue(self, name: str, *, timeout: float | None = None) -> Queue:
        """Describe a queue."""
        response = await self._caller.read(
            f"get queue {name}",
            lambda channel, metadata: _rpc.unary(
                channel,
                _rpc.QUEUE + "GetQueue",
                queue_pb2.GetQueueRequest(name=name),
                queue_pb2.GetQueueResponse,
                metadata,
            ),
            timeout,
        )
        return _decode_queue(response.queue)

    async def list_queues(self, prefix: str = "", *, timeout: float | None = None) -> AsyncIterator[Queue]:
        """Describe queues in the order of their names, page by page."""
        request = queue_pb2.ListQueuesRequest(prefix=prefix)
        while True:
            response = await self._caller.read(
                "list queues",
                lambda channel, metadata: _rpc.unary(
                    channel, _rpc.QUEUE + "ListQueues", request, queue_pb2.ListQueuesResponse, metadata
                ),
                timeout,
            )
            for q in response.queues:
                yield _decode_queue(q)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def create_subscription(
        self,
        queue: str,
        name: str,
        *,
        start: Start | int | datetime = "latest",
        filter: str = "",  # noqa: A002 # the protocol's name
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> Subscription:
        """Add a durable cursor, which begins with the next message, the oldest one, a sequence or a time."""
        request = queue_pb2.CreateSubscriptionRequest(
            queue=queue, name=name, filter=filter, if_not_exists=if_not_exists
        )
        if isinstance(start, datetime):
            request.start_time.CopyFrom(message.timestamp(start, "start"))
        elif isinstance(start, int):
            request.start_sequence = start
        else:
            request.start = _START[start]

        def make(
            producer: types_pb2.Producer,
        ) -> tuple[str, queue_pb2.CreateSubscriptionRequest, type[queue_pb2.CreateSubscriptionResponse]]:
            request.producer.CopyFrom(producer)
            return _rpc.QUEUE + "CreateSubscription", request, queue_pb2.CreateSubscriptionResponse

        response = await self._caller.change(f"create subscription {queue}/{name}", make, timeout=timeout)
        return _decode_subscription(response.subscription)

    async def delete_subscription(self, queue: str, name: str, *, timeout: float | None = None) -> None:
        """Remove a cursor; messages that only it had still to read are gone."""
        await self._caller.change(
            f"delete subscription {queue}/{name}",
            lambda producer: (
                _rpc.QUEUE + "DeleteSubscription",
                queue_pb2.DeleteSubscriptionRequest(queue=queue, name=name, producer=producer),
                queue_pb2.DeleteSubscriptionResponse,
            ),
            timeout=timeout,
        )

    async def seek(
        self,
        queue: str,
        to: Start | int | datetime,
        *,
        subscription: str = "default",
        timeout: float | None = None,
    ) -> int:
        """Move a subscription; returns the sequence of the first message that it gets."""
        request = queue_pb2.SeekSubscriptionRequest(queue=queue, subscription=subscription)
        if isinstance(to, datetime):
            request.time.CopyFrom(message.timestamp(to, "to"))
        elif isinstance(to, int):
            request.sequence = to
        else:
            request.position = _START[to]

        def make(
            producer: types_pb2.Producer,
        ) -> tuple[str, queue_pb2.SeekSubscriptionRequest, type[queue_pb2.SeekSubscriptionResponse]]:
            request.producer.CopyFrom(producer)
            return _rpc.QUEUE + "SeekSubscription", request, queue_pb2.SeekSubscriptionResponse

        response = await self._caller.change(f"seek {queue}/{subscription}", make, timeout=timeout)
        return response.sequence

    async def commit_prepared(self, xid: str, *, timeout: float | None = None) -> None:
        """Carry a prepared transaction out. It may be repeated."""
        await self._caller.read(
            f"commit {xid}",
            lambda channel, metadata: _rpc.unary(
                channel,
                _rpc.QUEUE + "CommitPrepared",
                queue_pb2.CommitPreparedRequest(xid=xid),
                queue_pb2.CommitPreparedResponse,
                metadata,
            ),
            timeout,
        )

    async def rollback_prepared(self, xid: str, *, timeout: float | None = None) -> None:
        """Drop a prepared transaction. It may be repeated."""
        await self._caller.read(
            f"roll back {xid}",
            lambda channel, metadata: _rpc.unary(
                channel,
                _rpc.QUEUE + "RollbackPrepared",
                queue_pb2.RollbackPreparedRequest(xid=xid),
                queue_pb2.RollbackPreparedResponse,
                metadata,
            ),
            timeout,
        )

    async def list_prepared(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """Name the transactions that wait for a decision, the oldest first."""
        request = queue_pb2.ListPreparedRequest()
        while True:
            response = await self._caller.read(
                "list prepared transactions",
                lambda channel, metadata: _rpc.unary(
                    channel, _rpc.QUEUE + "ListPrepared", request, queue_pb2.ListPreparedResponse, metadata
                ),
                timeout,
            )
            for t in response.transactions:
                yield t.xid
            if not response.more or not response.transactions:
                return
            request.after_lsn = response.transactions[-1].lsn

    async def status(self, *, timeout: float = 5.0) -> dict[str, NodeStatus | errors.LockstepError]:
        """Ask each known node for its status: by address, the status or why there is none."""
        out: dict[str, NodeStatus | errors.LockstepError] = {}
        locator = self._caller.locator
        for node in locator.nodes:
            try:
                call = _rpc.unary(
                    node.channel,
                    _rpc.ADMIN + "GetStatus",
                    admin_pb2.GetStatusRequest(),
                    admin_pb2.GetStatusResponse,
                    await locator.tokens.metadata(),
                )
                s = await _rpc.bound(call, node.address, deadline=self._caller.deadline(timeout))
            except Failure as f:
                out[node.address] = f.error("status")
                continue
            out[node.address] = NodeStatus(
                address=node.address,
                name=s.node.name,
                role=admin_pb2.Role.Name(s.role).removeprefix("ROLE_").lower(),
                reason=s.reason,
                term=s.pair.term,
                version=s.version,
                conditions=tuple(c.kind for c in s.conditions),
            )
        return out

    async def switchover(self, *, to: str = "", timeout: float = 10.0) -> str:
        """Hand the active role to the other node, or to the one named; returns the address of the active.

        It is repeated until it is answered, which is safe: where the role is to go is decided before it is asked for.
        """
        limit = 2 * timeout
        if not to:
            status = await self._caller.read(
                "switchover",
                lambda channel, metadata: _rpc.unary(
                    channel,
                    _rpc.ADMIN + "GetStatus",
                    admin_pb2.GetStatusRequest(),
                    admin_pb2.GetStatusResponse,
                    metadata,
                ),
                limit,
            )
            others = [n.node_id for n in status.pair.nodes if not n.active]
            if not others:
                raise errors.WrongState("switchover: the pair has no other node", reason="NO_PARTNER")
            to = others[0]
        response = await self._caller.read(
            "switchover",
            lambda channel, metadata: _rpc.unary(
                channel,
                _rpc.ADMIN + "Switchover",
                admin_pb2.SwitchoverRequest(to=to, timeout=message.duration(timedelta(seconds=timeout))),
                admin_pb2.SwitchoverResponse,
                metadata,
            ),
            limit,
        )
        return response.active_address


__all__ = ["Admin", "NodeStatus", "Overflow", "Queue", "QueueConfig", "Start", "Subscription"]
