# SPDX-License-Identifier: Apache-2.0
"""Configuration and description of queues, subscriptions and prepared transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from google.protobuf.duration_pb2 import Duration

from lockstep_mq import errors, message
from lockstep_mq._proto import queue_pb2, types_pb2
from lockstep_mq.queue_config import Overflow, QueueConfig

Start = Literal["latest", "earliest"]

Order = Literal["name", "messages", "bytes", "age", "published", "delivered", "acknowledged", "consumers"]
"""The sort key of a list of queues. Queues with equal keys are sorted by name."""

_ORDER: dict[Order, queue_pb2.QueueOrder] = {
    "name": queue_pb2.QUEUE_ORDER_NAME,
    "messages": queue_pb2.QUEUE_ORDER_MESSAGES,
    "bytes": queue_pb2.QUEUE_ORDER_BYTES,
    "age": queue_pb2.QUEUE_ORDER_AGE,
    "published": queue_pb2.QUEUE_ORDER_PUBLISHED,
    "delivered": queue_pb2.QUEUE_ORDER_DELIVERED,
    "acknowledged": queue_pb2.QUEUE_ORDER_ACKNOWLEDGED,
    "consumers": queue_pb2.QUEUE_ORDER_CONSUMERS,
}

_OVERFLOW: dict[Overflow, types_pb2.Overflow] = {
    "reject": types_pb2.OVERFLOW_REJECT,
    "drop-head": types_pb2.OVERFLOW_DROP_HEAD,
    "dead-letter-head": types_pb2.OVERFLOW_DEAD_LETTER_HEAD,
}
START: dict[Start, types_pb2.StartPosition] = {
    "latest": types_pb2.START_POSITION_LATEST,
    "earliest": types_pb2.START_POSITION_EARLIEST,
}


@dataclass(frozen=True)
class RedeliveryPolicy:
    """Settings of a subscription that override the configuration of its queue. None inherits the value of the queue."""

    max_deliveries: int | None = None
    dead_letter: str | None = None
    redelivery_delay: timedelta | None = None
    redelivery_multiplier: float | None = None
    redelivery_max_delay: timedelta | None = None
    ack_timeout: timedelta | None = None


@dataclass(frozen=True)
class ActiveConsumer:
    """The consumer that receives the messages of a subscription of an exclusive queue.

    Attributes:
        address: Remote address of its connection, host:port.
        since: Time when it became the active consumer, by the clock of the active node.
    """

    address: str
    since: datetime


@dataclass(frozen=True)
class Pause:
    """The pause of a queue or of a subscription.

    Attributes:
        publish: Publishing to the queue is paused; always False for a subscription.
        deliver: Delivery is paused.
        at: Time of the last pause_queue() call, by the clock of the active node.
        by: Name of the client that called pause_queue(); empty without authentication.
        reason: Reason passed to pause_queue().
    """

    publish: bool
    deliver: bool
    at: datetime
    by: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Subscription:
    """A durable cursor on a queue.

    Attributes:
        name: Name of the subscription, unique within the queue.
        floor: Lowest sequence that is not acknowledged.
        backlog: Number of unacknowledged messages; an upper bound with a filter.
        in_flight: Number of messages delivered to consumers and not yet answered.
        consumers: Number of attached consumers.
        filter: Expression that messages must match; empty for all messages.
        redelivery: Settings that override the configuration of the queue.
        active_consumer: The consumer that receives the messages of an exclusive queue, if any.
        pause: Pause of the subscription; None if it is not paused separately. The queue may still be paused.
        oldest_in_flight_age: Time since the delivery of the message that has been in flight longest; 0 if no message
            is in flight.
    """

    name: str
    floor: int
    backlog: int
    in_flight: int
    consumers: int
    filter: str
    redelivery: RedeliveryPolicy = RedeliveryPolicy()
    active_consumer: ActiveConsumer | None = None
    pause: Pause | None = None
    oldest_in_flight_age: timedelta = timedelta()


@dataclass(frozen=True)
class Forward:
    """A rule of a queue that also publishes its messages to another queue, in the same transaction.

    Attributes:
        to: The target queue, which must not have forwards.
        move: Publish the messages to the target queue only.
        filter: A CEL expression of at most 4 KiB that messages must match; empty for all messages.
    """

    to: str
    move: bool = False
    filter: str = ""


@dataclass(frozen=True)
class QueueActivity:
    """The rates and the lag of a queue.

    Attributes:
        published: Messages published, moved or forwarded to the queue per second. The three rates are None if no
            client has requested activity in the previous 10 seconds.
        delivered: Messages delivered to consumers per second, including redeliveries.
        acknowledged: Messages per second that all subscriptions have acknowledged, or that were purged, expired, moved
            to another queue or no longer retained.
        oldest_at: Time when the oldest unacknowledged message was accepted; None if there is no such message or
            its time is unknown.
        consumers: Number of consumers of all subscriptions.
    """

    published: float | None
    delivered: float | None
    acknowledged: float | None
    oldest_at: datetime | None
    consumers: int


@dataclass(frozen=True)
class HistoryPoint:
    """The values of a queue, or of all queues, in one interval. The values have a precision of about seven digits.

    Attributes:
        at: End of the interval.
        published: Average rate, as in QueueActivity. The three rates are None if they are unknown.
        delivered: Messages delivered to consumers per second.
        acknowledged: Messages per second that all subscriptions have acknowledged.
        messages: Number of messages at the end of the interval.
        bytes: Size of these messages.
        oldest_age: Age of the oldest unacknowledged message; None if no such message exists or its age is unknown.
    """

    at: datetime
    published: float | None
    delivered: float | None
    acknowledged: float | None
    messages: int
    bytes: int
    oldest_age: timedelta | None


@dataclass(frozen=True)
class History:
    """Recorded values of a queue, or of all queues.

    Attributes:
        interval: Time between points: 10 seconds for a period of up to one hour, one minute for longer periods.
        points: Points in order of time. Intervals without an active node are missing, as are intervals in which the
            queue was not recorded.
    """

    interval: timedelta
    points: tuple[HistoryPoint, ...]


@dataclass(frozen=True)
class Policy:
    """Defaults and upper limits for the queues that match a name pattern, including queues that are created later.

    Attributes:
        pattern: Identifies the policy: `*` matches any sequence of characters, `?` one character.
        priority: 0 to 1,000,000. If several policies with defaults match, the one with the highest priority applies.
            The same rule selects the policy for limits.
        defaults: Values of options that are not set on the queue itself. Zero values and other default values set
            nothing. `priorities` is not allowed.
        limits: Upper limits of `max_messages`, `max_bytes`, `max_deliveries` and `ttl`; 0 means no limit.
    """

    pattern: str
    priority: int = 0
    defaults: QueueConfig = field(default_factory=QueueConfig)
    limits: QueueConfig = field(default_factory=QueueConfig)


@dataclass(frozen=True)
class Sources:
    """The sources of the values in the configuration of a queue.

    Attributes:
        own: Values of the options that are set on the queue itself.
        own_fields: Names of the options that are set on the queue itself; their values can be 0.
        policy: Pattern of the policy that sets the other options; empty for none.
        limit_policy: Pattern of the policy with limits; empty for none.
        limited_fields: Names of the options that limit_policy reduces to a limit.
    """

    own: QueueConfig
    own_fields: tuple[str, ...]
    policy: str
    limit_policy: str
    limited_fields: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """The queue of a partition.

    Attributes:
        name: Name of the queue, such as `orders#3/8`.
        messages: As in Queue.
        bytes: As in Queue.
        subscriptions: As in Queue.
        pause: As in Queue.
    """

    name: str
    messages: int
    bytes: int
    subscriptions: tuple[Subscription, ...]
    pause: Pause | None


@dataclass(frozen=True)
class Queue:
    """The current state of a queue.

    For a partitioned queue, the numbers are the sums of its partitions, `id` and `next_sequence` are 0, and the options
    are those of the first partition. Each subscription contains the sums of all partitions; `consumers` is the highest
    number, because a consumer attaches to all partitions.

    Attributes:
        name: Name of the queue.
        id: ID of the queue. A queue that is deleted and created again has a new ID.
        config: Values in effect, which are set on the queue itself or by policies.
        next_sequence: Sequence of the next message.
        messages: Number of messages that are retained or that a subscription has not acknowledged.
        bytes: Size of these messages.
        delayed: Number of delayed messages, which no subscription can receive yet.
        dropped: Number of messages, per subscription, that were dropped at the delivery limit or rejected without a
            dead-letter queue.
        expired: Number of expired messages that were not moved to a dead-letter queue.
        subscriptions: Subscriptions, sorted by name.
        forwards: Forwarding rules.
        activity: Rates and lag; only in the result of queue_table().
        pause: Pause of the queue; None if it is not paused.
        message_ids: Number of message IDs retained for the dedup_window; some may be older.
        duplicates: Number of messages discarded as duplicates.
        sources: Sources of the values in `config`. None if no policy applies and no option is explicitly 0: all of
            these values are then set on the queue itself.
        partitions: Existing partitions of a partitioned queue; otherwise empty.
    """

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
    forwards: tuple[Forward, ...] = field(default=())
    activity: QueueActivity | None = None
    pause: Pause | None = None
    message_ids: int = 0
    duplicates: int = 0
    sources: Sources | None = None
    partitions: tuple[Partition, ...] = field(default=())


@dataclass(frozen=True)
class QueueList:
    """A page of a list of queues.

    Attributes:
        queues: Queues with their activity.
        total: Number of matching queues, including those on other pages.
        uncertain: The order may be wrong: the list is sorted by age, and some ages are not yet known. Retry the call.
    """

    queues: tuple[Queue, ...]
    total: int
    uncertain: bool


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search with a filter.

    Attributes:
        scanned: Number of messages read so far.
        unevaluated: Number of scanned messages that were treated as not matching because of a limit: the cost limit of
            the filter, or a limit for JSON bodies.
        start: First sequence of the remaining range.
        before: First sequence after the remaining range.
        queue_id: ID of the queue.
    """

    scanned: int = 0
    unevaluated: int = 0
    start: int = 0
    before: int = 0
    queue_id: int = 0

    def plus(self, p: queue_pb2.SearchProgress) -> SearchProgress:
        """Return the progress after another call."""
        return SearchProgress(
            self.scanned + p.scanned,
            self.unevaluated + p.unevaluated,
            p.from_sequence,
            p.before_sequence,
            p.queue_id,
        )


