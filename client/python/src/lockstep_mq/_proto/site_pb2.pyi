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

class SiteRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SITE_ROLE_UNSPECIFIED: _ClassVar[SiteRole]
    SITE_ROLE_PRIMARY: _ClassVar[SiteRole]
    SITE_ROLE_REPLICA: _ClassVar[SiteRole]
    SITE_ROLE_STOPPED: _ClassVar[SiteRole]
SITE_ROLE_UNSPECIFIED: SiteRole
SITE_ROLE_PRIMARY: SiteRole
SITE_ROLE_REPLICA: SiteRole
SITE_ROLE_STOPPED: SiteRole

class SiteState(_message.Message):
    __slots__ = ("name", "role", "lineage", "epoch", "upstream", "origin", "promoted", "logical_offset", "applied", "addresses", "now", "lossy_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    LOSSY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: SiteRole
    lineage: str
    epoch: int
    upstream: _types_pb2.Position
    origin: _types_pb2.Position
    promoted: _types_pb2.Position
    logical_offset: int
    applied: _types_pb2.Position
    addresses: _containers.RepeatedScalarFieldContainer[str]
    now: _timestamp_pb2.Timestamp
    lossy_epoch: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[SiteRole, str]] = ..., lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., upstream: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., origin: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., promoted: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., logical_offset: _Optional[int] = ..., applied: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., addresses: _Optional[_Iterable[str]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lossy_epoch: _Optional[int] = ...) -> None: ...

class GetSiteRequest(_message.Message):
    __slots__ = ("local",)
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    local: bool
    def __init__(self, local: bool = ...) -> None: ...

class GetSiteResponse(_message.Message):
    __slots__ = ("site", "remote", "error", "replication")
    SITE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    site: SiteState
    remote: SiteState
    error: str
    replication: SiteReplication
    def __init__(self, site: _Optional[_Union[SiteState, _Mapping]] = ..., remote: _Optional[_Union[SiteState, _Mapping]] = ..., error: _Optional[str] = ..., replication: _Optional[_Union[SiteReplication, _Mapping]] = ...) -> None: ...

class SiteReplication(_message.Message):
    __slots__ = ("connected", "heard_at", "primary_end", "lag_records", "lag_bytes", "lag", "bytes_per_second", "connections")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_END_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    connected: bool
    heard_at: _timestamp_pb2.Timestamp
    primary_end: _types_pb2.Position
    lag_records: int
    lag_bytes: int
    lag: _duration_pb2.Duration
    bytes_per_second: int
    connections: int
    def __init__(self, connected: bool = ..., heard_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., primary_end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., lag_records: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., bytes_per_second: _Optional[int] = ..., connections: _Optional[int] = ...) -> None: ...

