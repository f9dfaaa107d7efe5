# SPDX-License-Identifier: Apache-2.0
"""The error class of each reason, as in the table of docs/reference/protocol.md."""

from __future__ import annotations

from typing import Final

import grpc

from lockstep_mq import errors

RETRY: Final = None
"""The same request must be retried."""

MEANING: Final[dict[str, type[errors.Refused] | None]] = {
    "OUTCOME_UNKNOWN": RETRY,
    "NOT_ACTIVE": RETRY,
    "BLOCKED": RETRY,
    "PAUSED": RETRY,
    "SPLIT": RETRY,
    "SHUTTING_DOWN": RETRY,
    "STORE_FAILED": RETRY,
    "CONSUMERS_CLOSED": RETRY,
    "INDEX_CORRUPT": RETRY,
    "UNREACHABLE": RETRY,
    "SUBSCRIPTION_MOVED": RETRY,
    "DEADLINE": RETRY,
    "CANCELED": RETRY,
    "AUTH_UNAVAILABLE": RETRY,
    "QUEUE_NOT_FOUND": errors.QueueNotFound,
    "SUBSCRIPTION_NOT_FOUND": errors.SubscriptionNotFound,
    "QUEUE_EXISTS": errors.AlreadyExists,
    "TOKEN_EXISTS": errors.AlreadyExists,
    "SUBSCRIPTION_EXISTS": errors.AlreadyExists,
    "XID_IN_USE": errors.AlreadyExists,
    "QUEUE_NOT_EMPTY": errors.NotEmpty,
    "QUEUE_IN_USE": errors.WrongState,
    "QUEUE_FULL": errors.LimitExceeded,
    "DISK_LOW": errors.LimitExceeded,
    "TOO_MANY_QUEUES": errors.LimitExceeded,
    "TOO_MANY_SUBSCRIPTIONS": errors.LimitExceeded,
    "TOO_MANY_ENTRIES": errors.LimitExceeded,
    "TOO_MANY_CONSUMERS": errors.LimitExceeded,
    "TOO_MUCH_CREDIT": errors.LimitExceeded,
    "RESPONSE_TOO_LARGE": errors.LimitExceeded,
    "TOO_LARGE": errors.LimitExceeded,
    "TOO_MANY_JOBS": errors.LimitExceeded,
    "PAGE_FILE_FULL": errors.LimitExceeded,
    "TOO_MANY_PREPARED": errors.LimitExceeded,
    "QUOTA": errors.LimitExceeded,
    "NO_SPACE": errors.LimitExceeded,
    "BACKUP_NO_SPACE": errors.LimitExceeded,
    "INVALID_NAME": errors.InvalidRequest,
    "INVALID_SEQUENCE": errors.InvalidRequest,
    "TOO_MANY_RELEASED": errors.InvalidRequest,
    "MIXED_OPERATIONS": errors.InvalidRequest,
    "MALFORMED": errors.InvalidRequest,
    "INVALID": errors.InvalidRequest,
    "UNDECODABLE": errors.InvalidRequest,
    "SETTING": errors.InvalidRequest,
    "DEAD_LETTER_CYCLE": errors.InvalidRequest,
    "NO_DEAD_LETTER": errors.InvalidRequest,
    "INVALID_FILTER": errors.InvalidRequest,
    "PRIORITIES_IMMUTABLE": errors.InvalidRequest,
    "FORWARD_CHAIN": errors.InvalidRequest,
    "SEQUENCE_REUSED": errors.SequenceReused,
    "ALREADY_ACKNOWLEDGED": errors.Processed,
    "MESSAGE_RESERVED": errors.Processed,
    "XID_NOT_FOUND": errors.NoTransaction,
    "XID_DECIDED": errors.Decided,
    "HEURISTIC_COMMIT": errors.Heuristic,
    "HEURISTIC_ROLLBACK": errors.Heuristic,
    "PRODUCER_FENCED": errors.Fenced,
    "TOO_OLD": errors.TooOld,
    "PRODUCER_UNKNOWN": errors.TooOld,
    "DATA_LOSS": errors.DataLoss,
    "PAGE_CORRUPT": errors.DataLoss,
    "NODES_DIFFER": errors.DataLoss,
    "NEWER_VERSION": errors.NodeFailed,
    "INTERNAL": errors.NodeFailed,
    "DENIED": errors.Denied,
    "NOT_PEER": errors.Denied,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "TOKEN_EXPIRED": errors.Unauthenticated,
    "MAINTENANCE_BUSY": errors.Busy,
    "PAGE_FILE_BUSY": errors.Busy,
    "BACKUP_BUSY": errors.Busy,
    "PLAN_RUNNING": errors.Busy,
    "JOB_RUNNING": errors.Busy,
    "ROLE_CHANGED": errors.WrongState,
    "REWRITE_CANCELED": errors.WrongState,
    "ROLE": errors.WrongState,
    "NO_BACKUP_PATH": errors.WrongState,
    "NO_ARCHIVE": errors.WrongState,
    "NO_RECOMMENDATION": errors.WrongState,
    "NO_PEER": errors.WrongState,
    "LSN_PASSED": errors.WrongState,
    "PLAN_NOT_FOUND": errors.WrongState,
    "JOB_NOT_FOUND": errors.WrongState,
    "SWITCHOVER": errors.WrongState,
    "ADOPT": errors.WrongState,
    "PAUSE": errors.WrongState,
    "MIN_IN_SYNC": errors.WrongState,
    "FORCE": errors.WrongState,
    "FEATURE_MISSING": errors.WrongState,
    "ACCESS_CHANGED": errors.WrongState,
    "ACCESS_IN_USE": errors.WrongState,
    "ACCESS_NOT_FOUND": errors.WrongState,
    "CONNECTION_NOT_FOUND": errors.WrongState,
    "OBJECT_STORE": errors.WrongState,
    "BACKUP_NOT_FOUND": errors.WrongState,
    "BACKUP_ENCRYPTED": errors.WrongState,
    "LOCK_OUT": errors.WrongState,
}

BY_CODE: Final[dict[grpc.StatusCode, type[errors.Refused] | None]] = {
    grpc.StatusCode.UNAVAILABLE: RETRY,
    grpc.StatusCode.CANCELLED: RETRY,
    grpc.StatusCode.DEADLINE_EXCEEDED: RETRY,
    grpc.StatusCode.FAILED_PRECONDITION: errors.WrongState,
    grpc.StatusCode.NOT_FOUND: errors.QueueNotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitExceeded,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.ABORTED: errors.WrongState,
    grpc.StatusCode.OUT_OF_RANGE: errors.TooOld,
    grpc.StatusCode.DATA_LOSS: errors.DataLoss,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
}
"""For errors without a known reason: from gRPC, a proxy, or a newer node."""

PROVES_NOTHING_WITHOUT_REASON: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""gRPC may return these codes for a request that a node has executed."""

ANSWERS: Final = frozenset({"NOT_ACTIVE", "BLOCKED", "AUTH_UNAVAILABLE"})
"""Retryable reasons that prove that this attempt was not executed."""
