# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lockstep_mq._proto import maintenance_pb2 as _maintenance_pb2
from lockstep_mq._proto import site_pb2 as _site_pb2
from lockstep_mq._proto import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_RECOVERING: _ClassVar[Role]
    ROLE_CATCHING_UP: _ClassVar[Role]
    ROLE_SYNCING: _ClassVar[Role]
    ROLE_STANDBY: _ClassVar[Role]
    ROLE_CANDIDATE: _ClassVar[Role]
    ROLE_ACTIVATING: _ClassVar[Role]
    ROLE_ACTIVE: _ClassVar[Role]
    ROLE_BLOCKED: _ClassVar[Role]
    ROLE_ACTIVE_ALONE: _ClassVar[Role]
    ROLE_FENCED: _ClassVar[Role]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_CRITICAL: _ClassVar[Severity]
ROLE_UNSPECIFIED: Role
ROLE_RECOVERING: Role
ROLE_CATCHING_UP: Role
ROLE_SYNCING: Role
ROLE_STANDBY: Role
ROLE_CANDIDATE: Role
ROLE_ACTIVATING: Role
ROLE_ACTIVE: Role
ROLE_BLOCKED: Role
ROLE_ACTIVE_ALONE: Role
ROLE_FENCED: Role
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
SEVERITY_CRITICAL: Severity

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "name", "address", "in_sync", "active", "live", "version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    name: str
    address: str
    in_sync: bool
    active: bool
    live: bool
    version: str
    def __init__(self, node_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., in_sync: bool = ..., active: bool = ..., live: bool = ..., version: _Optional[str] = ...) -> None: ...

class PairStatus(_message.Message):
    __slots__ = ("pair_id", "config", "term", "nodes", "min_in_sync", "coordinator", "coordinator_reachable", "paused", "forced", "failback_at", "coordinator_addresses")
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MIN_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    FAILBACK_AT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    pair_id: str
    config: int
    term: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    min_in_sync: int
    coordinator: str
    coordinator_reachable: bool
    paused: Pause
    forced: Forced
    failback_at: _timestamp_pb2.Timestamp
    coordinator_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pair_id: _Optional[str] = ..., config: _Optional[int] = ..., term: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., min_in_sync: _Optional[int] = ..., coordinator: _Optional[str] = ..., coordinator_reachable: bool = ..., paused: _Optional[_Union[Pause, _Mapping]] = ..., forced: _Optional[_Union[Forced, _Mapping]] = ..., failback_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., coordinator_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Forced(_message.Message):
    __slots__ = ("at", "by", "reason", "node_id", "term", "after_lsn", "settled")
    AT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    AFTER_LSN_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    by: str
    reason: str
    node_id: str
    term: int
    after_lsn: int
    settled: bool
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., node_id: _Optional[str] = ..., term: _Optional[int] = ..., after_lsn: _Optional[int] = ..., settled: bool = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("since", "reason")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SetPausedRequest(_message.Message):
    __slots__ = ("paused", "reason")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    reason: str
    def __init__(self, paused: bool = ..., reason: _Optional[str] = ...) -> None: ...

