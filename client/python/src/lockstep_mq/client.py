# SPDX-License-Identifier: Apache-2.0
"""The client, which manages the connections to a pair or to a standalone node."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from lockstep_mq import _options, _rpc, errors
from lockstep_mq._calls import Caller
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Fleet
from lockstep_mq._options import Options, Tokens, TokenSource
from lockstep_mq._proto import queue_pb2
from lockstep_mq.admin import Admin, QueueConfig
from lockstep_mq.consumer import Consumer, Delivery, PartitionedConsumer
from lockstep_mq.message import Message, Publishable, Receipt, StoredMessage
from lockstep_mq.producer import Producer
from lockstep_mq.queues import SearchProgress
from lockstep_mq.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep_mq._tracer import Tracer

_REPLY_GRACE = timedelta(seconds=30)
"""Time for which a reply queue is kept without a consumer, for example during a failover."""

_DELETE_WAIT = 1.0  # maximum seconds that request() waits for the deletion of its reply queue


class Client:
    """Manages the connections to a pair or to a standalone node. One Client per process is sufficient.

        async with Client(["a:7420", "b:7420"]) as client:
            await client.publish("orders", b"hello")

    A client belongs to the event loop and to the process in which it was opened. After a process has used a client,
    its forked children cannot use any client: calls raise Forked. Fork first, or start processes with the "spawn" or
    "forkserver" method of multiprocessing.

    The client follows the active node. Most calls have a `timeout` in seconds. Without a timeout, they wait
    indefinitely for an active node.

    Args:
        addresses: host:port of both nodes, or of the nodes of two sites, in any order, as a sequence or
            comma-separated; in a fleet, the addresses of one pair. The limit is 16, including addresses that nodes
            report. Alternatively, a URL "lockstep://[TOKEN@]HOST[:PORT],HOST[:PORT]?PARAMETER=VALUE" with the
            parameters tls, tls-ca, tls-cert, tls-key, token-file, allow-plaintext-token, fixed-addresses,
            probe-interval and max-message-bytes. A parameter applies if its argument is not given.
        ca: PEM file with the CA certificates of the nodes. With `ca`, `cert` or `tls`, connections are encrypted.
        cert: PEM file with the client certificate.
        key: PEM file with the private key of `cert`.
        tls: Encrypt connections, with gRPC's built-in CA certificates if `ca` is not given.
        token: A token of the pair or a JWT, without "Bearer". At most one of the three token arguments can be given.
        token_file: File with the token; it is reloaded when a node rejects the token.
        token_source: Coroutine function that returns the token; it is called again when a node rejects the token.
        allow_plaintext_token: Permit sending the token over unencrypted connections to other machines.
        follow_hints: Follow addresses that nodes report for the active node, for the other site, and for the other
            pairs of a fleet, in addition to the given addresses.
        probe_interval: Interval and timeout, in seconds, of probes to a node with pending calls. Default 1.
        max_message_bytes: Maximum size of a body; larger bodies raise LimitExceeded without contacting a node. Default
            64 MiB.
        tracer: Receives publishes, deliveries and calls; lockstep_mq.tracing implements it with OpenTelemetry.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        ca: str | PathLike[str] | None = None,
        cert: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        tls: bool = False,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        token_source: TokenSource | None = None,
        allow_plaintext_token: bool = False,
        follow_hints: bool = True,
        probe_interval: float | None = None,
        max_message_bytes: int | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        if isinstance(addresses, str) and addresses.startswith(_options.SCHEME):
            url = _options.parse_url(addresses)
            addresses, tls = url.addresses, tls or url.tls
            ca, cert, key = ca or url.ca, cert or url.cert, key or url.key
            token, token_file = token or url.token, token_file or url.token_file
            allow_plaintext_token = allow_plaintext_token or url.allow_plaintext_token
            follow_hints = follow_hints and not url.fixed_addresses
            probe_interval = url.probe_interval if probe_interval is None else probe_interval
            max_message_bytes = url.max_message_bytes if max_message_bytes is None else max_message_bytes
        if (cert is None) != (key is None):
            raise errors.InvalidRequest("cert and key must both be set")

        def path(p: str | PathLike[str] | None) -> Path | None:
            return None if p is None else Path(p)

        self._options = Options(
            addresses=_options.check_addresses(addresses),
            ca=path(ca),
            cert=path(cert),
            key=path(key),
            tls=tls or ca is not None or cert is not None,
            allow_plaintext_token=allow_plaintext_token,
            follow_hints=follow_hints,
            probe_interval=1.0 if probe_interval is None else probe_interval,
            max_message_bytes=64 << 20 if max_message_bytes is None else max_message_bytes,
        )
        self._tokens = Tokens(token, path(token_file), token_source)
        self._tracer = tracer
        self._caller: Caller | None = None
        self._own: Producer | None = None
        self._open: set[Producer | Consumer] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._called()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def admin(self) -> Admin:
        """Administration of queues, subscriptions, schedules and status."""
        return Admin(self._called())

    async def close(self) -> None:
        """Close the client with its producers and consumers.

        Pending publishes fail with Closed; publishes that were sent fail with OutcomeUnknown. To wait for pending
        publishes and answers, call flush() of the producers and consumers first.
        """
        self._closed = True
        if _options.was_forked():
            return  # open channels belong to the parent process
        opened, self._open = self._open, set()
        await asyncio.gather(*(o.close() for o in opened))
        if self._caller is not None:
            await self._caller.fleet.close()

    async def wait_active(self, *, timeout: float | None = None) -> str:
        """Wait until a node is active (with two sites, a node of the primary site), and return its address.

        Raises:
            Unavailable: The timeout expired.
            Unauthenticated: All reachable nodes reject the credentials of this client.
            Denied: All reachable nodes deny access to this client.
        """
        caller = self._called()
        try:
            target = await caller.locator.wait(caller.deadline(timeout))
        except TimeoutError:
            raise caller.give_up("wait for an active node", None, unknown=False) from None
        except Failure as f:
            raise f.error("wait for an active node") from None
        return target.node.address

    async def publish(self, queue: str, m: Publishable, *, timeout: float | None = None) -> Receipt:
        """Store one message with the client's built-in producer; see Producer.publish."""
        return await self._producer().publish(queue, m, timeout=timeout)

    async def publish_batch(self, queue: str, ms: Sequence[Publishable], *, timeout: float | None = None) -> Receipt:
        """Store 1 to 10,000 messages atomically; see Producer.publish_batch."""
        return await self._producer().publish_batch(queue, ms, timeout=timeout)

    def producer(
        self,
        *,
        id: str = "",  # noqa: A002 # the protocol's name
        epoch: int = 0,
        window: int = 200,
        batch_messages: int = 256,
        batch_bytes: int = 256 << 10,
        max_pending_bytes: int = 16 << 20,
    ) -> Producer:
        """Create a publish pipeline.

        Args:
            id: Producer ID of 1 to 64 bytes; random if empty. An id requires an epoch.
            epoch: Fences producers with the same id and a lower epoch. It must be higher at each start.
            window: Maximum number of outstanding requests, 1 to 256.
            batch_messages: Maximum number of messages in a request with several publishes, 1 to 10,000.
            batch_bytes: Maximum number of bytes in a request with several publishes.
            max_pending_bytes: Maximum memory of pending publishes; send() and publish() wait at the limit.
        """
        p = Producer(
            self._called(),
            max_message_bytes=self._options.max_message_bytes,
            id=id,
            epoch=epoch,
            window=window,
            batch_messages=batch_messages,
            batch_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
        )
        return self._opened(p)

    async def consume(
        self,
        queue: str,
        *,
        subscription: str = "default",
        filter: str = "",  # noqa: A002 # the protocol's name
        prefetch: int = 256,
        ack_timeout: timedelta = timedelta(),
        timeout: float | None = None,
    ) -> Consumer:
        """Attach to a subscription, and return when a node has accepted the consumer.

        Args:
            queue: Name of the queue.
            subscription: Name of the subscription.
            filter: A CEL expression that messages must match; other messages remain available to other consumers.
            prefetch: Maximum number of messages that the node sends ahead of receive(), 1 to 100,000.
            ack_timeout: Acknowledgement deadline, 1 second to 24 hours: a message that is not answered or extended
                within this time after its delivery is redelivered. The time before receive() returns the message is
                included. 0 means the deadline of the subscription. If both are set, the shorter one applies.
            timeout: Seconds to wait for a node.

        Raises:
            QueueNotFound: The queue does not exist.
            SubscriptionNotFound: The queue has no subscription with this name.
        """
        deadline = self._called().deadline(timeout)
        for attempt in range(3):
            count = self._called().fleet.partitions.of(queue)
            if count:
                c: Consumer = PartitionedConsumer(
                    self._called(), queue, subscription, filter, prefetch, ack_timeout, count
                )
            else:
                c = Consumer(self._called(), queue, subscription, filter, prefetch, ack_timeout)
            try:
                await self._opened(c)._await_attached(_left(deadline))
            except errors.LockstepError as err:
                # Without a partition, the queue was deleted, and may have been created again.
                again = err.reason == "QUEUE_PARTITIONED" or (
                    attempt == 0 and count and err.reason == "QUEUE_NOT_FOUND"
                )
                if attempt == 2 or not again:
                    raise
            else:
                return c
        raise AssertionError

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Start a transaction over any number of queues; `async with` commits it. timeout applies to its calls."""
        return Transaction(self._called(), self._options.max_message_bytes, timeout)

    async def request(self, queue: str, m: Publishable, *, timeout: float) -> StoredMessage:
        """Publish a message with a temporary queue as its reply_to, and return the reply.

        Raises:
            TimeoutError: No reply arrived in time. The request was published, and may still be answered.
            LockstepError: An earlier step failed, for example because the request was rejected.
        """
        asked = m if isinstance(m, Message) else Message(m.encode() if isinstance(m, str) else m)
        deadline = self._called().deadline(timeout)
        answers = f"request/{uuid.uuid4()}"
        correlation = asked.correlation_id or str(uuid.uuid4())
        asked = replace(asked, reply_to=answers, correlation_id=correlation)
        # At the pair of the request queue, so that reply can commit one transaction.
        await self.admin.create_queue(
            answers, QueueConfig(temporary_grace=_REPLY_GRACE), placement_group=queue, timeout=timeout
        )
        try:
            consumer = await self.consume(answers, timeout=_left(deadline))
            try:
                await self.publish(queue, asked, timeout=_left(deadline))
                while True:
                    d = await consumer.receive(timeout=_left(deadline))
                    if d.correlation_id == correlation:
                        return d
                    d.ack()
            finally:
                await consumer.close()
        finally:
            with contextlib.suppress(errors.LockstepError):  # it is also deleted automatically
                await self.admin.delete_queue(answers, timeout=_DELETE_WAIT)

    async def reply(self, to: Delivery, m: Publishable, *, timeout: float | None = None) -> bool:
        """Reply to a request and acknowledge it in one transaction.

        If the reply queue does not exist, for example because the requester has timed out, the call acknowledges the
        request and returns False.

        Raises:
            Processed: The condition of Transaction.take() is not met; the reply is not published.
        """
        if not to.reply_to:
            raise errors.InvalidRequest("the request has no reply_to")
        answer = m if isinstance(m, Message) else Message(m.encode() if isinstance(m, str) else m)
        answer = replace(answer, correlation_id=to.correlation_id or to.message_id)
        try:
            await self.transaction(timeout=timeout).take(to).publish(to.reply_to, answer).commit()
        except errors.QueueNotFound:
            to.ack()
            return False
        return True

    async def browse(
        self,
        queue: str,
        *,
        subscription: str = "",
        start: int = 0,
        limit: int = 0,
        headers_only: bool = False,
        before: int = 0,
        newest: bool = False,
        filter: str = "",  # noqa: A002 # the protocol's name
        progress: Callable[[SearchProgress], None] | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Read messages without consuming them. The iteration continues after a failover.

        Args:
            queue: Name of the queue.
            subscription: If not empty, only messages that this subscription has not acknowledged.
            start: Lowest sequence; 0 is the oldest message.
            limit: Maximum number of messages; 0 is no limit.
            headers_only: Omit the bodies.
            before: If not 0, only messages before this sequence. If 0, only messages that were stored when the
                iteration started.
            newest: Return messages in descending sequence order, from the last message before `before` down to
                `start`.
            filter: A CEL expression that messages must match. In addition to the variables of a subscription's filter,
                it can use body for JSON bodies: body.customer.id == "4711".
            progress: Called periodically while the node searches for messages that match filter.
            timeout: Seconds to wait for each response of a node.

        Raises:
            DataLoss: A message is corrupt on all reachable nodes.
        """
        caller, op = self._called(), f"browse {queue}"
        request = queue_pb2.BrowseRequest(
            queue=queue,
            subscription=subscription,
            from_sequence=start,
            limit=limit,
            headers_only=headers_only,
            max_response_bytes=_options.MAX_RECEIVE_BYTES,
            before_sequence=before,
            newest=newest,
            filter=filter,
        )
        pages = _Pages(request, progress)
        try:
            while True:
                page = await caller.read(op, pages.next, timeout, queue)
                if page is None:
                    return
                if page.damaged:
                    raise errors.DataLoss(
                        f"{op}: sequence {page.damaged[0]} cannot be read on either node", reason="DATA_LOSS"
                    )
                for stored in page.messages:
                    yield StoredMessage(stored)
        finally:
            pages.close()

    def _called(self) -> Caller:
        if self._closed:
            raise errors.Closed("the client is closed")
        _options.check_process()
        if self._caller is None:
            self._caller = Caller(Fleet(self._options, self._tokens), self._tracer)
        return self._caller

    def _producer(self) -> Producer:
        _options.check_process()
        if self._own is None:
            self._own = self.producer()
        return self._own

    def _opened(self, o: _P) -> _P:
        self._open.add(o)
        o._on_close = functools.partial(self._open.discard, o)
        return o


