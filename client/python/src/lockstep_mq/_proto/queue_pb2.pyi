# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lockstep_mq._proto import errors_pb2 as _errors_pb2
from lockstep_mq._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUE_ORDER_UNSPECIFIED: _ClassVar[QueueOrder]
    QUEUE_ORDER_NAME: _ClassVar[QueueOrder]
    QUEUE_ORDER_MESSAGES: _ClassVar[QueueOrder]
    QUEUE_ORDER_BYTES: _ClassVar[QueueOrder]
    QUEUE_ORDER_AGE: _ClassVar[QueueOrder]
    QUEUE_ORDER_PUBLISHED: _ClassVar[QueueOrder]
    QUEUE_ORDER_DELIVERED: _ClassVar[QueueOrder]
    QUEUE_ORDER_ACKNOWLEDGED: _ClassVar[QueueOrder]
    QUEUE_ORDER_CONSUMERS: _ClassVar[QueueOrder]
QUEUE_ORDER_UNSPECIFIED: QueueOrder
QUEUE_ORDER_NAME: QueueOrder
QUEUE_ORDER_MESSAGES: QueueOrder
QUEUE_ORDER_BYTES: QueueOrder
QUEUE_ORDER_AGE: QueueOrder
QUEUE_ORDER_PUBLISHED: QueueOrder
QUEUE_ORDER_DELIVERED: QueueOrder
QUEUE_ORDER_ACKNOWLEDGED: QueueOrder
QUEUE_ORDER_CONSUMERS: QueueOrder

class CreateQueueRequest(_message.Message):
    __slots__ = ("name", "config", "subscriptions", "topic", "if_not_exists", "producer", "explicit_fields", "placement_group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _types_pb2.QueueConfig
    subscriptions: _containers.RepeatedScalarFieldContainer[str]
    topic: bool
    if_not_exists: bool
    producer: _types_pb2.Producer
    explicit_fields: _containers.RepeatedScalarFieldContainer[str]
    placement_group: str
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[_types_pb2.QueueConfig, _Mapping]] = ..., subscriptions: _Optional[_Iterable[str]] = ..., topic: bool = ..., if_not_exists: bool = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ..., explicit_fields: _Optional[_Iterable[str]] = ..., placement_group: _Optional[str] = ...) -> None: ...

class CreateQueueResponse(_message.Message):
    __slots__ = ("queue", "created")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    created: bool
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ..., created: bool = ...) -> None: ...

