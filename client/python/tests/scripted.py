# SPDX-License-Identifier: Apache-2.0
"""A node with scripted responses, for tests of retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from lockstep_mq._proto import admin_pb2, fleet_pb2, queue_pb2, schedule_pb2, site_pb2, types_pb2

Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[queue_pb2.PublishStreamRequest]
Stream = Callable[[Requests, Context], AsyncIterator[queue_pb2.PublishStreamResponse]]
ConsumeRequests = AsyncIterator[queue_pb2.ConsumeRequest]
Consume = Callable[[ConsumeRequests, Context], AsyncIterator[queue_pb2.ConsumeResponse]]


class Node:
    """A scripted node. `streams` are the behaviors of successive publish streams; the last one is repeated."""

    def __init__(self, *, role: admin_pb2.Role = admin_pb2.ROLE_ACTIVE, term: int = 1, pair: str = "p") -> None:
        self.role, self.term, self.pair = role, term, pair
        self.site: admin_pb2.SiteInfo | None = None
        self.address = ""
        self.streams: list[Stream] = []
        self.seen: list[list[queue_pb2.PublishStreamRequest]] = []  # requests by stream
        self.consumes: list[Consume] = []  # behaviors of successive consume streams
        self.commits: list[queue_pb2.CommitRequest] = []
        self.on_prepare: Callable[[Context], Awaitable[None]] | None = None
        self.decided: list[str] = []
        self.purges: list[queue_pb2.PurgeQueueRequest] = []
        self.on_purge: Callable[[int, Context], Awaitable[queue_pb2.PurgeQueueResponse]] | None = None
        self.on_create: Callable[[], None] | None = None
        self.creates: list[queue_pb2.CreateQueueRequest] = []
        self.lookups: list[str] = []  # names of the queues
        self.on_lookup: Callable[[str, Context], Awaitable[None]] | None = None
        self.schedules: set[str] = set()  # names
        self.fleet: fleet_pb2.GetFleetResponse | None = None
        self.replays = 0
        self.on_commit: Callable[[int, Context], Awaitable[queue_pb2.CommitResponse]] | None = None
        self.tokens: list[str] = []
        self.accepts_token: Callable[[str], bool] = lambda _: True
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def start(self) -> None:
        """Start the node; after stop(), at its former address."""

        def unary(fn: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(fn, request.FromString, _serialize)

        admin = {
            "GetStatus": unary(self._get_status, admin_pb2.GetStatusRequest),
            "WatchStatus": grpc.unary_stream_rpc_method_handler(
                self._watch, admin_pb2.WatchStatusRequest.FromString, _serialize
            ),
        }
        queue = {
            "PublishStream": grpc.stream_stream_rpc_method_handler(
                self._publish, queue_pb2.PublishStreamRequest.FromString, _serialize
            ),
            "Consume": grpc.stream_stream_rpc_method_handler(
                self._consume, queue_pb2.ConsumeRequest.FromString, _serialize
            ),
            "Commit": unary(self._commit, queue_pb2.CommitRequest),
            "Prepare": unary(self._prepare, queue_pb2.PrepareRequest),
            "CommitPrepared": unary(self._commit_prepared, queue_pb2.CommitPreparedRequest),
            "CreateQueue": unary(self._create_queue, queue_pb2.CreateQueueRequest),
            "GetQueue": unary(self._get_queue, queue_pb2.GetQueueRequest),
            "PurgeQueue": unary(self._purge, queue_pb2.PurgeQueueRequest),
            "ReplayDeadLetters": unary(self._replay, queue_pb2.ReplayDeadLettersRequest),
        }
        schedule = {
            "GetSchedule": unary(self._get_schedule, schedule_pb2.GetScheduleRequest),
            "DeleteSchedule": unary(self._delete_schedule, schedule_pb2.DeleteScheduleRequest),
            "RunSchedule": unary(self._run_schedule, schedule_pb2.RunScheduleRequest),
            "SetSchedulePaused": unary(self._pause_schedule, schedule_pb2.SetSchedulePausedRequest),
        }
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("lockstep.v1.AdminService", admin),
                grpc.method_handlers_generic_handler("lockstep.v1.QueueService", queue),
                grpc.method_handlers_generic_handler("lockstep.v1.ScheduleService", schedule),
                grpc.method_handlers_generic_handler(
                    "lockstep.v1.FleetService", {"GetFleet": unary(self._get_fleet, fleet_pb2.GetFleetRequest)}
                ),
            )
        )
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Stop the node."""
        await self._server.stop(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def set_role(self, role: admin_pb2.Role, term: int) -> None:
        self.role, self.term = role, term
        self._changed.set()
        self._changed = asyncio.Event()

    def set_site(self, role: site_pb2.SiteRole, epoch: int, *remote: str, lossy: int = 0) -> None:
        """Change the role of the site, which has the name of the pair."""
        self.site = admin_pb2.SiteInfo(
            name=self.pair, role=role, lineage="l", epoch=epoch, remote_addresses=remote, lossy_epoch=lossy
        )
        self.set_role(self.role, self.term)

    def _status(self) -> admin_pb2.GetStatusResponse:
        pair = admin_pb2.PairStatus(pair_id=self.pair, term=self.term)
        return admin_pb2.GetStatusResponse(role=self.role, pair=pair, site=self.site)

    async def _check(self, context: Context) -> None:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        token = str(shown).removeprefix("Bearer ")
        self.tokens.append(token)
        if not self.accepts_token(token):
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, "TOKEN_EXPIRED")

    async def _get_status(self, _: admin_pb2.GetStatusRequest, context: Context) -> admin_pb2.GetStatusResponse:
        await self._check(context)
        return self._status()

    async def _watch(
        self, _: admin_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        await self._check(context)
        while True:
            changed = self._changed
            yield admin_pb2.WatchStatusResponse(status=self._status())
            await changed.wait()

    async def _publish(self, requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        await self._check(context)
        seen: list[queue_pb2.PublishStreamRequest] = []
        self.seen.append(seen)

        async def recorded() -> Requests:
            async for r in requests:
                seen.append(r)
                yield r

        stream = self.streams[min(len(self.seen), len(self.streams)) - 1]
        async for response in stream(recorded(), context):
            yield response

    async def _consume(self, requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        async for response in self.consumes.pop(0)(requests, context):
            yield response

    async def _prepare(self, _: queue_pb2.PrepareRequest, context: Context) -> queue_pb2.PrepareResponse:
        if self.on_prepare is not None:
            await self.on_prepare(context)
        return queue_pb2.PrepareResponse(lsn=1)

    async def _commit_prepared(
        self, request: queue_pb2.CommitPreparedRequest, _: Context
    ) -> queue_pb2.CommitPreparedResponse:
        self.decided.append(request.xid)
        return queue_pb2.CommitPreparedResponse()

    async def _commit(self, request: queue_pb2.CommitRequest, context: Context) -> queue_pb2.CommitResponse:
        self.commits.append(request)
        assert self.on_commit is not None
        return await self.on_commit(len(self.commits), context)

    async def _create_queue(self, request: queue_pb2.CreateQueueRequest, _: Context) -> queue_pb2.CreateQueueResponse:
        self.creates.append(request)
        if self.on_create is not None:
            self.on_create()
        return queue_pb2.CreateQueueResponse(queue=types_pb2.Queue(name=request.name), created=True)

    async def _get_queue(self, request: queue_pb2.GetQueueRequest, context: Context) -> queue_pb2.GetQueueResponse:
        self.lookups.append(request.name)
        if self.on_lookup is not None:
            await self.on_lookup(request.name, context)
        return queue_pb2.GetQueueResponse(queue=types_pb2.Queue(name=request.name))

    async def _schedule(self, name: str, context: Context) -> schedule_pb2.Schedule:
        if name not in self.schedules:
            await abort(context, grpc.StatusCode.NOT_FOUND, "SCHEDULE_NOT_FOUND")
        return schedule_pb2.Schedule(name=name, queue=f"{self.pair}.q")

    async def _get_schedule(
        self, request: schedule_pb2.GetScheduleRequest, context: Context
    ) -> schedule_pb2.GetScheduleResponse:
        return schedule_pb2.GetScheduleResponse(schedule=await self._schedule(request.name, context))

    async def _delete_schedule(
        self, request: schedule_pb2.DeleteScheduleRequest, context: Context
    ) -> schedule_pb2.DeleteScheduleResponse:
        await self._schedule(request.name, context)
        self.schedules.remove(request.name)
        return schedule_pb2.DeleteScheduleResponse()

    async def _run_schedule(
        self, request: schedule_pb2.RunScheduleRequest, context: Context
    ) -> schedule_pb2.RunScheduleResponse:
        await self._schedule(request.name, context)
        return schedule_pb2.RunScheduleResponse(sequence=request.producer.sequence)

    async def _pause_schedule(
        self, request: schedule_pb2.SetSchedulePausedRequest, context: Context
    ) -> schedule_pb2.SetSchedulePausedResponse:
        schedule = await self._schedule(request.name, context)
        schedule.paused = request.paused
        return schedule_pb2.SetSchedulePausedResponse(schedule=schedule)

    async def _get_fleet(self, _: fleet_pb2.GetFleetRequest, context: Context) -> fleet_pb2.GetFleetResponse:
        if self.fleet is None:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "FLEET_STATE")
        assert self.fleet is not None
        return self.fleet

    async def _purge(self, request: queue_pb2.PurgeQueueRequest, context: Context) -> queue_pb2.PurgeQueueResponse:
        self.purges.append(request)
        assert self.on_purge is not None
        return await self.on_purge(len(self.purges), context)

    async def _replay(
        self, _: queue_pb2.ReplayDeadLettersRequest, context: Context
    ) -> queue_pb2.ReplayDeadLettersResponse:
        """Refuse the first attempt with a definite outcome, and do not respond to the second one."""
        self.replays += 1
        if self.replays == 1:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "NOT_ACTIVE", details=[not_active("")])
        if self.replays == 2:
            await abort(context, grpc.StatusCode.UNAVAILABLE, "")
        return queue_pb2.ReplayDeadLettersResponse(moved=3)


def _serialize(m: Any) -> bytes:
    raw: bytes = m.SerializeToString()
    return raw


async def abort(
    context: Context, code: grpc.StatusCode, reason: str, *, settled: bool = False, details: Sequence[Any] = ()
) -> None:
    """End a call like a node: with a status and its details."""
    status = status_pb2.Status(code=code.value[0], message=reason.lower())
    info = error_details_pb2.ErrorInfo(domain="lockstep.v1", reason=reason)
    if settled:
        info.metadata["settled"] = "true"
    for d in (*([info] if reason else []), *details):
        packed = AnyMessage()
        packed.Pack(d)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, status.message)