if TYPE_CHECKING:
    from typing import TypeVar

    _P = TypeVar("_P", Producer, Consumer)


def _left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline on the loop's clock."""
    return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)


class _Pages:
    """The responses of one browse() call, over any number of streams."""

    def __init__(self, request: queue_pb2.BrowseRequest, progress: Callable[[SearchProgress], None] | None) -> None:
        self._request = request
        self._call: _rpc.BrowseCall | None = None
        self._left = request.limit
        self._limited = request.limit > 0
        self._progress = progress
        self._earlier = self._last = SearchProgress()

    async def next(self, channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> queue_pb2.BrowseResponse | None:
        """Read the next response that is not empty; None at the end."""
        r = self._request
        while not self._limited or self._left > 0:
            if self._call is None:
                r.limit = self._left
                self._earlier = self._last
                self._call = _rpc.browse(channel, r, metadata)
            call, self._call = self._call, None  # after an error, the next attempt opens another stream
            async for response in call:
                self._advance(response)
                if response.messages or response.damaged or (r.filter and response.HasField("progress")):
                    self._call = call
                    return response
            if not r.filter or r.from_sequence >= r.before_sequence:
                return None
        return None

    def _advance(self, response: queue_pb2.BrowseResponse) -> None:
        r = self._request
        if response.messages:
            self._left -= len(response.messages)
            last = response.messages[-1].sequence
            if r.newest:
                r.before_sequence = last
            else:
                r.from_sequence = last + 1
        if not response.HasField("progress"):
            return
        r.from_sequence, r.before_sequence = response.progress.from_sequence, response.progress.before_sequence
        self._last = self._earlier.plus(response.progress)
        if self._progress is not None and r.filter:
            self._progress(self._last)

    def close(self) -> None:
        """Cancel the open stream, if any."""
        if self._call is not None:
            self._call.cancel()


__all__ = ["Client"]
