# SPDX-License-Identifier: Apache-2.0
"""Calls that are repeated until they are answered, and the identity that makes repeating safe."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio

from lockstep_mq import _options, _rpc, errors
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Locator, Target
from lockstep_mq._proto import types_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lockstep_mq._tracer import Tracer

T = TypeVar("T")
Resp = TypeVar("Resp", bound="Message")

MAX_RENEWALS = 3
"""How many tokens are refused one after the other before an operation gives up."""

Attempt = Callable[[grpc.aio.Channel, "_rpc.Metadata"], Awaitable[T]]


@dataclass
class Doubt:
    """Whether a request may have been carried out although no node has said so.

    It belongs to the request and not to one call that sends it. Only an answer for exactly the request's producer,
    epoch and sequence ends it; that a node refuses a repetition is none, unless the log has the refusal.
    """

    unknown: bool = False


@dataclass
class Lane:
    """The identity of a producer that has one request at a time under way."""

    id: str
    next: int = 1


@dataclass
class Identity:
    """What makes one request safe to send again, for as long as its outcome is in doubt, over any number of calls."""

    lane: Lane | None = None
    sequence: int = 0
    lost: errors.OutcomeLost | None = None  # nothing is sent any more

    def __post_init__(self) -> None:
        self.doubt = Doubt()

    def take(self, lane: Lane) -> None:
        """Make the next sequence of a lane the request's."""
        self.lane, self.sequence = lane, lane.next
        lane.next += 1


class Request:
    """Makes an administrative call one that can be made again after OutcomeUnknown.

    With the same Request, the call is answered with the original result, and is carried out once at most. Without one,
    a call that ended with OutcomeUnknown and is made again is another request, which may purge what was published
    meanwhile, or delete a queue that was made anew.

        request = Request()
        while True:
            try:
                await client.admin.purge_queue("orders", request=request, timeout=5)
                break
            except OutcomeLost:
                raise
            except OutcomeUnknown:
                pass

    It is for one call and its repetitions, with the same arguments, of one client, one at a time; one that was refused
    may be made again, as a new attempt.
    """

    def __init__(self) -> None:
        self._identity = Identity()
        self._caller: Caller | None = None
        self._sent: tuple[str, bytes] | None = None  # while its outcome is in doubt
        self._busy = self._done = False

    @contextlib.contextmanager
    def _made(self, caller: Caller, op: str, method: str, raw: bytes) -> Iterator[None]:
        """Have one call made under this identity, if that may be; raw is the call's content."""
        if self._done or self._busy:
            state = "was carried out already" if self._done else "is under way"
            raise errors.InvalidRequest(f"{op}: the Request {state}: use another one for another call")
        if self._identity.doubt.unknown and (self._caller is not caller or self._sent != (method, raw)):
            raise errors.InvalidRequest(
                f"{op}: the Request is in use for another call, whose outcome is unknown: repeat that, or use another "
                "Request"
            )
        self._caller, self._sent, self._busy = caller, (method, raw), True
        try:
            yield
            self._done = True
        finally:
            self._busy = False


async def _traced(
    tracer: Tracer,
    channel: grpc.aio.Channel,
    method: str,
    request: Message,
    response: type[Resp],
    metadata: _rpc.Metadata,
) -> Resp:
    names, done = tracer.call(method)
    try:
        answer = await _rpc.unary(channel, method, request, response, metadata + names)
    except BaseException as err:
        done(err)
        raise
    done(None)
    return answer


