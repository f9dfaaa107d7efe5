# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lockstep_mq._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissedOccurrences(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSED_OCCURRENCES_UNSPECIFIED: _ClassVar[MissedOccurrences]
    MISSED_OCCURRENCES_SKIP: _ClassVar[MissedOccurrences]
    MISSED_OCCURRENCES_ONCE: _ClassVar[MissedOccurrences]
    MISSED_OCCURRENCES_ALL: _ClassVar[MissedOccurrences]

class ScheduleOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_OUTCOME_UNSPECIFIED: _ClassVar[ScheduleOutcome]
    SCHEDULE_OUTCOME_PUBLISHED: _ClassVar[ScheduleOutcome]
    SCHEDULE_OUTCOME_FAILED: _ClassVar[ScheduleOutcome]
    SCHEDULE_OUTCOME_SKIPPED: _ClassVar[ScheduleOutcome]
MISSED_OCCURRENCES_UNSPECIFIED: MissedOccurrences
MISSED_OCCURRENCES_SKIP: MissedOccurrences
MISSED_OCCURRENCES_ONCE: MissedOccurrences
MISSED_OCCURRENCES_ALL: MissedOccurrences
SCHEDULE_OUTCOME_UNSPECIFIED: ScheduleOutcome
SCHEDULE_OUTCOME_PUBLISHED: ScheduleOutcome
SCHEDULE_OUTCOME_FAILED: ScheduleOutcome
SCHEDULE_OUTCOME_SKIPPED: ScheduleOutcome

class Schedule(_message.Message):
    __slots__ = ("name", "queue", "cron", "every", "time_zone", "message", "missed", "paused", "put_by", "started_at", "last_at", "next_at", "history")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PUT_BY_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue: str
    cron: str
    every: _duration_pb2.Duration
    time_zone: str
    message: _types_pb2.Message
    missed: MissedOccurrences
    paused: bool
    put_by: str
    started_at: _timestamp_pb2.Timestamp
    last_at: _timestamp_pb2.Timestamp
    next_at: _timestamp_pb2.Timestamp
    history: _containers.RepeatedCompositeFieldContainer[ScheduleRun]
    def __init__(self, name: _Optional[str] = ..., queue: _Optional[str] = ..., cron: _Optional[str] = ..., every: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_zone: _Optional[str] = ..., message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ..., missed: _Optional[_Union[MissedOccurrences, str]] = ..., paused: bool = ..., put_by: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[_Iterable[_Union[ScheduleRun, _Mapping]]] = ...) -> None: ...

class ScheduleRun(_message.Message):
    __slots__ = ("due_at", "at", "outcome", "sequence", "error", "skipped", "manual")
    DUE_AT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MANUAL_FIELD_NUMBER: _ClassVar[int]
    due_at: _timestamp_pb2.Timestamp
    at: _timestamp_pb2.Timestamp
    outcome: ScheduleOutcome
    sequence: int
    error: str
    skipped: int
    manual: bool
    def __init__(self, due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[_Union[ScheduleOutcome, str]] = ..., sequence: _Optional[int] = ..., error: _Optional[str] = ..., skipped: _Optional[int] = ..., manual: bool = ...) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("schedule", "producer")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    producer: _types_pb2.Producer
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("name", "producer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: _types_pb2.Producer
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetSchedulePausedRequest(_message.Message):
    __slots__ = ("name", "paused", "producer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    name: str
    paused: bool
    producer: _types_pb2.Producer
    def __init__(self, name: _Optional[str] = ..., paused: bool = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class SetSchedulePausedResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class RunScheduleRequest(_message.Message):
    __slots__ = ("name", "producer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: _types_pb2.Producer
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[_Union[_types_pb2.Producer, _Mapping]] = ...) -> None: ...

class RunScheduleResponse(_message.Message):
    __slots__ = ("queue", "sequence", "lsn")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    sequence: int
    lsn: int
    def __init__(self, queue: _Optional[str] = ..., sequence: _Optional[int] = ..., lsn: _Optional[int] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...