class SetPausedResponse(_message.Message):
    __slots__ = ("paused",)
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    paused: Pause
    def __init__(self, paused: _Optional[_Union[Pause, _Mapping]] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("store_id", "log_end", "log_durable", "commit_lsn", "applied_lsn", "log_first_lsn", "checkpoint_lsn", "checkpoint", "page_size", "pages", "pages_used", "queues", "messages", "message_bytes", "log_bytes", "sync", "disk_free", "pair_id", "fence_config", "fence_term", "may_have_lost", "unused_files", "disk_size")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LOG_DURABLE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LSN_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    LOG_FIRST_LSN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_LSN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    FENCE_TERM_FIELD_NUMBER: _ClassVar[int]
    MAY_HAVE_LOST_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FILES_FIELD_NUMBER: _ClassVar[int]
    DISK_SIZE_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    log_end: _types_pb2.Position
    log_durable: _types_pb2.Position
    commit_lsn: int
    applied_lsn: int
    log_first_lsn: int
    checkpoint_lsn: int
    checkpoint: int
    page_size: int
    pages: int
    pages_used: int
    queues: int
    messages: int
    message_bytes: int
    log_bytes: int
    sync: str
    disk_free: int
    pair_id: str
    fence_config: int
    fence_term: int
    may_have_lost: bool
    unused_files: _containers.RepeatedCompositeFieldContainer[UnusedFile]
    disk_size: int
    def __init__(self, store_id: _Optional[str] = ..., log_end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., log_durable: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., commit_lsn: _Optional[int] = ..., applied_lsn: _Optional[int] = ..., log_first_lsn: _Optional[int] = ..., checkpoint_lsn: _Optional[int] = ..., checkpoint: _Optional[int] = ..., page_size: _Optional[int] = ..., pages: _Optional[int] = ..., pages_used: _Optional[int] = ..., queues: _Optional[int] = ..., messages: _Optional[int] = ..., message_bytes: _Optional[int] = ..., log_bytes: _Optional[int] = ..., sync: _Optional[str] = ..., disk_free: _Optional[int] = ..., pair_id: _Optional[str] = ..., fence_config: _Optional[int] = ..., fence_term: _Optional[int] = ..., may_have_lost: bool = ..., unused_files: _Optional[_Iterable[_Union[UnusedFile, _Mapping]]] = ..., disk_size: _Optional[int] = ...) -> None: ...

class UnusedFile(_message.Message):
    __slots__ = ("path", "kind", "bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: str
    bytes: int
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class StandbyStatus(_message.Message):
    __slots__ = ("node_id", "durable_lsn", "lag_records", "state", "lag_bytes", "lag_time")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LSN_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_TIME_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    durable_lsn: int
    lag_records: int
    state: str
    lag_bytes: int
    lag_time: _duration_pb2.Duration
    def __init__(self, node_id: _Optional[str] = ..., durable_lsn: _Optional[int] = ..., lag_records: _Optional[int] = ..., state: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., lag_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("node", "role", "reason", "pair", "store", "standby", "version", "started_at", "maintenance", "plan", "damage", "alarms", "conditions", "now", "disk_low_watermark", "certificates", "activity", "console", "site", "fleet")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    DISK_LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    node: NodeStatus
    role: Role
    reason: str
    pair: PairStatus
    store: StoreStatus
    standby: StandbyStatus
    version: str
    started_at: _timestamp_pb2.Timestamp
    maintenance: _maintenance_pb2.MaintenanceActivity
    plan: _maintenance_pb2.Plan
    damage: DamageStatus
    alarms: _containers.RepeatedCompositeFieldContainer[Alarm]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    now: _timestamp_pb2.Timestamp
    disk_low_watermark: int
    certificates: _containers.RepeatedCompositeFieldContainer[CertificateStatus]
    activity: Activity
    console: str
    site: SiteInfo
    fleet: FleetStatus
    def __init__(self, node: _Optional[_Union[NodeStatus, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ..., reason: _Optional[str] = ..., pair: _Optional[_Union[PairStatus, _Mapping]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ..., standby: _Optional[_Union[StandbyStatus, _Mapping]] = ..., version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., maintenance: _Optional[_Union[_maintenance_pb2.MaintenanceActivity, _Mapping]] = ..., plan: _Optional[_Union[_maintenance_pb2.Plan, _Mapping]] = ..., damage: _Optional[_Union[DamageStatus, _Mapping]] = ..., alarms: _Optional[_Iterable[_Union[Alarm, _Mapping]]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., disk_low_watermark: _Optional[int] = ..., certificates: _Optional[_Iterable[_Union[CertificateStatus, _Mapping]]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ..., console: _Optional[str] = ..., site: _Optional[_Union[SiteInfo, _Mapping]] = ..., fleet: _Optional[_Union[FleetStatus, _Mapping]] = ...) -> None: ...

class FleetStatus(_message.Message):
    __slots__ = ("pair", "fleet_id", "directory_current", "problem")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    FLEET_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_CURRENT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    pair: str
    fleet_id: str
    directory_current: bool
    problem: str
    def __init__(self, pair: _Optional[str] = ..., fleet_id: _Optional[str] = ..., directory_current: bool = ..., problem: _Optional[str] = ...) -> None: ...

class SiteInfo(_message.Message):
    __slots__ = ("name", "role", "lineage", "epoch", "remote_addresses", "lossy_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LOSSY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: _site_pb2.SiteRole
    lineage: str
    epoch: int
    remote_addresses: _containers.RepeatedScalarFieldContainer[str]
    lossy_epoch: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[_site_pb2.SiteRole, str]] = ..., lineage: _Optional[str] = ..., epoch: _Optional[int] = ..., remote_addresses: _Optional[_Iterable[str]] = ..., lossy_epoch: _Optional[int] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("published", "published_bytes", "delivered", "acknowledged", "transactions", "commits", "consumers", "connections", "memory_bytes", "memory_budget_bytes")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    published: int
    published_bytes: int
    delivered: int
    acknowledged: int
    transactions: int
    commits: _containers.RepeatedCompositeFieldContainer[LatencyBucket]
    consumers: int
    connections: int
    memory_bytes: int
    memory_budget_bytes: int
    def __init__(self, published: _Optional[int] = ..., published_bytes: _Optional[int] = ..., delivered: _Optional[int] = ..., acknowledged: _Optional[int] = ..., transactions: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[LatencyBucket, _Mapping]]] = ..., consumers: _Optional[int] = ..., connections: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_budget_bytes: _Optional[int] = ...) -> None: ...

class LatencyBucket(_message.Message):
    __slots__ = ("up_to", "count")
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    up_to: _duration_pb2.Duration
    count: int
    def __init__(self, up_to: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class CertificateStatus(_message.Message):
    __slots__ = ("use", "file", "ca", "subject", "ends")
    USE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    use: str
    file: str
    ca: bool
    subject: str
    ends: _timestamp_pb2.Timestamp
    def __init__(self, use: _Optional[str] = ..., file: _Optional[str] = ..., ca: bool = ..., subject: _Optional[str] = ..., ends: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: GetStatusResponse
    def __init__(self, status: _Optional[_Union[GetStatusResponse, _Mapping]] = ...) -> None: ...

class SwitchoverRequest(_message.Message):
    __slots__ = ("timeout", "to")
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    timeout: _duration_pb2.Duration
    to: str
    def __init__(self, timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., to: _Optional[str] = ..., **kwargs) -> None: ...

class SwitchoverResponse(_message.Message):
    __slots__ = ("active_node", "active_address", "term", "pause", "already")
    ACTIVE_NODE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    ALREADY_FIELD_NUMBER: _ClassVar[int]
    active_node: str
    active_address: str
    term: int
    pause: _duration_pb2.Duration
    already: bool
    def __init__(self, active_node: _Optional[str] = ..., active_address: _Optional[str] = ..., term: _Optional[int] = ..., pause: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., already: bool = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "lsn")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    checkpoint: int
    lsn: int
    def __init__(self, checkpoint: _Optional[int] = ..., lsn: _Optional[int] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("full_speed",)
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    full_speed: bool
    def __init__(self, full_speed: bool = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("pages_done", "pages_total", "finished", "problems", "messages")
    PAGES_DONE_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    pages_done: int
    pages_total: int
    finished: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    messages: int
    def __init__(self, pages_done: _Optional[int] = ..., pages_total: _Optional[int] = ..., finished: bool = ..., problems: _Optional[_Iterable[str]] = ..., messages: _Optional[int] = ...) -> None: ...

class GetDigestRequest(_message.Message):
    __slots__ = ("at_lsn",)
    AT_LSN_FIELD_NUMBER: _ClassVar[int]
    at_lsn: int
    def __init__(self, at_lsn: _Optional[int] = ...) -> None: ...

class GetDigestResponse(_message.Message):
    __slots__ = ("lsn", "content", "messages")
    LSN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    content: str
    messages: int
    def __init__(self, lsn: _Optional[int] = ..., content: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class AdoptRecordRequest(_message.Message):
    __slots__ = ("confirm", "other_address", "accept_data_loss", "without_other")
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OTHER_FIELD_NUMBER: _ClassVar[int]
    confirm: bool
    other_address: str
    accept_data_loss: bool
    without_other: bool
    def __init__(self, confirm: bool = ..., other_address: _Optional[str] = ..., accept_data_loss: bool = ..., without_other: bool = ...) -> None: ...

class AdoptRecordResponse(_message.Message):
    __slots__ = ("done", "pair_id", "node_id", "node_name", "config", "term", "in_sync", "found_config", "own_config", "log_end", "other", "warnings")
    DONE_FIELD_NUMBER: _ClassVar[int]
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    FOUND_CONFIG_FIELD_NUMBER: _ClassVar[int]
    OWN_CONFIG_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    done: bool
    pair_id: str
    node_id: str
    node_name: str
    config: int
    term: int
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    found_config: int
    own_config: int
    log_end: _types_pb2.Position
    other: AdoptedPeer
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, done: bool = ..., pair_id: _Optional[str] = ..., node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., config: _Optional[int] = ..., term: _Optional[int] = ..., in_sync: _Optional[_Iterable[str]] = ..., found_config: _Optional[int] = ..., own_config: _Optional[int] = ..., log_end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., other: _Optional[_Union[AdoptedPeer, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ForceFailoverRequest(_message.Message):
    __slots__ = ("confirm", "accept_data_loss", "config", "by", "reason", "other_address")
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    confirm: bool
    accept_data_loss: bool
    config: int
    by: str
    reason: str
    other_address: str
    def __init__(self, confirm: bool = ..., accept_data_loss: bool = ..., config: _Optional[int] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., other_address: _Optional[str] = ...) -> None: ...

class ForceFailoverResponse(_message.Message):
    __slots__ = ("done", "pair_id", "node_id", "node_name", "config", "term", "lost_node_id", "lost_node_name", "lost_address", "in_sync", "log_end", "heard_commit_lsn", "lost_from_lsn", "lost_to_lsn", "warnings")
    DONE_FIELD_NUMBER: _ClassVar[int]
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LOST_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    LOST_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    HEARD_COMMIT_LSN_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_LSN_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    done: bool
    pair_id: str
    node_id: str
    node_name: str
    config: int
    term: int
    lost_node_id: str
    lost_node_name: str
    lost_address: str
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    log_end: _types_pb2.Position
    heard_commit_lsn: int
    lost_from_lsn: int
    lost_to_lsn: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, done: bool = ..., pair_id: _Optional[str] = ..., node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., config: _Optional[int] = ..., term: _Optional[int] = ..., lost_node_id: _Optional[str] = ..., lost_node_name: _Optional[str] = ..., lost_address: _Optional[str] = ..., in_sync: _Optional[_Iterable[str]] = ..., log_end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., heard_commit_lsn: _Optional[int] = ..., lost_from_lsn: _Optional[int] = ..., lost_to_lsn: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class AdoptedPeer(_message.Message):
    __slots__ = ("address", "reached", "node_id", "name", "role", "log_end", "config")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    address: str
    reached: bool
    node_id: str
    name: str
    role: Role
    log_end: _types_pb2.Position
    config: int
    def __init__(self, address: _Optional[str] = ..., reached: bool = ..., node_id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., log_end: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., config: _Optional[int] = ...) -> None: ...

class DamageStatus(_message.Message):
    __slots__ = ("scrubbed_pages", "scrubbed_log_bytes", "scrubs", "last_scrub", "found_pages", "found_log", "repaired_pages", "repaired_log", "repaired_messages", "damaged_messages", "lost_messages", "index")
    SCRUBBED_PAGES_FIELD_NUMBER: _ClassVar[int]
    SCRUBBED_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRUBS_FIELD_NUMBER: _ClassVar[int]
    LAST_SCRUB_FIELD_NUMBER: _ClassVar[int]
    FOUND_PAGES_FIELD_NUMBER: _ClassVar[int]
    FOUND_LOG_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_PAGES_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_LOG_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    scrubbed_pages: int
    scrubbed_log_bytes: int
    scrubs: int
    last_scrub: _timestamp_pb2.Timestamp
    found_pages: int
    found_log: int
    repaired_pages: int
    repaired_log: int
    repaired_messages: int
    damaged_messages: int
    lost_messages: int
    index: str
    def __init__(self, scrubbed_pages: _Optional[int] = ..., scrubbed_log_bytes: _Optional[int] = ..., scrubs: _Optional[int] = ..., last_scrub: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., found_pages: _Optional[int] = ..., found_log: _Optional[int] = ..., repaired_pages: _Optional[int] = ..., repaired_log: _Optional[int] = ..., repaired_messages: _Optional[int] = ..., damaged_messages: _Optional[int] = ..., lost_messages: _Optional[int] = ..., index: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("kind", "severity", "details", "since", "cause", "action", "node_id", "node_name", "reported_by")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    REPORTED_BY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    severity: Severity
    details: str
    since: _timestamp_pb2.Timestamp
    cause: str
    action: str
    node_id: str
    node_name: str
    reported_by: str
    def __init__(self, kind: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., details: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[str] = ..., action: _Optional[str] = ..., node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., reported_by: _Optional[str] = ...) -> None: ...

class Alarm(_message.Message):
    __slots__ = ("kind", "message", "since")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DamagedMessage(_message.Message):
    __slots__ = ("queue", "sequence", "reason", "lost", "since")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    sequence: int
    reason: str
    lost: bool
    since: _timestamp_pb2.Timestamp
    def __init__(self, queue: _Optional[str] = ..., sequence: _Optional[int] = ..., reason: _Optional[str] = ..., lost: bool = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("deep", "full_speed")
    DEEP_FIELD_NUMBER: _ClassVar[int]
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    deep: bool
    full_speed: bool
    def __init__(self, deep: bool = ..., full_speed: bool = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("lsn", "queues", "messages", "differences", "nodes", "deep", "content_error")
    LSN_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEEP_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ERROR_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    queues: int
    messages: int
    differences: _containers.RepeatedCompositeFieldContainer[QueueDifference]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeVerification]
    deep: bool
    content_error: str
    def __init__(self, lsn: _Optional[int] = ..., queues: _Optional[int] = ..., messages: _Optional[int] = ..., differences: _Optional[_Iterable[_Union[QueueDifference, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeVerification, _Mapping]]] = ..., deep: bool = ..., content_error: _Optional[str] = ...) -> None: ...

class QueueDifference(_message.Message):
    __slots__ = ("queue", "reason")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    queue: str
    reason: str
    def __init__(self, queue: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeVerification(_message.Message):
    __slots__ = ("node_id", "name", "damage", "damaged")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    name: str
    damage: DamageStatus
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedMessage]
    def __init__(self, node_id: _Optional[str] = ..., name: _Optional[str] = ..., damage: _Optional[_Union[DamageStatus, _Mapping]] = ..., damaged: _Optional[_Iterable[_Union[DamagedMessage, _Mapping]]] = ...) -> None: ...

class GetQueueDigestsRequest(_message.Message):
    __slots__ = ("at_lsn",)
    AT_LSN_FIELD_NUMBER: _ClassVar[int]
    at_lsn: int
    def __init__(self, at_lsn: _Optional[int] = ...) -> None: ...

class GetQueueDigestsResponse(_message.Message):
    __slots__ = ("lsn", "digest", "queues", "damage", "damaged")
    LSN_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    digest: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueDigest]
    damage: DamageStatus
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedMessage]
    def __init__(self, lsn: _Optional[int] = ..., digest: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueDigest, _Mapping]]] = ..., damage: _Optional[_Union[DamageStatus, _Mapping]] = ..., damaged: _Optional[_Iterable[_Union[DamagedMessage, _Mapping]]] = ...) -> None: ...

class QueueDigest(_message.Message):
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

class ScrubRequest(_message.Message):
    __slots__ = ("full_speed",)
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    full_speed: bool
    def __init__(self, full_speed: bool = ...) -> None: ...

class ScrubResponse(_message.Message):
    __slots__ = ("pages", "log_bytes", "damage", "damaged")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    pages: int
    log_bytes: int
    damage: DamageStatus
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedMessage]
    def __init__(self, pages: _Optional[int] = ..., log_bytes: _Optional[int] = ..., damage: _Optional[_Union[DamageStatus, _Mapping]] = ..., damaged: _Optional[_Iterable[_Union[DamagedMessage, _Mapping]]] = ...) -> None: ...

class DropDamagedRequest(_message.Message):
    __slots__ = ("queue", "dry_run", "only")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    dry_run: bool
    only: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue: _Optional[str] = ..., dry_run: bool = ..., only: _Optional[_Iterable[int]] = ...) -> None: ...

class DropDamagedResponse(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class CopyHistoryRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CopyHistoryResponse(_message.Message):
    __slots__ = ("queue_id", "traffic", "recent", "day")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    traffic: float
    recent: HistoryRange
    day: HistoryRange
    def __init__(self, queue_id: _Optional[int] = ..., traffic: _Optional[float] = ..., recent: _Optional[_Union[HistoryRange, _Mapping]] = ..., day: _Optional[_Union[HistoryRange, _Mapping]] = ...) -> None: ...

class HistoryRange(_message.Message):
    __slots__ = ("first", "values")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    first: int
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, first: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
