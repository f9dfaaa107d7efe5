# SPDX-License-Identifier: Apache-2.0
"""Schedules: messages that the pair publishes at recurring times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lockstep_mq import errors, message
from lockstep_mq._enums import name_of
from lockstep_mq._proto import schedule_pb2
from lockstep_mq.message import Publishable

_MISSED = {
    "skip": schedule_pb2.MISSED_OCCURRENCES_SKIP,
    "once": schedule_pb2.MISSED_OCCURRENCES_ONCE,
    "all": schedule_pb2.MISSED_OCCURRENCES_ALL,
}
_MISSED_NAMES = {value: name for name, value in _MISSED.items()}
_MAX_BODY = 32 << 10


@dataclass(frozen=True)
class ScheduleRun:
    """One occurrence of a schedule, several skipped occurrences, or a run requested by run_schedule().

    Attributes:
        due_at: Time of the occurrence, or of the first one if several were skipped.
        at: Time of the attempt; of consecutive attempts that failed with the same error, the first.
        outcome: "published", "failed" or "skipped".
        sequence: Sequence of the published message.
        error: Reason for a failure.
        skipped: Number of skipped occurrences.
        manual: The run was requested by run_schedule().
    """

    due_at: datetime
    at: datetime
    outcome: str
    sequence: int
    error: str
    skipped: int
    manual: bool


@dataclass(frozen=True)
class Schedule:
    """A stored schedule.

    Attributes:
        name: Name of the schedule.
        queue: Queue to publish to.
        cron: Cron expression; empty with an interval.
        every: Interval; None with a cron expression.
        time_zone: Time zone of the expression; empty for UTC.
        body: Body of the messages.
        missed: "skip", "once" or "all".
        paused: Whether the schedule is paused: nothing is published.
        next_at: Time of the next occurrence; None if the schedule is paused or has no occurrence within five years.
        history: Last occurrences, latest first. In the result of list_schedules(), only the last one.
    """

    name: str
    queue: str
    cron: str
    every: timedelta | None
    time_zone: str
    body: bytes
    missed: str
    paused: bool
    next_at: datetime | None
    history: tuple[ScheduleRun, ...]


def encode(
    name: str,
    queue: str,
    body: Publishable,
    cron: str,
    every: timedelta | None,
    time_zone: str,
    missed: str,
    paused: bool,
) -> schedule_pb2.Schedule:
    """Encode a schedule."""
    if missed not in _MISSED:
        raise errors.InvalidRequest(f"missed is {missed!r}, must be skip, once or all")
    out = schedule_pb2.Schedule(
        name=name,
        queue=queue,
        cron=cron,
        time_zone=time_zone,
        message=message.encode(body, _MAX_BODY),
        missed=_MISSED[missed],
        paused=paused,
    )
    if every is not None:
        out.every.CopyFrom(message.duration(every))
    return out


def decode(s: schedule_pb2.Schedule) -> Schedule:
    """Decode a schedule."""
    return Schedule(
        name=s.name,
        queue=s.queue,
        cron=s.cron,
        every=s.every.ToTimedelta() if s.HasField("every") else None,
        time_zone=s.time_zone,
        body=s.message.body,
        missed=_MISSED_NAMES.get(s.missed, "once"),
        paused=s.paused,
        next_at=message.when(s.next_at) if s.HasField("next_at") else None,
        history=tuple(_run(r) for r in s.history),
    )


def _run(r: schedule_pb2.ScheduleRun) -> ScheduleRun:
    outcome = name_of(schedule_pb2.ScheduleOutcome, r.outcome, "outcome")
    return ScheduleRun(message.when(r.due_at), message.when(r.at), outcome, r.sequence, r.error, r.skipped, r.manual)
