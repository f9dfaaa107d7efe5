# SPDX-License-Identifier: Apache-2.0
"""A publish pipeline that is retried, in order, after a failover."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lockstep_mq import errors, message
from lockstep_mq._calls import Caller
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Pair
from lockstep_mq._partition import Divider
from lockstep_mq._pipeline import Entry, Lane, Pipeline, Request, Settings
from lockstep_mq.message import Message, Publishable, Receipt

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep_mq._tracer import Outcome

_MAX_WINDOW = 256  # the nodes retain the last 256 results of a producer
_MAX_BATCH = 10_000  # messages in one publish
_OVERHEAD = 64  # estimated overhead of a message in bytes


class Producer:
    """A publish pipeline, created by Client.producer().

    Publishes to a queue are committed in the order of the calls, also when they are retried after a failover. For a
    partitioned queue, this applies to each partition. In a fleet, each pair has a separate window. If a queue has
    another owner and its former owner has no active node, publishes that were sent to the former owner raise
    OutcomeUnknown.

    Publishes to the same queue may share one request, which is one transaction. If some of them might be rejected, the
    node requests that they are sent one by one, so that each publish has a separate outcome. Publishes of one request
    may still be rejected together if the request is retried after a lost connection, or if a node runs release 0.1.0.
    A batch is never split.

    At most `max_pending_bytes` are pending; send() and publish() wait at the limit. As a context manager, a producer
    waits for all publishes, unless the block raises, and is closed.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        max_message_bytes: int,
        id: str = "",  # noqa: A002 # the protocol's name
        epoch: int = 0,
        window: int = 200,
        batch_messages: int = 256,
        batch_bytes: int = 256 << 10,
        max_pending_bytes: int = 16 << 20,
    ) -> None:
        if bool(id) != bool(epoch):
            raise errors.InvalidRequest("id and epoch must both be set; the epoch must be higher at each start")
        if len(id.encode()) > 64:
            raise errors.InvalidRequest(f"the producer id has {len(id.encode())} bytes, the limit is 64")
        if not 1 <= window <= _MAX_WINDOW or not 1 <= batch_messages <= _MAX_BATCH or max_pending_bytes < 1:
            raise errors.InvalidRequest(
                f"window must be 1 to {_MAX_WINDOW}, batch_messages 1 to {_MAX_BATCH}, max_pending_bytes at least 1"
            )
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._tracer = caller.tracer
        self._max_message_bytes = max_message_bytes
        self._settings = Settings(
            id=id, epoch=epoch, window=window, batch_messages=batch_messages, batch_bytes=batch_bytes
        )
        self._budget = self._max_pending_bytes = max_pending_bytes
        self._pipelines: dict[Pair, Pipeline] = {}
        self._lanes: dict[str, Lane] = {}  # of the queues with pending publishes
        self._dividers: dict[str, Divider] = {}
        self._open = 0  # pending publishes
        self._turn = asyncio.Lock()  # held by the next call to acquire space
        self._room = asyncio.Event()  # space may be available
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._on_close: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def publish(self, queue: str, m: Publishable, *, timeout: float | None = None) -> Receipt:
        """Store one message, and return after the commit: every in-sync node has stored the message.

        After a timeout, the error is Unavailable if the message was not sent. It is OutcomeUnknown if the message was
        sent, and may still be committed. If the caller is canceled, a sent message stays in flight, and its outcome is
        not reported.

        Raises:
            NotDone: The message was not stored and never will be; see the subclasses.
            OutcomeUnknown: The message may or may not be stored.
        """
        return await self.publish_batch(queue, [m], timeout=timeout)

    async def publish_batch(self, queue: str, ms: Sequence[Publishable], *, timeout: float | None = None) -> Receipt:
        """Publish 1 to 10,000 messages atomically. The receipt contains the sequence of the first message."""
        deadline = self._caller.deadline(timeout)
        entry = self._entry(queue, ms)
        if not self._admit(entry):
            await self._await_room(entry, deadline)
        if deadline is None:
            return await self._answer(entry)
        timer = self._loop.call_at(deadline, self._time_out, entry)
        try:
            return await self._answer(entry)
        finally:
            timer.cancel()

    async def send(self, queue: str, m: Publishable) -> asyncio.Future[Receipt]:
        """Add one message to the pipeline, and return a future for its receipt.

        The call waits only for memory (max_pending_bytes). After temporary errors, the message is sent again.
        Canceling the future does not cancel the publish. An error of the publish is raised only by the future: check
        the futures after flush().
        """
        entry = self._entry(queue, (m,))
        if not self._admit(entry):
            await self._await_room(entry, None)
        return entry.future

    async def send_batch(self, queue: str, ms: Sequence[Publishable]) -> asyncio.Future[Receipt]:
        """Add 1 to 10,000 messages that are stored atomically; see send()."""
        entry = self._entry(queue, ms)
        if not self._admit(entry):
            await self._await_room(entry, None)
        return entry.future

    async def flush(self) -> None:
        """Wait until all earlier publishes have completed. Publishes added in the meantime extend the wait.

        Errors are raised only by the futures of send().
        """
        await self._idle.wait()

    async def close(self) -> None:
        """Close the producer. Unsent publishes fail with Closed, and sent but unanswered ones with OutcomeUnknown."""
        self._closed = True
        pipelines = list(self._pipelines.values())
        await asyncio.gather(*(p.close() for p in pipelines))
        for p in pipelines:
            p.fail_in_flight(_closed, None)
            p.fail_pending(_closed)
        for lane in list(self._lanes.values()):
            self._fail(lane.release(), _closed(unknown=False))
        self._room.set()
        if self._on_close is not None:
            self._on_close()

    def _entry(self, queue: str, ms: Sequence[Publishable]) -> Entry:
        if not 1 <= len(ms) <= _MAX_BATCH:
            raise errors.InvalidRequest(f"a batch of {len(ms)} messages, 1 to {_MAX_BATCH} are allowed")
        if not queue:
            raise errors.InvalidRequest("the name of the queue is empty", reason="INVALID_NAME")
        pieces = self._pieces(ms)
        future = self._loop.create_future()
        if self._tracer is not None:
            ms, done = self._tracer.publish(queue, ms)
            if done is not None:
                pieces = self._pieces(ms)
                future.add_done_callback(functools.partial(_trace_end, done))
        size = sum(map(len, pieces)) + len(ms) * _OVERHEAD
        # An entry larger than the budget takes all of it.
        groups = tuple(m.group for m in ms if isinstance(m, Message) and m.group)
        return Entry(queue, pieces, len(ms), min(size, self._max_pending_bytes), future, groups)

    def _pieces(self, ms: Sequence[Publishable]) -> Sequence[bytes]:
        if len(ms) == 1:
            return message.pieces(ms[0], self._max_message_bytes)
        return [piece for m in ms for piece in message.pieces(m, self._max_message_bytes)]

    def _admit(self, entry: Entry) -> bool:
        """Append an entry to the pipeline; False if memory is not available, or an earlier call waits for memory."""
        if self._turn.locked() or self._budget < entry.bytes:
            return False
        self._budget -= entry.bytes
        self._push(entry)
        return True

    def _push(self, entry: Entry) -> None:
        if self._closed:
            entry.future.cancel()
            raise _closed(unknown=False)
        self._divide(entry)
        self._append(entry)
        self._open += 1
        if self._open == 1:
            self._idle.clear()

    def _divide(self, entry: Entry) -> None:
        """Assign an entry to a partition, unless earlier publishes to a partitioned queue must be assigned first."""
        count = self._caller.fleet.partitions.of(entry.queue)
        if not count or entry.queue in self._lanes:
            return
        try:
            entry.queue = self._divider(entry.queue, count).queue_of(entry.groups, entry.count)
            entry.divided = True
        except errors.InvalidRequest:
            entry.future.cancel()
            self._budget += entry.bytes
            self._room.set()
            raise

    def _divider(self, queue: str, count: int) -> Divider:
        found = self._dividers.get(queue)
        if found is None or found.count != count:
            found = self._dividers[queue] = Divider(queue, count)
        return found

    def _missing(self, queue: str) -> None:
        self._caller.fleet.partitions.missing(queue)

    def _append(self, entry: Entry) -> None:
        lane = self._lanes.get(entry.queue)
        if lane is None:
            lane = Lane(entry.queue, self._pipeline(self._caller.fleet.route(entry.queue)))
            self._lanes[entry.queue] = lane
        entry.lane = lane
        lane.open += 1
        if lane.held:
            lane.later.append(entry)
        else:
            lane.at.push(entry)

    async def _await_room(self, entry: Entry, deadline: float | None) -> None:
        """Wait for memory, in the order of the calls, and append an entry to the pipeline."""
        timeout = None if deadline is None else max(deadline - self._loop.time(), 0)
        try:
            await asyncio.wait_for(self._take_room(entry.bytes), timeout)
            self._push(entry)
        except asyncio.TimeoutError:
            entry.future.cancel()
            raise self._caller.give_up(f"publish to {entry.queue}", None, unknown=False) from None
        except BaseException:
            entry.future.cancel()
            raise

    async def _take_room(self, size: int) -> None:
        async with self._turn:
            while self._budget < size and not self._closed:
                self._room.clear()
                await self._room.wait()
            self._budget -= size

    async def _answer(self, entry: Entry) -> Receipt:
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise

    def _time_out(self, entry: Entry) -> None:
        if not entry.future.done():
            unknown, lane = not self._withdraw(entry), entry.lane
            err = self._caller.give_up(f"publish to {entry.queue}", lane.last, unknown=unknown, pair=lane.at.pair)
            entry.future.set_exception(err)

    def _withdraw(self, entry: Entry) -> bool:
        """Cancel an entry that is not yet in a request; return False if it is in a request."""
        if entry.taken:
            return False
        entry.taken = True
        entry.lane.withdraw(entry)
        self._settle(entry.lane, 1, entry.bytes)
        return True

    def _settle(self, lane: Lane, entries: int, size: int) -> None:
        lane.open -= entries
        if lane.open == 0:
            del self._lanes[lane.queue]
            if lane.timer is not None:
                lane.timer.cancel()
        self._open -= entries
        self._budget += size
        self._room.set()
        if self._open == 0:
            self._idle.set()

    def _pipeline(self, pair: Pair) -> Pipeline:
        found = self._pipelines.get(pair)
        if found is None:
            found = self._pipelines[pair] = Pipeline(self, pair, self._settings)
        return found

    def _defer(self, at: Pipeline, r: Request, f: Failure) -> None:
        """Hold the publishes to a queue after a refusal that proves that a request was not applied.

        They are sent again in order, after the pipeline has received all responses for the queue.
        """
        lane = r.lane
        if not lane.held:
            at.hold(lane)
        else:
            lane.asked -= 1
        lane.refuse(self._caller.fleet, r, f)
        if lane.asked:
            at.reserve(r)
        self._resume(lane)

    def _left(self, lane: Lane) -> None:
        """Record that a request of a held lane has left its pipeline."""
        lane.asked -= 1
        self._resume(lane)

    def _resume(self, lane: Lane) -> None:
        """Send the publishes of a held lane if its pipeline has received all responses."""
        if lane.asked:
            return
        lane.at.left(lane)
        if self._closed or not lane.open:
            return
        if lane.wait and lane.backoff is not None:
            lane.timer = self._loop.call_later(lane.backoff.next(), self._release, lane)
        else:
            self._release(lane)

    def _release(self, lane: Lane) -> None:
        entries, lane.timer = lane.release(), None
        if lane.error is not None:
            self._fail(entries, lane.error)
            return
        if lane.partitions:
            self._divide_all(lane, entries)
            return
        lane.at = self._pipeline(lane.to)
        if entries:
            lane.at.resume(lane.queue)
        for e in entries:
            lane.at.push(e)

    def _divide_all(self, lane: Lane, entries: list[Entry]) -> None:
        """Send the publishes to a partitioned queue to its partitions."""
        divider = self._divider(lane.queue, lane.partitions)
        for e in entries:
            try:
                queue = divider.queue_of(e.groups, e.count)
            except errors.InvalidRequest as err:
                self._fail([e], err)
                continue
            lane.open -= 1
            e.queue, e.divided = queue, True
            self._append(e)
        if lane.open == 0:
            self._lanes.pop(lane.queue, None)

    def _fail(self, entries: list[Entry], err: errors.LockstepError) -> None:
        for e in entries:
            e.taken = True
            if not e.future.done():
                e.future.set_exception(err)
                e.future.exception()  # prevents asyncio's warning about exceptions that were never retrieved
            self._settle(e.lane, 1, e.bytes)


def _trace_end(done: Callable[[Outcome], None], future: asyncio.Future[Receipt]) -> None:
    if future.cancelled():
        done(asyncio.CancelledError("the application canceled it"))
    else:
        done(future.exception() or future.result())


def _closed(unknown: bool) -> errors.LockstepError:
    if unknown:
        return errors.OutcomeUnknown("publish: the producer was closed before a node responded")
    return errors.Closed("publish: the producer is closed")
