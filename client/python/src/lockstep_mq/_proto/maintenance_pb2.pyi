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

class PlanKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_KIND_UNSPECIFIED: _ClassVar[PlanKind]
    PLAN_KIND_RESIZE: _ClassVar[PlanKind]
    PLAN_KIND_COMPACT: _ClassVar[PlanKind]
    PLAN_KIND_RESTART: _ClassVar[PlanKind]

class PlanState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_STATE_UNSPECIFIED: _ClassVar[PlanState]
    PLAN_STATE_WAITING: _ClassVar[PlanState]
    PLAN_STATE_REWRITING: _ClassVar[PlanState]
    PLAN_STATE_CATCHING_UP: _ClassVar[PlanState]
    PLAN_STATE_SWITCHING: _ClassVar[PlanState]
    PLAN_STATE_DONE: _ClassVar[PlanState]
    PLAN_STATE_FAILED: _ClassVar[PlanState]
    PLAN_STATE_CANCELLED: _ClassVar[PlanState]
    PLAN_STATE_RESTARTING: _ClassVar[PlanState]
PLAN_KIND_UNSPECIFIED: PlanKind
PLAN_KIND_RESIZE: PlanKind
PLAN_KIND_COMPACT: PlanKind
PLAN_KIND_RESTART: PlanKind
PLAN_STATE_UNSPECIFIED: PlanState
PLAN_STATE_WAITING: PlanState
PLAN_STATE_REWRITING: PlanState
PLAN_STATE_CATCHING_UP: PlanState
PLAN_STATE_SWITCHING: PlanState
PLAN_STATE_DONE: PlanState
PLAN_STATE_FAILED: PlanState
PLAN_STATE_CANCELLED: PlanState
PLAN_STATE_RESTARTING: PlanState

class MaintenanceActivity(_message.Message):
    __slots__ = ("operation", "since", "progress", "plan_id")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    operation: str
    since: _timestamp_pb2.Timestamp
    progress: Progress
    plan_id: str
    def __init__(self, operation: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., plan_id: _Optional[str] = ...) -> None: ...

class MaintenanceSettings(_message.Message):
    __slots__ = ("page_size_current", "page_size_recommended", "page_size_max", "resize_on_startup", "compact_on_startup", "backup_path", "backup_keep_generations", "autotune_window", "autotune_min_gain_percent")
    PAGE_SIZE_CURRENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    RESIZE_ON_STARTUP_FIELD_NUMBER: _ClassVar[int]
    COMPACT_ON_STARTUP_FIELD_NUMBER: _ClassVar[int]
    BACKUP_PATH_FIELD_NUMBER: _ClassVar[int]
    BACKUP_KEEP_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    AUTOTUNE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    AUTOTUNE_MIN_GAIN_PERCENT_FIELD_NUMBER: _ClassVar[int]
    page_size_current: int
    page_size_recommended: int
    page_size_max: int
    resize_on_startup: bool
    compact_on_startup: bool
    backup_path: str
    backup_keep_generations: int
    autotune_window: str
    autotune_min_gain_percent: int
    def __init__(self, page_size_current: _Optional[int] = ..., page_size_recommended: _Optional[int] = ..., page_size_max: _Optional[int] = ..., resize_on_startup: bool = ..., compact_on_startup: bool = ..., backup_path: _Optional[str] = ..., backup_keep_generations: _Optional[int] = ..., autotune_window: _Optional[str] = ..., autotune_min_gain_percent: _Optional[int] = ...) -> None: ...

class GetSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: MaintenanceSettings
    def __init__(self, settings: _Optional[_Union[MaintenanceSettings, _Mapping]] = ...) -> None: ...

