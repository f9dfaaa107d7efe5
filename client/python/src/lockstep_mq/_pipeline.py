# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a producer at one pair: its identity, its requests and its stream."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep_mq import _failure, _lookup, _options, _rpc, _wire, errors
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Fleet, Pair, Redirects
from lockstep_mq._locator import Target
from lockstep_mq._proto import queue_pb2
from lockstep_mq._stream import Streams
from lockstep_mq.message import Receipt

if TYPE_CHECKING:
    from lockstep_mq.producer import Producer

    Future = asyncio.Future[Receipt]

MakeError = Callable[[bool], errors.LockstepError]
"""Creates the error of a request; the argument states whether the outcome is unknown."""

_MAX_UNANSWERED = 1 << 16  # number of duplicates that the nodes retain in the results of a producer
_EAGER = 4
"""Frames in flight up to which publishes are sent immediately, for latency; above this number they are batched."""
_SINGLY = 1024  # publishes to a queue that are sent one by one after a node has requested this


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a producer that apply to each of its pipelines."""

    id: str  # empty: random
    epoch: int
    window: int
    batch_messages: int
    batch_bytes: int


class Lane:
    """The pending publishes to one queue. They are at one pair, or held until their order allows sending them."""

    __slots__ = (
        "asked",
        "at",
        "backoff",
        "error",
        "held",
        "later",
        "open",
        "partitions",
        "queue",
        "redirects",
        "refused",
        "reserved",
        "reserved_messages",
        "timer",
        "to",
        "wait",
    )

    def __init__(self, queue: str, at: Pipeline) -> None:
        self.queue = queue
        self.at = at
        self.open = 0  # pending publishes
        self.redirects: Redirects | None = None
        self.backoff: _options.Backoff | None = None
        # State after a refusal that proves that the publishes were not applied.
        self.held = False
        self.asked = 0  # requests without a response; the others wait for them
        self.refused: deque[Entry] = deque()
        self.later: deque[Entry] = deque()  # not yet in a request
        self.to = at.pair
        self.wait = False  # wait before the next attempt
        self.error: errors.LockstepError | None = None  # the publishes must fail
        self.timer: asyncio.TimerHandle | None = None
        self.partitions = 0  # not 0: the publishes must be sent to the partitions
        self.reserved = self.reserved_messages = 0  # refused requests, while later ones are in flight

    def hold(self, asked: int, pending: deque[Entry]) -> None:
        """Hold the publishes."""
        self.held, self.asked, self.later, self.wait, self.error = True, asked, pending, False, None

    def refuse(self, fleet: Fleet, r: Request, f: Failure) -> None:
        """Add the publishes of a refused request, and determine the pair for the next attempt."""
        if self.redirects is None:
            self.redirects, self.backoff = Redirects(fleet), _options.Backoff()
        for e in r.entries:
            e.taken = False
        self.refused.extend(r.entries)
        if f.partitioned is not None:
            fleet.partitions.learn(f.partitioned)
            self.partitions = f.partitioned.count
            return
        if f.not_owner is None:
            self.redirects.last, self.to, self.wait = f, self.at.pair, True
            return
        try:
            self.to, self.wait = self.redirects.follow(f"publish to {self.queue}", self.at.pair, f)
        except errors.LockstepError as err:
            self.error = err

    def release(self) -> list[Entry]:
        """Return the held publishes, in order."""
        entries = [*self.refused, *self.later]
        self.refused.clear()
        self.later.clear()
        self.held = False
        return entries

    def cancel(self) -> tuple[list[Entry], list[Entry]]:
        """Hold the publishes no longer; return the refused and the later ones."""
        refused, later = list(self.refused), list(self.later)
        self.release()
        self.asked, self.to, self.wait, self.error, self.partitions = 0, self.at.pair, False, None, 0
        self.redirects = self.backoff = None
        return refused, later

    def withdraw(self, entry: Entry) -> None:
        """Remove a publish that is not in a request."""
        if not self.held:
            self.at.withdraw(entry)
        elif entry in self.refused:
            self.refused.remove(entry)
        else:
            self.later.remove(entry)

    @property
    def last(self) -> Failure | None:
        """The last refusal, if no request was accepted since."""
        return None if self.redirects is None else self.redirects.last


class Entry:
    """One publish call."""

    __slots__ = ("bytes", "count", "divided", "future", "groups", "lane", "pieces", "queue", "taken")

    lane: Lane  # set when the entry is pending

    def __init__(
        self, queue: str, pieces: Sequence[bytes], count: int, size: int, future: Future, groups: tuple[str, ...]
    ) -> None:
        self.queue = queue
        self.divided = False  # queue is a partition, chosen by the producer
        self.groups = groups  # of the messages, without those that have none
        self.pieces = pieces  # the encoded messages
        self.count = count  # number of messages
        self.bytes = size
        self.future = future
        self.taken = False  # part of a request, so it may be committed, or completed


class Request:
    """The unit of sending and retrying."""

    __slots__ = ("bytes", "count", "entries", "lane", "last", "queue", "repeated", "resumes", "sent", "sequence")

    def __init__(self, sequence: int, lane: Lane) -> None:
        self.sequence = sequence  # producer sequence, also the correlation ID
        self.lane = lane
        self.queue = lane.queue
        self.entries: list[Entry] = []
        self.count = self.bytes = 0  # number and size of the messages
        self.sent = False  # under its current identity
        self.repeated = False  # sent more than once
        self.last = False  # last request of its frame
        self.resumes = False  # first request for the queue after a refusal


class Pipeline:
    """Sends the publishes of a producer to one pair, in order, and retries them in that order after a failover."""

    def __init__(self, producer: Producer, pair: Pair, settings: Settings) -> None:
        self.pair = pair
        self._producer = producer
        self._own_id = bool(settings.id)
        self._id, self._epoch = settings.id or str(uuid.uuid4()), settings.epoch or 1
        self._window = settings.window
        self._batch_messages, self._batch_bytes = settings.batch_messages, settings.batch_bytes
        self._next = 1
        self._pending: deque[Entry] = deque()  # not yet in a request
        self._pending_messages = self._pending_bytes = 0
        self._in_flight: deque[Request] = deque()  # in the order of sending: first those sent on this stream
        self._unanswered = 0  # messages in flight
        self._reserved = self._reserved_messages = 0  # refused requests that can return to in_flight
        self._on_stream = 0  # number of requests sent on this stream
        self._frames = 0  # frames of the stream with outstanding requests
        self._greeted = False  # the current stream delivered a response
        self._bundles = False  # the node accepts several requests per frame
        self._single: dict[str, int] = {}  # publishes to be sent one by one, by queue
        self._resumed: set[str] = set()  # queues with pending publishes that were refused before
        self._wake = asyncio.Event()
        self._streams = Streams(producer._caller.fleet, pair)
        self._task = asyncio.create_task(self._run())

    def push(self, entry: Entry) -> None:
        """Append a publish."""
        self._pending.append(entry)
        self._pending_messages += entry.count
        self._pending_bytes += entry.bytes
        self._wake.set()

    def resume(self, queue: str) -> None:
        """Mark the next request for a queue: all earlier requests for the queue are answered."""
        self._resumed.add(queue)

    def withdraw(self, entry: Entry) -> None:
        """Remove a publish that is not yet in a request."""
        self._pending.remove(entry)
        self._pending_messages -= entry.count
        self._pending_bytes -= entry.bytes

    def hold(self, lane: Lane) -> None:
        """Send no further requests of a lane."""
        held = deque(e for e in self._pending if e.lane is lane)
        if held:
            self._pending = deque(e for e in self._pending if e.lane is not lane)
            self._pending_messages -= sum(e.count for e in held)
            self._pending_bytes -= sum(e.bytes for e in held)
        lane.hold(sum(r.lane is lane for r in self._in_flight), held)

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._pending and not self._in_flight:
                self._wake.clear()
                await self._wake.wait()
            try:
                ended = await self._streams.run(self._open_stream, self._send, self._receive)
            except Failure as refusal:
                self.fail_in_flight(_refused(refusal), None)
                self.fail_pending(_refused(refusal))
                continue
            except errors.Closed:
                return
            if ended is None:
                await self._look_up()
                continue
            if ended.failure.reason == "SPLIT" and self._split(ended.failure.submitted):
                continue  # the same node accepts them one by one
            if ended.again:
                self._take_back(ended.failure.submitted)
            else:
                # The node rejects the stream as a whole. It is unknown which request caused it.
                self.fail_in_flight(_refused(ended.failure), ended.failure.submitted)
            await self._streams.pause(ended)

    async def _look_up(self) -> None:
        """Look up the owners of the queues with publishes in the pipeline, while its pair has no active node."""
        lanes = dict.fromkeys([r.lane for r in self._in_flight] + [e.lane for e in self._pending])
        for lane in lanes:
            owner = await _lookup.owner(self._producer._caller, self.pair, lane.queue)
            if owner is not None and lane.at is self and not lane.held:
                self._leave(lane, owner)
            if self.pair.locator.target is not None:
                return

    def _leave(self, lane: Lane, owner: Pair | Failure) -> None:
        """Send the publishes to a queue to its new owner, or to its partitions.

        Requests that were sent may have been committed by this pair, so they fail: only this pair could return their
        outcome. No stream is open.
        """
        unknown = [e for r in self._in_flight if r.lane is lane and r.sent for e in r.entries]
        unsent = [e for r in self._in_flight if r.lane is lane and not r.sent for e in r.entries]
        self._unanswered -= sum(r.count for r in self._in_flight if r.lane is lane)
        self._in_flight = deque(r for r in self._in_flight if r.lane is not lane)
        self._on_stream = self._frames = 0
        for e in unsent:
            e.taken = False
        self.hold(lane)
        lane.later.extendleft(reversed(unsent))
        if isinstance(owner, Failure):
            assert owner.partitioned is not None  # noqa: S101 # see _lookup.owner()
            self._producer._caller.fleet.partitions.learn(owner.partitioned)
            lane.partitions = owner.partitioned.count
        else:
            lane.to = owner
        lane.redirects = lane.backoff = None
        self._producer._release(lane)
        self._fail(unknown, _former_owner(lane.queue, self.pair))

    def _open_stream(self, target: Target, metadata: _rpc.Metadata) -> _rpc.PublishCall:
        self._on_stream = self._frames = 0  # all requests in flight must be sent again
        self._greeted = self._bundles = False
        return _rpc.publish_stream(target.channel, metadata)

    async def _send(self, call: _rpc.PublishCall) -> None:
        """Send while the stream is open; the receiver returns the cause of its end."""
        while True:
            frame = self._next_frame()
            if frame is not None:
                await call.write(frame)
            else:
                self._wake.clear()
                await self._wake.wait()

    def _next_frame(self) -> bytes | None:
        """Return the next encoded publish frame, with one or more requests; None if no request is ready."""
        last = self._next_request(0, 0)
        if last is None:
            return None
        self._frames += 1
        parts, count, size = [self._encode(last)], last.count, last.bytes
        # A fraction of the window, so that another frame is always in flight.
        most = max(self._window // _EAGER, 1)
        while self._bundles and len(parts) < most:
            r = self._next_request(count, size)
            if r is None:
                break
            parts.append(self._encode(r))
            count, size, last = count + r.count, size + r.bytes, r
        last.last = True
        return _wire.bundle(parts)

    def _encode(self, r: Request) -> _wire.Request:
        pieces = [piece for e in r.entries for piece in e.pieces]
        resumes = r.resumes and not r.repeated
        return _wire.Request(
            r.queue, pieces, self._id, self._epoch, r.sequence, r.repeated, len(r.entries) > 1, resumes
        )

    def _next_request(self, count: int, size: int) -> Request | None:
        """Return the next request for a frame that already contains the given number of messages and bytes, or None."""
        if self._on_stream < len(self._in_flight):
            if not self._greeted and self._frames >= _EAGER:
                return None  # wait: the first response reports whether the node accepts several requests per frame
            r = self._in_flight[self._on_stream]
            if count and not self._fits(count + r.count, size + r.bytes):
                return None
            r.repeated, r.sent, r.last = r.sent, True, False
            self._on_stream += 1
            return r
        if not self._pending or len(self._in_flight) + self._reserved >= self._window:
            return None
        first = self._pending[0]
        outstanding = self._unanswered + self._reserved_messages
        if outstanding and outstanding + max(first.count, self._batch_messages) > _MAX_UNANSWERED:
            return None
        if count:
            if not self._fits(count + first.count, size + first.bytes):
                return None
        elif self._frames >= _EAGER and self._fits(self._pending_messages + 1, self._pending_bytes + 1):
            return None  # wait for a full batch or the next response
        return self._form(count, size)

    def _fits(self, count: int, size: int) -> bool:
        return count <= self._batch_messages and size <= self._batch_bytes

    def _form(self, count: int, size: int) -> Request:
        """Create a request from publishes to one queue, for a frame that already contains other messages."""
        pending = self._pending
        entries: list[Entry] = []
        queue, most, most_bytes = pending[0].queue, self._batch_messages - count, self._batch_bytes - size
        r = Request(self._next, pending[0].lane)
        self._next += 1
        count = size = 0
        alone = self._is_single(queue)
        while pending:
            e = pending[0]
            if entries and (alone or e.queue != queue or count + e.count > most or size + e.bytes > most_bytes):
                break
            pending.popleft()
            e.taken = True
            entries.append(e)
            count, size = count + e.count, size + e.bytes
        r.entries, r.count, r.bytes = entries, count, size
        r.sent = True
        if queue in self._resumed:
            self._resumed.remove(queue)
            r.resumes = True
        self._pending_messages -= count
        self._pending_bytes -= size
        self._in_flight.append(r)
        self._unanswered += r.count
        self._on_stream += 1
        return r

    async def _receive(self, call: _rpc.PublishCall, address: str) -> None:
        async for response in call:
            self._greeted = True
            self._bundles = self._bundles or response.accepts_more
            self._handle(response, address)
            for one in response.more:
                self._handle(one, address)
            self._streams.progress()
            self._wake.set()

    def _handle(self, response: queue_pb2.PublishStreamResponse, address: str) -> None:
        """Complete the oldest request. A retryable error ends the stream: all requests are sent again, in order."""
        refused: Failure | None = None
        if response.HasField("error"):
            refused = _failure.of_request_error(address, response.error)
            if refused.retry and not self._is_for_queue(refused):
                raise refused
        if self._on_stream == 0 or self._in_flight[0].sequence != response.correlation:
            raise _failure.lost(address, "response out of order")
        if refused is not None and refused.forgotten and self._renew():
            raise _failure.lost(address, refused.message)
        r = self._in_flight.popleft()
        self._unanswered -= r.count
        self._on_stream -= 1
        if r.last:
            self._frames -= 1
        lane = r.lane
        if refused is not None and ((refused.retry and _is_not_applied(refused, r)) or _is_divided(refused, r)):
            self._producer._defer(self, r, refused)
            return
        if refused is not None:
            if refused.reason == "QUEUE_NOT_FOUND":
                self._producer._missing(r.queue)
            self._fail(r.entries, refused.error(f"publish to {r.queue}", unknown=r.repeated))
        elif response.published.duplicate and not r.repeated:
            self._fail(r.entries, self._reused(r, address))
        else:
            self._complete(r, response.published, address)
        if lane.held:
            self._producer._left(lane)
        elif lane.redirects is not None:
            lane.redirects = lane.backoff = None

    def _is_for_queue(self, f: Failure) -> bool:
        """Return whether a retryable error answers only the oldest request.

        If an earlier attempt may have been applied, the request is sent again under the same sequence after
        DIRECTORY_UNAVAILABLE. After NOT_OWNER, its outcome is unknown.
        """
        if f.not_owner is not None:
            return True
        if f.reason != "DIRECTORY_UNAVAILABLE":
            return False
        return bool(self._in_flight) and _is_not_applied(f, self._in_flight[0])

    def _complete(self, r: Request, done: queue_pb2.PublishResponse, address: str) -> None:
        sequence, lsn, end = done.first_sequence, done.lsn, 0
        duplicates = deque(done.duplicates)
        for e in r.entries:
            end += e.count
            discarded, first = 0, sequence
            while duplicates and duplicates[0].index < end:
                one = duplicates.popleft()
                if not discarded:
                    first = one.sequence
                discarded += 1
            if discarded < e.count:
                first = sequence
            sequence += e.count - discarded
            if not e.future.done():
                duplicate, partition = done.duplicate or discarded == e.count, e.queue if e.divided else ""
                e.future.set_result(Receipt(first, lsn, duplicate, address, discarded, partition))
        self._producer._settle(r.lane, len(r.entries), r.bytes)

    def _reused(self, r: Request, address: str) -> errors.SequenceReused:
        return errors.SequenceReused(
            f"publish to {r.queue}: another producer with id {self._id!r} and epoch {self._epoch} has used "
            f"sequence {r.sequence}; the message was not stored",
            reason="SEQUENCE_REUSED",
            address=address,
        )

    def _renew(self) -> bool:
        """Assign a new identity after a node evicted this one, unless the outcome of a request is unknown."""
        if self._own_id or any(r.repeated for r in self._in_flight):
            return False
        self._id, self._next = str(uuid.uuid4()), 1
        for r in self._in_flight:
            r.sent = r.repeated = False
            r.sequence = self._next
            self._next += 1
        return True

    def _unsubmitted(self, through: int | None) -> int:
        """Return how many of the newest requests, which only this stream carried, the node has not executed."""
        if through is None or self._on_stream < len(self._in_flight):
            return 0
        n = 0
        for r in reversed(self._in_flight):
            if n == self._on_stream or r.sequence <= through or r.repeated:
                break
            n += 1
        return n

    def _take_back(self, through: int | None) -> str:
        """Move unsubmitted requests back to pending, where their publishes can be canceled.

        Returns the queue of the first of these requests, or an empty string.
        """
        queue = ""
        for _ in range(self._unsubmitted(through)):
            r = self._in_flight.pop()
            self._unanswered -= r.count
            self._next = r.sequence
            queue = r.queue
            for e in r.entries:
                e.taken = False
            if r.lane.held:
                r.lane.later.extendleft(reversed(r.entries))
                self._producer._left(r.lane)
                continue
            self._pending.extendleft(reversed(r.entries))
            self._pending_messages += r.count
            self._pending_bytes += r.bytes
        self._take_refused()
        return queue

    def _take_refused(self) -> None:
        """Move refused requests back to their lanes, although the stream has ended without their responses.

        After it has refused a request because of the owner of its queue, a node refuses all later requests for the
        queue on the same stream. If they were sent again, a node to which the queue has returned would execute them
        before the refused request.

        Repeated requests may have been executed on an earlier stream. They remain in flight, with all later requests
        for their queue.
        """
        kept: deque[Request] = deque()
        first: dict[Lane, Request] = {}  # of the held lanes, the first request that remains in flight
        lanes: list[Lane] = []
        for i, r in enumerate(self._in_flight):
            if not r.lane.held or r.lane.at is not self:
                kept.append(r)
            elif i >= self._on_stream or r.repeated or r.lane in first:
                kept.append(r)
                first.setdefault(r.lane, r)
            else:
                self._unanswered -= r.count
                for e in r.entries:
                    e.taken = False
                r.lane.refused.extend(r.entries)
                lanes.append(r.lane)
        self._in_flight = kept
        self._on_stream -= len(lanes)
        for lane in lanes:
            self._producer._left(lane)
        for lane, request in first.items():
            self._return_refused(lane, request)

    def _return_refused(self, lane: Lane, first: Request) -> None:
        """Continue with a held lane after the stream has ended with requests of the lane in flight.

        The outcome of these requests is unknown, so they are retried at this pair, which may own the queue again. The
        refused publishes are sent before `first`, the first of these requests.
        """
        self._free(lane)
        refused, later = lane.cancel()
        self._pending.extendleft(reversed(refused))
        self._count(refused)
        again: list[Request] = []
        on_stream = self._on_stream
        while sum(len(r.entries) for r in again) < len(refused):
            r = self._form(0, 0)
            self._in_flight.pop()
            r.sent = False
            again.append(r)
        self._on_stream = on_stream
        at = self._in_flight.index(first)
        for r in reversed(again):
            self._in_flight.insert(at, r)
        self._pending.extend(later)
        self._count(later)

    def _count(self, added: Iterable[Entry]) -> None:
        """Count publishes that were added to pending."""
        for e in added:
            self._pending_messages += e.count
            self._pending_bytes += e.bytes

    def reserve(self, r: Request) -> None:
        """Reserve space in the window for a refused request while later requests of its lane are in flight."""
        r.lane.reserved += 1
        r.lane.reserved_messages += r.count
        self._reserved += 1
        self._reserved_messages += r.count

    def _free(self, lane: Lane) -> None:
        """Release the reservations of a lane."""
        self._reserved -= lane.reserved
        self._reserved_messages -= lane.reserved_messages
        lane.reserved = lane.reserved_messages = 0

    def left(self, lane: Lane) -> None:
        """Record that all requests of a held lane have left the pipeline."""
        self._free(lane)
        self._wake.set()

    def _split(self, through: int | None) -> bool:
        """Take back unsubmitted requests; the next publishes to the queue of the first one are sent one by one."""
        queue = self._take_back(through)
        if self._in_flight:
            return False  # a request was sent on an earlier stream and has one outcome
        if queue:
            self._single[queue] = _SINGLY
        return True

    def _is_single(self, queue: str) -> bool:
        """Return whether a publish to a queue must be sent alone; if so, count the publish."""
        left = self._single.get(queue, 0)
        if left > 1:
            self._single[queue] = left - 1
        elif left:
            del self._single[queue]
        return left > 0

    def fail_in_flight(self, error: MakeError, through: int | None) -> None:
        """Fail all requests; those after `through` were not executed."""
        certain = self._unsubmitted(through)
        requests, self._on_stream = list(self._in_flight), 0
        self._in_flight.clear()
        self._unanswered = 0
        for i, r in enumerate(requests):
            unknown = r.sent and i < len(requests) - certain
            self._fail(r.entries, error(unknown))
            if r.lane.held:
                self._producer._left(r.lane)

    def fail_pending(self, error: MakeError) -> None:
        """Fail all publishes that are not yet in a request."""
        entries = list(self._pending)
        self._pending.clear()
        self._pending_messages = self._pending_bytes = 0
        if entries:
            self._fail(entries, error(False))

    def _fail(self, entries: list[Entry], err: errors.LockstepError) -> None:
        self._producer._fail(entries, err)


def _is_not_applied(f: Failure, r: Request) -> bool:
    """Return whether a refusal proves that no attempt of the request was or will be applied."""
    return not r.repeated or f.settled


def _is_divided(f: Failure, r: Request) -> bool:
    """Return whether the queue of a request is partitioned, and no attempt of the request was applied."""
    return f.partitioned is not None and _is_not_applied(f, r)


def _former_owner(queue: str, pair: Pair) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"publish to {queue}: the queue has another owner, and no node of its former owner is active; the publish was "
        f"sent to the former owner (last: {pair.locator.explain()})"
    )


def _refused(f: Failure) -> MakeError:
    return lambda unknown: f.error("publish", unknown=unknown)
