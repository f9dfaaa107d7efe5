# SPDX-License-Identifier: Apache-2.0
import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MovePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_PHASE_UNSPECIFIED: _ClassVar[MovePhase]
    MOVE_PHASE_WAITING: _ClassVar[MovePhase]
    MOVE_PHASE_COPYING: _ClassVar[MovePhase]
    MOVE_PHASE_FENCED: _ClassVar[MovePhase]
    MOVE_PHASE_TAKEN: _ClassVar[MovePhase]
    MOVE_PHASE_CANCELED: _ClassVar[MovePhase]
    MOVE_PHASE_DONE: _ClassVar[MovePhase]
    MOVE_PHASE_NOT_MOVED: _ClassVar[MovePhase]

class DirectoryProblem(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTORY_PROBLEM_UNSPECIFIED: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_UNAVAILABLE: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_LOST: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_RESTORED: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_REBUILDING: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_NOT_MEMBER: _ClassVar[DirectoryProblem]
    DIRECTORY_PROBLEM_MALFORMED: _ClassVar[DirectoryProblem]

class PairState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_STATE_UNSPECIFIED: _ClassVar[PairState]
    PAIR_STATE_OPEN: _ClassVar[PairState]
    PAIR_STATE_DRAINING: _ClassVar[PairState]
    PAIR_STATE_JOINING: _ClassVar[PairState]
    PAIR_STATE_LEAVING: _ClassVar[PairState]
    PAIR_STATE_FORGOTTEN: _ClassVar[PairState]
MOVE_PHASE_UNSPECIFIED: MovePhase
MOVE_PHASE_WAITING: MovePhase
MOVE_PHASE_COPYING: MovePhase
MOVE_PHASE_FENCED: MovePhase
MOVE_PHASE_TAKEN: MovePhase
MOVE_PHASE_CANCELED: MovePhase
MOVE_PHASE_DONE: MovePhase
MOVE_PHASE_NOT_MOVED: MovePhase
DIRECTORY_PROBLEM_UNSPECIFIED: DirectoryProblem
DIRECTORY_PROBLEM_UNAVAILABLE: DirectoryProblem
DIRECTORY_PROBLEM_LOST: DirectoryProblem
DIRECTORY_PROBLEM_RESTORED: DirectoryProblem
DIRECTORY_PROBLEM_REBUILDING: DirectoryProblem
DIRECTORY_PROBLEM_NOT_MEMBER: DirectoryProblem
DIRECTORY_PROBLEM_MALFORMED: DirectoryProblem
PAIR_STATE_UNSPECIFIED: PairState
PAIR_STATE_OPEN: PairState
PAIR_STATE_DRAINING: PairState
PAIR_STATE_JOINING: PairState
PAIR_STATE_LEAVING: PairState
PAIR_STATE_FORGOTTEN: PairState

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("pair", "directory", "pairs", "rules", "membership")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    pair: str
    directory: FleetDirectory
    pairs: _containers.RepeatedCompositeFieldContainer[FleetPair]
    rules: _containers.RepeatedCompositeFieldContainer[PlacementRule]
    membership: FleetMembership
    def __init__(self, pair: _Optional[str] = ..., directory: _Optional[_Union[FleetDirectory, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[FleetPair, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[PlacementRule, _Mapping]]] = ..., membership: _Optional[_Union[FleetMembership, _Mapping]] = ...) -> None: ...

class FleetMembership(_message.Message):
    __slots__ = ("fleet_id", "pair", "active", "left", "error", "conflicts", "conflicts_total")
    FLEET_ID_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    fleet_id: str
    pair: str
    active: bool
    left: bool
    error: str
    conflicts: _containers.RepeatedCompositeFieldContainer[DirectoryConflict]
    conflicts_total: int
    def __init__(self, fleet_id: _Optional[str] = ..., pair: _Optional[str] = ..., active: bool = ..., left: bool = ..., error: _Optional[str] = ..., conflicts: _Optional[_Iterable[_Union[DirectoryConflict, _Mapping]]] = ..., conflicts_total: _Optional[int] = ...) -> None: ...

class FleetDirectory(_message.Message):
    __slots__ = ("loaded", "current", "fleet_id", "last_epoch", "queues", "problem", "error", "malformed")
    LOADED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    FLEET_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_FIELD_NUMBER: _ClassVar[int]
    loaded: bool
    current: bool
    fleet_id: str
    last_epoch: int
    queues: int
    problem: DirectoryProblem
    error: str
    malformed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, loaded: bool = ..., current: bool = ..., fleet_id: _Optional[str] = ..., last_epoch: _Optional[int] = ..., queues: _Optional[int] = ..., problem: _Optional[_Union[DirectoryProblem, str]] = ..., error: _Optional[str] = ..., malformed: _Optional[_Iterable[str]] = ...) -> None: ...

class FleetPair(_message.Message):
    __slots__ = ("name", "pair_id", "addresses", "state", "labels", "live", "queues", "load", "capacity_bytes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAIR_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    pair_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    state: PairState
    labels: _containers.ScalarMap[str, str]
    live: bool
    queues: int
    load: PairLoad
    capacity_bytes: int
    def __init__(self, name: _Optional[str] = ..., pair_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[PairState, str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., live: bool = ..., queues: _Optional[int] = ..., load: _Optional[_Union[PairLoad, _Mapping]] = ..., capacity_bytes: _Optional[int] = ...) -> None: ...

class PairLoad(_message.Message):
    __slots__ = ("queues", "stored_bytes", "free_bytes", "publish_rate")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_RATE_FIELD_NUMBER: _ClassVar[int]
    queues: int
    stored_bytes: int
    free_bytes: int
    publish_rate: float
    def __init__(self, queues: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., publish_rate: _Optional[float] = ...) -> None: ...

class PlacementRule(_message.Message):
    __slots__ = ("pattern", "pair", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    pair: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, pattern: _Optional[str] = ..., pair: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("queue", "pair", "epoch", "group")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queue: str
    pair: str
    epoch: int
    group: str
    def __init__(self, queue: _Optional[str] = ..., pair: _Optional[str] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class ListPlacementsRequest(_message.Message):
    __slots__ = ("after", "limit", "pair", "pattern", "queue")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    pair: str
    pattern: str
    queue: str
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., pair: _Optional[str] = ..., pattern: _Optional[str] = ..., queue: _Optional[str] = ...) -> None: ...

class ListPlacementsResponse(_message.Message):
    __slots__ = ("placements", "next_after", "current")
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    next_after: str
    current: bool
    def __init__(self, placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., next_after: _Optional[str] = ..., current: bool = ...) -> None: ...

class PutPlacementRuleRequest(_message.Message):
    __slots__ = ("rule",)
    RULE_FIELD_NUMBER: _ClassVar[int]
    rule: PlacementRule
    def __init__(self, rule: _Optional[_Union[PlacementRule, _Mapping]] = ...) -> None: ...

class PutPlacementRuleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeletePlacementRuleRequest(_message.Message):
    __slots__ = ("pattern",)
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    def __init__(self, pattern: _Optional[str] = ...) -> None: ...

class DeletePlacementRuleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPairStateRequest(_message.Message):
    __slots__ = ("pair", "state")
    PAIR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    pair: str
    state: PairState
    def __init__(self, pair: _Optional[str] = ..., state: _Optional[_Union[PairState, str]] = ...) -> None: ...

class SetPairStateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebuildDirectoryRequest(_message.Message):
    __slots__ = ("pairs",)
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pairs: _Optional[_Iterable[str]] = ...) -> None: ...

class RebuildDirectoryResponse(_message.Message):
    __slots__ = ("added", "updated", "removed", "conflicts", "conflicts_total", "missing_pairs", "malformed")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSING_PAIRS_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_FIELD_NUMBER: _ClassVar[int]
    added: int
    updated: int
    removed: int
    conflicts: _containers.RepeatedCompositeFieldContainer[DirectoryConflict]
    conflicts_total: int
    missing_pairs: _containers.RepeatedScalarFieldContainer[str]
    malformed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, added: _Optional[int] = ..., updated: _Optional[int] = ..., removed: _Optional[int] = ..., conflicts: _Optional[_Iterable[_Union[DirectoryConflict, _Mapping]]] = ..., conflicts_total: _Optional[int] = ..., missing_pairs: _Optional[_Iterable[str]] = ..., malformed: _Optional[_Iterable[str]] = ...) -> None: ...

class DirectoryConflict(_message.Message):
    __slots__ = ("queue", "epoch", "pair", "pair_epoch")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    PAIR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    queue: str
    epoch: int
    pair: str
    pair_epoch: int
    def __init__(self, queue: _Optional[str] = ..., epoch: _Optional[int] = ..., pair: _Optional[str] = ..., pair_epoch: _Optional[int] = ...) -> None: ...

class LeaveFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveFleetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetPairRequest(_message.Message):
    __slots__ = ("pair",)
    PAIR_FIELD_NUMBER: _ClassVar[int]
    pair: str
    def __init__(self, pair: _Optional[str] = ...) -> None: ...

class ForgetPairResponse(_message.Message):
    __slots__ = ("queues", "moves", "waiting")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    queues: int
    moves: _containers.RepeatedScalarFieldContainer[int]
    waiting: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queues: _Optional[int] = ..., moves: _Optional[_Iterable[int]] = ..., waiting: _Optional[_Iterable[int]] = ...) -> None: ...

class MoveQueuesRequest(_message.Message):
    __slots__ = ("queues", "group")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    group: str
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ...) -> None: ...