class AlterQueueRequest(_message.Message):
    __slots__ = ("name", "config", "producer", "update_mask", "reset_fields")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _types_pb2.QueueConfig
    producer: _types_pb2.Producer
    update_mask: _field_mask_pb2.FieldMask
    reset_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[_types_pb2.QueueConfig, _Mapping]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., reset_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("name", "if_empty", "producer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IF_EMPTY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    name: str
    if_empty: bool
    producer: _types_pb2.Producer
    def __init__(self, name: _Optional[str] = ..., if_empty: bool = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("name", "subscription", "producer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    name: str
    subscription: str
    producer: _types_pb2.Producer
    def __init__(self, name: _Optional[str] = ..., subscription: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class GetQueueRequest(_message.Message):
    __slots__ = ("name", "activity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    activity: bool
    def __init__(self, name: _Optional[str] = ..., activity: bool = ...) -> None: ...

class GetQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("prefix", "page_size", "page_token", "contains", "order", "descending", "offset", "activity")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    page_size: int
    page_token: str
    contains: str
    order: QueueOrder
    descending: bool
    offset: int
    activity: bool
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., contains: _Optional[str] = ..., order: _Optional[_Union[QueueOrder, str]] = ..., descending: bool = ..., offset: _Optional[int] = ..., activity: bool = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token", "total", "order_uncertain")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ORDER_UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_types_pb2.Queue]
    next_page_token: str
    total: int
    order_uncertain: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[_types_pb2.Queue, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ..., order_uncertain: bool = ...) -> None: ...

class CreateSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "name", "start", "if_not_exists", "producer", "filter", "start_sequence", "start_time", "redelivery")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    start: _types_pb2.StartPosition
    if_not_exists: bool
    producer: _types_pb2.Producer
    filter: str
    start_sequence: int
    start_time: _timestamp_pb2.Timestamp
    redelivery: _types_pb2.RedeliveryPolicy
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., start: _Optional[_Union[_types_pb2.StartPosition, str]] = ..., if_not_exists: bool = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ..., filter: _Optional[str] = ..., start_sequence: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., redelivery: _Optional[_Union[_types_pb2.RedeliveryPolicy, _Mapping]] = ...) -> None: ...

class CreateSubscriptionResponse(_message.Message):
    __slots__ = ("subscription", "created")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    subscription: _types_pb2.Subscription
    created: bool
    def __init__(self, subscription: _Optional[_Union[_types_pb2.Subscription, _Mapping]] = ..., created: bool = ...) -> None: ...

class AlterSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "name", "filter", "redelivery", "update_mask", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    filter: str
    redelivery: _types_pb2.RedeliveryPolicy
    update_mask: _field_mask_pb2.FieldMask
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., filter: _Optional[str] = ..., redelivery: _Optional[_Union[_types_pb2.RedeliveryPolicy, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class AlterSubscriptionResponse(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: _types_pb2.Subscription
    def __init__(self, subscription: _Optional[_Union[_types_pb2.Subscription, _Mapping]] = ...) -> None: ...

class DeleteSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "name", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class DeleteSubscriptionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("queue", "messages", "producer", "splits")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    producer: _types_pb2.Producer
    splits: bool
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ..., splits: bool = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("first_sequence", "lsn", "duplicate", "duplicates")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    lsn: int
    duplicate: bool
    duplicates: _containers.RepeatedCompositeFieldContainer[DuplicateMessage]
    def __init__(self, first_sequence: _Optional[int] = ..., lsn: _Optional[int] = ..., duplicate: bool = ..., duplicates: _Optional[_Iterable[_Union[DuplicateMessage, _Mapping]]] = ...) -> None: ...

class DuplicateMessage(_message.Message):
    __slots__ = ("index", "sequence")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    sequence: int
    def __init__(self, index: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class PublishStreamRequest(_message.Message):
    __slots__ = ("correlation", "publish", "more", "accepts_more", "resumes")
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_MORE_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    correlation: int
    publish: PublishRequest
    more: _containers.RepeatedCompositeFieldContainer[PublishStreamRequest]
    accepts_more: bool
    resumes: bool
    def __init__(self, correlation: _Optional[int] = ..., publish: _Optional[_Union[PublishRequest, _Mapping]] = ..., more: _Optional[_Iterable[_Union[PublishStreamRequest, _Mapping]]] = ..., accepts_more: bool = ..., resumes: bool = ...) -> None: ...

class PublishStreamResponse(_message.Message):
    __slots__ = ("correlation", "published", "error", "more", "accepts_more")
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_MORE_FIELD_NUMBER: _ClassVar[int]
    correlation: int
    published: PublishResponse
    error: RequestError
    more: _containers.RepeatedCompositeFieldContainer[PublishStreamResponse]
    accepts_more: bool
    def __init__(self, correlation: _Optional[int] = ..., published: _Optional[_Union[PublishResponse, _Mapping]] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ..., more: _Optional[_Iterable[_Union[PublishStreamResponse, _Mapping]]] = ..., accepts_more: bool = ...) -> None: ...

class Submitted(_message.Message):
    __slots__ = ("through",)
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    through: int
    def __init__(self, through: _Optional[int] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("code", "message", "reason", "settled", "not_owner", "partitioned")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    NOT_OWNER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    reason: str
    settled: bool
    not_owner: _types_pb2.NotOwner
    partitioned: _types_pb2.QueuePartitioned
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ..., settled: bool = ..., not_owner: _Optional[_Union[_types_pb2.NotOwner, _Mapping]] = ..., partitioned: _Optional[_Union[_types_pb2.QueuePartitioned, _Mapping]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("operations", "producer")
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    producer: _types_pb2.Producer
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("publish", "ack", "release")
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    publish: PublishOperation
    ack: AckOperation
    release: ReleaseOperation
    def __init__(self, publish: _Optional[_Union[PublishOperation, _Mapping]] = ..., ack: _Optional[_Union[AckOperation, _Mapping]] = ..., release: _Optional[_Union[ReleaseOperation, _Mapping]] = ...) -> None: ...

class PublishOperation(_message.Message):
    __slots__ = ("queue", "messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ...) -> None: ...

class AckOperation(_message.Message):
    __slots__ = ("queue", "subscription", "ranges", "queue_id", "required", "site_epoch")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    SITE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    ranges: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    queue_id: int
    required: bool
    site_epoch: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., queue_id: _Optional[int] = ..., required: bool = ..., site_epoch: _Optional[int] = ...) -> None: ...

class ReleaseOperation(_message.Message):
    __slots__ = ("queue", "subscription", "ranges", "queue_id", "site_epoch")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SITE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    ranges: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    queue_id: int
    site_epoch: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., queue_id: _Optional[int] = ..., site_epoch: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("lsn", "results", "duplicate")
    LSN_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    duplicate: bool
    def __init__(self, lsn: _Optional[int] = ..., results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ..., duplicate: bool = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("first_sequence", "changed", "duplicates")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    changed: int
    duplicates: _containers.RepeatedCompositeFieldContainer[DuplicateMessage]
    def __init__(self, first_sequence: _Optional[int] = ..., changed: _Optional[int] = ..., duplicates: _Optional[_Iterable[_Union[DuplicateMessage, _Mapping]]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("attach", "credit", "ack", "nack", "confirm", "reject", "nack_delay", "release", "drain", "leave", "extend")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    NACK_DELAY_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    credit: int
    ack: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    nack: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    confirm: int
    reject: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    nack_delay: _duration_pb2.Duration
    release: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    drain: int
    leave: Leave
    extend: Extend
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., credit: _Optional[int] = ..., ack: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., nack: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., confirm: _Optional[int] = ..., reject: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., nack_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., release: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., drain: _Optional[int] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("sequences", "duration")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    duration: _duration_pb2.Duration
    def __init__(self, sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("seen",)
    SEEN_FIELD_NUMBER: _ClassVar[int]
    seen: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    def __init__(self, seen: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("queue", "subscription", "max_response_bytes", "queue_id", "filter", "report_waiting", "ack_timeout", "site_epoch", "consumer_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REPORT_WAITING_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    SITE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    max_response_bytes: int
    queue_id: int
    filter: str
    report_waiting: bool
    ack_timeout: _duration_pb2.Duration
    site_epoch: int
    consumer_id: str
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., max_response_bytes: _Optional[int] = ..., queue_id: _Optional[int] = ..., filter: _Optional[str] = ..., report_waiting: bool = ..., ack_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., site_epoch: _Optional[int] = ..., consumer_id: _Optional[str] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("messages", "confirmed", "attached", "queue_id", "drained", "drained_credit", "waiting", "moved", "expired", "refused", "ack_timeout")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_CREDIT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.StoredMessage]
    confirmed: int
    attached: bool
    queue_id: int
    drained: int
    drained_credit: int
    waiting: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    moved: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    expired: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    refused: RefusedAnswers
    ack_timeout: _duration_pb2.Duration
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.StoredMessage, _Mapping]]] = ..., confirmed: _Optional[int] = ..., attached: bool = ..., queue_id: _Optional[int] = ..., drained: _Optional[int] = ..., drained_credit: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., moved: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., expired: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., refused: _Optional[_Union[RefusedAnswers, _Mapping]] = ..., ack_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RefusedAnswers(_message.Message):
    __slots__ = ("sequences", "reason")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    reason: _errors_pb2.ErrorReason
    def __init__(self, sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ...) -> None: ...

class ReplayDeadLettersRequest(_message.Message):
    __slots__ = ("queue", "subscription", "to", "from_sequence", "limit", "filter", "before_sequence")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    to: str
    from_sequence: int
    limit: int
    filter: str
    before_sequence: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., to: _Optional[str] = ..., from_sequence: _Optional[int] = ..., limit: _Optional[int] = ..., filter: _Optional[str] = ..., before_sequence: _Optional[int] = ...) -> None: ...

class ReplayDeadLettersResponse(_message.Message):
    __slots__ = ("moved", "skipped", "progress")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    skipped: int
    progress: SearchProgress
    def __init__(self, moved: _Optional[int] = ..., skipped: _Optional[int] = ..., progress: _Optional[_Union[SearchProgress, _Mapping]] = ...) -> None: ...

class Search(_message.Message):
    __slots__ = ("filter", "from_sequence", "before_sequence", "max_scanned")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_SCANNED_FIELD_NUMBER: _ClassVar[int]
    filter: str
    from_sequence: int
    before_sequence: int
    max_scanned: int
    def __init__(self, filter: _Optional[str] = ..., from_sequence: _Optional[int] = ..., before_sequence: _Optional[int] = ..., max_scanned: _Optional[int] = ...) -> None: ...

class SearchProgress(_message.Message):
    __slots__ = ("from_sequence", "before_sequence", "scanned", "unevaluated", "queue_id")
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    UNEVALUATED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    from_sequence: int
    before_sequence: int
    scanned: int
    unevaluated: int
    queue_id: int
    def __init__(self, from_sequence: _Optional[int] = ..., before_sequence: _Optional[int] = ..., scanned: _Optional[int] = ..., unevaluated: _Optional[int] = ..., queue_id: _Optional[int] = ...) -> None: ...

class MoveMessagesRequest(_message.Message):
    __slots__ = ("queue", "subscription", "to", "sequences", "queue_id", "search")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    to: str
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    queue_id: int
    search: Search
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., to: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., queue_id: _Optional[int] = ..., search: _Optional[_Union[Search, _Mapping]] = ...) -> None: ...

class MoveMessagesResponse(_message.Message):
    __slots__ = ("moved", "skipped", "progress")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    skipped: int
    progress: SearchProgress
    def __init__(self, moved: _Optional[int] = ..., skipped: _Optional[int] = ..., progress: _Optional[_Union[SearchProgress, _Mapping]] = ...) -> None: ...

class RemoveMessagesRequest(_message.Message):
    __slots__ = ("queue", "subscription", "sequences", "queue_id", "search")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRange]
    queue_id: int
    search: Search
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRange, _Mapping]]] = ..., queue_id: _Optional[int] = ..., search: _Optional[_Union[Search, _Mapping]] = ...) -> None: ...

class RemoveMessagesResponse(_message.Message):
    __slots__ = ("removed", "progress")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    removed: int
    progress: SearchProgress
    def __init__(self, removed: _Optional[int] = ..., progress: _Optional[_Union[SearchProgress, _Mapping]] = ...) -> None: ...

class BrowseRequest(_message.Message):
    __slots__ = ("queue", "subscription", "from_sequence", "limit", "headers_only", "max_response_bytes", "filter", "before_sequence", "newest", "max_scanned")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    MAX_SCANNED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    from_sequence: int
    limit: int
    headers_only: bool
    max_response_bytes: int
    filter: str
    before_sequence: int
    newest: bool
    max_scanned: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., from_sequence: _Optional[int] = ..., limit: _Optional[int] = ..., headers_only: bool = ..., max_response_bytes: _Optional[int] = ..., filter: _Optional[str] = ..., before_sequence: _Optional[int] = ..., newest: bool = ..., max_scanned: _Optional[int] = ...) -> None: ...

class BrowseResponse(_message.Message):
    __slots__ = ("messages", "damaged", "progress")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.StoredMessage]
    damaged: _containers.RepeatedScalarFieldContainer[int]
    progress: SearchProgress
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.StoredMessage, _Mapping]]] = ..., damaged: _Optional[_Iterable[int]] = ..., progress: _Optional[_Union[SearchProgress, _Mapping]] = ...) -> None: ...

class SeekSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "subscription", "position", "sequence", "time", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    position: _types_pb2.StartPosition
    sequence: int
    time: _timestamp_pb2.Timestamp
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., position: _Optional[_Union[_types_pb2.StartPosition, str]] = ..., sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class SeekSubscriptionResponse(_message.Message):
    __slots__ = ("sequence", "backlog")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    backlog: int
    def __init__(self, sequence: _Optional[int] = ..., backlog: _Optional[int] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("queue", "since")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    since: _duration_pb2.Duration
    def __init__(self, queue: _Optional[str] = ..., since: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("interval", "points")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    points: _containers.RepeatedCompositeFieldContainer[HistoryPoint]
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., points: _Optional[_Iterable[_Union[HistoryPoint, _Mapping]]] = ...) -> None: ...

class HistoryPoint(_message.Message):
    __slots__ = ("at", "published_per_second", "delivered_per_second", "acknowledged_per_second", "messages", "bytes", "oldest_age")
    AT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    published_per_second: float
    delivered_per_second: float
    acknowledged_per_second: float
    messages: int
    bytes: int
    oldest_age: _duration_pb2.Duration
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., published_per_second: _Optional[float] = ..., delivered_per_second: _Optional[float] = ..., acknowledged_per_second: _Optional[float] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PutPolicyRequest(_message.Message):
    __slots__ = ("policy", "producer")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    policy: _types_pb2.QueuePolicy
    producer: _types_pb2.Producer
    def __init__(self, policy: _Optional[_Union[_types_pb2.QueuePolicy, _Mapping]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class PutPolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: _types_pb2.QueuePolicy
    def __init__(self, policy: _Optional[_Union[_types_pb2.QueuePolicy, _Mapping]] = ...) -> None: ...

class DeletePolicyRequest(_message.Message):
    __slots__ = ("pattern", "producer")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    producer: _types_pb2.Producer
    def __init__(self, pattern: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class DeletePolicyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[_types_pb2.QueuePolicy]
    def __init__(self, policies: _Optional[_Iterable[_Union[_types_pb2.QueuePolicy, _Mapping]]] = ...) -> None: ...

class PauseQueueRequest(_message.Message):
    __slots__ = ("queue", "subscription", "publish", "deliver", "reason", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    publish: bool
    deliver: bool
    reason: str
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., publish: bool = ..., deliver: bool = ..., reason: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class PauseQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ...) -> None: ...

class ResumeQueueRequest(_message.Message):
    __slots__ = ("queue", "subscription", "publish", "deliver", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    publish: bool
    deliver: bool
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., publish: bool = ..., deliver: bool = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class ResumeQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ...) -> None: ...

class SetForwardsRequest(_message.Message):
    __slots__ = ("queue", "forwards", "producer")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    forwards: _containers.RepeatedCompositeFieldContainer[_types_pb2.Forward]
    producer: _types_pb2.Producer
    def __init__(self, queue: _Optional[str] = ..., forwards: _Optional[_Iterable[_Union[_types_pb2.Forward, _Mapping]]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class SetForwardsResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: _types_pb2.Queue
    def __init__(self, queue: _Optional[_Union[_types_pb2.Queue, _Mapping]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("xid", "operations", "producer")
    XID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    xid: str
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    producer: _types_pb2.Producer
    def __init__(self, xid: _Optional[str] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ("lsn", "duplicate")
    LSN_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    duplicate: bool
    def __init__(self, lsn: _Optional[int] = ..., duplicate: bool = ...) -> None: ...

class CommitPreparedRequest(_message.Message):
    __slots__ = ("xid", "heuristic")
    XID_FIELD_NUMBER: _ClassVar[int]
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    xid: str
    heuristic: bool
    def __init__(self, xid: _Optional[str] = ..., heuristic: bool = ...) -> None: ...

class CommitPreparedResponse(_message.Message):
    __slots__ = ("heuristic",)
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    heuristic: bool
    def __init__(self, heuristic: bool = ...) -> None: ...

class RollbackPreparedRequest(_message.Message):
    __slots__ = ("xid", "heuristic")
    XID_FIELD_NUMBER: _ClassVar[int]
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    xid: str
    heuristic: bool
    def __init__(self, xid: _Optional[str] = ..., heuristic: bool = ...) -> None: ...

class RollbackPreparedResponse(_message.Message):
    __slots__ = ("heuristic",)
    HEURISTIC_FIELD_NUMBER: _ClassVar[int]
    heuristic: bool
    def __init__(self, heuristic: bool = ...) -> None: ...

class ListPreparedRequest(_message.Message):
    __slots__ = ("after_lsn", "limit")
    AFTER_LSN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_lsn: int
    limit: int
    def __init__(self, after_lsn: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListPreparedResponse(_message.Message):
    __slots__ = ("transactions", "more", "total", "total_bytes")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[PreparedTransaction]
    more: bool
    total: int
    total_bytes: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[PreparedTransaction, _Mapping]]] = ..., more: bool = ..., total: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class PreparedTransaction(_message.Message):
    __slots__ = ("xid", "lsn", "prepared_at", "queues", "bytes")
    XID_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    PREPARED_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    xid: str
    lsn: int
    prepared_at: _timestamp_pb2.Timestamp
    queues: _containers.RepeatedCompositeFieldContainer[PreparedQueue]
    bytes: int
    def __init__(self, xid: _Optional[str] = ..., lsn: _Optional[int] = ..., prepared_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[PreparedQueue, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class PreparedQueue(_message.Message):
    __slots__ = ("queue", "publishes", "acks")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    publishes: int
    acks: int
    def __init__(self, queue: _Optional[str] = ..., publishes: _Optional[int] = ..., acks: _Optional[int] = ...) -> None: ...
