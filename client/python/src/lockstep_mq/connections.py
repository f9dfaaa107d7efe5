# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the connections to a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lockstep_mq import message
from lockstep_mq._enums import name_of
from lockstep_mq._proto import connection_pb2


@dataclass(frozen=True)
class Traffic:
    """The traffic of a connection in one direction.

    Attributes:
        bytes: Bytes on the wire.
        messages: Messages published by the client, or delivered to it.
        bytes_per_second: Current rate; None if no client has requested rates in the previous 10 seconds.
        messages_per_second: As bytes_per_second, for messages.
    """

    bytes: int
    messages: int
    bytes_per_second: float | None
    messages_per_second: float | None


@dataclass(frozen=True)
class ConnectionStream:
    """A stream of a connection that publishes or consumes.

    Attributes:
        kind: "publish" or "consume".
        queues: The queue of a consumer, or at most 10 of the queues that the stream has published to.
        subscription: The subscription of a consumer.
        since: Time when the stream was opened.
        messages: Number of messages published or delivered.
        credit: Number of further messages that may be delivered to a consumer.
        unacknowledged: Number of messages delivered to a consumer and not answered.
    """

    kind: str
    queues: tuple[str, ...]
    subscription: str
    since: datetime
    messages: int
    credit: int
    unacknowledged: int


@dataclass(frozen=True)
class Connection:
    """One connection to a node's port.

    Attributes:
        id: Number of the connection on this node, valid until the node restarts.
        address: Remote address, host:port.
        since: Time when the connection was opened.
        principal: Principal of the last accepted call; empty before the first one.
        authentication: "none", "certificate", "token", "jwt" or "peer-token".
        client: Self-reported name of the client.
        tls: TLS version, such as "TLS 1.3"; empty without TLS.
        peer: Whether the client is the other node of the pair.
        received: Incoming traffic.
        sent: Outgoing traffic.
        streams: Open streams, at most 100 of them.
        streams_total: Number of open streams.
    """

    id: int
    address: str
    since: datetime
    principal: str
    authentication: str
    client: str
    tls: str
    peer: bool
    received: Traffic
    sent: Traffic
    streams: tuple[ConnectionStream, ...]
    streams_total: int


def decode(c: connection_pb2.Connection) -> Connection:
    """Decode a connection."""
    return Connection(
        id=c.id,
        address=c.address,
        since=message.when(c.since),
        principal=c.principal,
        authentication=c.authentication,
        client=c.client,
        tls=c.tls,
        peer=c.peer,
        received=_traffic(c.received),
        sent=_traffic(c.sent),
        streams=tuple(_stream(s) for s in c.streams),
        streams_total=c.streams_total,
    )


def _traffic(t: connection_pb2.Traffic) -> Traffic:
    return Traffic(
        bytes=t.bytes,
        messages=t.messages,
        bytes_per_second=t.bytes_per_second if t.HasField("bytes_per_second") else None,
        messages_per_second=t.messages_per_second if t.HasField("messages_per_second") else None,
    )


def _stream(s: connection_pb2.ConnectionStream) -> ConnectionStream:
    return ConnectionStream(
        kind=name_of(connection_pb2.ConnectionStreamKind, s.kind, "kind"),
        queues=tuple(s.queues),
        subscription=s.subscription,
        since=message.when(s.since),
        messages=s.messages,
        credit=s.credit,
        unacknowledged=s.unacknowledged,
    )