class MoveQueuesResponse(_message.Message):
    __slots__ = ("epoch", "queues")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., **kwargs) -> None: ...

class FleetMove(_message.Message):
    __slots__ = ("epoch", "to", "queues", "phase", "copied_bytes", "remaining_bytes", "passes", "error", "pause")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_BYTES_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    phase: MovePhase
    copied_bytes: int
    remaining_bytes: int
    passes: int
    error: str
    pause: _duration_pb2.Duration
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., phase: _Optional[_Union[MovePhase, str]] = ..., copied_bytes: _Optional[int] = ..., remaining_bytes: _Optional[int] = ..., passes: _Optional[int] = ..., error: _Optional[str] = ..., pause: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., **kwargs) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMovesResponse(_message.Message):
    __slots__ = ("moves", "current")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[FleetMove]
    current: bool
    def __init__(self, moves: _Optional[_Iterable[_Union[FleetMove, _Mapping]]] = ..., current: bool = ...) -> None: ...

class CancelMoveRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class CancelMoveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMoveSourceRequest(_message.Message):
    __slots__ = ("epoch", "pair", "queues")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    pair: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., pair: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMoveSourceResponse(_message.Message):
    __slots__ = ("queues", "fenced")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[MoveSourceQueue]
    fenced: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[MoveSourceQueue, _Mapping]]] = ..., fenced: bool = ...) -> None: ...

