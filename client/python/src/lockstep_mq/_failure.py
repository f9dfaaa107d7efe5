# SPDX-License-Identifier: Apache-2.0
"""Failed attempts."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from lockstep_mq import _reach, _reasons, errors
from lockstep_mq._proto import queue_pb2, types_pb2

_CORE = "Internal error from Core"
"""The message that grpc.aio returns instead of the status for a write on a stream that has just ended."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass
class Failure(Exception):
    """A failed attempt, with or without an error response of a node."""

    address: str
    code: grpc.StatusCode
    message: str
    reason: str = ""
    settled: bool = False
    hints: tuple[str, ...] = ()  # addresses of the active node and of the primary site, as reported by another node
    not_active: bool = False
    removed: bool = False  # the pair of the node was removed from its fleet as lost
    not_owner: types_pb2.NotOwner | None = None  # the owner of the queue, as reported by another pair
    partitioned: types_pb2.QueuePartitioned | None = None  # the number of partitions, if the queue is partitioned
    submitted: int | None = None  # progress of a publish stream; None: not reported
    retry_after: float = 0.0  # seconds
    mistake: int = _reach.NONE  # whether the connection failed because the two ends disagree about TLS

    def __str__(self) -> str:
        return f"{self.address}: {self.message}"

    @property
    def says(self) -> bool:
        """Return whether the failure has more information than the timeout of an attempt."""
        return bool(self.reason) or self.code is not grpc.StatusCode.DEADLINE_EXCEEDED

    @property
    def meaning(self) -> type[errors.Refused] | None:
        """The error class for the application; None: the request must be retried."""
        if self.not_active:
            return None
        if self.reason in _reasons.MEANING:
            return _reasons.MEANING[self.reason]
        return _reasons.BY_CODE.get(self.code, errors.NodeFailed)

    @property
    def retry(self) -> bool:
        """Return whether the same request can succeed later or on the other node."""
        return self.meaning is None

    @property
    def answered(self) -> bool:
        """Return whether a node responded, which proves that this attempt was not executed."""
        if self.not_active or self.reason in _reasons.ANSWERS:
            return True
        if self.retry:
            return False
        if self.code in _reasons.PROVES_NOTHING_WITHOUT_REASON:
            return self.reason not in {"", "INTERNAL"}
        return True

    @property
    def forgotten(self) -> bool:
        """Return whether the node may have evicted the producer."""
        return self.reason == "PRODUCER_UNKNOWN"

    @property
    def outcome_lost(self) -> bool:
        """Return whether the outcome of an earlier attempt can no longer be determined."""
        return self.meaning in {errors.TooOld, errors.Fenced} or self.reason == "SITE_EPOCH"

    @property
    def unauthenticated(self) -> bool:
        """Return whether the node rejects the credentials."""
        return self.meaning is errors.Unauthenticated

    @property
    def refuses_client(self) -> bool:
        """Return whether the node denies access to this client."""
        return self.meaning in {errors.Unauthenticated, errors.Denied}

    def error(self, op: str, *, unknown: bool = False) -> errors.LockstepError:
        """Return the error for the application. unknown states whether an attempt may have been executed."""
        kind = self.meaning or errors.Unavailable
        refusal = kind(
            f"{op}: {self.message}",
            reason=self.reason,
            code=self.code.name,
            address=self.address,
            settled=self.settled,
        )
        if self.partitioned is not None:
            refusal.partitions, refusal.partitioned_queue = self.partitioned.count, self.partitioned.queue
        if not unknown or self.settled:
            return refusal
        if self.outcome_lost:
            return errors.OutcomeLost(f"{op}: {self.message}; the outcome can no longer be determined", refusal=refusal)
        return errors.OutcomeUnknown(f"{op}: {self.message}; an attempt may have been committed", refusal=refusal)


def lost(address: str, why: str) -> Failure:
    """Return the failure of an attempt without a response."""
    return Failure(address, grpc.StatusCode.UNAVAILABLE, why)


def of_rpc_error(address: str, err: grpc.aio.AioRpcError) -> Failure:
    """Convert a status with its details."""
    f = Failure(address, err.code(), err.details() or err.code().name)
    if f.code is grpc.StatusCode.INTERNAL and f.message.startswith(_CORE):
        f.code = grpc.StatusCode.UNAVAILABLE
    if f.code is grpc.StatusCode.UNAVAILABLE:
        f.message, f.mistake = _reach.explain(f.message)
    for key, value in err.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            _read_details(f, value)
    return f


def _read_details(f: Failure, raw: bytes) -> None:
    status = status_pb2.Status.FromString(raw)
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            f.reason, f.settled = info.reason, info.metadata.get("settled") == "true"
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            f.retry_after = delay.seconds + delay.nanos / 1e9
        elif detail.Is(types_pb2.NotActive.DESCRIPTOR):
            hint = types_pb2.NotActive.FromString(detail.value)
            f.not_active, f.hints = True, (hint.active_address, *hint.primary_addresses)
            f.removed = hint.role == "REMOVED"
        elif detail.Is(types_pb2.NotOwner.DESCRIPTOR):
            f.not_owner = types_pb2.NotOwner.FromString(detail.value)
        elif detail.Is(types_pb2.QueuePartitioned.DESCRIPTOR):
            f.partitioned = types_pb2.QueuePartitioned.FromString(detail.value)
        elif detail.Is(queue_pb2.Submitted.DESCRIPTOR):
            f.submitted = queue_pb2.Submitted.FromString(detail.value).through


def of_request_error(address: str, err: queue_pb2.RequestError) -> Failure:
    """Convert the error of one request in a stream."""
    code = _CODES.get(err.code, grpc.StatusCode.UNKNOWN)
    owner = err.not_owner if err.HasField("not_owner") else None
    f = Failure(address, code, err.message, reason=err.reason, settled=err.settled, not_owner=owner)
    if err.HasField("partitioned"):
        f.partitioned = err.partitioned
    return f
