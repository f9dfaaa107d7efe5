# SPDX-License-Identifier: Apache-2.0
"""A consumer of one subscription, which follows the active node."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from lockstep_mq import _lookup, _options, _rpc, errors, message
from lockstep_mq._calls import Caller
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Pair, Redirects
from lockstep_mq._locator import Target
from lockstep_mq._partition import partition_name
from lockstep_mq._proto import queue_pb2, types_pb2
from lockstep_mq._stream import Streams
from lockstep_mq.message import StoredMessage

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep_mq._tracer import DeliveryTrace

MAX_PREFETCH = 100_000
_MAX_NACK_DELAY = timedelta(hours=24)
_EAGER_CONFIRMS = 2  # requests with answers in flight up to which answers are sent immediately
_MAX_CONFIRMS = 64  # the same limit while flush() waits
_FULL = 1024  # number of pending answers that are sent regardless of the requests in flight
_MAX_ANSWERS = 5000  # of one kind per request: a node accepts 10,000 ranges of each

_EXTEND_PARTS = 3  # number of times that run() extends the deadline of a message within one acknowledgement timeout

_CLOSE_WAIT = 2.0  # maximum seconds that close() waits for the node

_Kind = Literal["ack", "nack", "reject"]


class Delivery(StoredMessage):
    """A message delivered to the application, which must answer it once. Only the first answer counts.

    After the consumer has ended, ack(), nack() and reject() have no effect: the message is redelivered. They also have
    no effect if, since the delivery, a seek has moved the subscription.
    """

    __slots__ = ("_acked", "_answer", "_era", "_expired", "_generation", "_lost", "_trace", "consumer")

    def __init__(self, stored: types_pb2.StoredMessage, consumer: Consumer) -> None:
        self._stored = stored
        self.consumer = consumer
        self._answer: str = ""
        self._trace: DeliveryTrace | None = None
        # State of the message while the consumer holds it, valid if this is its last delivery.
        self._generation = 0  # of the stream that delivered it last
        self._acked = False  # acknowledged by the application, not yet confirmed
        self._expired = False  # its acknowledgement deadline has passed
        self._era = consumer._era
        self._lost = False  # its era ended before the answer was confirmed

    @property
    def queue(self) -> str:
        """The queue of the message."""
        member = self.consumer._member
        return member.queue if member else self.consumer.queue

    @property
    def partition(self) -> str:
        """Name of the partition of the message, such as `orders#3/8`, if the consumer is attached to a partitioned
        queue, otherwise "". Sequences belong to a partition.
        """
        return self.consumer.queue if self.consumer._member else ""

    def in_trace(self) -> AbstractContextManager[object]:
        """Return a context manager in which the span of the delivery, if any, is the parent of new spans."""
        return contextlib.nullcontext() if self._trace is None else self._trace.current()

    def ack(self) -> None:
        """Acknowledge the message asynchronously, in batches. Consumer.flush() waits for the confirmation."""
        self.consumer._answer(self, "ack", None)

    async def ack_confirmed(self, *, timeout: float | None = None) -> None:
        """Acknowledge the message, and return after the commit: the subscription does not redeliver the message.

        Raises:
            OutcomeUnknown: The timeout expired, or the consumer ended before the confirmation; the message may be
                redelivered.
            Closed: The consumer was closed before the message was acknowledged: the message is redelivered.
            LockstepError: A node had ended the consumer, as for Consumer.receive(): the message is redelivered.
            InvalidRequest: The message has a different answer, or the delivery is no longer valid, for example after a
                seek or because it is outdated.
            WrongState: The acknowledgement deadline has passed: the message is redelivered.
            OutcomeLost: The delivery became outdated (see `outdated`) before the confirmation.
        """
        if self._answer not in {"", "ack"}:
            raise errors.InvalidRequest(f"sequence {self.sequence} of {self.queue} already has another answer")
        if not self._answer:
            self.consumer._check_era(self, None)
        self.ack()
        if not self._answer and not self._expired:
            raise self.consumer._error or self.consumer._not_held_error(self)
        await self.consumer._flush(timeout)
        self.consumer._check_answer(self)

    @property
    def expired(self) -> bool:
        """Whether the acknowledgement deadline has passed: the message is redelivered, and an answer has no effect."""
        return self._expired

    @property
    def outdated(self) -> bool:
        """Whether another site was promoted without a planned switch since the delivery, or the queue has a new owner.

        The message may be lost, and its sequence assigned to another message: an answer has no effect, and flush()
        raises OutcomeLost for an unconfirmed acknowledgement. A message that was neither lost nor acknowledged is
        redelivered.
        """
        return self._era != self.consumer._era

    async def extend(self, *, timeout: float | None = None) -> None:
        """Restart the acknowledgement deadline of the message, and return when the node has confirmed this.

        The call has no effect if the consumer has no deadline or if the message was answered. After a failover, the
        message may already be redelivered to another consumer. Consumer.run() extends messages automatically.

        Raises:
            WrongState: The deadline had passed: the message is redelivered.
            InvalidRequest: The delivery is no longer valid, for example after a seek or because it is outdated.
            OutcomeUnknown: The timeout expired, or the consumer has ended.
        """
        await self.consumer._extend(self, timeout)

    def nack(self) -> None:
        """Requeue the message.

        Any consumer of the subscription may receive it, with a higher delivery_count, unless max_deliveries is reached.
        """
        self.consumer._answer(self, "nack", None)

    def nack_after(self, delay: timedelta) -> None:
        """Requeue the message with a redelivery delay of 0 to 24 hours.

        Other delays are limited to this range. The delay is not replicated: after a failover or a lost connection, the
        message may be redelivered earlier.
        """
        self.consumer._answer(self, "nack", min(max(delay, timedelta()), _MAX_NACK_DELAY))

    def reject(self) -> None:
        """Reject the message: it is moved to the dead-letter queue, or dropped if the queue has none.

        While the dead-letter queue is full, the message waits in its queue and is not delivered, and Consumer.flush()
        raises LimitExceeded. If a failover happens in the meantime, the message is redelivered. If the connection
        breaks before the confirmation, the reject is not retried: a message that was not moved is redelivered.
        """
        self.consumer._answer(self, "reject", None)


@dataclass
class _Batch:
    number: int
    acks: list[int]
    answered: int  # Consumer._answered when it was sent; 0 if more remained to be sent


@dataclass
class _Answers:
    ack: list[int] = field(default_factory=list)
    nack: list[int] = field(default_factory=list)
    later: list[tuple[int, timedelta]] = field(default_factory=list)
    reject: list[int] = field(default_factory=list)
    extend: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ack) + len(self.nack) + len(self.later) + len(self.reject) + len(self.extend)


@dataclass
class _Member:
    """A consumer of a partition that belongs to a consumer of the partitioned queue."""

    queue: str  # name of the partitioned queue
    id: str  # equal for all partitions: an exclusive queue assigns its partitions by this ID
    available: asyncio.Event


class Reject(Exception):
    """Raised by a handler of Consumer.run() to reject its message, which is dead-lettered or dropped."""


class Consumer:
    """A consumer of one subscription, created by Client.consume().

    Iterate over deliveries with `async for delivery in consumer`. After a failover, the consumer attaches to the new
    active node and retries unconfirmed acknowledgements. It does not return messages again that the application is
    still processing or has acknowledged. Other consumers of the subscription may receive such messages. After an
    unplanned promotion of another site or a change of the owner of the queue, earlier deliveries are outdated (see
    Delivery.outdated). As a context manager, a consumer waits for confirmations, unless the block raises, and is
    closed.
    """

    def __init__(
        self,
        caller: Caller,
        queue: str,
        subscription: str,
        filter: str,  # noqa: A002
        prefetch: int,
        ack_timeout: timedelta,
        member: _Member | None = None,
    ) -> None:
        if not queue:
            raise errors.InvalidRequest("the name of the queue is empty", reason="INVALID_NAME")
        if not 1 <= prefetch <= MAX_PREFETCH:
            raise errors.InvalidRequest(f"prefetch is {prefetch}, must be 1 to {MAX_PREFETCH}")
        self.queue, self.subscription = queue, subscription
        self._member = member
        self._caller, self._filter, self._prefetch = caller, filter, prefetch
        self._own_ack_timeout = ack_timeout
        self._ack_timeout = timedelta()  # as reported by the node; 0: none
        self._ack_timeout_changed = asyncio.Event()
        self._late = 0  # answers after the deadline that flush() has not yet reported
        self._alive = False  # send a request even if it is empty
        self._tracer = caller.tracer
        self._refill = (prefetch + 1) // 2  # credit at which a request is sent
        self._op = f"consume {queue}/{subscription}"
        self._error: errors.LockstepError | None = None  # why the consumer has ended
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._generation = 0  # number of the current stream
        self._queue_id = 0  # of the queue at the first attach of the era
        # An era is a period without an unplanned promotion of another site and without a change of the owner. In a
        # later era, the sequence of a delivery may belong to a different message.
        self._era = 0
        self._lineage, self._epoch, self._pair_id = "", 0, ""  # of the last target
        self._lost = 0  # acks without an outcome that flush() has not yet reported
        self._buffer: deque[Delivery] = deque()
        # A message can be received, or the consumer has ended.
        self._available = member.available if member else asyncio.Event()
        self._held: dict[int, Delivery] = {}  # by sequence
        # Acknowledged by a committed transaction; the current stream may still deliver them.
        self._committed: set[int] = set()
        self._credit = 0  # to be granted with the next request
        self._answers = _Answers()
        self._number = 0  # of the last request with answers
        self._unconfirmed: deque[_Batch] = deque()
        self._answered = self._settled = (
            0  # answers given by the application; how many of them, in order, are committed
        )
        self._flushing = 0
        self._refused = 0  # rejects that wait for a full dead-letter queue and that flush() has not yet reported
        self._leaving = False  # close() was called
        self._on_close: Callable[[], None] | None = None
        self._streaming = False  # a stream is open or being opened
        self._progress: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._first = queue_pb2.ConsumeRequest()  # of the current stream
        self._pair = caller.fleet.route(queue)  # the owner of the queue, as far as known
        self._redirects = Redirects(caller.fleet)
        self._streams = Streams(caller.fleet, self._pair)
        self._task = asyncio.create_task(self._run())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._error is None:
                await self.flush()
        finally:
            await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            return await self.receive()
        except errors.Closed:
            raise StopAsyncIteration from None

    @property
    def queue_id(self) -> int:
        """ID of the queue that delivers the messages. A later queue with the same name has a different ID."""
        return self._queue_id

    async def receive(self, *, timeout: float | None = None) -> Delivery:
        """Return the next message.

        Raises:
            TimeoutError: No message arrived in time.
            Closed: The consumer is closed.
            LockstepError: A node has ended the consumer, for example because the queue was deleted (QueueNotFound).
                Later calls raise the error again.
        """
        if not self._buffer or self._error is not None or self._leaving:
            await self._await_message(timeout)
        d = self._buffer.popleft()
        self._hand_out(d)
        return d

    async def receive_batch(self, limit: int = 1000, *, timeout: float | None = None) -> list[Delivery]:
        """Return 1 to `limit` available messages, in order. Wait for the first one like receive()."""
        if limit < 1:
            raise errors.InvalidRequest(f"limit is {limit}, must be at least 1")
        if not self._buffer or self._error is not None or self._leaving:
            await self._await_message(timeout)
        buffer = self._buffer
        batch = [buffer.popleft() for _ in range(min(limit, len(buffer)))]
        for d in batch:
            self._hand_out(d)
        return batch

    async def run(self, handle: Callable[[Delivery], Awaitable[object]], concurrency: int = 1) -> None:
        """Call a coroutine function for each message, up to `concurrency` at a time, until the consumer is closed.

        A handler that returns acknowledges its message; one that raises Reject rejects it; any other exception
        requeues it. A handler can answer the message itself: only the first answer counts. If run() is canceled, the
        messages that are being processed are requeued. If the consumer has an acknowledgement deadline, run() extends
        the deadlines of all messages that the consumer has received, until their handlers return.
        """
        workers = [asyncio.create_task(self._work(handle)) for _ in range(max(concurrency, 1))]
        extending = asyncio.create_task(self._keep_extended())
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            extending.cancel()
            await asyncio.gather(extending, return_exceptions=True)

    async def _work(self, handle: Callable[[Delivery], Awaitable[object]]) -> None:
        async for d in self:
            try:
                with d.in_trace():
                    await handle(d)
            except Reject:
                d.reject()
            except Exception:  # the exception is the handler's answer
                d.nack()
            except BaseException:
                d.nack()
                raise
            else:
                d.ack()

    @property
    def ack_timeout(self) -> timedelta:
        """The acknowledgement deadline of the consumer, as reported by the node; 0 if it has none."""
        return self._ack_timeout

    async def _extend(self, d: Delivery, timeout: float | None) -> None:
        if not d._answer:
            self._check_era(d, None)
        if self._held.get(d.sequence) is d and not d._acked and self._ack_timeout:
            self._answered += 1
            self._answers.extend.append(d.sequence)
            await self._flush(timeout)
        self._check_answer(d)

    async def _keep_extended(self) -> None:
        """Extend the deadlines of the consumer's messages periodically."""
        while True:
            self._ack_timeout_changed.clear()
            due = self._ack_timeout.total_seconds() / _EXTEND_PARTS or None
            try:
                await asyncio.wait_for(self._ack_timeout_changed.wait(), due)
            except asyncio.TimeoutError:
                held = [sequence for sequence, d in self._held.items() if not d._acked]
                self._answers.extend = held + [d.sequence for d in self._buffer]
                self._wake.set()

    def _check_answer(self, d: Delivery) -> None:
        """Raise an error if the delivery cannot be answered: it is expired, outdated or no longer held."""
        if d._lost and d._answer == "ack":
            raise self._lost_error(1)
        if not d._answer:
            self._check_era(d, None)
        if d._expired:
            raise self._late_error(f"acknowledgement deadline of sequence {d.sequence} of {self.queue} has passed")
        if not d._answer and d.sequence not in self._held:
            raise self._not_held_error(d)

    def _ends_era(self, target: Target) -> bool:
        other = bool(target.lineage and self._lineage and target.lineage != self._lineage)
        if not target.lineage and not self._lineage:  # both pairs of a lineage have the same messages
            other = bool(target.pair_id and self._pair_id and target.pair_id != self._pair_id)
        return target.lossy_epoch > self._epoch or other

    def _check_era(self, d: Delivery, target: Target | None) -> None:
        """Raise an error if the delivery is outdated, for an answer at the target."""
        current = d._era == self._era
        if current and target is not None and target.locator is not self._pair.locator:
            raise errors.WrongState(
                f"the delivery of sequence {d.sequence} of {self.queue} belongs to another pair than a queue of the "
                "transaction",
                reason="CROSS_PAIR",
            )
        if not current or (target is not None and self._ends_era(target)):
            raise errors.InvalidRequest(
                f"another site was promoted, or another pair became the owner of {self.queue}, since the delivery of "
                f"sequence {d.sequence}, which may have been lost; if not, it is redelivered"
            )

    def _lost_error(self, n: int) -> errors.OutcomeLost:
        return errors.OutcomeLost(
            f"another site was promoted, or another pair became the owner of {self.queue}, before {n} acknowledgements "
            "were confirmed; they may have no effect"
        )

    def _not_held_error(self, d: Delivery) -> errors.InvalidRequest:
        return errors.InvalidRequest(
            f"another delivery of sequence {d.sequence} of {self.queue} was answered, or the subscription was moved by "
            "a seek"
        )

    def _late_error(self, text: str) -> errors.WrongState:
        return errors.WrongState(text, reason="ACK_DEADLINE_EXPIRED")

    def _hand_out(self, d: Delivery) -> None:
        d._generation = self._generation
        self._held[d._stored.sequence] = d
        self._credit += 1
        if self._credit == self._refill:
            self._wake.set()
        if self._tracer is not None:
            d._trace = self._tracer.deliver(d)

    async def _await_message(self, timeout: float | None) -> None:
        deadline = self._caller.deadline(timeout)
        while True:
            if self._error is not None:
                raise self._error
            if self._leaving:
                raise errors.Closed(f"{self._op}: the consumer is closed")
            if self._buffer:
                return
            self._available.clear()
            remaining = None if deadline is None else deadline - asyncio.get_running_loop().time()
            try:
                if remaining is None:
                    await self._available.wait()
                elif remaining <= 0:
                    raise asyncio.TimeoutError
                else:
                    await asyncio.wait_for(self._available.wait(), remaining)
            except asyncio.TimeoutError:
                raise TimeoutError(f"{self._op}: no message arrived within {timeout} s") from None

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all earlier answers are committed.

        flush() does not wait for a nack or reject that was unconfirmed when the connection broke: the message is
        redelivered.

        Each answer is reported once. If several errors apply, flush() raises the first of the following list, and the
        next call raises the next one.

        Raises:
            OutcomeUnknown: The timeout expired, or the consumer has ended.
            OutcomeLost: Deliveries became outdated (see Delivery.outdated) before their acks were confirmed; all other
                answers are committed, or reported by the next call.
            WrongState: Acks or rejects had no effect, because the acknowledgement deadlines of their messages had
                passed; all other answers are committed, or reported by the next call.
            LimitExceeded: Rejected messages wait because their dead-letter queue is full; all other answers are
                committed, or reported by the next call.
        """
        await self._flush(timeout)
        _report([self])

    def _report_lost(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            raise self._lost_error(lost)

    def _report_late(self) -> None:
        late, self._late = self._late, 0
        if late:
            raise self._late_error(
                f"{late} acks or rejects on {self.queue} had no effect, because the acknowledgement deadlines of the "
                "messages had passed"
            )

    def _report_refused(self) -> None:
        refused, self._refused = self._refused, 0
        if refused:
            raise errors.LimitExceeded(
                f"{refused} rejected messages of {self.queue} wait because its dead-letter queue is full",
                reason="QUEUE_FULL",
            )

    async def _flush(self, timeout: float | None) -> None:
        """Wait until all earlier answers are committed, except for rejects that wait for space."""
        deadline, up_to = self._caller.deadline(timeout), self._answered
        loop = asyncio.get_running_loop()
        self._flushing += 1
        self._wake.set()
        try:
            while self._settled < up_to:
                if self._error is not None:
                    raise errors.OutcomeUnknown(
                        f"{self._op}: the consumer ended before all answers were confirmed: {self._error}"
                    )
                progress = self._progress
                await asyncio.wait({progress}, timeout=None if deadline is None else max(deadline - loop.time(), 0))
                if not progress.done():
                    raise self._caller.give_up(f"acknowledge on {self.queue}", None, unknown=True, pair=self._pair)
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Detach the consumer. Unacknowledged messages are redelivered.

        close() sends pending answers and waits up to two seconds for the node; only flush() reports whether the answers
        are confirmed.
        """
        self._leaving = True
        if self._streaming:
            self._wake.set()
            await asyncio.wait({self._task}, timeout=_CLOSE_WAIT)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end(errors.Closed(f"{self._op}: the consumer is closed"))
        if self._on_close is not None:
            self._on_close()

    async def _await_attached(self, timeout: float | None) -> None:
        """Wait until a node has accepted the consumer; otherwise, close the consumer."""
        try:
            await asyncio.wait({self._attached}, timeout=timeout)
            if not self._attached.done():
                raise self._caller.give_up(self._op, self._redirects.last, unknown=False, pair=self._pair)
            if self._error is not None:
                raise self._error
        except BaseException:
            await self.close()
            raise

    def _answer(self, d: Delivery, kind: _Kind, delay: timedelta | None) -> None:
        if d._answer or d._expired or self._error is not None:
            return
        sequence = d._stored.sequence
        held = self._held.get(sequence)
        current = d._era == self._era
        if current and (held is None or (held._acked and kind != "ack")):
            return  # another delivery of the message was answered, or a seek has moved the subscription
        d._answer = kind
        if d._trace is not None:
            d._trace.answered(kind)
        if not current:
            if kind == "ack":
                self._lost += 1
                d._lost = True
            return
        if held is None or held._acked:
            return
        self._answered += 1
        if kind == "ack":
            held._acked = True
            self._answers.ack.append(sequence)
        else:
            del self._held[sequence]
            if kind == "reject":
                self._answers.reject.append(sequence)
            elif delay is not None:
                self._answers.later.append((sequence, delay))
            else:
                self._answers.nack.append(sequence)
        self._wake.set()

    def _answered_elsewhere(self, d: Delivery, kind: _Kind, *, committed: bool) -> None:
        """Record that a transaction has answered the delivery.

        A stream that was opened before the commit may deliver an acknowledged message again.
        """
        if not d._answer:
            d._answer = kind
            if d._trace is not None:
                d._trace.answered(kind)
        held = self._held.get(d.sequence) if d._era == self._era else None
        if held is not None and not held._acked:
            del self._held[d.sequence]
            if committed and kind == "ack" and held._generation != self._generation:
                self._committed.add(d.sequence)

    async def _run(self) -> None:
        while True:
            try:
                ended = await self._streams.run(self._open_stream, self._send, self._receive)
            except Failure as refusal:
                self._end(refusal.error(self._op))
                return
            except errors.Closed:
                self._end(errors.Closed(f"{self._op}: the client is closed"))
                return
            finally:
                self._streaming = False
            if self._leaving:
                return
            if ended is None:
                found = await _lookup.owner(self._caller, self._pair, self.queue)
                if isinstance(found, Failure):
                    self._end(found.error(self._op))
                    return
                if found is not None:
                    self._redirects.clear()
                    self._move(found)
                continue
            if ended.failure.not_owner is not None:
                try:
                    owner, wait = self._redirects.follow(self._op, self._pair, ended.failure)
                except errors.LockstepError as err:
                    self._end(err)
                    return
                self._move(owner)
                if wait:
                    await self._streams.pause(ended)
                continue
            if ended.failure.reason == "SUBSCRIPTION_MOVED":
                self._forget()
            outdated = ended.failure.reason == "SITE_EPOCH"  # the status of the node was outdated
            if outdated:
                self._end_era()
            if not ended.again and not outdated:
                if ended.failure.partitioned is not None:
                    self._caller.fleet.partitions.learn(ended.failure.partitioned)
                if ended.failure.reason == "QUEUE_NOT_FOUND":
                    self._caller.fleet.partitions.missing(self.queue)
                self._end(ended.failure.error(self._op))
                return
            await self._streams.pause(ended)

    def _move(self, owner: Pair) -> None:
        """Attach at another pair, where sequences may belong to other messages."""
        if owner is self._pair:
            return
        self._pair = owner
        self._streams.move(owner)
        if self._attached.done():
            self._end_era()
        self._lineage, self._epoch, self._pair_id = "", 0, ""

    def _end(self, why: errors.LockstepError) -> None:
        if self._error is None:
            self._error = why
        self._buffer.clear()
        self._advance()
        self._is_attached()
        self._available.set()

    def _is_attached(self) -> None:
        if not self._attached.done():
            self._attached.set_result(None)

    def _advance(self) -> None:
        self._progress.set_result(None)
        self._progress = asyncio.get_running_loop().create_future()

    def _open_stream(self, target: Target, metadata: _rpc.Metadata) -> _rpc.ConsumeCall:
        self._streaming = True
        self._enter(target)
        self._first = self._reattach()
        return _rpc.consume(target.channel, metadata)

    def _enter(self, target: Target) -> None:
        """Discard all deliveries if the target belongs to a later era than the last target."""
        if self._ends_era(target):
            self._end_era()
        if target.lineage:
            self._lineage, self._epoch = target.lineage, target.epoch
        self._pair_id = target.pair_id or self._pair_id

    def _end_era(self) -> None:
        self._era += 1
        self._queue_id = 0
        for d in self._held.values():
            d._lost = True
            self._lost += d._acked
        self._forget()

    async def _send(self, call: _rpc.ConsumeCall) -> None:
        request: queue_pb2.ConsumeRequest | None = self._first
        while True:
            if request is not None:
                await call.write(request)
            else:
                self._wake.clear()
                await self._wake.wait()
            if self._leaving:
                await self._leave(call)
            request = self._next_request()

    async def _leave(self, call: _rpc.ConsumeCall) -> None:
        """Send pending answers before the stream ends, and wait for its end."""
        while True:
            self._credit = 0
            request = self._request(answers=True)
            if not len(self._answers):
                break
            await call.write(request)
        seen = ranges([s for s, d in self._held.items() if not d._acked])
        if len(seen) > _MAX_ANSWERS:  # messages in between count as seen
            seen = [types_pb2.SequenceRange(first=seen[0].first, last=seen[-1].last)]
        request.leave.CopyFrom(queue_pb2.Leave(seen=seen))
        await call.write(request)
        await call.done_writing()
        await asyncio.Event().wait()  # until the receiver has read the end of the stream

    def _reattach(self) -> queue_pb2.ConsumeRequest:
        """Return the first request of a new stream. Unconfirmed acks are retried; nacked messages are redelivered."""
        self._generation += 1
        self._committed.clear()  # the new stream does not deliver them
        again = [sequence for batch in self._unconfirmed for sequence in batch.acks]
        self._unconfirmed.clear()
        self._answers = _Answers(ack=again + self._answers.ack)
        self._credit = self._prefetch
        if not self._answers.ack:
            self._settle(self._answered)
        request = self._request(answers=True)
        request.attach.CopyFrom(
            queue_pb2.Attach(
                queue=self.queue,
                subscription=self.subscription,
                max_response_bytes=_options.MAX_RECEIVE_BYTES,
                queue_id=self._queue_id,
                filter=self._filter,
                report_waiting=True,
                ack_timeout=message.duration(self._own_ack_timeout) if self._own_ack_timeout else None,
                site_epoch=self._epoch,
                consumer_id=self._member.id if self._member else "",
            )
        )
        return request

    def _forget(self) -> None:
        """Discard all deliveries after a seek: messages are redelivered regardless of earlier answers."""
        self._unconfirmed.clear()
        self._answers = _Answers()
        self._held.clear()
        self._committed.clear()
        self._settle(self._answered)

    def _next_request(self) -> queue_pb2.ConsumeRequest | None:
        pending = len(self._answers)
        limit = _MAX_CONFIRMS if self._flushing else _EAGER_CONFIRMS
        answers = pending > 0 and (len(self._unconfirmed) < limit or pending >= _FULL or len(self._answers.extend) > 0)
        if not answers and self._credit < self._refill and not self._alive:
            return None
        return self._request(answers=answers)

    def _request(self, *, answers: bool) -> queue_pb2.ConsumeRequest:
        request = queue_pb2.ConsumeRequest(credit=self._credit)
        self._credit, self._alive = 0, False
        todo = self._answers
        if not answers or len(todo) == 0:
            return request
        acks, todo.ack = todo.ack[:_MAX_ANSWERS], todo.ack[_MAX_ANSWERS:]
        rejects, todo.reject = todo.reject[:_MAX_ANSWERS], todo.reject[_MAX_ANSWERS:]
        nacks, todo.nack = todo.nack[:_MAX_ANSWERS], todo.nack[_MAX_ANSWERS:]
        if todo.extend:
            request.extend.sequences.extend(ranges(todo.extend[:_MAX_ANSWERS]))
            todo.extend = todo.extend[_MAX_ANSWERS:]
        if not nacks and todo.later:
            delay = todo.later[0][1]
            while todo.later and todo.later[0][1] == delay and len(nacks) < _MAX_ANSWERS:
                nacks.append(todo.later.pop(0)[0])
            request.nack_delay.CopyFrom(message.duration(delay))
        self._number += 1
        self._unconfirmed.append(_Batch(self._number, acks, 0 if len(todo) else self._answered))
        request.ack.extend(ranges(acks))
        request.nack.extend(ranges(nacks))
        request.reject.extend(ranges(rejects))
        request.confirm = self._number
        return request

    async def _receive(self, call: _rpc.ConsumeCall, _: str) -> None:
        try:
            async for response in call:
                self._streams.progress()
                self._handle(response)
        finally:
            self._buffer.clear()  # the next active may deliver them to another consumer

    def _handle(self, response: queue_pb2.ConsumeResponse) -> None:
        self._is_attached()
        if response.queue_id:
            self._queue_id = response.queue_id
        if response.attached:
            self._redirects.clear()
        if response.attached or response.HasField("ack_timeout"):
            self._ack_timeout = response.ack_timeout.ToTimedelta()
            self._ack_timeout_changed.set()
        if response.expired or response.HasField("refused"):
            self._handle_expired(response)
        for r in response.waiting:
            self._refused += r.last - r.first + 1
        while self._unconfirmed and self._unconfirmed[0].number <= response.confirmed:
            batch = self._unconfirmed.popleft()
            for sequence in batch.acks:
                self._held.pop(sequence, None)
            self._settle(batch.answered)
            self._wake.set()
        for stored in response.messages:
            if (self._held or self._committed) and self._known(stored.sequence):
                self._credit += 1
            else:
                self._buffer.append(Delivery(stored, self))
        if self._buffer:
            self._available.set()
        if self._credit >= self._refill:
            self._wake.set()

    def _handle_expired(self, response: queue_pb2.ConsumeResponse) -> None:
        """Remove messages after their acknowledgement deadline."""
        for r in response.refused.sequences:
            for sequence in range(r.first, r.last + 1):
                self._late += 1
                late = self._held.pop(sequence, None)
                if late is not None:
                    late._expired = True
                # The next stream must not send the refused ack again: a node would accept it there.
                for batch in self._unconfirmed:
                    if sequence in batch.acks:
                        batch.acks.remove(sequence)
        expired = {sequence for r in response.expired for sequence in range(r.first, r.last + 1)}
        for sequence in expired:
            held = self._held.get(sequence)
            if held is not None and not held._acked:  # the refusal of a pending ack is reported separately
                held._expired = True
                del self._held[sequence]
        remaining = [d for d in self._buffer if d.sequence not in expired]
        self._credit += len(self._buffer) - len(remaining)
        self._buffer = deque(remaining)
        self._alive = True  # the node delivers nothing until the next request
        self._wake.set()

    def _known(self, sequence: int) -> bool:
        """Return whether the message must not be delivered to the application again.

        The application has acknowledged the message, or received it on an earlier stream and is still processing it. A
        second delivery on one stream means that the message was requeued.
        """
        if sequence in self._committed:
            self._committed.remove(sequence)
            return True
        held = self._held.get(sequence)
        if held is None or (not held._acked and held._generation == self._generation):
            return False
        held._generation = self._generation
        return True

    def _settle(self, n: int) -> None:
        if n > self._settled:
            self._settled = n
            self._advance()


