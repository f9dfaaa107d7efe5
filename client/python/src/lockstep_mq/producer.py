# SPDX-License-Identifier: Apache-2.0
"""A pipeline of publishes that is repeated, in order, after a failover."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lockstep_mq import _failure, _options, _rpc, errors, message
from lockstep_mq._calls import MAX_RENEWALS, Caller
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Target
from lockstep_mq._proto import queue_pb2, types_pb2
from lockstep_mq.message import Publishable, Receipt

if TYPE_CHECKING:
    from typing_extensions import Self

_MakeError = Callable[[bool], errors.LockstepError]
"""Makes the error of a request, which may have been carried out or not."""

_MAX_WINDOW = 256  # the nodes remember the last 256 results of a producer
_MAX_BATCH = 10_000  # messages in one publish
_EAGER = 4
"""So many requests go at once, for latency; later ones wait for an answer or a full batch, for throughput."""


class _Entry:
    """One publish call."""

    __slots__ = ("bytes", "future", "messages", "queue", "taken")

    def __init__(self, queue: str, messages: list[types_pb2.Message], future: asyncio.Future[Receipt]) -> None:
        self.queue = queue
        self.messages = messages
        self.bytes = sum(len(m.body) + 64 for m in messages)
        self.future = future
        self.taken = False  # it is in a request, and may be carried out


class _Request:
    """What is sent, and repeated, as one."""

    __slots__ = ("entries", "queue", "repeated", "sent", "sequence")

    def __init__(self, sequence: int, queue: str, entries: list[_Entry]) -> None:
        self.sequence = sequence  # of the producer, and the correlation
        self.queue = queue
        self.entries = entries
        self.sent = False  # under its present identity
        self.repeated = False  # more than once


class Producer:
    """A pipeline of publishes, made by Client.producer().

    They are committed in the order of the calls, over all queues, and repeated in that order after a failover.
    Publishes to one queue that wait at the same time may travel in one request, which is one transaction: if a node
    refuses one of them, all of that request get the error. A batch is never split.

    At most `max_pending_bytes` are unanswered; send() and publish() wait when that is reached.
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
            raise errors.InvalidRequest(
                "an id of a producer needs an epoch, one higher at each start, and an epoch an id"
            )
        if len(id.encode()) > 64:
            raise errors.InvalidRequest(f"the id of the producer has {len(id.encode())} bytes, the limit is 64")
        if not 1 <= window <= _MAX_WINDOW or not 1 <= batch_messages <= _MAX_BATCH or max_pending_bytes < 1:
            raise errors.InvalidRequest(
                f"window is 1 to {_MAX_WINDOW}, batch_messages 1 to {_MAX_BATCH}, max_pending_bytes at least 1"
            )
        self._caller = caller
        self._max_message_bytes = max_message_bytes
        self._own_id = bool(id)
        self._id, self._epoch = id or str(uuid.uuid4()), epoch or 1
        self._window, self._batch_messages, self._batch_bytes = window, batch_messages, batch_bytes
        self._budget = self._max_pending_bytes = max_pending_bytes
        self._next = 1
        self._pending: deque[_Entry] = deque()  # not yet in a request
        self._pending_messages = self._pending_bytes = 0
        self._in_flight: deque[_Request] = (
            deque()
        )  # by sequence: first those sent on this stream, then those to be sent
        self._on_stream = 0  # how many of them
        self._open = 0  # publishes that are not answered
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # held by the call that is the next one to get room
        self._room = asyncio.Event()  # there may be room
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
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
        """Store one message and return when it is durable on every in-sync node.

        With a timeout (seconds), the error says what it promises: Unavailable if the message was not sent,
        OutcomeUnknown if it was; it may still be carried out then. When the caller is cancelled instead, what was sent
        stays on its way, and nobody is told.

        Raises:
            NotDone: The message is not stored, and never will be; the subclass says why.
            OutcomeUnknown: It may or may not be stored.
        """
        return await self.publish_batch(queue, [m], timeout=timeout)

    async def publish_batch(self, queue: str, ms: Sequence[Publishable], *, timeout: float | None = None) -> Receipt:
        """Publish 1 to 10,000 messages, all or none; the receipt has the sequence of the first one."""
        loop = asyncio.get_running_loop()
        deadline = self._caller.deadline(timeout)
        entry = await self._enqueue(queue, ms, deadline)
        try:
            await asyncio.wait({entry.future}, timeout=None if deadline is None else max(deadline - loop.time(), 0))
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise
        if entry.future.done():
            return entry.future.result()
        unknown = not self._withdraw(entry)
        raise self._caller.give_up(f"publish to {queue}", None, unknown=unknown)

    async def send(self, queue: str, m: Publishable) -> asyncio.Future[Receipt]:
        """Put one message into the pipeline, and return a future with its receipt.

        It waits only for room. The order of the calls is the order in the queue. The message is repeated until it is
        answered or the producer closed; cancelling the future does not take it back.
        """
        return (await self._enqueue(queue, [m], None)).future

    async def send_batch(self, queue: str, ms: Sequence[Publishable]) -> asyncio.Future[Receipt]:
        """send() for 1 to 10,000 messages, all or none."""
        return (await self._enqueue(queue, ms, None)).future

    async def flush(self) -> None:
        """Wait until everything that was published before is answered."""
        await self._idle.wait()

    async def close(self) -> None:
        """End the producer. What was not sent fails with Closed, what was sent and not answered with OutcomeUnknown."""
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_in_flight(_closed, None)
        self._fail_pending(_closed)
        self._room.set()

    async def _enqueue(self, queue: str, ms: Sequence[Publishable], deadline: float | None) -> _Entry:
        if not 1 <= len(ms) <= _MAX_BATCH:
            raise errors.InvalidRequest(f"a batch of {len(ms)} messages, 1 to {_MAX_BATCH} are possible")
        if not queue:
            raise errors.InvalidRequest("the name of the queue is empty", reason="INVALID_NAME")
        loop = asyncio.get_running_loop()
        entry = _Entry(queue, [message.encode(m, self._max_message_bytes) for m in ms], loop.create_future())
        # One that is larger than the whole budget takes all of it.
        entry.bytes = min(entry.bytes, self._max_pending_bytes)
        await self._acquire(entry.bytes, deadline, queue)
        if self._closed:
            raise _closed(doubt=False)
        self._pending.append(entry)
        self._pending_messages += len(entry.messages)
        self._pending_bytes += entry.bytes
        self._open += 1
        self._idle.clear()
        self._wake.set()
        return entry

    async def _acquire(self, size: int, deadline: float | None, queue: str) -> None:
        """Wait for room, in the order of the calls."""
        if self._turn.locked() or self._budget < size:
            timeout = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)
            try:
                await asyncio.wait_for(self._await_room(size), timeout)
            except asyncio.TimeoutError:
                raise self._caller.give_up(f"publish to {queue}", None, unknown=False) from None
        else:
            self._budget -= size

    async def _await_room(self, size: int) -> None:
        async with self._turn:
            while self._budget < size and not self._closed:
                self._room.clear()
                await self._room.wait()
            self._budget -= size

    def _withdraw(self, entry: _Entry) -> bool:
        """Give an entry up that is in no request yet; False if it is too late."""
        if entry.taken or entry.future.done():
            return False
        self._pending.remove(entry)
        self._pending_messages -= len(entry.messages)
        self._pending_bytes -= entry.bytes
        self._settle(entry)
        return True

    def _settle(self, entry: _Entry) -> None:
        """Give the room of an entry back that needs nothing more."""
        self._open -= 1
        self._budget += entry.bytes
        self._room.set()
        if self._open == 0:
            self._idle.set()

    async def _run(self) -> None:
        """Send what is to be sent, on one stream after another."""
        locator, retry, refusals = self._caller.locator, _options.Backoff(), 0
        while True:
            while self._open == 0:
                self._wake.clear()
                await self._wake.wait()
            try:
                target = await locator.wait()
            except Failure as refusal:
                self._refuse_all(refusal)
                continue
            except errors.Closed:
                return
            metadata: _rpc.Metadata = ()
            progress = [False]
            try:
                metadata = await locator.tokens.metadata()
                await self._session(target, metadata, progress)
                f = _failure.lost(target.node.address, "the node ended the stream")
            except Failure as err:
                f = err
            except Exception as err:  # the application's own source of tokens
                f = _failure.lost(target.node.address, f"no token to show: {err}")
            if progress[0]:
                retry.reset()
            refusals = refusals + 1 if f.unauthenticated else 0
            if f.retry or (f.unauthenticated and refusals <= MAX_RENEWALS and await locator.tokens.renewed(metadata)):
                self._take_back(f.submitted)
            else:
                # The node refuses the stream as such. Which request it means, if any, is not known.
                self._fail_in_flight(_refused(f), f.submitted)
            locator.failed(f)
            await locator.pause(target, max(retry.next(), f.retry_after))

    async def _session(self, target: Target, metadata: _rpc.Metadata, progress: list[bool]) -> None:
        """Run one stream on one node until it breaks."""
        self._on_stream = 0  # all that is in flight is to be sent, again
        target.node.users += 1
        call = _rpc.publish_stream(target.channel, metadata)
        sender = asyncio.create_task(self._send(call))
        sender.add_done_callback(lambda _: call.cancel())  # a write fails when the status is there, which stays
        try:
            await _rpc.bound(self._receive(call, target.node.address, progress), target.node.address, stop=target.gone)
        finally:
            target.node.users -= 1
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, call: _rpc.PublishCall) -> None:
        """Send as long as the stream lives; the receiver says why it ended."""
        while True:
            r = self._next_request()
            if r is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            r.repeated, r.sent = r.sent, True
            self._on_stream += 1
            publish = queue_pb2.PublishRequest(
                queue=r.queue,
                messages=[m for e in r.entries for m in e.messages],
                producer=types_pb2.Producer(id=self._id, epoch=self._epoch, sequence=r.sequence, retry=r.repeated),
            )
            await call.write(queue_pb2.PublishStreamRequest(correlation=r.sequence, publish=publish))

    def _next_request(self) -> _Request | None:
        """First what was sent on an earlier stream, in the same order; then new requests as far as the window goes."""
        if self._on_stream < len(self._in_flight):
            return self._in_flight[self._on_stream]
        if not self._pending or len(self._in_flight) >= self._window:
            return None
        if (
            self._on_stream >= _EAGER
            and self._pending_messages < self._batch_messages
            and self._pending_bytes < self._batch_bytes
        ):
            return None  # more will come along before the next answer does
        r = _Request(self._next, self._pending[0].queue, [])
        self._next += 1
        count = size = 0
        while self._pending:
            e = self._pending[0]
            if r.entries and (
                e.queue != r.queue
                or count + len(e.messages) > self._batch_messages
                or size + e.bytes > self._batch_bytes
            ):
                break
            self._pending.popleft()
            e.taken = True
            r.entries.append(e)
            count, size = count + len(e.messages), size + e.bytes
        self._pending_messages -= count
        self._pending_bytes -= size
        self._in_flight.append(r)
        return r

    async def _receive(self, call: _rpc.PublishCall, address: str, progress: list[bool]) -> None:
        async for response in call:
            self._handle(response, address)
            for one in response.more:
                self._handle(one, address)
            progress[0] = True
            self._wake.set()

    def _handle(self, response: queue_pb2.PublishStreamResponse, address: str) -> None:
        """Resolve the oldest request. An error that is worth a retry ends the stream: all goes again, in order."""
        refused: Failure | None = None
        if response.HasField("error"):
            refused = _failure.of_request_error(address, response.error)
            if refused.retry:
                raise refused
        if self._on_stream == 0 or self._in_flight[0].sequence != response.correlation:
            raise _failure.lost(address, "answer to a request that was not the oldest one")
        if refused is not None and refused.forgotten and self._renew():
            raise _failure.lost(address, refused.message)
        r = self._in_flight.popleft()
        self._on_stream -= 1
        done = response.published
        if refused is not None:
            self._fail(r.entries, refused.error(f"publish to {r.queue}", doubt=r.repeated))
        elif done.duplicate and not r.repeated:
            self._fail(
                r.entries,
                errors.SequenceReused(
                    f"publish to {r.queue}: another producer of id {self._id!r} and epoch {self._epoch} has used "
                    f"sequence {r.sequence}; the message was not stored",
                    reason="SEQUENCE_REUSED",
                    address=address,
                ),
            )
        else:
            sequence = done.first_sequence
            for e in r.entries:
                if not e.future.done():
                    e.future.set_result(Receipt(sequence, done.lsn, done.duplicate, address))
                self._settle(e)
                sequence += len(e.messages)

    def _renew(self) -> bool:
        """Take another identity after a node forgot this one, if nothing of it is in doubt."""
        if self._own_id or self._in_flight[0].repeated:
            return False
        self._id, self._next = str(uuid.uuid4()), 1
        for r in self._in_flight:
            r.sent = r.repeated = False
            r.sequence = self._next
            self._next += 1
        return True

    def _unsubmitted(self, through: int | None) -> int:
        """How many of the newest requests the node has certainly not carried out, which only this stream carried."""
        if through is None or self._on_stream < len(self._in_flight):
            return 0
        n = 0
        for r in reversed(self._in_flight):
            if n == self._on_stream or r.sequence <= through or r.repeated:
                break
            n += 1
        return n

    def _take_back(self, through: int | None) -> None:
        """What the node has not submitted is in no doubt: it goes back, and may be given up again."""
        for _ in range(self._unsubmitted(through)):
            r = self._in_flight.pop()
            self._next = r.sequence
            for e in reversed(r.entries):
                e.taken = False
                self._pending.appendleft(e)
                self._pending_messages += len(e.messages)
                self._pending_bytes += e.bytes

    def _refuse_all(self, f: Failure) -> None:
        self._fail_in_flight(_refused(f), None)
        self._fail_pending(_refused(f))

    def _fail_in_flight(self, error: _MakeError, through: int | None) -> None:
        certain = self._unsubmitted(through)
        requests, self._on_stream = list(self._in_flight), 0
        self._in_flight.clear()
        for i, r in enumerate(requests):
            doubt = r.sent and i < len(requests) - certain
            self._fail(r.entries, error(doubt))

    def _fail_pending(self, error: _MakeError) -> None:
        entries = list(self._pending)
        self._pending.clear()
        self._pending_messages = self._pending_bytes = 0
        for e in entries:
            self._fail([e], error(False))

    def _fail(self, entries: list[_Entry], err: errors.LockstepError) -> None:
        for e in entries:
            if not e.future.done():
                e.future.set_exception(err)
                e.future.exception()  # what the application does not look at is no warning of asyncio's
            self._settle(e)


def _closed(doubt: bool) -> errors.LockstepError:
    if doubt:
        return errors.OutcomeUnknown("publish: the producer was closed before it was answered")
    return errors.Closed("publish: the producer is closed")


def _refused(f: Failure) -> _MakeError:
    return lambda doubt: f.error("publish", doubt=doubt)
