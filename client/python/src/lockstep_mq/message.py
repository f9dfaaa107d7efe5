# SPDX-License-Identifier: Apache-2.0
"""Messages, as they are published and as they come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lockstep_mq import _wire, errors
from lockstep_mq._proto import types_pb2

Value: TypeAlias = str | bool | int | float | bytes
"""What a property can be; an int has 64 bits."""


@dataclass(frozen=True)
class Message:
    """A message to publish. Only the body has to be given.

    Attributes:
        body: Opaque to Lockstep, up to `limits.message-bytes` (64 MiB by default).
        properties: Of the application: texts, truth values, whole numbers, numbers or bytes. Keys have 1 to 255 bytes.
        message_id: Names the message, for the application.
        correlation_id: What the message belongs to, such as the request that it answers.
        reply_to: The queue where an answer is expected.
        content_type: What the body is, such as "application/json".
        subject: What the message is about, or its type.
        group: Of one group and subscription, one message is with a consumer at a time, in order.
        priority: 0 to 9; a queue with priorities delivers a higher one first. None is 4.
        ttl: It expires so long after the active accepted it. Not with expires_at.
        expires_at: When it expires; with a time zone.
        delay: It is delivered so long after the active accepted it. Not with deliver_at.
        deliver_at: The time before which it is not delivered; with a time zone.
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
"""A message, or its body; a str is encoded as UTF-8."""


class Receipt(NamedTuple):
    """The answer to a publish that is durable on every in-sync node.

    Attributes:
        sequence: Position in the queue; of a batch, of its first message.
        lsn: Log sequence number of the transaction.
        duplicate: An earlier attempt had been committed, and a repetition was answered from memory.
        address: The node that acknowledged it.
    """

    sequence: int
    lsn: int
    duplicate: bool
    address: str


@dataclass(frozen=True)
class DeadLetter:
    """Where a message comes from that was moved to a dead-letter queue, and why."""

    queue: str
    subscription: str
    sequence: int
    reason: str
    deliveries: int
    moved_at: datetime


class StoredMessage:
    """A message as it is in a queue. What it has is decoded when it is asked for."""

    __slots__ = ("_stored",)

    def __init__(self, stored: types_pb2.StoredMessage) -> None:
        self._stored = stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}: {self.body[:40]!r}>"

    @property
    def sequence(self) -> int:
        """Position in the queue: starts at 1, never reused."""
        return self._stored.sequence

    @property
    def body(self) -> bytes:
        """The payload."""
        return self._stored.message.body

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self._stored.message.body.decode()

    @property
    def published_at(self) -> datetime:
        """When the active accepted it."""
        return when(self._stored.published_at)

    @property
    def delivery_count(self) -> int:
        """How often the subscription gave it to a consumer that did not acknowledge it."""
        return self._stored.delivery_count

    @property
    def properties(self) -> dict[str, Value]:
        """Properties of the application."""
        m = self._stored.message
        out: dict[str, Value] = dict(m.properties)
        for key, value in m.typed_properties.items():
            kind = value.WhichOneof("kind")
            if kind is not None:
                out[key] = getattr(value, kind)
        return out

    @property
    def message_id(self) -> str:
        """Names the message, for the application."""
        return self._stored.message.message_id

    @property
    def correlation_id(self) -> str:
        """What the message belongs to."""
        return self._stored.message.correlation_id

    @property
    def reply_to(self) -> str:
        """The queue where an answer is expected."""
        return self._stored.message.reply_to

    @property
    def content_type(self) -> str:
        """What the body is."""
        return self._stored.message.content_type

    @property
    def subject(self) -> str:
        """What the message is about."""
        return self._stored.message.subject

    @property
    def group(self) -> str:
        """The group of the message."""
        return self._stored.message.group

    @property
    def priority(self) -> int | None:
        """0 to 9, or None."""
        m = self._stored.message
        return m.priority if m.HasField("priority") else None

    @property
    def expires_at(self) -> datetime | None:
        """When it expires."""
        return _datetime(self._stored.message, "expires_at")

    @property
    def deliver_at(self) -> datetime | None:
        """The time before which it was not delivered."""
        return _datetime(self._stored.message, "deliver_at")

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Where it comes from, if it was moved here as a dead letter."""
        if not self._stored.HasField("dead_letter"):
            return None
        d = self._stored.dead_letter
        return DeadLetter(
            queue=d.queue,
            subscription=d.subscription,
            sequence=d.sequence,
            reason=types_pb2.DeadLetterReason.Name(d.reason).removeprefix("DEAD_LETTER_REASON_").lower(),
            deliveries=d.deliveries,
            moved_at=when(d.moved_at),
        )

    def message(self) -> Message:
        """The message as it could be published again."""
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
        raise errors.InvalidRequest(f"{what} has no time zone: datetime.now(timezone.utc) has one")
    out = Timestamp()
    out.FromDatetime(t)
    return out


def pieces(m: Publishable, max_body: int) -> tuple[bytes, bytes]:
    """Encode a message of a PublishRequest: what comes before it, and the message or its body."""
    if isinstance(m, str):
        m = m.encode()
    if isinstance(m, bytes):
        if len(m) > max_body:
            _check_body(m, max_body)
        return _wire.body_head(len(m)), m
    raw = encode(m, max_body).SerializeToString()
    return _wire.message_head(len(raw)), raw


def encode(m: Publishable, max_body: int) -> types_pb2.Message:
    """Encode a message, and refuse what no node would take, so that it does not spoil the batch it travels in."""
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
            raise errors.InvalidRequest(f"priority {m.priority}: 0 to 9 are possible")
        out.priority = m.priority
    if (m.ttl is not None and m.expires_at is not None) or (m.delay is not None and m.deliver_at is not None):
        raise errors.InvalidRequest("give one of ttl and expires_at, and one of delay and deliver_at")
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
            raise errors.InvalidRequest(f"a property's key has {len(key.encode())} bytes, 1 to 255 are possible")
        match value:
            case str():
                out.properties[key] = value
            case bool():
                out.typed_properties[key].bool_value = value
            case int():
                if not -(1 << 63) <= value < 1 << 63:
                    raise errors.InvalidRequest(f"property {key!r} is {value}, which 64 bits do not hold")
                out.typed_properties[key].int_value = value
            case float():
                out.typed_properties[key].double_value = value
            case bytes():
                out.typed_properties[key].bytes_value = value
            case _:
                raise errors.InvalidRequest(
                    f"property {key!r} is a {type(value).__name__}; str, bool, int, float and bytes are possible"
                )