class Caller:
    """Makes the calls of a client."""

    def __init__(self, locator: Locator, tracer: Tracer | None = None) -> None:
        self.locator, self.tracer = locator, tracer
        self._lanes: list[Lane] = []

    def deadline(self, timeout: float | None) -> float | None:
        """Give the time on the loop's clock at which a call gives up."""
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    def give_up(self, op: str, last: Failure | None, *, unknown: bool) -> errors.LockstepError:
        """Make the error of an operation whose time has ended without an answer."""
        known = str(last) if last is not None else self.locator.explain()
        if unknown:
            return errors.OutcomeUnknown(
                f"{op}: the time ended; it was sent, and may or may not have been carried out (last: {known})"
            )
        return errors.Unavailable(f"{op}: the time ended before a node could do it (last: {known})")

    def unary(
        self, channel: grpc.aio.Channel, method: str, request: Message, response: type[Resp], metadata: _rpc.Metadata
    ) -> Awaitable[Resp]:
        """Make one attempt of a call with one answer, traced if the client is; GetStatus is asked again and again."""
        if self.tracer is None or method == _rpc.GET_STATUS:
            return _rpc.unary(channel, method, request, response, metadata)
        return _traced(self.tracer, channel, method, request, response, metadata)

    async def attempt(
        self, target: Target, fn: Attempt[T], metadata: _rpc.Metadata, deadline: float | None = None
    ) -> T:
        """Make one attempt, which ends when its target does."""
        target.node.users += 1
        try:
            return await _rpc.bound(
                fn(target.channel, metadata), target.node.address, stop=target.gone, deadline=deadline
            )
        finally:
            target.node.users -= 1

    async def do(
        self, op: str, fn: Attempt[T], *, deadline: float | None, doubt: Doubt | None = None, again: bool = True
    ) -> T:
        """Make attempts on the active node until one is answered.

        doubt: None for a request that changes nothing. again: False for one that is not repeated when it is in doubt.
        """
        loop = asyncio.get_running_loop()
        retry = _options.Backoff()
        last: Failure | None = None
        refusals = 0
        unknown = doubt if doubt is not None else Doubt()
        while True:
            try:
                target = await self.locator.wait(deadline)
            except TimeoutError:
                raise self.give_up(op, last, unknown=unknown.unknown) from None
            except Failure as refusal:
                raise refusal.error(op, doubt=unknown.unknown) from None
            except errors.Closed as closed:
                if unknown.unknown:
                    raise errors.OutcomeUnknown(f"{op}: the client was closed while it was under way") from None
                raise errors.Closed(f"{op}: {closed}") from None
            metadata: _rpc.Metadata = ()
            try:
                metadata = await self.locator.tokens.metadata()
                if deadline is not None and loop.time() >= deadline:
                    raise self.give_up(op, last, unknown=unknown.unknown)  # an attempt that is not made leaves no doubt
                answer = await self.attempt(target, fn, metadata, deadline)
            except asyncio.CancelledError:
                if doubt is not None:
                    doubt.unknown = True
                raise
            except Failure as err:
                f = err
            else:
                unknown.unknown = False
                return answer
            if doubt is not None and not f.answered:
                doubt.unknown = True
            if deadline is not None and loop.time() >= deadline and not f.answered:
                raise self.give_up(op, last, unknown=unknown.unknown)
            if unknown.unknown and not again:
                raise f.error(op, doubt=True)
            refusals = refusals + 1 if f.unauthenticated else 0
            if not f.retry and not (
                f.unauthenticated and refusals <= MAX_RENEWALS and await self.locator.tokens.renewed(metadata)
            ):
                if f.settled:
                    unknown.unknown = False
                raise f.error(op, doubt=unknown.unknown)
            if last is None or f.says:
                last = f
            self.locator.failed(f)
            await self.locator.pause(target, max(retry.next(), f.retry_after), deadline)

    async def read(self, op: str, fn: Attempt[T], timeout: float | None) -> T:
        """Make a call that changes nothing."""
        return await self.do(op, fn, deadline=self.deadline(timeout))

    async def ask(self, op: str, method: str, request: Message, response: type[Resp], timeout: float | None) -> Resp:
        """Make a call with one answer that changes nothing."""

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            return self.unary(channel, method, request, response, metadata)

        return await self.read(op, send, timeout)

    async def decide(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        timeout: float | None,
        *,
        again: bool = True,
    ) -> Resp:
        """Make a call that changes something and needs no identity.

        again: it is carried out once however often it is made, so that it is repeated until it is answered; one that is
        not ends with OutcomeUnknown when an attempt is not answered.
        """

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            return self.unary(channel, method, request, response, metadata)

        return await self.do(op, send, deadline=self.deadline(timeout), doubt=Doubt(), again=again)

    async def change(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        *,
        timeout: float | None,
        identity: Identity | None = None,
        under: Request | None = None,
    ) -> Resp:
        """Make a call that changes something, under an identity of its own or the given one.

        The request is one with a field `producer`, which is set here.
        """
        if under is None:
            return await self._change(op, method, request, response, timeout, identity or Identity())
        raw = request.SerializeToString(deterministic=True)
        with under._made(self, op, method, raw):
            return await self._change(op, method, request, response, timeout, under._identity)

    async def _change(
        self, op: str, method: str, request: Message, response: type[Resp], timeout: float | None, who: Identity
    ) -> Resp:
        if who.lost is not None:
            raise who.lost
        deadline = self.deadline(timeout)
        try:
            try:
                return await self._attempts_as(op, method, request, response, who, deadline)
            except errors.TooOld as err:
                if err.reason != "PRODUCER_UNKNOWN" or who.doubt.unknown:
                    raise
                # The lane was idle for too long. Nothing was carried out, so the request may go under another identity.
                who.lane = None
                who.take(Lane(str(uuid.uuid4())))
                return await self._attempts_as(op, method, request, response, who, deadline)
        except errors.OutcomeLost as err:
            who.lost = err
            raise
        finally:
            if not who.doubt.unknown and who.lane is not None:
                self._lanes.append(who.lane)
                who.lane = None

    async def _attempts_as(
        self, op: str, method: str, request: Message, response: type[Resp], who: Identity, deadline: float | None
    ) -> Resp:
        if who.lane is None:
            who.take(self._lanes.pop() if self._lanes else Lane(str(uuid.uuid4())))
        lane = who.lane
        assert lane is not None  # noqa: S101 # taken above
        producer: types_pb2.Producer = cast("Any", request).producer

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            producer.id, producer.epoch, producer.sequence = lane.id, 1, who.sequence
            producer.retry = who.doubt.unknown
            return self.unary(channel, method, request, response, metadata)

        return await self.do(op, send, deadline=deadline, doubt=who.doubt)
