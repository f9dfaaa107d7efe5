# SPDX-License-Identifier: Apache-2.0
"""Who is connected to a node, as it describes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lockstep_mq import message
from lockstep_mq._proto import connection_pb2


@dataclass(frozen=True)
class Traffic:
    """What went one way over a connection.

    Attributes:
        bytes: On the wire.
        messages: Those that were published by the client, or delivered to it.
        bytes_per_second: Lately; None if nobody has asked in the 10 seconds before.
        messages_per_second: The same.
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
        queues: The queue that it consumes from, or at most 10 of those that it has published to.
        subscription: That it consumes from.
        since: Since when it is there.
        messages: That it has published or got.
        credit: Of a consumer: how many more messages it may be given.
        unacknowledged: Of a consumer: messages that it has and has not answered for.
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
        id: Number that the node knows it by, until the node is started again.
        address: Where it comes from, host:port.
        since: Since when it is there.
        principal: Who made the last call that was let in; empty as long as there was none.
        authentication: How that was shown: "none", "certificate", "token", "jwt" or "peer-token".
        client: What the client calls itself.
        tls: Version of TLS, such as "TLS 1.3"; empty without.
        peer: It is the other node of the pair.
        received: What came over it.
        sent: What went over it.
        streams: Those that are open, at most 100 of them.
        streams_total: How many there are.
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
        kind=connection_pb2.ConnectionStreamKind.Name(s.kind).removeprefix("CONNECTION_STREAM_KIND_").lower(),
        queues=tuple(s.queues),
        subscription=s.subscription,
        since=message.when(s.since),
        messages=s.messages,
        credit=s.credit,
        unacknowledged=s.unacknowledged,
    )