class PartitionedConsumer(Consumer):
    """A consumer of all partitions of a queue. It ends when one of the partitions is deleted."""

    def __init__(
        self,
        caller: Caller,
        queue: str,
        subscription: str,
        filter: str,  # noqa: A002
        prefetch: int,
        ack_timeout: timedelta,
        count: int,
    ) -> None:
        self.queue, self.subscription = queue, subscription
        self._caller, self._op = caller, f"consume {queue}/{subscription}"
        self._error = None
        self._on_close = None
        self._available = asyncio.Event()
        self._turn = 0
        id = str(uuid.uuid4())  # noqa: A001
        self._members = [
            Consumer(
                caller,
                partition_name(queue, i, count),
                subscription,
                filter,
                -(-prefetch // count),
                ack_timeout,
                _Member(queue, id, self._available),
            )
            for i in range(count)
        ]

    @property
    def queue_id(self) -> int:
        """Always 0: each partition has its own ID."""
        return 0

    @property
    def ack_timeout(self) -> timedelta:
        """The shortest acknowledgement deadline of the partitions; 0 if they have none."""
        return min((m.ack_timeout for m in self._members if m.ack_timeout), default=timedelta())

    async def receive(self, *, timeout: float | None = None) -> Delivery:
        """Return the next message of any partition; see Consumer.receive()."""
        await self._await_message(timeout)
        return self._take()

    async def receive_batch(self, limit: int = 1000, *, timeout: float | None = None) -> list[Delivery]:
        """Return 1 to `limit` available messages; see Consumer.receive_batch()."""
        if limit < 1:
            raise errors.InvalidRequest(f"limit is {limit}, must be at least 1")
        await self._await_message(timeout)
        return [self._take() for _ in range(min(limit, self._buffered()))]

    def _buffered(self) -> int:
        """Return the number of available messages.

        Raises:
            LockstepError: A partition was closed or has ended.
        """
        for m in self._members:
            if m._error is not None:
                raise m._error
            if m._leaving:
                raise errors.Closed(f"{self._op}: the consumer is closed")
        return sum(len(m._buffer) for m in self._members)

    def _take(self) -> Delivery:
        while True:
            self._turn = (self._turn + 1) % len(self._members)
            member = self._members[self._turn]
            if member._buffer:
                d = member._buffer.popleft()
                member._hand_out(d)
                return d

    async def _await_message(self, timeout: float | None) -> None:
        deadline = self._caller.deadline(timeout)
        while not self._buffered():
            self._available.clear()
            remaining = None if deadline is None else deadline - asyncio.get_running_loop().time()
            try:
                if remaining is not None and remaining <= 0:
                    raise asyncio.TimeoutError
                await asyncio.wait_for(self._available.wait(), remaining)
            except asyncio.TimeoutError:
                raise TimeoutError(f"{self._op}: no message arrived within {timeout} s") from None

    async def _keep_extended(self) -> None:
        await asyncio.gather(*(m._keep_extended() for m in self._members))

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all earlier answers are committed; see Consumer.flush()."""
        for result in await asyncio.gather(*(m._flush(timeout) for m in self._members), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        _report(self._members)

    async def close(self) -> None:
        """Detach the consumer from all partitions; see Consumer.close()."""
        await asyncio.gather(*(m.close() for m in self._members))
        if self._on_close is not None:
            self._on_close()

    async def _await_attached(self, timeout: float | None) -> None:
        try:
            await asyncio.gather(*(m._await_attached(timeout) for m in self._members))
        except BaseException:
            await self.close()
            raise


def _report(consumers: Iterable[Consumer]) -> None:
    """Raise the most severe error of the answers of the consumers. The next call raises the next one."""
    for report in (Consumer._report_lost, Consumer._report_late, Consumer._report_refused):
        for c in consumers:
            report(c)


def ranges(sequences: list[int]) -> list[types_pb2.SequenceRange]:
    """Convert sequences to sorted ranges of consecutive sequences."""
    out: list[types_pb2.SequenceRange] = []
    for s in sorted(sequences):
        if out and s <= out[-1].last + 1:
            out[-1].last = s
        else:
            out.append(types_pb2.SequenceRange(first=s, last=s))
    return out
