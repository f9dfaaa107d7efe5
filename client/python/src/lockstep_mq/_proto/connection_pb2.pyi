# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConnectionStreamKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONNECTION_STREAM_KIND_UNSPECIFIED: _ClassVar[ConnectionStreamKind]
    CONNECTION_STREAM_KIND_PUBLISH: _ClassVar[ConnectionStreamKind]
    CONNECTION_STREAM_KIND_CONSUME: _ClassVar[ConnectionStreamKind]
CONNECTION_STREAM_KIND_UNSPECIFIED: ConnectionStreamKind
CONNECTION_STREAM_KIND_PUBLISH: ConnectionStreamKind
CONNECTION_STREAM_KIND_CONSUME: ConnectionStreamKind

class ListConnectionsRequest(_message.Message):
    __slots__ = ("queue", "after_id", "limit")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    after_id: int
    limit: int
    def __init__(self, queue: _Optional[str] = ..., after_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListConnectionsResponse(_message.Message):
    __slots__ = ("connections", "more", "node", "total")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    connections: _containers.RepeatedCompositeFieldContainer[Connection]
    more: bool
    node: str
    total: int
    def __init__(self, connections: _Optional[_Iterable[_Union[Connection, _Mapping]]] = ..., more: bool = ..., node: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class Connection(_message.Message):
    __slots__ = ("id", "address", "since", "principal", "authentication", "client", "tls", "peer", "received", "sent", "streams", "streams_total", "protocol")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    since: _timestamp_pb2.Timestamp
    principal: str
    authentication: str
    client: str
    tls: str
    peer: bool
    received: Traffic
    sent: Traffic
    streams: _containers.RepeatedCompositeFieldContainer[ConnectionStream]
    streams_total: int
    protocol: str
    def __init__(self, id: _Optional[int] = ..., address: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., principal: _Optional[str] = ..., authentication: _Optional[str] = ..., client: _Optional[str] = ..., tls: _Optional[str] = ..., peer: bool = ..., received: _Optional[_Union[Traffic, _Mapping]] = ..., sent: _Optional[_Union[Traffic, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[ConnectionStream, _Mapping]]] = ..., streams_total: _Optional[int] = ..., protocol: _Optional[str] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("bytes", "messages", "bytes_per_second", "messages_per_second")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    messages: int
    bytes_per_second: float
    messages_per_second: float
    def __init__(self, bytes: _Optional[int] = ..., messages: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., messages_per_second: _Optional[float] = ...) -> None: ...

class ConnectionStream(_message.Message):
    __slots__ = ("kind", "queues", "subscription", "since", "messages", "credit", "unacknowledged")
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    kind: ConnectionStreamKind
    queues: _containers.RepeatedScalarFieldContainer[str]
    subscription: str
    since: _timestamp_pb2.Timestamp
    messages: int
    credit: int
    unacknowledged: int
    def __init__(self, kind: _Optional[_Union[ConnectionStreamKind, str]] = ..., queues: _Optional[_Iterable[str]] = ..., subscription: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., messages: _Optional[int] = ..., credit: _Optional[int] = ..., unacknowledged: _Optional[int] = ...) -> None: ...

class CloseConnectionRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class CloseConnectionResponse(_message.Message):
    __slots__ = ("connection",)
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    connection: Connection
    def __init__(self, connection: _Optional[_Union[Connection, _Mapping]] = ...) -> None: ...