@dataclass(frozen=True)
class Moved:
    """The result of moving messages.

    Attributes:
        moved: Number of messages moved by the attempt that received a response.
        skipped: Number of messages that were not moved. They were acknowledged, reserved by a prepared transaction,
            corrupt, or moved by an attempt without a response. Without a target, skipped includes messages that are
            not dead letters, or for which the pair does not have the original queue.
    """

    moved: int
    skipped: int


@dataclass(frozen=True)
class PreparedQueue:
    """The operations of a prepared transaction in one queue.

    Attributes:
        queue: Name of the queue.
        publishes: Number of messages to publish.
        acks: Number of messages to acknowledge, over all subscriptions.
    """

    queue: str
    publishes: int
    acks: int


@dataclass(frozen=True)
class PreparedTransaction:
    """A transaction that is prepared and not yet decided.

    Attributes:
        xid: Identifier of the transaction.
        lsn: LSN of the Prepare, or, for a pair with sites, its logical number.
        prepared_at: Time of the Prepare, by the clock of the active node.
        queues: Operations by queue, sorted by name.
        bytes: Size of the transaction in the store.
    """

    xid: str
    lsn: int
    prepared_at: datetime
    queues: tuple[PreparedQueue, ...]
    bytes: int


def encode_config(c: QueueConfig) -> types_pb2.QueueConfig:
    """Encode the configuration of a queue."""
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