def answer(r: queue_pb2.PublishStreamRequest, *, duplicate: bool = False) -> queue_pb2.PublishStreamResponse:
    """Return the response to a stored request: the sequence in the queue is 100 above the producer's."""
    return queue_pb2.PublishStreamResponse(
        correlation=r.correlation,
        published=queue_pb2.PublishResponse(first_sequence=100 + r.correlation, lsn=1, duplicate=duplicate),
    )


def refusal(
    r: queue_pb2.PublishStreamRequest,
    code: grpc.StatusCode,
    reason: str,
    *,
    settled: bool = False,
    owner: types_pb2.NotOwner | None = None,
) -> queue_pb2.PublishStreamResponse:
    error = queue_pb2.RequestError(
        code=code.value[0], message=reason.lower(), reason=reason, settled=settled, not_owner=owner
    )
    return queue_pb2.PublishStreamResponse(correlation=r.correlation, error=error)


def unrolled(r: queue_pb2.PublishStreamRequest) -> list[queue_pb2.PublishStreamRequest]:
    """Return a request and the requests batched with it."""
    return [r, *r.more]


async def bundles(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
    """Like `stores`, on a node that accepts several requests per frame. Requests to the queue `full` are refused."""
    async for r in requests:
        answers = [
            refusal(one, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            if one.publish.queue == "full"
            else answer(one, duplicate=one.publish.producer.retry)
            for one in unrolled(r)
        ]
        answers[0].accepts_more = True
        answers[0].more.extend(answers[1:])
        yield answers[0]


async def stores(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
    """A stream that stores all requests; retries are duplicates."""
    async for r in requests:
        yield answer(r, duplicate=r.publish.producer.retry)


def takes(n: int, reason: str = "OUTCOME_UNKNOWN", details: Sequence[Any] = ()) -> Stream:
    """Return a stream that reads n requests, responds to none and ends."""

    async def stream(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        left = n
        async for _ in requests:
            left -= 1
            if left == 0:
                break
        await abort(context, grpc.StatusCode.UNAVAILABLE, reason, details=details)
        yield queue_pb2.PublishStreamResponse()  # not reached: it makes this a generator

    return stream


def refuses(code: grpc.StatusCode, reason: str, *, settled: bool = False) -> Stream:
    """Return a stream that refuses each request."""

    async def stream(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        async for r in requests:
            yield refusal(r, code, reason, settled=settled)

    return stream


def not_active(hint: str, *primary: str) -> types_pb2.NotActive:
    return types_pb2.NotActive(active_address=hint, role="STANDBY", primary_addresses=primary)
