# SPDX-License-Identifier: Apache-2.0
"""The error class of each reason."""

from __future__ import annotations

from typing import Final

import grpc

from lockstep_mq import errors
from lockstep_mq._proto import errors_pb2

RETRY: Final = None
"""The same request must be retried."""

BY_KIND: Final[dict[errors_pb2.ErrorKind, type[errors.Refused] | None]] = {
    errors_pb2.ERROR_KIND_RETRY: RETRY,
    errors_pb2.ERROR_KIND_QUEUE_NOT_FOUND: errors.QueueNotFound,
    errors_pb2.ERROR_KIND_SUBSCRIPTION_NOT_FOUND: errors.SubscriptionNotFound,
    errors_pb2.ERROR_KIND_ALREADY_EXISTS: errors.AlreadyExists,
    errors_pb2.ERROR_KIND_NOT_EMPTY: errors.NotEmpty,
    errors_pb2.ERROR_KIND_LIMIT: errors.LimitExceeded,
    errors_pb2.ERROR_KIND_INVALID: errors.InvalidRequest,
    errors_pb2.ERROR_KIND_FENCED: errors.Fenced,
    errors_pb2.ERROR_KIND_TOO_OLD: errors.TooOld,
    errors_pb2.ERROR_KIND_REFUSED: errors.WrongState,
    errors_pb2.ERROR_KIND_PROCESSED: errors.Processed,
    errors_pb2.ERROR_KIND_NO_TRANSACTION: errors.NoTransaction,
    errors_pb2.ERROR_KIND_DECIDED: errors.Decided,
    errors_pb2.ERROR_KIND_HEURISTIC: errors.Heuristic,
    errors_pb2.ERROR_KIND_NO_RULE: errors.WrongState,
    errors_pb2.ERROR_KIND_NO_POLICY: errors.WrongState,
    errors_pb2.ERROR_KIND_DATA_LOSS: errors.DataLoss,
    errors_pb2.ERROR_KIND_INTERNAL: errors.NodeFailed,
    errors_pb2.ERROR_KIND_DENIED: errors.Denied,
    errors_pb2.ERROR_KIND_UNAUTHENTICATED: errors.Unauthenticated,
    errors_pb2.ERROR_KIND_SEQUENCE_REUSED: errors.SequenceReused,
    errors_pb2.ERROR_KIND_BUSY: errors.Busy,
    errors_pb2.ERROR_KIND_ROLE_CHANGED: errors.WrongState,
    errors_pb2.ERROR_KIND_CANCELED: errors.WrongState,
    errors_pb2.ERROR_KIND_NO_SPACE: errors.LimitExceeded,
    errors_pb2.ERROR_KIND_NO_PLAN: errors.WrongState,
    errors_pb2.ERROR_KIND_NO_JOB: errors.WrongState,
    errors_pb2.ERROR_KIND_BACKUP_NOT_FOUND: errors.WrongState,
    errors_pb2.ERROR_KIND_NO_CONNECTION: errors.WrongState,
    errors_pb2.ERROR_KIND_NO_SCHEDULE: errors.WrongState,
}

MEANING: Final[dict[str, type[errors.Refused] | None]] = {
    value.name.removeprefix("ERROR_REASON_"): BY_KIND[
        value.GetOptions().Extensions[errors_pb2.reason].kind  # type: ignore[index]  # protoc's stub is untyped
    ]
    for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]
}
"""The class of each reason, from the options in errors.proto."""

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
"""The class of errors without a known reason: from gRPC, a proxy, or a newer node."""

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

ANSWERS: Final = frozenset(
    {"NOT_ACTIVE", "REPLICA", "BLOCKED", "SITE_LAG", "AUTH_UNAVAILABLE", "NOT_OWNER", "DIRECTORY_UNAVAILABLE"}
)
"""Retryable reasons that prove that this attempt was not executed."""
