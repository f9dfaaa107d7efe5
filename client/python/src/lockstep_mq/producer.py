# SPDX-License-Identifier: Apache-2.0
"""A publish pipeline that is retried, in order, after a failover."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lockstep_mq import _failure, _rpc, _wire, errors, message
from lockstep_mq._calls import Caller
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Target
from lockstep_mq._pipeline import Entry, Request
from lockstep_mq._proto import queue_pb2
from lockstep_mq._stream import Streams
from lockstep_mq.message import Publishable, Receipt

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep_mq._tracer import Outcome

_MakeError = Callable[[bool], errors.LockstepError]
"""Creates the error of a request; the argument states whether the outcome is unknown."""

_MAX_WINDOW = 256  # the nodes retain the last 256 results of a producer
_MAX_BATCH = 10_000  # messages in one publish
# The nodes retain this number of duplicates in the results of a producer. With more messages in flight, results of a
# queue with a deduplication window could be lost in a failover.
_MAX_UNANSWERED = 1 << 16
_EAGER = 4
"""Frames in flight up to which publishes are sent immediately, for latency; above this number they are batched."""
_SINGLY = 1024  # publishes to a queue that are sent one by one after a node has requested this
_OVERHEAD = 64  # estimated overhead of a message in bytes


class Producer:
    """A publish pipeline, created by Client.producer().

    Publishes are committed in the order of the calls, across all queues, and retried in that order after a failover.

    Concurrent publishes to one queue may share a request, which is one transaction. Each publish still has its own
    outcome: if some of them might be rejected (a queue is nearly full, a message is invalid), they are sent one by
    one. There are two exceptions: publishes of one request may be rejected together if the request is retried after a
    lost connection, or if a node runs release 0.1.0. A batch is never split.

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
        self._own_id = bool(id)
        self._id, self._epoch = id or str(uuid.uuid4()), epoch or 1
        self._window, self._batch_messages, self._batch_bytes = window, batch_messages, batch_bytes
        self._budget = self._max_pending_bytes = max_pending_bytes
        self._next = 1
        self._pending: deque[Entry] = deque()  # not yet in a request
        self._pending_messages = self._pending_bytes = 0
        self._in_flight: deque[Request] = deque()  # by sequence: first those sent on this stream, then those to be sent
        self._unanswered = 0  # messages in flight
        self._on_stream = 0  # number of requests sent on this stream
        self._frames = 0  # frames of the stream with outstanding requests
        self._greeted = False  # the current stream delivered a response
        self._bundles = False  # the node accepts several requests per frame
        self._single: dict[str, int] = {}  # publishes to be sent one by one, by queue
        self._open = 0  # pending publishes
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # held by the next call to acquire space
        self._room = asyncio.Event()  # space may be available
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._on_close: Callable[[], None] | None = None
        self._streams = Streams(caller.locator)
        self._task = asyncio.create_task(self._run())

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
        """Store one message, and return when it is durable on every in-sync node.

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

        The call waits only for memory (max_pending_bytes). Messages are stored in the order of the calls. Each message
        is retried until a node responds or the producer is closed; canceling the future does not cancel the publish.
        An error of the publish is raised only by the future: check the futures after flush().
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
        """Wait until all earlier publishes have completed. Errors are raised only by the futures of send()."""
        await self._idle.wait()

    async def close(self) -> None:
        """Close the producer. Unsent publishes fail with Closed, and sent but unanswered ones with OutcomeUnknown."""
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_in_flight(_closed, None)
        self._fail_pending(_closed)
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
        return Entry(queue, pieces, len(ms), min(size, self._max_pending_bytes), future)

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
        self._pending.append(entry)
        self._pending_messages += entry.count
        self._pending_bytes += entry.bytes
        self._open += 1
        if self._open == 1:
            self._idle.clear()
        self._wake.set()

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
            unknown = not self._withdraw(entry)
            entry.future.set_exception(self._caller.give_up(f"publish to {entry.queue}", None, unknown=unknown))

    def _withdraw(self, entry: Entry) -> bool:
        """Cancel an entry that is not yet in a request; return False if it is in a request."""
        if entry.taken:
            return False
        entry.taken = True
        self._pending.remove(entry)
        self._pending_messages -= entry.count
        self._pending_bytes -= entry.bytes
        self._settle(1, entry.bytes)
        return True

    def _settle(self, entries: int, size: int) -> None:
        self._open -= entries
        self._budget += size
        self._room.set()
        if self._open == 0:
            self._idle.set()

    async def _run(self) -> None:
        while True:
            while self._open == 0:
                self._wake.clear()
                await self._wake.wait()
            try:
                ended = await self._streams.run(self._open_stream, self._send, self._receive)
            except Failure as refusal:
                self._fail_in_flight(_refused(refusal), None)
                self._fail_pending(_refused(refusal))
                continue
            except errors.Closed:
                return
            if ended.failure.reason == "SPLIT" and self._split(ended.failure.submitted):
                continue  # the same node accepts them one by one
            if ended.again:
                self._take_back(ended.failure.submitted)
            else:
                # The node rejects the stream as a whole. It is unknown which request caused it.
                self._fail_in_flight(_refused(ended.failure), ended.failure.submitted)
            await self._streams.pause(ended)

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
        return _wire.Request(r.queue, pieces, self._id, self._epoch, r.sequence, r.repeated, len(r.entries) > 1)

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
        if not self._pending or len(self._in_flight) >= self._window:
            return None
        first = self._pending[0]
        if self._in_flight and self._unanswered + max(first.count, self._batch_messages) > _MAX_UNANSWERED:
            return None
        if count:
            if not self._fits(count + first.count, size + first.bytes):
                return None
        elif self._frames >= _EAGER and self._fits(self._pending_messages + 1, self._pending_bytes + 1):
            return None  # more publishes will join before the next response
        return self._form(count, size)

    def _fits(self, count: int, size: int) -> bool:
        return count <= self._batch_messages and size <= self._batch_bytes

    def _form(self, count: int, size: int) -> Request:
        """Create a request from publishes to one queue, for a frame that already contains other messages."""
        pending = self._pending
        entries: list[Entry] = []
        queue, most, most_bytes = pending[0].queue, self._batch_messages - count, self._batch_bytes - size
        r = Request(self._next, queue)
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
            if refused.retry:
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
        done = response.published
        if refused is not None:
            self._fail(r.entries, refused.error(f"publish to {r.queue}", unknown=r.repeated))
            return
        duplicate = done.duplicate
        if duplicate and not r.repeated:
            self._fail(r.entries, self._reused(r, address))
            return
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
                e.future.set_result(Receipt(first, lsn, duplicate or discarded == e.count, address, discarded))
        self._settle(len(r.entries), r.bytes)

    def _reused(self, r: Request, address: str) -> errors.SequenceReused:
        return errors.SequenceReused(
            f"publish to {r.queue}: another producer with id {self._id!r} and epoch {self._epoch} has used "
            f"sequence {r.sequence}; the message was not stored",
            reason="SEQUENCE_REUSED",
            address=address,
        )

    def _renew(self) -> bool:
        """Assign a new identity after a node evicted this one, unless the outcome of a request is unknown."""
        if self._own_id or self._in_flight[0].repeated:
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

    def _take_back(self, through: int | None) -> None:
        """Move unsubmitted requests back to pending, where their publishes can be canceled."""
        for _ in range(self._unsubmitted(through)):
            r = self._in_flight.pop()
            self._unanswered -= r.count
            self._next = r.sequence
            for e in reversed(r.entries):
                e.taken = False
                self._pending.appendleft(e)
            self._pending_messages += r.count
            self._pending_bytes += r.bytes

    def _split(self, through: int | None) -> bool:
        """Take back unsubmitted requests; the next publishes to the queue of the first one are sent one by one."""
        self._take_back(through)
        if self._in_flight:
            return False  # a request was sent on an earlier stream and has one outcome
        if self._pending:
            self._single[self._pending[0].queue] = _SINGLY
        return True

    def _is_single(self, queue: str) -> bool:
        """Return whether a publish to a queue must be sent alone; if so, count the publish."""
        left = self._single.get(queue, 0)
        if left > 1:
            self._single[queue] = left - 1
        elif left:
            del self._single[queue]
        return left > 0

    def _fail_in_flight(self, error: _MakeError, through: int | None) -> None:
        certain = self._unsubmitted(through)
        requests, self._on_stream = list(self._in_flight), 0
        self._in_flight.clear()
        self._unanswered = 0
        for i, r in enumerate(requests):
            unknown = r.sent and i < len(requests) - certain
            self._fail(r.entries, error(unknown))

    def _fail_pending(self, error: _MakeError) -> None:
        entries = list(self._pending)
        self._pending.clear()
        self._pending_messages = self._pending_bytes = 0
        if entries:
            self._fail(entries, error(False))

    def _fail(self, entries: list[Entry], err: errors.LockstepError) -> None:
        size = 0
        for e in entries:
            e.taken = True
            size += e.bytes
            if not e.future.done():
                e.future.set_exception(err)
                e.future.exception()  # prevents asyncio's warning about exceptions that were never retrieved
        self._settle(len(entries), size)


def _trace_end(done: Callable[[Outcome], None], future: asyncio.Future[Receipt]) -> None:
    if future.cancelled():
        done(asyncio.CancelledError("the application canceled it"))
    else:
        done(future.exception() or future.result())


def _closed(unknown: bool) -> errors.LockstepError:
    if unknown:
        return errors.OutcomeUnknown("publish: the producer was closed before a node responded")
    return errors.Closed("publish: the producer is closed")


def _refused(f: Failure) -> _MakeError:
    return lambda unknown: f.error("publish", unknown=unknown)