class SwitchSiteRequest(_message.Message):
    __slots__ = ("to", "timeout")
    TO_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    to: str
    timeout: _duration_pb2.Duration
    def __init__(self, to: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SwitchSiteResponse(_message.Message):
    __slots__ = ("primary", "epoch", "pause", "addresses")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    primary: str
    epoch: int
    pause: _duration_pb2.Duration
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, primary: _Optional[str] = ..., epoch: _Optional[int] = ..., pause: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class PromoteSiteRequest(_message.Message):
    __slots__ = ("reason", "force")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    force: bool
    def __init__(self, reason: _Optional[str] = ..., force: bool = ...) -> None: ...

class PromoteSiteResponse(_message.Message):
    __slots__ = ("epoch", "origin", "replication")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    origin: _types_pb2.Position
    replication: SiteReplication
    def __init__(self, epoch: _Optional[int] = ..., origin: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., replication: _Optional[_Union[SiteReplication, _Mapping]] = ...) -> None: ...

class DemoteSiteRequest(_message.Message):
    __slots__ = ("replica_of",)
    REPLICA_OF_FIELD_NUMBER: _ClassVar[int]
    replica_of: str
    def __init__(self, replica_of: _Optional[str] = ...) -> None: ...

class DemoteSiteResponse(_message.Message):
    __slots__ = ("primary", "epoch", "upstream")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    primary: str
    epoch: int
    upstream: _types_pb2.Position
    def __init__(self, primary: _Optional[str] = ..., epoch: _Optional[int] = ..., upstream: _Optional[_Union[_types_pb2.Position, _Mapping]] = ...) -> None: ...

class PullLogRequest(_message.Message):
    __slots__ = ("site", "lineage", "epoch", "after")
    SITE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    site: str
    lineage: str
    epoch: int
    after: _types_pb2.Position
    def __init__(self, site: _Optional[str] = ..., lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., after: _Optional[_Union[_types_pb2.Position, _Mapping]] = ...) -> None: ...

class PullLogResponse(_message.Message):
    __slots__ = ("frames", "uncompressed_bytes", "end", "now", "primary", "behind_bytes", "report")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    uncompressed_bytes: int
    end: _types_pb2.Position
    now: _timestamp_pb2.Timestamp
    primary: SiteState
    behind_bytes: int
    report: bool
    def __init__(self, frames: _Optional[bytes] = ..., uncompressed_bytes: _Optional[int] = ..., end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., primary: _Optional[_Union[SiteState, _Mapping]] = ..., behind_bytes: _Optional[int] = ..., report: bool = ...) -> None: ...

class PullSnapshotRequest(_message.Message):
    __slots__ = ("site", "detached")
    SITE_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    site: str
    detached: bool
    def __init__(self, site: _Optional[str] = ..., detached: bool = ...) -> None: ...

class PullSnapshotResponse(_message.Message):
    __slots__ = ("snapshot", "offset", "data", "uncompressed_bytes", "checksum", "finished")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    snapshot: SiteSnapshot
    offset: int
    data: bytes
    uncompressed_bytes: int
    checksum: int
    finished: bool
    def __init__(self, snapshot: _Optional[_Union[SiteSnapshot, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., uncompressed_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., finished: bool = ...) -> None: ...

class SiteSnapshot(_message.Message):
    __slots__ = ("primary", "position", "file_bytes", "data_bytes", "page_size")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    primary: SiteState
    position: _types_pb2.Position
    file_bytes: int
    data_bytes: int
    page_size: int
    def __init__(self, primary: _Optional[_Union[SiteState, _Mapping]] = ..., position: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., file_bytes: _Optional[int] = ..., data_bytes: _Optional[int] = ..., page_size: _Optional[int] = ...) -> None: ...

class ReportPositionRequest(_message.Message):
    __slots__ = ("lineage", "epoch", "applied")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    epoch: int
    applied: _types_pb2.Position
    def __init__(self, lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., applied: _Optional[_Union[_types_pb2.Position, _Mapping]] = ...) -> None: ...

class ReportPositionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeoverRequest(_message.Message):
    __slots__ = ("lineage", "epoch", "end", "timeout")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    epoch: int
    end: _types_pb2.Position
    timeout: _duration_pb2.Duration
    def __init__(self, lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TakeoverResponse(_message.Message):
    __slots__ = ("site",)
    SITE_FIELD_NUMBER: _ClassVar[int]
    site: SiteState
    def __init__(self, site: _Optional[_Union[SiteState, _Mapping]] = ...) -> None: ...

class CancelTakeoverRequest(_message.Message):
    __slots__ = ("lineage", "epoch", "end")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    epoch: int
    end: _types_pb2.Position
    def __init__(self, lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ...) -> None: ...

class CancelTakeoverResponse(_message.Message):
    __slots__ = ("site",)
    SITE_FIELD_NUMBER: _ClassVar[int]
    site: SiteState
    def __init__(self, site: _Optional[_Union[SiteState, _Mapping]] = ...) -> None: ...

class VerifySitesRequest(_message.Message):
    __slots__ = ("local",)
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    local: bool
    def __init__(self, local: bool = ...) -> None: ...

class VerifySitesResponse(_message.Message):
    __slots__ = ("primary", "replica", "epoch", "logical", "primary_lsn", "replica_lsn", "queues", "messages", "differences", "held")
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_LSN_FIELD_NUMBER: _ClassVar[int]
    REPLICA_LSN_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    primary: str
    replica: str
    epoch: int
    logical: int
    primary_lsn: int
    replica_lsn: int
    queues: int
    messages: int
    differences: _containers.RepeatedCompositeFieldContainer[SiteDifference]
    held: _duration_pb2.Duration
    def __init__(self, primary: _Optional[str] = ..., replica: _Optional[str] = ..., epoch: _Optional[int] = ..., logical: _Optional[int] = ..., primary_lsn: _Optional[int] = ..., replica_lsn: _Optional[int] = ..., queues: _Optional[int] = ..., messages: _Optional[int] = ..., differences: _Optional[_Iterable[_Union[SiteDifference, _Mapping]]] = ..., held: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SiteDifference(_message.Message):
    __slots__ = ("queue", "primary", "replica")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    queue: str
    primary: SiteQueueDigest
    replica: SiteQueueDigest
    def __init__(self, queue: _Optional[str] = ..., primary: _Optional[_Union[SiteQueueDigest, _Mapping]] = ..., replica: _Optional[_Union[SiteQueueDigest, _Mapping]] = ...) -> None: ...

class SiteQueueDigest(_message.Message):
    __slots__ = ("id", "name", "digest", "next_sequence", "messages")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    digest: int
    next_sequence: int
    messages: int
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., digest: _Optional[int] = ..., next_sequence: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class GetSiteDigestsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSiteDigestsResponse(_message.Message):
    __slots__ = ("site", "at", "logical", "digest", "queues")
    SITE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    site: SiteState
    at: _types_pb2.Position
    logical: int
    digest: int
    queues: _containers.RepeatedCompositeFieldContainer[SiteQueueDigest]
    def __init__(self, site: _Optional[_Union[SiteState, _Mapping]] = ..., at: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., logical: _Optional[int] = ..., digest: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[SiteQueueDigest, _Mapping]]] = ...) -> None: ...
