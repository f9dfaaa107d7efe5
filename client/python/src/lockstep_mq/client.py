# SPDX-License-Identifier: Apache-2.0
"""A connection to a pair."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
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
from lockstep_mq._locator import Locator
from lockstep_mq._options import Options, Tokens, TokenSource
from lockstep_mq._proto import queue_pb2
from lockstep_mq.admin import Admin, QueueConfig
from lockstep_mq.consumer import Consumer, Delivery
from lockstep_mq.message import Message, Publishable, Receipt, StoredMessage
from lockstep_mq.producer import Producer
from lockstep_mq.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep_mq._tracer import Tracer

_REPLY_GRACE = timedelta(seconds=30)
"""How long the queue of answers is kept without its consumer: over a failover, and when this process was killed."""


class Client:
    """A connection to a pair, or to a standalone node; one per process is enough.

        async with Client(["a:7420", "b:7420"]) as client:
            await client.publish("orders", b"hello")

    It belongs to the event loop that it was opened in, and to its process: a process that is forked from one that has
    used a client can use none (Forked). Fork first, or start processes with multiprocessing's "spawn" or "forkserver".

    It follows the active node. All calls take a `timeout` in
    seconds, and wait for as long as it takes without one: a pair without an active is one that fails over.

    Args:
        addresses: host:port of both nodes, in any order, as a sequence or comma-separated.
        ca: File with the authorities of the nodes' certificates; with it (or `tls`), connections are encrypted.
        cert: File with the certificate that is shown to the nodes, and `key` its key.
        key: See cert.
        tls: Encrypt, with the authorities that gRPC brings, when no `ca` is given.
        token: A token of the pair or a JWT, without "Bearer".
        token_file: File with the token; it is read again when a node refuses it.
        token_source: Gives the token; it is asked again when a node refuses it.
        allow_plaintext_token: Show the token over connections that are neither encrypted nor to this machine.
        follow_hints: Follow what nodes say of the address of the active, beyond the given addresses.
        probe_interval: How often, in seconds, a node that calls wait for is asked whether it is there, and how long it
            has for its answer.
        max_message_bytes: Larger bodies are refused without asking a node.
        tracer: Is told of publishes, deliveries and calls; lockstep_mq.tracing has one for OpenTelemetry.
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
        probe_interval: float = 1.0,
        max_message_bytes: int = 64 << 20,
        tracer: Tracer | None = None,
    ) -> None:
        if (cert is None) != (key is None):
            raise errors.InvalidRequest("cert and key are given together")

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
            probe_interval=probe_interval,
            max_message_bytes=max_message_bytes,
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
        """Queues, subscriptions and status."""
        return Admin(self._called())

    async def close(self) -> None:
        """End the client with its producers and consumers.

        Publishes that are not answered fail with Closed, and those that were sent with OutcomeUnknown: flush() waits
        for them.
        """
        self._closed = True
        if _options.was_forked():
            return  # what is open belongs to the process that this one was forked from
        opened, self._open = self._open, set()
        await asyncio.gather(*(o.close() for o in opened))
        if self._caller is not None:
            await self._caller.locator.close()

    async def wait_active(self, *, timeout: float | None = None) -> str:
        """Wait until a node is active, and return its address."""
        caller = self._called()
        try:
            target = await caller.locator.wait(caller.deadline(timeout))
        except TimeoutError:
            raise caller.give_up("wait for an active node", None, unknown=False) from None
        except Failure as f:
            raise f.error("wait for an active node") from None
        return target.node.address

    async def publish(self, queue: str, m: Publishable, *, timeout: float | None = None) -> Receipt:
        """Store one message, through the client's own producer; see Producer.publish."""
        return await self._producer().publish(queue, m, timeout=timeout)

    async def publish_batch(self, queue: str, ms: Sequence[Publishable], *, timeout: float | None = None) -> Receipt:
        """Store 1 to 10,000 messages, all or none; see Producer.publish_batch."""
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
        """Make a pipeline of publishes.

        Args:
            id: Its id, of 1 to 64 bytes, with an epoch; a random one if empty. A higher epoch fences lower ones.
            epoch: One higher at each start of an application that gives an id.
            window: Requests that may be unanswered, at most 256.
            batch_messages: Messages that may be put together in one request, at most 10,000.
            batch_bytes: The same in bytes.
            max_pending_bytes: Memory of publishes that are not answered; send() waits when it is reached.
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
        timeout: float | None = None,
    ) -> Consumer:
        """Attach to a subscription, and return when a node has accepted that.

        Args:
            queue: Name of the queue.
            subscription: Name of the subscription.
            filter: An expression in CEL; what does not match it stays for other consumers.
            prefetch: How many messages the node may send ahead of receive().
            timeout: Seconds to wait for a node.
        """
        c = self._opened(Consumer(self._called(), queue, subscription, filter, prefetch))
        try:
            await c._await_attached(timeout)
        except BaseException:
            self._open.discard(c)
            raise
        return c

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Start a transaction over any number of queues; `async with` commits it."""
        return Transaction(self._called(), self._options.max_message_bytes, timeout)

    async def request(self, queue: str, m: Publishable, *, timeout: float) -> StoredMessage:
        """Publish a message with a temporary queue as its reply_to, and return the message that answers it.

        Raises:
            TimeoutError: No answer came in time. The request is published, and may still be answered.
        """
        asked = m if isinstance(m, Message) else Message(m.encode() if isinstance(m, str) else m)
        deadline = asyncio.get_running_loop().time() + timeout
        answers = f"request/{uuid.uuid4()}"
        correlation = asked.correlation_id or str(uuid.uuid4())
        asked = replace(asked, reply_to=answers, correlation_id=correlation)
        await self.admin.create_queue(answers, QueueConfig(temporary_grace=_REPLY_GRACE), timeout=timeout)
        try:
            consumer = await self.consume(answers, timeout=timeout)
            try:
                await self.publish(queue, asked, timeout=max(deadline - asyncio.get_running_loop().time(), 0))
                while True:
                    d = await consumer.receive(timeout=max(deadline - asyncio.get_running_loop().time(), 0))
                    if d.correlation_id == correlation:
                        return d
                    d.ack()
            finally:
                await consumer.close()
                self._open.discard(consumer)
        finally:
            with contextlib.suppress(errors.LockstepError):  # it goes by itself, too
                await self.admin.delete_queue(answers, timeout=1)

    async def reply(self, to: Delivery, m: Publishable, *, timeout: float | None = None) -> bool:
        """Answer a request, and acknowledge it, in one transaction: it is answered once.

        Returns False, and acknowledges the request, when its queue of answers is gone: the one who asked has given up.
        """
        if not to.reply_to:
            raise errors.InvalidRequest("the message asks for no answer: it has no reply_to")
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
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Read messages without consuming them, in order of sequence. After a failover it goes on where it was.

        Args:
            queue: Name of the queue.
            subscription: Only what it has still to acknowledge; all that is stored if empty.
            start: First sequence; 0 is the oldest.
            limit: At most so many; 0 is all.
            headers_only: Leave the bodies out.
            timeout: Seconds to wait for each part.

        Raises:
            DataLoss: A message cannot be read on either node.
        """
        caller, op = self._called(), f"browse {queue}"
        request = queue_pb2.BrowseRequest(
            queue=queue,
            subscription=subscription,
            from_sequence=start,
            limit=limit,
            headers_only=headers_only,
            max_response_bytes=_options.MAX_RECEIVE_BYTES,
        )
        pages = _Pages(request)
        try:
            while True:
                page = await caller.read(op, pages.next, timeout)
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
        """What makes the calls; it begins to watch the nodes when it is first needed."""
        if self._closed:
            raise errors.Closed("the client is closed")
        _options.check_process()
        if self._caller is None:
            self._caller = Caller(Locator(self._options, self._tokens), self._tracer)
        return self._caller

    def _producer(self) -> Producer:
        _options.check_process()
        if self._own is None:
            self._own = self.producer()
        return self._own

    def _opened(self, o: _P) -> _P:
        self._open.add(o)
        return o


if TYPE_CHECKING:
    from typing import TypeVar

    _P = TypeVar("_P", Producer, Consumer)


class _Pages:
    """The responses of one browsing, over any number of streams."""

    def __init__(self, request: queue_pb2.BrowseRequest) -> None:
        self._request = request
        self._call: _rpc.BrowseCall | None = None
        self._left = request.limit

    async def next(self, channel: grpc.aio.Channel, metadata: _rpc.Metadata) -> queue_pb2.BrowseResponse | None:
        """Read the next response that has something; None at the end."""
        if self._request.limit and self._left <= 0:
            return None
        if self._call is None:
            self._request.limit = self._left
            self._call = _rpc.browse(channel, self._request, metadata)
        call, self._call = self._call, None  # whatever ends this attempt, the next one opens another stream
        async for response in call:
            if response.messages or response.damaged:
                self._call = call
                self._left -= len(response.messages)
                if response.messages:
                    self._request.from_sequence = response.messages[-1].sequence + 1
                return response
        return None

    def close(self) -> None:
        """End the stream that is open, if one is."""
        if self._call is not None:
            self._call.cancel()


__all__ = ["Client"]
