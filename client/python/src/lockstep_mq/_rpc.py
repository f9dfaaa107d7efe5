# SPDX-License-Identifier: Apache-2.0
"""The gRPC calls of this client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from lockstep_mq import _failure
from lockstep_mq._proto import admin_pb2, queue_pb2

if TYPE_CHECKING:
    from typing import TypeAlias

    from google.protobuf.message import Message

    PublishCall: TypeAlias = grpc.aio.StreamStreamCall[bytes, queue_pb2.PublishStreamResponse]
    ConsumeCall: TypeAlias = grpc.aio.StreamStreamCall[queue_pb2.ConsumeRequest, queue_pb2.ConsumeResponse]
    BrowseCall: TypeAlias = grpc.aio.UnaryStreamCall[queue_pb2.BrowseRequest, queue_pb2.BrowseResponse]
    WatchCall: TypeAlias = grpc.aio.UnaryStreamCall[admin_pb2.WatchStatusRequest, admin_pb2.WatchStatusResponse]

Metadata = tuple[tuple[str, str], ...]
T = TypeVar("T")
Req = TypeVar("Req", bound="Message")
Resp = TypeVar("Resp", bound="Message")

QUEUE = "/lockstep.v1.QueueService/"
ADMIN = "/lockstep.v1.AdminService/"
SCHEDULE = "/lockstep.v1.ScheduleService/"
FLEET = "/lockstep.v1.FleetService/"
GET_STATUS = ADMIN + "GetStatus"
CONNECTION = "/lockstep.v1.ConnectionService/"


def _encoder(kind: type[Req]) -> Callable[[Req], bytes]:
    return cast("Callable[[Req], bytes]", kind.SerializeToString)


def unary(
    channel: grpc.aio.Channel, method: str, request: Message, response: type[Resp], metadata: Metadata
) -> Awaitable[Resp]:
    """Execute a unary call."""
    call = channel.unary_unary(
        method, request_serializer=_encoder(type(request)), response_deserializer=response.FromString
    )
    return call(request, metadata=metadata)


def watch_status(channel: grpc.aio.Channel, metadata: Metadata) -> WatchCall:
    """Open AdminService.WatchStatus."""
    call = channel.unary_stream(
        ADMIN + "WatchStatus",
        request_serializer=_encoder(admin_pb2.WatchStatusRequest),
        response_deserializer=admin_pb2.WatchStatusResponse.FromString,
    )
    return call(admin_pb2.WatchStatusRequest(), metadata=metadata)


def browse(channel: grpc.aio.Channel, request: queue_pb2.BrowseRequest, metadata: Metadata) -> BrowseCall:
    """Open QueueService.Browse."""
    call = channel.unary_stream(
        QUEUE + "Browse",
        request_serializer=_encoder(queue_pb2.BrowseRequest),
        response_deserializer=queue_pb2.BrowseResponse.FromString,
    )
    return call(request, metadata=metadata)


def publish_stream(channel: grpc.aio.Channel, metadata: Metadata) -> PublishCall:
    """Open QueueService.PublishStream; requests are already encoded."""
    call: grpc.aio.StreamStreamMultiCallable[bytes, queue_pb2.PublishStreamResponse] = channel.stream_stream(
        QUEUE + "PublishStream",
        response_deserializer=queue_pb2.PublishStreamResponse.FromString,
    )
    return call(metadata=metadata)


def consume(channel: grpc.aio.Channel, metadata: Metadata) -> ConsumeCall:
    """Open QueueService.Consume."""
    call = channel.stream_stream(
        QUEUE + "Consume",
        request_serializer=_encoder(queue_pb2.ConsumeRequest),
        response_deserializer=queue_pb2.ConsumeResponse.FromString,
    )
    return call(metadata=metadata)


async def bound(
    work: Awaitable[T], address: str, *, stop: asyncio.Future[None] | None = None, deadline: float | None = None
) -> T:
    """Wait until an attempt or `stop` is done, or the deadline (on the loop's clock) has passed.

    Only the cancellation of the caller raises CancelledError. A cancellation by gRPC, `stop` or the deadline is a
    Failure without a response.
    """
    task = asyncio.ensure_future(work)
    waits: set[asyncio.Future[object]] = {task}  # type: ignore[arg-type] # the type of the result does not matter here
    if stop is not None:
        waits.add(stop)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait(
            waits,
            timeout=None if deadline is None else max(deadline - loop.time(), 0),
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, even if the caller is canceled
    if task.cancelled():
        raise _failure.lost(address, "the attempt was canceled, or the connection was closed")
    err = task.exception()
    if isinstance(err, grpc.aio.AioRpcError):
        raise _failure.of_rpc_error(address, err) from None
    if isinstance(err, asyncio.InvalidStateError):
        raise _failure.lost(address, "the stream has ended")
    return task.result()
