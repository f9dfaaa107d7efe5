# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeadLetterReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_REASON_UNSPECIFIED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_MAX_DELIVERIES: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_REJECTED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_EXPIRED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_OVERFLOW: _ClassVar[DeadLetterReason]

class Overflow(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERFLOW_UNSPECIFIED: _ClassVar[Overflow]
    OVERFLOW_REJECT: _ClassVar[Overflow]
    OVERFLOW_DROP_HEAD: _ClassVar[Overflow]
    OVERFLOW_DEAD_LETTER_HEAD: _ClassVar[Overflow]

class StartPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_POSITION_UNSPECIFIED: _ClassVar[StartPosition]
    START_POSITION_LATEST: _ClassVar[StartPosition]
    START_POSITION_EARLIEST: _ClassVar[StartPosition]
DEAD_LETTER_REASON_UNSPECIFIED: DeadLetterReason
DEAD_LETTER_REASON_MAX_DELIVERIES: DeadLetterReason
DEAD_LETTER_REASON_REJECTED: DeadLetterReason
DEAD_LETTER_REASON_EXPIRED: DeadLetterReason
DEAD_LETTER_REASON_OVERFLOW: DeadLetterReason
OVERFLOW_UNSPECIFIED: Overflow
OVERFLOW_REJECT: Overflow
OVERFLOW_DROP_HEAD: Overflow
OVERFLOW_DEAD_LETTER_HEAD: Overflow
START_POSITION_UNSPECIFIED: StartPosition
START_POSITION_LATEST: StartPosition
START_POSITION_EARLIEST: StartPosition
QUEUE_OPTION_FIELD_NUMBER: _ClassVar[int]
queue_option: _descriptor.FieldDescriptor

class Message(_message.Message):
    __slots__ = ("body", "properties", "message_id", "correlation_id", "reply_to", "content_type", "subject", "group", "priority", "expires_at", "ttl", "deliver_at", "delay", "typed_properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TypedPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PropertyValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PropertyValue, _Mapping]] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    TYPED_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    properties: _containers.ScalarMap[str, str]
    message_id: str
    correlation_id: str
    reply_to: str
    content_type: str
    subject: str
    group: str
    priority: int
    expires_at: _timestamp_pb2.Timestamp
    ttl: _duration_pb2.Duration
    deliver_at: _timestamp_pb2.Timestamp
    delay: _duration_pb2.Duration
    typed_properties: _containers.MessageMap[str, PropertyValue]
    def __init__(self, body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., message_id: _Optional[str] = ..., correlation_id: _Optional[str] = ..., reply_to: _Optional[str] = ..., content_type: _Optional[str] = ..., subject: _Optional[str] = ..., group: _Optional[str] = ..., priority: _Optional[int] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., typed_properties: _Optional[_Mapping[str, PropertyValue]] = ...) -> None: ...

class PropertyValue(_message.Message):
    __slots__ = ("bool_value", "int_value", "double_value", "bytes_value")
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    int_value: int
    double_value: float
    bytes_value: bytes
    def __init__(self, bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., bytes_value: _Optional[bytes] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("sequence", "published_at", "delivery_count", "message", "dead_letter")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    published_at: _timestamp_pb2.Timestamp
    delivery_count: int
    message: Message
    dead_letter: DeadLetter
    def __init__(self, sequence: _Optional[int] = ..., published_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delivery_count: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ..., dead_letter: _Optional[_Union[DeadLetter, _Mapping]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("queue", "subscription", "sequence", "reason", "deliveries", "moved_at")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MOVED_AT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    sequence: int
    reason: DeadLetterReason
    deliveries: int
    moved_at: _timestamp_pb2.Timestamp
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., sequence: _Optional[int] = ..., reason: _Optional[_Union[DeadLetterReason, str]] = ..., deliveries: _Optional[int] = ..., moved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SequenceRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class QueueOption(_message.Message):
    __slots__ = ("usage", "label", "flag", "bytes", "fixed")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    usage: str
    label: str
    flag: str
    bytes: bool
    fixed: bool
    def __init__(self, usage: _Optional[str] = ..., label: _Optional[str] = ..., flag: _Optional[str] = ..., bytes: bool = ..., fixed: bool = ...) -> None: ...

class QueueConfig(_message.Message):
    __slots__ = ("max_messages", "max_bytes", "max_deliveries", "dead_letter", "ttl", "delay", "redelivery_delay", "redelivery_multiplier", "redelivery_max_delay", "retention_age", "retention_bytes", "retention_messages", "overflow", "priorities", "exclusive", "dead_letter_expired", "temporary_grace", "ack_timeout", "dedup_window", "dedup_max")
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_DELAY_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_MAX_DELAY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_AGE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_GRACE_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MAX_FIELD_NUMBER: _ClassVar[int]
    max_messages: int
    max_bytes: int
    max_deliveries: int
    dead_letter: str
    ttl: _duration_pb2.Duration
    delay: _duration_pb2.Duration
    redelivery_delay: _duration_pb2.Duration
    redelivery_multiplier: float
    redelivery_max_delay: _duration_pb2.Duration
    retention_age: _duration_pb2.Duration
    retention_bytes: int
    retention_messages: int
    overflow: Overflow
    priorities: bool
    exclusive: bool
    dead_letter_expired: bool
    temporary_grace: _duration_pb2.Duration
    ack_timeout: _duration_pb2.Duration
    dedup_window: _duration_pb2.Duration
    dedup_max: int
    def __init__(self, max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., dead_letter: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., redelivery_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., redelivery_multiplier: _Optional[float] = ..., redelivery_max_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retention_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retention_bytes: _Optional[int] = ..., retention_messages: _Optional[int] = ..., overflow: _Optional[_Union[Overflow, str]] = ..., priorities: bool = ..., exclusive: bool = ..., dead_letter_expired: bool = ..., temporary_grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ack_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dedup_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dedup_max: _Optional[int] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "floor", "backlog", "in_flight", "consumers", "filter", "redelivery", "active_consumer", "pause", "oldest_in_flight_age")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_IN_FLIGHT_AGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    floor: int
    backlog: int
    in_flight: int
    consumers: int
    filter: str
    redelivery: RedeliveryPolicy
    active_consumer: ActiveConsumer
    pause: QueuePause
    oldest_in_flight_age: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., floor: _Optional[int] = ..., backlog: _Optional[int] = ..., in_flight: _Optional[int] = ..., consumers: _Optional[int] = ..., filter: _Optional[str] = ..., redelivery: _Optional[_Union[RedeliveryPolicy, _Mapping]] = ..., active_consumer: _Optional[_Union[ActiveConsumer, _Mapping]] = ..., pause: _Optional[_Union[QueuePause, _Mapping]] = ..., oldest_in_flight_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RedeliveryPolicy(_message.Message):
    __slots__ = ("max_deliveries", "dead_letter", "redelivery_delay", "redelivery_multiplier", "redelivery_max_delay", "ack_timeout")
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_DELAY_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_MAX_DELAY_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    max_deliveries: int
    dead_letter: str
    redelivery_delay: _duration_pb2.Duration
    redelivery_multiplier: float
    redelivery_max_delay: _duration_pb2.Duration
    ack_timeout: _duration_pb2.Duration
    def __init__(self, max_deliveries: _Optional[int] = ..., dead_letter: _Optional[str] = ..., redelivery_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., redelivery_multiplier: _Optional[float] = ..., redelivery_max_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ack_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ActiveConsumer(_message.Message):
    __slots__ = ("address", "since")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    address: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, address: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "id", "config", "next_sequence", "messages", "bytes", "subscriptions", "digest", "forwards", "delayed", "dropped", "expired", "activity", "pause", "message_ids", "duplicates", "sources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    config: QueueConfig
    next_sequence: int
    messages: int
    bytes: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    digest: int
    forwards: _containers.RepeatedCompositeFieldContainer[Forward]
    delayed: int
    dropped: int
    expired: int
    activity: QueueActivity
    pause: QueuePause
    message_ids: int
    duplicates: int
    sources: QueueSources
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., next_sequence: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., digest: _Optional[int] = ..., forwards: _Optional[_Iterable[_Union[Forward, _Mapping]]] = ..., delayed: _Optional[int] = ..., dropped: _Optional[int] = ..., expired: _Optional[int] = ..., activity: _Optional[_Union[QueueActivity, _Mapping]] = ..., pause: _Optional[_Union[QueuePause, _Mapping]] = ..., message_ids: _Optional[int] = ..., duplicates: _Optional[int] = ..., sources: _Optional[_Union[QueueSources, _Mapping]] = ...) -> None: ...

class QueueSources(_message.Message):
    __slots__ = ("own", "own_fields", "policy", "limit_policy", "limited_fields")
    OWN_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_POLICY_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    own: QueueConfig
    own_fields: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    limit_policy: str
    limited_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, own: _Optional[_Union[QueueConfig, _Mapping]] = ..., own_fields: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., limit_policy: _Optional[str] = ..., limited_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class QueuePolicy(_message.Message):
    __slots__ = ("pattern", "priority", "defaults", "limits")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    priority: int
    defaults: QueueConfig
    limits: QueueConfig
    def __init__(self, pattern: _Optional[str] = ..., priority: _Optional[int] = ..., defaults: _Optional[_Union[QueueConfig, _Mapping]] = ..., limits: _Optional[_Union[QueueConfig, _Mapping]] = ...) -> None: ...

class QueuePause(_message.Message):
    __slots__ = ("publish", "deliver", "paused_at", "paused_by", "reason")
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    publish: bool
    deliver: bool
    paused_at: _timestamp_pb2.Timestamp
    paused_by: str
    reason: str
    def __init__(self, publish: bool = ..., deliver: bool = ..., paused_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused_by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QueueActivity(_message.Message):
    __slots__ = ("published_per_second", "delivered_per_second", "acknowledged_per_second", "oldest_at", "consumers")
    PUBLISHED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AT_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    published_per_second: float
    delivered_per_second: float
    acknowledged_per_second: float
    oldest_at: _timestamp_pb2.Timestamp
    consumers: int
    def __init__(self, published_per_second: _Optional[float] = ..., delivered_per_second: _Optional[float] = ..., acknowledged_per_second: _Optional[float] = ..., oldest_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., consumers: _Optional[int] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("id", "epoch", "sequence", "retry")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    id: str
    epoch: int
    sequence: int
    retry: bool
    def __init__(self, id: _Optional[str] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., retry: bool = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("term", "lsn", "chain")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    term: int
    lsn: int
    chain: int
    def __init__(self, term: _Optional[int] = ..., lsn: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class NotActive(_message.Message):
    __slots__ = ("active_address", "active_node", "role", "retry_after", "primary_addresses")
    ACTIVE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    active_address: str
    active_node: str
    role: str
    retry_after: _duration_pb2.Duration
    primary_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, active_address: _Optional[str] = ..., active_node: _Optional[str] = ..., role: _Optional[str] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., primary_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class NotOwner(_message.Message):
    __slots__ = ("queue", "pair", "addresses", "epoch")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    pair: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    def __init__(self, queue: _Optional[str] = ..., pair: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class QueuePartitioned(_message.Message):
    __slots__ = ("queue", "count")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    count: int
    def __init__(self, queue: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Forward(_message.Message):
    __slots__ = ("to", "move", "filter")
    TO_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    to: str
    move: bool
    filter: str
    def __init__(self, to: _Optional[str] = ..., move: bool = ..., filter: _Optional[str] = ...) -> None: ...
