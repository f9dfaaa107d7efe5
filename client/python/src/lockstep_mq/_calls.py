# SPDX-License-Identifier: Apache-2.0
"""Calls with retries, and the identity that makes retries idempotent."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from lockstep_mq import _lookup, _options, _rpc, errors
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Fleet, Pair, Redirects, Sequencer, queue_of
from lockstep_mq._locator import Locator, Target
from lockstep_mq._proto import types_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lockstep_mq._tracer import Tracer

T = TypeVar("T")
Resp = TypeVar("Resp", bound="Message")

MAX_RENEWALS = 3
"""Maximum number of consecutive rejected tokens that an operation replaces before it fails."""

Attempt = Callable[[grpc.aio.Channel, "_rpc.Metadata"], Awaitable[T]]


class Move(Protocol):
    """Replaces the identity of a request before its next attempt."""

    def __call__(self, to: Pair, *, settled: bool) -> None: ...


@dataclass
class Outcome:
    """Records whether a request may have been committed although no node has responded.

    An Outcome covers all calls that send the request. A refused retry does not reset `unknown`, unless the refusal is
    recorded in the log.
    """

    unknown: bool = False
    check: Callable[[Target | None], None] | None = None
    """Raises InvalidRequest if the request must not be sent to the target, or to any if the target is None."""

    def allow(self, op: str, target: Target | None) -> None:
        """Raise an error if the request must not be sent to the target, or to any if the target is None."""
        if self.check is None:
            return
        try:
            self.check(target)
        except errors.InvalidRequest as err:
            if self.unknown:
                raise errors.OutcomeLost(f"{op}: {err}", refusal=err) from None
            raise


@dataclass
class Identity:
    """Makes retries of one request idempotent while its outcome is unknown, over any number of calls."""

    pair: Pair | None = None  # pair of the sequencer
    sequencer: Sequencer | None = None
    sequence: int = 0
    lost: errors.OutcomeLost | None = None  # if set, nothing is sent
    pinned: bool = False  # only the first pair can execute the request

    def __post_init__(self) -> None:
        self.outcome = Outcome()

    def take(self, pair: Pair, sequencer: Sequencer) -> None:
        """Assign the next sequence of a sequencer to the request."""
        self.pair, self.sequencer, self.sequence = pair, sequencer, sequencer.next
        sequencer.next += 1

    def release(self) -> None:
        """Return the sequencer to its pair. The outcome of the request is known."""
        if self.pair is not None and self.sequencer is not None:
            self.pair.release(self.sequencer)
        self.sequencer = None

    def move(self, to: Pair, *, settled: bool) -> None:
        """Replace the identity after a refusal which proves that no attempt under it was executed.

        A settled refusal applies to all attempts under the identity, also at the same pair.
        """
        if settled or to is not self.pair:
            self.release()
            self.take(to, to.take())


class Request:
    """Makes an administrative call idempotent, so that it can be retried after OutcomeUnknown.

    With the same Request, the call is executed at most once, and a retry returns the original result. Without a
    Request, a second call is a new request: it may purge messages that were published in the meantime, or delete a
    queue that was created again.

        request = Request()
        while True:
            try:
                await client.admin.purge_queue("orders", request=request, timeout=5)
                break
            except OutcomeLost:
                raise
            except OutcomeUnknown:
                pass

    Use a Request for one call of one client and for its retries, with the same arguments, one at a time.
    """

    def __init__(self) -> None:
        self._identity = Identity()
        self._caller: Caller | None = None
        self._sent: tuple[str, bytes] | None = None  # the last call, while its outcome is unknown
        self._busy = self._done = False
        self._parts: list[Request] = []  # of the partitions of a partitioned queue

    def _of_partitions(self, count: int) -> list[Request]:
        """Return the requests for the partitions of a queue."""
        if len(self._parts) != count:
            self._parts = [Request() for _ in range(count)]
        return self._parts

    @contextlib.contextmanager
    def _made(self, caller: Caller, op: str, method: str, raw: bytes) -> Iterator[None]:
        """Permit one call under this identity, or raise InvalidRequest; raw is the encoded request."""
        if self._done or self._busy:
            state = "was already executed" if self._done else "is in progress"
            raise errors.InvalidRequest(f"{op}: the Request {state}: use a new Request for each call")
        if self._identity.outcome.unknown and (self._caller is not caller or self._sent != (method, raw)):
            raise errors.InvalidRequest(
                f"{op}: the Request is in use for another call with an unknown outcome: retry that call, or use a new "
                "Request"
            )
        self._caller, self._sent, self._busy = caller, (method, raw), True
        try:
            yield
            self._done = True
        finally:
            self._busy = False


def _replace(f: Failure, state: Outcome, at: Pair, moved: Move | None) -> None:
    """Replace the identity of a request after a temporary refusal that applies to all attempts under it."""
    if f.settled and f.retry and moved is not None:
        state.unknown = False
        moved(at, settled=True)


def _redirected(op: str, f: Failure, state: Outcome, moved: Move | None) -> None:
    """Raise OutcomeUnknown if an earlier attempt may be committed by the pair that returned NOT_OWNER."""
    if moved is None:
        return
    if state.unknown and not f.settled:
        raise f.error(op, unknown=True)
    state.unknown = False


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
    """Executes the calls of a client."""

    def __init__(self, fleet: Fleet, tracer: Tracer | None = None) -> None:
        self.fleet, self.tracer = fleet, tracer

    @property
    def locator(self) -> Locator:
        """The nodes of the home pair."""
        return self.fleet.home.locator

    def deadline(self, timeout: float | None) -> float | None:
        """Return the deadline of a call on the loop's clock."""
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    def give_up(
        self, op: str, last: Failure | None, *, unknown: bool, pair: Pair | None = None
    ) -> errors.LockstepError:
        """Return the error of an operation that timed out without a response of a pair, by default the home pair."""
        locator = self.locator if pair is None else pair.locator
        self.fleet.unavailable(pair or self.fleet.home)
        redirected = last is not None and last.not_owner is not None
        known = str(last) if last is not None else locator.explain()
        if redirected and locator.target is None:
            known += f"; {locator.explain()}"
        if unknown:
            return errors.OutcomeUnknown(
                f"{op}: timed out after the request was sent; it may have been executed (last: {known})"
            )
        message = f"{op}: timed out before a node could execute the request (last: {known})"
        if redirected and locator.target is not None and last is not None:
            return errors.Unavailable(message, reason=last.reason, code=last.code.name, address=last.address)
        replica = locator.replica()
        if last is not None or replica is None:
            return errors.Unavailable(message)
        return errors.Unavailable(message, reason="REPLICA", code="FAILED_PRECONDITION", address=replica.address)

    def unary(
        self, channel: grpc.aio.Channel, method: str, request: Message, response: type[Resp], metadata: _rpc.Metadata
    ) -> Awaitable[Resp]:
        """Execute one attempt of a unary call. If the client has a tracer, all calls except GetStatus are traced."""
        if self.tracer is None or method == _rpc.GET_STATUS:
            return _rpc.unary(channel, method, request, response, metadata)
        return _traced(self.tracer, channel, method, request, response, metadata)

    async def attempt(
        self, target: Target, fn: Attempt[T], metadata: _rpc.Metadata, deadline: float | None = None
    ) -> T:
        """Execute one attempt. It fails when the locator replaces the target."""
        target.node.users += 1
        try:
            return await _rpc.bound(
                fn(target.channel, metadata), target.node.address, stop=target.gone, deadline=deadline
            )
        finally:
            target.node.users -= 1

    async def do(
        self,
        op: str,
        fn: Attempt[T],
        *,
        deadline: float | None,
        outcome: Outcome | None = None,
        again: bool = True,
        pair: Pair | None = None,
        moved: Move | None = None,
        pinned: bool = False,
    ) -> T:
        """Execute attempts on the active node of a pair, by default the home pair, until a success or a final error.

        outcome is None for a read-only request. Without `again`, an unknown outcome ends the retries. After NOT_OWNER
        and settled refusals, `moved` is called with the pair of the next attempt. With `pinned`, only the given pair
        can execute the request.
        """
        at = pair or self.fleet.home
        redirects = Redirects(self.fleet)
        loop = asyncio.get_running_loop()
        retry = _options.Backoff()
        last: Failure | None = None
        refusals = 0
        state = outcome if outcome is not None else Outcome()
        while True:
            at, target = await self._target(op, at, last, state, deadline, moved, pinned)
            metadata: _rpc.Metadata = ()
            try:
                metadata = await at.locator.tokens.metadata()
                if deadline is not None and loop.time() >= deadline:
                    raise self.give_up(op, last, unknown=state.unknown, pair=at)  # this attempt was never sent
                answer = await self.attempt(target, fn, metadata, deadline)
            except asyncio.CancelledError:
                if outcome is not None:
                    outcome.unknown = True
                raise
            except Failure as err:
                f = err
            else:
                state.unknown = False
                return answer
            if outcome is not None and not f.answered:
                outcome.unknown = True
            if deadline is not None and loop.time() >= deadline and not f.answered:
                raise self.give_up(op, last, unknown=state.unknown, pair=at)
            if f.not_owner is not None:
                _redirected(op, f, state, moved)
                at, wait = redirects.follow(op, at, f, unknown=state.unknown)
                last = redirects.last
                if moved is not None:
                    moved(at, settled=f.settled)
                if wait:
                    await target.locator.pause(target, max(retry.next(), f.retry_after), deadline)
                continue
            _replace(f, state, at, moved)
            if state.unknown and not again:
                raise f.error(op, unknown=True)
            refusals = refusals + 1 if f.unauthenticated else 0
            if not f.retry and not (
                f.unauthenticated and refusals <= MAX_RENEWALS and await at.locator.tokens.renewed(metadata)
            ):
                state.unknown = state.unknown and not f.settled
                raise f.error(op, unknown=state.unknown)
            if last is None or f.says:
                last = f
            at.locator.failed(f)
            await at.locator.pause(target, max(retry.next(), f.retry_after), deadline)

    async def _target(
        self,
        op: str,
        at: Pair,
        last: Failure | None,
        state: Outcome,
        deadline: float | None,
        moved: Move | None,
        pinned: bool,
    ) -> tuple[Pair, Target]:
        """Wait for an active node of a pair, or of the home pair, which reports the owner of the queue."""
        while True:
            try:
                target = await _lookup.wait(self.fleet, at, deadline)
            except TimeoutError:
                raise self.give_up(op, last, unknown=state.unknown, pair=at) from None
            except Failure as refusal:
                raise refusal.error(op, unknown=state.unknown) from None
            except errors.Closed as closed:
                if state.unknown:
                    raise errors.OutcomeUnknown(f"{op}: the client was closed during the request") from None
                raise errors.Closed(f"{op}: {closed}") from None
            state.allow(op, target)
            if target is not None:
                return at, target
            if not pinned:
                at = self._restart(at, state, moved)

    def _restart(self, at: Pair, state: Outcome, moved: Move | None) -> Pair:
        """Return the pair for the next attempt of a request that was sent to a pair without an active node.

        It is the home pair, unless the home pair has no active node, an earlier attempt may have been executed, or the
        request contains deliveries.
        """
        home = self.fleet.home
        if home.locator.target is None or state.check is not None or (moved is not None and state.unknown):
            return at
        self.fleet.unavailable(at)
        if moved is not None:
            moved(home, settled=False)
        return home

    async def read(
        self, op: str, fn: Attempt[T], timeout: float | None, queue: str = "", pair: Pair | None = None
    ) -> T:
        """Execute a read-only call at a pair, by default at the owner of a queue, if any."""
        at = pair or self.fleet.route(queue)
        return await self.do(op, fn, deadline=self.deadline(timeout), pair=at, pinned=pair is not None)

    async def ask(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        timeout: float | None,
        pair: Pair | None = None,
    ) -> Resp:
        """Execute a read-only unary call at a pair, by default at the owner of its queue."""

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            return self.unary(channel, method, request, response, metadata)

        return await self.read(op, send, timeout, queue_of(request), pair)

    async def decide(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        timeout: float | None,
        *,
        again: bool = True,
        pair: Pair | None = None,
    ) -> Resp:
        """Execute a call that changes state and needs no identity, by default at the owner of its queue.

        With `again`, the call is idempotent and is retried until a node responds. Without it, the call raises
        OutcomeUnknown after an attempt without a response.
        """

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            return self.unary(channel, method, request, response, metadata)

        at = pair or self.fleet.route(queue_of(request))
        return await self.do(
            op,
            send,
            deadline=self.deadline(timeout),
            outcome=Outcome(),
            again=again,
            pair=at,
            pinned=pair is not None,
        )

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
        pair: Pair | None = None,
        pinned: bool = False,
    ) -> Resp:
        """Execute a call that changes state, under a new identity or the given one.

        The first attempt is sent to `pair`, by default the owner of the queue, or to the pair of an earlier attempt
        with an unknown outcome. With `pinned`, only this pair can execute the call.

        The request must have a field `producer`, which is set here.
        """
        who = (identity or Identity()) if under is None else under._identity
        who.pinned = pinned
        if under is None:
            return await self._change(op, method, request, response, timeout, who, pair)
        raw = request.SerializeToString(deterministic=True)
        with under._made(self, op, method, raw):
            return await self._change(op, method, request, response, timeout, who, pair)

    async def _change(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        timeout: float | None,
        who: Identity,
        pair: Pair | None,
    ) -> Resp:
        if who.lost is not None:
            raise who.lost
        if who.sequencer is None or who.pair is None:
            at = pair or self.fleet.route(queue_of(request))
            who.take(at, at.take())
        deadline = self.deadline(timeout)
        try:
            try:
                return await self._attempts_as(op, method, request, response, who, deadline)
            except errors.TooOld as err:
                if err.reason != "PRODUCER_UNKNOWN" or who.outcome.unknown:
                    raise
                # The node has evicted the idle sequencer. Nothing was committed, so the request may use another
                # identity.
                who.take(who.pair or self.fleet.home, Sequencer(str(uuid.uuid4())))
                return await self._attempts_as(op, method, request, response, who, deadline)
        except errors.OutcomeLost as err:
            who.lost = err
            raise
        finally:
            if not who.outcome.unknown:
                who.release()

    async def _attempts_as(
        self, op: str, method: str, request: Message, response: type[Resp], who: Identity, deadline: float | None
    ) -> Resp:
        producer: types_pb2.Producer = cast("Any", request).producer

        def send(channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> Awaitable[Resp]:
            assert who.sequencer is not None  # noqa: S101 # the caller has taken one
            producer.id, producer.epoch, producer.sequence = who.sequencer.id, 1, who.sequence
            producer.retry = who.outcome.unknown
            return self.unary(channel, method, request, response, metadata)

        return await self.do(
            op,
            send,
            deadline=deadline,
            outcome=who.outcome,
            pair=who.pair,
            moved=who.move,
            pinned=who.pinned,
        )
