# SPDX-License-Identifier: Apache-2.0
"""The calls of Client.admin for schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from lockstep_mq import _rpc, errors, schedules
from lockstep_mq._calls import Caller, Request, Resp
from lockstep_mq._fleet import Pair
from lockstep_mq._proto import fleet_pb2, schedule_pb2
from lockstep_mq.message import Publishable
from lockstep_mq.schedules import Schedule

if TYPE_CHECKING:
    from google.protobuf.message import Message

T = TypeVar("T")

_MISSING = "SCHEDULE_NOT_FOUND"


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
            missed: Rule for occurrences that are more than a minute late: "skip", "once" or "all".
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
        """Delete a schedule and its history. Published messages are kept. See get_schedule()."""
        await self._change_schedule(
            name,
            f"delete schedule {name}",
            "DeleteSchedule",
            schedule_pb2.DeleteScheduleRequest(name=name),
            schedule_pb2.DeleteScheduleResponse,
            request,
            timeout,
        )

    async def pause_schedule(
        self, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> Schedule:
        """Pause a schedule. Occurrences during the pause are not published. See get_schedule()."""
        return await self._set_paused(name, True, request, timeout)

    async def resume_schedule(
        self, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> Schedule:
        """Resume a schedule. Its next occurrence is the first one after the call. See get_schedule()."""
        return await self._set_paused(name, False, request, timeout)

    async def _set_paused(self, name: str, paused: bool, request: Request | None, timeout: float | None) -> Schedule:
        response = await self._change_schedule(
            name,
            f"pause or resume schedule {name}",
            "SetSchedulePaused",
            schedule_pb2.SetSchedulePausedRequest(name=name, paused=paused),
            schedule_pb2.SetSchedulePausedResponse,
            request,
            timeout,
        )
        return schedules.decode(response.schedule)

    async def run_schedule(self, name: str, *, request: Request | None = None, timeout: float | None = None) -> int:
        """Publish the message of a schedule now and return its sequence. The next occurrence does not change.

        See get_schedule().
        """
        response = await self._change_schedule(
            name,
            f"run schedule {name}",
            "RunSchedule",
            schedule_pb2.RunScheduleRequest(name=name),
            schedule_pb2.RunScheduleResponse,
            request,
            timeout,
        )
        return response.sequence

    async def get_schedule(self, name: str, *, timeout: float | None = None) -> Schedule:
        """Return a schedule with its last occurrences.

        In a fleet, it is the schedule of the home pair of the client, or else of the only other pair that has a
        schedule with this name. To find it there, the client needs the operate permission on the home pair.

        Raises:
            Refused: No pair has the schedule (reason SCHEDULE_NOT_FOUND).
            WrongState: Several other pairs have a schedule with this name: use a client with the addresses of one of
                them.
        """

        async def ask(at: Pair | None, left: float | None) -> Schedule:
            return await self._schedule_at(name, at, left)

        return await self._by_name(name, timeout, ask)

    async def _schedule_at(self, name: str, at: Pair | None, timeout: float | None) -> Schedule:
        response = await self._caller.ask(
            f"schedule {name}",
            _rpc.SCHEDULE + "GetSchedule",
            schedule_pb2.GetScheduleRequest(name=name),
            schedule_pb2.GetScheduleResponse,
            timeout,
            at,
        )
        return schedules.decode(response.schedule)

    async def _change_schedule(
        self,
        name: str,
        op: str,
        method: str,
        asked: Message,
        response: type[Resp],
        request: Request | None,
        timeout: float | None,
    ) -> Resp:
        async def change(at: Pair | None, left: float | None) -> Resp:
            return await self._caller.change(
                op, _rpc.SCHEDULE + method, asked, response, timeout=left, under=request, pair=at, pinned=at is not None
            )

        return await self._by_name(name, timeout, change)

    async def _by_name(
        self, name: str, timeout: float | None, call: Callable[[Pair | None, float | None], Awaitable[T]]
    ) -> T:
        """Execute a call for a schedule at the pair that has it."""
        deadline = self._caller.deadline(timeout)

        def left() -> float | None:
            return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)

        try:
            return await call(None, timeout)
        except errors.Refused as err:
            if err.reason != _MISSING:
                raise
            missing = err
        found = [p for p in await self._other_pairs(missing, left()) if await self._has_schedule(name, p, left())]
        if not found:
            raise missing
        if len(found) > 1:
            names = ", ".join(p.name for p in found)
            raise errors.WrongState(f"schedule {name}: several pairs have a schedule with this name: {names}")
        return await call(found[0], left())

    async def _has_schedule(self, name: str, at: Pair, timeout: float | None) -> bool:
        try:
            await self._schedule_at(name, at, timeout)
        except errors.Refused as err:
            if err.reason != _MISSING:
                raise
            return False
        return True

    async def _other_pairs(self, missing: errors.Refused, timeout: float | None) -> list[Pair]:
        """Return the other pairs of the fleet. If they are unknown, raise `missing`."""
        try:
            fleet = await self._caller.ask(
                "fleet", _rpc.FLEET + "GetFleet", fleet_pb2.GetFleetRequest(), fleet_pb2.GetFleetResponse, timeout
            )
        except errors.Refused as err:
            raise missing from err
        others = (self._caller.fleet.named(p.name, p.addresses) for p in fleet.pairs if p.name != fleet.pair)
        return [p for p in others if p is not None]

    async def list_schedules(self, prefix: str = "", *, timeout: float | None = None) -> list[Schedule]:
        """Return the schedules of the home pair with names that begin with prefix, sorted by name.

        Each schedule contains its last occurrence.
        """
        response = await self._caller.ask(
            "list schedules",
            _rpc.SCHEDULE + "ListSchedules",
            schedule_pb2.ListSchedulesRequest(prefix=prefix),
            schedule_pb2.ListSchedulesResponse,
            timeout,
        )
        return [schedules.decode(s) for s in response.schedules]
