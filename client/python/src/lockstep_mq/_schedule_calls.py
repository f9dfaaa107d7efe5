# SPDX-License-Identifier: Apache-2.0
"""The calls of Client.admin for schedules."""

from __future__ import annotations

from datetime import timedelta

from lockstep_mq import _rpc, schedules
from lockstep_mq._calls import Caller, Request
from lockstep_mq._proto import schedule_pb2
from lockstep_mq.message import Publishable
from lockstep_mq.schedules import Schedule


class ScheduleCalls:
    """Calls for schedules. A Request makes a call that changes state idempotent."""

    _caller: Caller

    async def put_schedule(
        self,
        name: str,
        queue: str,
        body: Publishable,
        *,
        cron: str = "",
        every: timedelta | None = None,
        time_zone: str = "",
        missed: str = "once",
        paused: bool = False,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Create or replace a schedule, with either a cron expression or an interval.

        Args:
            name: Name of the schedule.
            queue: Queue to publish to.
            body: Message to publish. message_id, expires_at and deliver_at must not be set.
            cron: Minute, hour, day of month, month and day of week; or a macro such as @daily.
            every: Interval, at least one second.
            time_zone: IANA time zone of cron; empty for UTC.
            missed: Rule for occurrences that no node could publish within a minute: "skip", "once" or "all".
            paused: Store the schedule without running it.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        asked = schedule_pb2.PutScheduleRequest(
            schedule=schedules.encode(name, queue, body, cron, every, time_zone, missed, paused)
        )
        response = await self._caller.change(
            f"put schedule {name}",
            _rpc.SCHEDULE + "PutSchedule",
            asked,
            schedule_pb2.PutScheduleResponse,
            timeout=timeout,
            under=request,
        )
        return schedules.decode(response.schedule)

    async def delete_schedule(self, name: str, *, request: Request | None = None, timeout: float | None = None) -> None:
        """Delete a schedule and its history. Published messages are kept."""
        await self._caller.change(
            f"delete schedule {name}",
            _rpc.SCHEDULE + "DeleteSchedule",
            schedule_pb2.DeleteScheduleRequest(name=name),
            schedule_pb2.DeleteScheduleResponse,
            timeout=timeout,
            under=request,
        )

    async def pause_schedule(
        self, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> Schedule:
        """Pause a schedule. Occurrences during the pause are not published."""
        return await self._set_paused(name, True, request, timeout)

    async def resume_schedule(
        self, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> Schedule:
        """Resume a schedule. Its next occurrence is the first one after the call."""
        return await self._set_paused(name, False, request, timeout)

    async def _set_paused(self, name: str, paused: bool, request: Request | None, timeout: float | None) -> Schedule:
        response = await self._caller.change(
            f"pause or resume schedule {name}",
            _rpc.SCHEDULE + "SetSchedulePaused",
            schedule_pb2.SetSchedulePausedRequest(name=name, paused=paused),
            schedule_pb2.SetSchedulePausedResponse,
            timeout=timeout,
            under=request,
        )
        return schedules.decode(response.schedule)

    async def run_schedule(self, name: str, *, request: Request | None = None, timeout: float | None = None) -> int:
        """Publish the message of a schedule now and return its sequence. The next occurrence does not change."""
        response = await self._caller.change(
            f"run schedule {name}",
            _rpc.SCHEDULE + "RunSchedule",
            schedule_pb2.RunScheduleRequest(name=name),
            schedule_pb2.RunScheduleResponse,
            timeout=timeout,
            under=request,
        )
        return response.sequence

    async def get_schedule(self, name: str, *, timeout: float | None = None) -> Schedule:
        """Return a schedule with its last occurrences."""
        response = await self._caller.ask(
            f"schedule {name}",
            _rpc.SCHEDULE + "GetSchedule",
            schedule_pb2.GetScheduleRequest(name=name),
            schedule_pb2.GetScheduleResponse,
            timeout,
        )
        return schedules.decode(response.schedule)

    async def list_schedules(self, prefix: str = "", *, timeout: float | None = None) -> list[Schedule]:
        """Return the schedules with names that begin with prefix, sorted by name, each with its last occurrence."""
        response = await self._caller.ask(
            "list schedules",
            _rpc.SCHEDULE + "ListSchedules",
            schedule_pb2.ListSchedulesRequest(prefix=prefix),
            schedule_pb2.ListSchedulesResponse,
            timeout,
        )
        return [schedules.decode(s) for s in response.schedules]