def decode_config(c: types_pb2.QueueConfig) -> QueueConfig:
    """Decode the configuration of a queue."""
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


def decode_queue(q: types_pb2.Queue) -> Queue:
    """Decode a queue."""
    return Queue(
        name=q.name,
        id=q.id,
        config=decode_config(q.config),
        next_sequence=q.next_sequence,
        messages=q.messages,
        bytes=q.bytes,
        delayed=q.delayed,
        dropped=q.dropped,
        expired=q.expired,
        subscriptions=tuple(decode_subscription(s) for s in q.subscriptions),
        forwards=tuple(Forward(f.to, f.move, f.filter) for f in q.forwards),
        activity=_decode_activity(q.activity) if q.HasField("activity") else None,
        pause=_decode_pause(q.pause) if q.HasField("pause") else None,
        message_ids=q.message_ids,
        duplicates=q.duplicates,
        sources=_decode_sources(q.sources) if q.HasField("sources") else None,
    )


def total(name: str, partitions: list[Queue]) -> Queue:
    """Return the description of a partitioned queue. The list must not be empty."""
    first = partitions[0]
    subscriptions: dict[str, Subscription] = {}
    for s in (s for q in partitions for s in q.subscriptions):
        known = subscriptions.get(s.name)
        if known is None:
            subscriptions[s.name] = replace(s, floor=0, active_consumer=None)
            continue
        subscriptions[s.name] = replace(
            known,
            backlog=known.backlog + s.backlog,
            in_flight=known.in_flight + s.in_flight,
            consumers=max(known.consumers, s.consumers),
            oldest_in_flight_age=max(known.oldest_in_flight_age, s.oldest_in_flight_age),
        )
    return replace(
        first,
        name=name,
        id=0,
        next_sequence=0,
        config=replace(first.config, dead_letter=first.config.dead_letter.partition("#")[0]),
        messages=sum(q.messages for q in partitions),
        bytes=sum(q.bytes for q in partitions),
        delayed=sum(q.delayed for q in partitions),
        dropped=sum(q.dropped for q in partitions),
        expired=sum(q.expired for q in partitions),
        message_ids=sum(q.message_ids for q in partitions),
        duplicates=sum(q.duplicates for q in partitions),
        activity=None,
        subscriptions=tuple(subscriptions[name] for name in sorted(subscriptions)),
        partitions=tuple(Partition(q.name, q.messages, q.bytes, q.subscriptions, q.pause) for q in partitions),
    )