class UpdateSettingsRequest(_message.Message):
    __slots__ = ("page_size_max", "resize_on_startup", "compact_on_startup", "backup_path", "backup_keep_generations", "autotune_window", "autotune_min_gain_percent")
    PAGE_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    RESIZE_ON_STARTUP_FIELD_NUMBER: _ClassVar[int]
    COMPACT_ON_STARTUP_FIELD_NUMBER: _ClassVar[int]
    BACKUP_PATH_FIELD_NUMBER: _ClassVar[int]
    BACKUP_KEEP_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    AUTOTUNE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    AUTOTUNE_MIN_GAIN_PERCENT_FIELD_NUMBER: _ClassVar[int]
    page_size_max: int
    resize_on_startup: bool
    compact_on_startup: bool
    backup_path: str
    backup_keep_generations: int
    autotune_window: str
    autotune_min_gain_percent: int
    def __init__(self, page_size_max: _Optional[int] = ..., resize_on_startup: bool = ..., compact_on_startup: bool = ..., backup_path: _Optional[str] = ..., backup_keep_generations: _Optional[int] = ..., autotune_window: _Optional[str] = ..., autotune_min_gain_percent: _Optional[int] = ...) -> None: ...

class UpdateSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: MaintenanceSettings
    def __init__(self, settings: _Optional[_Union[MaintenanceSettings, _Mapping]] = ...) -> None: ...

class RunningSetting(_message.Message):
    __slots__ = ("name", "value", "configured", "changed", "scope", "usage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    configured: str
    changed: bool
    scope: str
    usage: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., configured: _Optional[str] = ..., changed: bool = ..., scope: _Optional[str] = ..., usage: _Optional[str] = ...) -> None: ...

class ListSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[RunningSetting]
    def __init__(self, settings: _Optional[_Iterable[_Union[RunningSetting, _Mapping]]] = ...) -> None: ...

class ChangeSettingsRequest(_message.Message):
    __slots__ = ("set", "unset", "node")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    node: str
    def __init__(self, set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ...) -> None: ...

class ChangeSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[RunningSetting]
    def __init__(self, settings: _Optional[_Iterable[_Union[RunningSetting, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes", "messages", "eta")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done_bytes: int
    total_bytes: int
    messages: int
    eta: _duration_pb2.Duration
    def __init__(self, phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., eta: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("page_size_max", "full_speed", "last")
    PAGE_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    page_size_max: int
    full_speed: bool
    last: bool
    def __init__(self, page_size_max: _Optional[int] = ..., full_speed: bool = ..., last: bool = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    result: ScanResult
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[ScanResult, _Mapping]] = ...) -> None: ...

class ScanResult(_message.Message):
    __slots__ = ("histogram", "candidates", "recommended", "current", "file_bytes", "gain_bytes", "messages", "message_bytes", "note", "time")
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    histogram: _containers.RepeatedCompositeFieldContainer[SizeBucket]
    candidates: _containers.RepeatedCompositeFieldContainer[PageSizeCandidate]
    recommended: int
    current: int
    file_bytes: int
    gain_bytes: int
    messages: int
    message_bytes: int
    note: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, histogram: _Optional[_Iterable[_Union[SizeBucket, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[PageSizeCandidate, _Mapping]]] = ..., recommended: _Optional[int] = ..., current: _Optional[int] = ..., file_bytes: _Optional[int] = ..., gain_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., message_bytes: _Optional[int] = ..., note: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SizeBucket(_message.Message):
    __slots__ = ("from_bytes", "to_bytes", "messages", "bytes")
    FROM_BYTES_FIELD_NUMBER: _ClassVar[int]
    TO_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    from_bytes: int
    to_bytes: int
    messages: int
    bytes: int
    def __init__(self, from_bytes: _Optional[int] = ..., to_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PageSizeCandidate(_message.Message):
    __slots__ = ("page_size", "file_bytes", "pages", "waste_bytes", "runs")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    WASTE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    file_bytes: int
    pages: int
    waste_bytes: int
    runs: int
    def __init__(self, page_size: _Optional[int] = ..., file_bytes: _Optional[int] = ..., pages: _Optional[int] = ..., waste_bytes: _Optional[int] = ..., runs: _Optional[int] = ...) -> None: ...

class RewriteRequest(_message.Message):
    __slots__ = ("page_size", "dry_run", "plan_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    dry_run: bool
    plan_id: str
    def __init__(self, page_size: _Optional[int] = ..., dry_run: bool = ..., plan_id: _Optional[str] = ...) -> None: ...

class RewriteResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    result: RewriteResult
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[RewriteResult, _Mapping]] = ...) -> None: ...

class RewriteResult(_message.Message):
    __slots__ = ("page_size_before", "page_size_after", "file_bytes_before", "file_bytes_after", "needed_bytes", "available_bytes", "messages", "took")
    PAGE_SIZE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_AFTER_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    page_size_before: int
    page_size_after: int
    file_bytes_before: int
    file_bytes_after: int
    needed_bytes: int
    available_bytes: int
    messages: int
    took: _duration_pb2.Duration
    def __init__(self, page_size_before: _Optional[int] = ..., page_size_after: _Optional[int] = ..., file_bytes_before: _Optional[int] = ..., file_bytes_after: _Optional[int] = ..., needed_bytes: _Optional[int] = ..., available_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ShrinkRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: bool = ...) -> None: ...

class ShrinkResponse(_message.Message):
    __slots__ = ("file_bytes_before", "file_bytes_after")
    FILE_BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    file_bytes_before: int
    file_bytes_after: int
    def __init__(self, file_bytes_before: _Optional[int] = ..., file_bytes_after: _Optional[int] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("path", "keep_generations", "bytes_per_second", "full_speed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KEEP_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    path: str
    keep_generations: int
    bytes_per_second: int
    full_speed: bool
    def __init__(self, path: _Optional[str] = ..., keep_generations: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., full_speed: bool = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("progress", "set")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    set: SaveSet
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., set: _Optional[_Union[SaveSet, _Mapping]] = ...) -> None: ...

class SaveSet(_message.Message):
    __slots__ = ("name", "path", "created_at", "position", "page_size", "bytes", "complete", "problem", "recipients")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    RECIPIENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    created_at: _timestamp_pb2.Timestamp
    position: _types_pb2.Position
    page_size: int
    bytes: int
    complete: bool
    problem: str
    recipients: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., position: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., page_size: _Optional[int] = ..., bytes: _Optional[int] = ..., complete: bool = ..., problem: _Optional[str] = ..., recipients: _Optional[_Iterable[str]] = ...) -> None: ...

class ListBackupsRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class ListBackupsResponse(_message.Message):
    __slots__ = ("sets",)
    SETS_FIELD_NUMBER: _ClassVar[int]
    sets: _containers.RepeatedCompositeFieldContainer[SaveSet]
    def __init__(self, sets: _Optional[_Iterable[_Union[SaveSet, _Mapping]]] = ...) -> None: ...

class DropOldRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DropOldResponse(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class FlushArchiveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushArchiveResponse(_message.Message):
    __slots__ = ("directory", "last_lsn", "last_time", "gap", "former")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    directory: str
    last_lsn: int
    last_time: _timestamp_pb2.Timestamp
    gap: int
    former: str
    def __init__(self, directory: _Optional[str] = ..., last_lsn: _Optional[int] = ..., last_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gap: _Optional[int] = ..., former: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("id", "kind", "page_size", "switch_back", "state", "reason", "first_active", "done_nodes", "node", "progress", "started_at", "ended_at", "retries")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SWITCH_BACK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DONE_NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: PlanKind
    page_size: int
    switch_back: bool
    state: PlanState
    reason: str
    first_active: str
    done_nodes: _containers.RepeatedScalarFieldContainer[str]
    node: str
    progress: Progress
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    retries: int
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[PlanKind, str]] = ..., page_size: _Optional[int] = ..., switch_back: bool = ..., state: _Optional[_Union[PlanState, str]] = ..., reason: _Optional[str] = ..., first_active: _Optional[str] = ..., done_nodes: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retries: _Optional[int] = ...) -> None: ...

class StartPlanRequest(_message.Message):
    __slots__ = ("kind", "page_size", "switch_back")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SWITCH_BACK_FIELD_NUMBER: _ClassVar[int]
    kind: PlanKind
    page_size: int
    switch_back: bool
    def __init__(self, kind: _Optional[_Union[PlanKind, str]] = ..., page_size: _Optional[int] = ..., switch_back: bool = ...) -> None: ...

class StartPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class WatchPlanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class CancelPlanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "schedule", "kind", "on", "paused", "next_run", "history")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    schedule: str
    kind: str
    on: str
    paused: bool
    next_run: _timestamp_pb2.Timestamp
    history: _containers.RepeatedCompositeFieldContainer[JobRun]
    def __init__(self, name: _Optional[str] = ..., schedule: _Optional[str] = ..., kind: _Optional[str] = ..., on: _Optional[str] = ..., paused: bool = ..., next_run: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[_Iterable[_Union[JobRun, _Mapping]]] = ...) -> None: ...

class JobRun(_message.Message):
    __slots__ = ("started_at", "took", "outcome", "detail", "node")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    started_at: _timestamp_pb2.Timestamp
    took: _duration_pb2.Duration
    outcome: str
    detail: str
    node: str
    def __init__(self, started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., outcome: _Optional[str] = ..., detail: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class PutJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class PutJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportNodeRequest(_message.Message):
    __slots__ = ("node_id", "page_size_recommended", "startup_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    STARTUP_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    page_size_recommended: int
    startup_id: str
    def __init__(self, node_id: _Optional[str] = ..., page_size_recommended: _Optional[int] = ..., startup_id: _Optional[str] = ...) -> None: ...

class ReportNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RunJobResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: JobRun
    def __init__(self, run: _Optional[_Union[JobRun, _Mapping]] = ...) -> None: ...

class RestartNodeRequest(_message.Message):
    __slots__ = ("plan_id",)
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    def __init__(self, plan_id: _Optional[str] = ...) -> None: ...

class RestartNodeResponse(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    def __init__(self, done: bool = ...) -> None: ...

class VerifyBackupRequest(_message.Message):
    __slots__ = ("path", "name", "full_speed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FULL_SPEED_FIELD_NUMBER: _ClassVar[int]
    path: str
    name: str
    full_speed: bool
    def __init__(self, path: _Optional[str] = ..., name: _Optional[str] = ..., full_speed: bool = ...) -> None: ...

class VerifyBackupResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    result: VerifyBackupResult
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[VerifyBackupResult, _Mapping]] = ...) -> None: ...

class VerifyBackupResult(_message.Message):
    __slots__ = ("set", "restorable", "problem", "messages", "pages", "bytes", "needed_bytes", "archive", "archive_problem", "reach", "reach_time", "took")
    SET_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    REACH_TIME_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    set: SaveSet
    restorable: bool
    problem: str
    messages: int
    pages: int
    bytes: int
    needed_bytes: int
    archive: str
    archive_problem: str
    reach: _types_pb2.Position
    reach_time: _timestamp_pb2.Timestamp
    took: _duration_pb2.Duration
    def __init__(self, set: _Optional[_Union[SaveSet, _Mapping]] = ..., restorable: bool = ..., problem: _Optional[str] = ..., messages: _Optional[int] = ..., pages: _Optional[int] = ..., bytes: _Optional[int] = ..., needed_bytes: _Optional[int] = ..., archive: _Optional[str] = ..., archive_problem: _Optional[str] = ..., reach: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., reach_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetPageMapRequest(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: int
    def __init__(self, regions: _Optional[int] = ...) -> None: ...

class GetPageMapResponse(_message.Message):
    __slots__ = ("page_size", "total", "regions", "free_tail", "readers")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    FREE_TAIL_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    total: PageRegion
    regions: _containers.RepeatedCompositeFieldContainer[PageRegion]
    free_tail: int
    readers: int
    def __init__(self, page_size: _Optional[int] = ..., total: _Optional[_Union[PageRegion, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[PageRegion, _Mapping]]] = ..., free_tail: _Optional[int] = ..., readers: _Optional[int] = ...) -> None: ...

class PageRegion(_message.Message):
    __slots__ = ("first_page", "pages", "messages", "index", "bitmap", "held_checkpoint", "held_reader", "free")
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    HELD_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    HELD_READER_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    first_page: int
    pages: int
    messages: int
    index: int
    bitmap: int
    held_checkpoint: int
    held_reader: int
    free: int
    def __init__(self, first_page: _Optional[int] = ..., pages: _Optional[int] = ..., messages: _Optional[int] = ..., index: _Optional[int] = ..., bitmap: _Optional[int] = ..., held_checkpoint: _Optional[int] = ..., held_reader: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...