class MoveSourceQueue(_message.Message):
    __slots__ = ("name", "id", "prioritized", "next_sequence", "messages", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITIZED_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    prioritized: bool
    next_sequence: int
    messages: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., prioritized: bool = ..., next_sequence: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PullMessagesRequest(_message.Message):
    __slots__ = ("epoch", "queue_id", "urgent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    queue_id: int
    urgent: bool
    def __init__(self, epoch: _Optional[int] = ..., queue_id: _Optional[int] = ..., urgent: bool = ..., **kwargs) -> None: ...

class PullMessagesResponse(_message.Message):
    __slots__ = ("sequences", "records")
    FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., records: _Optional[_Iterable[bytes]] = ..., **kwargs) -> None: ...

class DigestMessagesRequest(_message.Message):
    __slots__ = ("epoch", "queue_id", "to", "urgent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    queue_id: int
    to: int
    urgent: bool
    def __init__(self, epoch: _Optional[int] = ..., queue_id: _Optional[int] = ..., to: _Optional[int] = ..., urgent: bool = ..., **kwargs) -> None: ...

class DigestMessagesResponse(_message.Message):
    __slots__ = ("lengths", "sha256", "next")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    sha256: bytes
    next: int
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., sha256: _Optional[bytes] = ..., next: _Optional[int] = ...) -> None: ...

class PrepareFenceRequest(_message.Message):
    __slots__ = ("epoch", "queue_ids")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PrepareFenceResponse(_message.Message):
    __slots__ = ("written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    written: bool
    def __init__(self, written: bool = ...) -> None: ...

class PullStateRequest(_message.Message):
    __slots__ = ("epoch", "queue_id", "after")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    queue_id: int
    after: bytes
    def __init__(self, epoch: _Optional[int] = ..., queue_id: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class PullStateResponse(_message.Message):
    __slots__ = ("keys", "values", "last")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    last: bool
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., last: bool = ...) -> None: ...

class FenceQueuesRequest(_message.Message):
    __slots__ = ("epoch", "to", "queue_ids")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., **kwargs) -> None: ...

class FenceQueuesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMoveDigestsRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class GetMoveDigestsResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedCompositeFieldContainer[MoveDigest]
    def __init__(self, digests: _Optional[_Iterable[_Union[MoveDigest, _Mapping]]] = ...) -> None: ...

class MoveDigest(_message.Message):
    __slots__ = ("queue_id", "sha256", "messages")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    sha256: bytes
    messages: int
    def __init__(self, queue_id: _Optional[int] = ..., sha256: _Optional[bytes] = ..., messages: _Optional[int] = ...) -> None: ...

class UnfenceQueuesRequest(_message.Message):
    __slots__ = ("epoch", "to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: str
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[str] = ..., **kwargs) -> None: ...

class UnfenceQueuesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DropMovedRequest(_message.Message):
    __slots__ = ("epoch", "to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: str
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[str] = ..., **kwargs) -> None: ...

class DropMovedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