def _decode_sources(s: types_pb2.QueueSources) -> Sources:
    return Sources(decode_config(s.own), tuple(s.own_fields), s.policy, s.limit_policy, tuple(s.limited_fields))


def encode_queue_policy(p: Policy) -> types_pb2.QueuePolicy:
    """Encode a policy."""
    return types_pb2.QueuePolicy(
        pattern=p.pattern,
        priority=p.priority,
        defaults=encode_config(p.defaults),
        limits=encode_config(p.limits),
    )


def decode_queue_policy(p: types_pb2.QueuePolicy) -> Policy:
    """Decode a policy."""
    return Policy(p.pattern, p.priority, decode_config(p.defaults), decode_config(p.limits))


def decode_subscription(s: types_pb2.Subscription) -> Subscription:
    """Decode a subscription."""
    active = s.active_consumer
    return Subscription(
        name=s.name,
        floor=s.floor,
        backlog=s.backlog,
        in_flight=s.in_flight,
        consumers=s.consumers,
        filter=s.filter,
        redelivery=_decode_policy(s.redelivery),
        active_consumer=(
            ActiveConsumer(active.address, message.when(active.since)) if s.HasField("active_consumer") else None
        ),
        pause=_decode_pause(s.pause) if s.HasField("pause") else None,
        oldest_in_flight_age=s.oldest_in_flight_age.ToTimedelta(),
    )


