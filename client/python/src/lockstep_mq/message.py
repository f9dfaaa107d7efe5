# SPDX-License-Identifier: Apache-2.0
"""Messages, as published and as delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lockstep_mq import _wire, errors
from lockstep_mq._enums import name_of
from lockstep_mq._proto import types_pb2

Value: TypeAlias = str | bool | int | float | bytes
"""The type of a property; an int has 64 bits."""


@dataclass(frozen=True)
class Message:
    """A message to publish. Only the body is required.

    Attributes:
        body: The payload, opaque to Lockstep, up to `limits.message-bytes` (64 MiB by default).
        properties: Application properties: str, bool, int, float or bytes. Keys have 1 to 255 bytes.
        message_id: Identifies the message. A queue with a dedup_window discards a message if it has accepted the same
            ID within this window.
        correlation_id: Identifies a related message or operation, such as the request that a response belongs to.
        reply_to: The queue for replies.
        content_type: Media type of the body, such as "application/json".
        subject: Subject or type of the message.
        group: Message group; each subscription delivers one message of a group at a time, in queue order.
        priority: 0 to 9; a queue with priorities delivers higher priorities first. None means 4.
        ttl: Time to live from acceptance by the active node, 1 ms to 100 years; mutually exclusive with expires_at.
        expires_at: Expiry time, with a time zone. An expired message is not delivered.
        delay: Delivery delay from acceptance by the active node, up to 100 years; mutually exclusive with deliver_at.
        deliver_at: Earliest delivery time, with a time zone.
    """

    body: bytes
    properties: Mapping[str, Value] = field(default_factory=dict)
    message_id: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    content_type: str = ""
    subject: str = ""
    group: str = ""
    priority: int | None = None
    ttl: timedelta | None = None
    expires_at: datetime | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None


Publishable: TypeAlias = Message | bytes | str
"""A message or its body; a str is encoded as UTF-8."""


class Receipt(NamedTuple):
    """The result of a committed publish.

    Attributes:
        sequence: Position of the message in the queue; for a batch, of its first message.
        lsn: LSN of the transaction, or, for a pair with sites, its logical number, which is equal at all sites.
        duplicate: A retry returned the result of an earlier attempt. Or nothing was stored, because the queue has
            accepted the message ID of each message within its dedup_window. In the latter case, sequence is the
            sequence of the accepted message, or of the first one for a batch.
        address: Address of the node that acknowledged the publish.
        discarded: Number of messages that were not stored, because the queue has accepted their message ID within its
            dedup_window. The other messages of a batch have consecutive sequences, starting at sequence.
        partition: Name of the queue that contains the message, such as `orders#3/8`, if it was published to a
            partitioned queue; otherwise "".
    """

    sequence: int
    lsn: int
    duplicate: bool
    address: str
    discarded: int = 0
    partition: str = ""


@dataclass(frozen=True)
class DeadLetter:
    """The origin of a dead letter, and the reason for the move.

    Attributes:
        queue: Name of the original queue.
        subscription: Name of the original subscription.
        sequence: Sequence of the message in the original queue.
        reason: "max-deliveries", "rejected", "expired" or "overflow"; later releases may add reasons.
        deliveries: Number of deliveries by the original subscription.
        moved_at: Time of the move, by the clock of the active node.
    """

    queue: str
    subscription: str
    sequence: int
    reason: str
    deliveries: int
    moved_at: datetime


class StoredMessage:
    """A message in a queue. Its fields are decoded on access."""

    __slots__ = ("_stored",)

    def __init__(self, stored: types_pb2.StoredMessage) -> None:
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}: {self.body[:40]!r}>"

    @property
    def sequence(self) -> int:
        """Position of the message in the queue, starting at 1.

        Sequences are not reused, unless messages were lost, for example in a forced failover or in an unplanned
        promotion of another site.
        """
        return self._stored.sequence

    @property
    def body(self) -> bytes:
        """The payload."""
        return self._stored.message.body

    @property
    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self._stored.message.body.decode()

    @property
    def published_at(self) -> datetime:
        """Time when the active node accepted the message."""
        return when(self._stored.published_at)

    @property
    def delivery_count(self) -> int:
        """Number of earlier deliveries by the subscription, since its last seek, that ended without an acknowledgement.

        Some deliveries that the application has not received are not counted.
        """
        return self._stored.delivery_count

    @property
    def properties(self) -> dict[str, Value]:
        """Application properties."""
        m = self._stored.message
        out: dict[str, Value] = dict(m.properties)
        for key, value in m.typed_properties.items():
            kind = value.WhichOneof("kind")
            if kind is not None:
                out[key] = getattr(value, kind)
        return out

    @property
    def message_id(self) -> str:
        """Message ID set by the publisher."""
        return self._stored.message.message_id

    @property
    def correlation_id(self) -> str:
        """ID of a related message or operation."""
        return self._stored.message.correlation_id

    @property
    def reply_to(self) -> str:
        """The queue for replies."""
        return self._stored.message.reply_to

    @property
    def content_type(self) -> str:
        """Media type of the body."""
        return self._stored.message.content_type

    @property
    def subject(self) -> str:
        """Subject or type of the message."""
        return self._stored.message.subject

    @property
    def group(self) -> str:
        """Message group."""
        return self._stored.message.group

    @property
    def priority(self) -> int | None:
        """Priority, 0 to 9; None if the publisher set none."""
        m = self._stored.message
        return m.priority if m.HasField("priority") else None

    @property
    def expires_at(self) -> datetime | None:
        """Expiry time; None if the message does not expire."""
        return _datetime(self._stored.message, "expires_at")

    @property
    def deliver_at(self) -> datetime | None:
        """Earliest delivery time; None if not set."""
        return _datetime(self._stored.message, "deliver_at")

    @property
    def dead_letter(self) -> DeadLetter | None:
        """The origin of a dead letter; None for other messages."""
        if not self._stored.HasField("dead_letter"):
            return None
        d = self._stored.dead_letter
        return DeadLetter(
            queue=d.queue,
            subscription=d.subscription,
            sequence=d.sequence,
            reason=name_of(types_pb2.DeadLetterReason, d.reason, "reason"),
            deliveries=d.deliveries,
            moved_at=when(d.moved_at),
        )

    def message(self) -> Message:
        """Return the message in a form that can be published again."""
        return Message(
            body=self.body,
            properties=self.properties,
            message_id=self.message_id,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            content_type=self.content_type,
            subject=self.subject,
            group=self.group,
            priority=self.priority,
            expires_at=self.expires_at,
            deliver_at=self.deliver_at,
        )


def when(t: Timestamp) -> datetime:
    """Decode a time."""
    return t.ToDatetime(tzinfo=timezone.utc)


def _datetime(m: types_pb2.Message, name: str) -> datetime | None:
    if not m.HasField(name):
        return None
    value: Timestamp = getattr(m, name)
    return when(value)


def duration(d: timedelta) -> Duration:
    """Encode a duration."""
    out = Duration()
    out.FromTimedelta(d)
    return out


def timestamp(t: datetime, what: str) -> Timestamp:
    """Encode a time, which must have a time zone."""
    if t.tzinfo is None:
        raise errors.InvalidRequest(f"{what} has no time zone; use datetime.now(timezone.utc), for example")
    out = Timestamp()
    out.FromDatetime(t)
    return out


def pieces(m: Publishable, max_body: int) -> tuple[bytes, bytes]:
    """Encode a message of a PublishRequest as its head, and the message or its body."""
    if isinstance(m, str):
        m = m.encode()
    if isinstance(m, bytes):
        if len(m) > max_body:
            _check_body(m, max_body)
        return _wire.body_head(len(m)), m
    raw = encode(m, max_body).SerializeToString()
    return _wire.message_head(len(raw)), raw


def encode(m: Publishable, max_body: int) -> types_pb2.Message:
    """Encode a message. Errors that the client can detect are raised here, so that they do not fail the batch."""
    if isinstance(m, str):
        m = m.encode()
    if isinstance(m, bytes):
        _check_body(m, max_body)
        return types_pb2.Message(body=m)
    _check_body(m.body, max_body)
    out = types_pb2.Message(
        body=m.body,
        message_id=m.message_id,
        correlation_id=m.correlation_id,
        reply_to=m.reply_to,
        content_type=m.content_type,
        subject=m.subject,
        group=m.group,
    )
    _encode_properties(out, m.properties)
    if m.priority is not None:
        if not 0 <= m.priority <= 9:
            raise errors.InvalidRequest(f"priority is {m.priority}, must be 0 to 9")
        out.priority = m.priority
    if (m.ttl is not None and m.expires_at is not None) or (m.delay is not None and m.deliver_at is not None):
        raise errors.InvalidRequest("a message has ttl or expires_at, and delay or deliver_at, not both")
    if m.ttl is not None:
        out.ttl.CopyFrom(duration(m.ttl))
    if m.expires_at is not None:
        out.expires_at.CopyFrom(timestamp(m.expires_at, "expires_at"))
    if m.delay is not None:
        out.delay.CopyFrom(duration(m.delay))
    if m.deliver_at is not None:
        out.deliver_at.CopyFrom(timestamp(m.deliver_at, "deliver_at"))
    return out


def _check_body(body: bytes, max_body: int) -> None:
    if len(body) > max_body:
        raise errors.LimitExceeded(f"the body has {len(body)} bytes, the limit is {max_body}", reason="TOO_LARGE")


def _encode_properties(out: types_pb2.Message, properties: Mapping[str, Value]) -> None:
    for key, value in properties.items():
        if not 1 <= len(key.encode()) <= 255:
            raise errors.InvalidRequest(f"a property's key has {len(key.encode())} bytes, 1 to 255 are allowed")
        match value:
            case str():
                out.properties[key] = value
            case bool():
                out.typed_properties[key].bool_value = value
            case int():
                if not -(1 << 63) <= value < 1 << 63:
                    raise errors.InvalidRequest(f"property {key!r} is {value}, which exceeds 64 bits")
                out.typed_properties[key].int_value = value
            case float():
                out.typed_properties[key].double_value = value
            case bytes():
                out.typed_properties[key].bytes_value = value
            case _:
                raise errors.InvalidRequest(
                    f"property {key!r} has type {type(value).__name__}; use str, bool, int, float or bytes"
                )