def _decode_pause(p: types_pb2.QueuePause) -> Pause:
    return Pause(p.publish, p.deliver, message.when(p.paused_at), p.paused_by, p.reason)


def _decode_activity(a: types_pb2.QueueActivity) -> QueueActivity:
    known = a.HasField("published_per_second")
    return QueueActivity(
        published=a.published_per_second if known else None,
        delivered=a.delivered_per_second if known else None,
        acknowledged=a.acknowledged_per_second if known else None,
        oldest_at=message.when(a.oldest_at) if a.HasField("oldest_at") else None,
        consumers=a.consumers,
    )


def decode_history(h: queue_pb2.GetHistoryResponse) -> History:
    """Decode recorded values."""
    points = []
    for p in h.points:
        known = p.HasField("published_per_second")
        points.append(
            HistoryPoint(
                at=message.when(p.at),
                published=p.published_per_second if known else None,
                delivered=p.delivered_per_second if known else None,
                acknowledged=p.acknowledged_per_second if known else None,
                messages=p.messages,
                bytes=p.bytes,
                oldest_age=p.oldest_age.ToTimedelta() if p.HasField("oldest_age") else None,
            )
        )
    return History(h.interval.ToTimedelta(), tuple(points))


def encode_policy(p: RedeliveryPolicy) -> tuple[types_pb2.RedeliveryPolicy, list[str]]:
    """Encode a redelivery policy, and return the names of the fields that are set."""
    out, names = types_pb2.RedeliveryPolicy(), []
    for f in fields(p):
        value = getattr(p, f.name)
        if value is None:
            continue
        names.append(f.name)
        if isinstance(value, timedelta):
            getattr(out, f.name).CopyFrom(message.duration(value))
        else:
            setattr(out, f.name, value)
    return out, names


def _decode_policy(p: types_pb2.RedeliveryPolicy) -> RedeliveryPolicy:
    has: dict[str, Any] = {}
    for descriptor, value in p.ListFields():
        has[descriptor.name] = value.ToTimedelta() if isinstance(value, Duration) else value
    return RedeliveryPolicy(**has)


def encode_forward(f: Forward) -> types_pb2.Forward:
    """Encode a forward."""
    return types_pb2.Forward(to=f.to, move=f.move, filter=f.filter)


def decode_prepared(t: queue_pb2.PreparedTransaction) -> PreparedTransaction:
    """Decode a prepared transaction."""
    return PreparedTransaction(
        xid=t.xid,
        lsn=t.lsn,
        prepared_at=message.when(t.prepared_at),
        queues=tuple(PreparedQueue(q.queue, q.publishes, q.acks) for q in t.queues),
        bytes=t.bytes,
    )


def encode_order(order: Order) -> queue_pb2.QueueOrder:
    """Encode the sort key of a list of queues."""
    if order not in _ORDER:
        raise errors.InvalidRequest(f"order {order!r} is none of {', '.join(_ORDER)}")
    return _ORDER[order]


def encode_sequences(sequences: Iterable[int | tuple[int, int]]) -> list[types_pb2.SequenceRange]:
    """Encode sequences, and inclusive ranges of them."""
    out = []
    for s in sequences:
        first, last = (s, s) if isinstance(s, int) else s
        if not 1 <= first <= last:
            raise errors.InvalidRequest(
                f"invalid range of sequences, {first} to {last}: the first must be at least 1, and the last not lower"
            )
        out.append(types_pb2.SequenceRange(first=first, last=last))
    if not out:
        raise errors.InvalidRequest("no sequence given")
    return out
