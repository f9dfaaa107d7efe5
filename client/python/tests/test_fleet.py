# SPDX-License-Identifier: Apache-2.0
"""Clients of a fleet, with scripted nodes of two pairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import grpc
import pytest
from scripted import ConsumeRequests, Context, Node, Requests, Stream, abort, answer, refusal, stores, takes
from waiting import BOUND, TIMEOUT, Clock, steady_client, until

from lockstep_mq import Client, Delivery, Request, _fleet, _options, errors
from lockstep_mq._proto import admin_pb2, queue_pb2, schedule_pb2, types_pb2

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def owned(queue: str, pair: str, *nodes: Node, epoch: int = 1) -> types_pb2.NotOwner:
    return types_pb2.NotOwner(queue=queue, pair=pair, addresses=[n.address for n in nodes], epoch=epoch)


async def abort_not_owner(context: Context, owner: types_pb2.NotOwner, *, settled: bool = False) -> None:
    await abort(context, FAILED_PRECONDITION, "NOT_OWNER", settled=settled, details=[owner])


def moved(r: queue_pb2.PublishStreamRequest, owner: types_pb2.NotOwner) -> queue_pb2.PublishStreamResponse:
    """Return the refusal of a request; that of a retry is settled."""
    return refusal(r, FAILED_PRECONDITION, "NOT_OWNER", settled=r.publish.producer.retry, owner=owner)


def routes(owner: types_pb2.NotOwner, after: int = 1, until_set: asyncio.Event | None = None) -> Stream:
    """Return a stream that refuses requests for one queue, and stores others. It responds after several requests."""

    async def stream(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        first = [await anext(requests) for _ in range(after)]
        if until_set is not None:
            await until_set.wait()
        for r in first:
            yield moved(r, owner) if r.publish.queue == owner.queue else answer(r)
        async for r in requests:
            yield moved(r, owner) if r.publish.queue == owner.queue else answer(r)

    return stream


def refuses_purge(
    owner: types_pb2.NotOwner, *, settled: bool = False
) -> Callable[[int, Context], Awaitable[queue_pb2.PurgeQueueResponse]]:
    async def purge(_: int, context: Context) -> queue_pb2.PurgeQueueResponse:
        await abort_not_owner(context, owner, settled=settled)
        return queue_pb2.PurgeQueueResponse()

    return purge


async def purges(_: int, __: Context) -> queue_pb2.PurgeQueueResponse:
    return queue_pb2.PurgeQueueResponse(messages=3)


def bodies(stream: Iterable[queue_pb2.PublishStreamRequest], queue: str) -> list[bytes]:
    return [m.body for r in stream if r.publish.queue == queue for m in r.publish.messages]


async def test_order_across_redirect_with_full_pipeline() -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [routes(owned("q", "b", b), after=8)], [stores]
        async with client.producer(batch_messages=1, window=8) as p:
            futures = [await p.send(("q", "other")[i % 2], str(i)) for i in range(40)]
            receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
            later = await p.publish("q", b"40", timeout=BOUND)
        assert [r.address for r in receipts] == [b.address, a.address] * 20
        assert later.address == b.address
        assert bodies(b.seen[0], "q") == [b"%d" % i for i in range(0, 41, 2)]
        assert bodies(a.seen[0], "other") == [b"%d" % i for i in range(1, 40, 2)]
        assert bodies(a.seen[0], "q") == [b"0", b"2", b"4", b"6"], "only the requests that were already sent"
        sent = [r.publish.producer for r in b.seen[0]]
        assert [(s.sequence, s.retry) for s in sent] == [(i, False) for i in range(1, 22)]
        assert {s.id for s in sent}.isdisjoint({r.publish.producer.id for r in a.seen[0]})
        assert len(b.seen) == len(a.seen) == 1


async def test_unknown_outcome_before_redirect() -> None:
    """Requests without a response are retried at the same pair under the same identity, and then moved in order."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [takes(3), routes(owned("q", "b", b))], [stores]
        async with client.producer(batch_messages=1) as p:
            futures = [await p.send("q", str(i)) for i in range(3)]
            receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert [(r.address, r.duplicate) for r in receipts] == [(b.address, False)] * 3
        again = [r.publish.producer for r in a.seen[1]]
        assert [(w.sequence, w.retry) for w in again] == [(1, True), (2, True), (3, True)]
        assert {w.id for w in again} == {r.publish.producer.id for r in a.seen[0]}
        assert bodies(b.seen[0], "q") == [b"0", b"1", b"2"]
        assert not any(r.publish.producer.retry for r in b.seen[0])


async def test_refused_retry_that_is_not_settled(clock: Clock) -> None:
    """The first attempt may still be committed by the first pair: the request is not sent to the owner."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)

        async def refuses(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            async for r in requests:
                yield refusal(r, FAILED_PRECONDITION, "NOT_OWNER", owner=owner)

        a.streams, b.streams = [takes(1), refuses], [stores]
        async with client.producer(batch_messages=1) as p:
            with pytest.raises(errors.OutcomeUnknown) as caught:
                await p.publish("q", b"0", timeout=BOUND)
        assert caught.value.reason == "NOT_OWNER"

        async def hangs(n: int, context: Context) -> queue_pb2.CommitResponse:
            if n == 1:
                await asyncio.Event().wait()
            await abort_not_owner(context, owner)
            return queue_pb2.CommitResponse()

        a.on_commit = hangs
        t = client.transaction().publish("q", b"1")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(t.commit(timeout=TIMEOUT), until(lambda: a.commits))
        with pytest.raises(errors.OutcomeUnknown) as caught:
            await t.commit(timeout=BOUND)
        assert caught.value.reason == "NOT_OWNER"
        assert not b.seen
        assert not b.commits


async def test_publish_without_response_stays_at_pair() -> None:
    """A lost response of the first pair is found by the retry there: the publish is not sent to the owner."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.on_purge, b.on_purge = refuses_purge(owned("q", "b", b)), purges
        reopened = asyncio.Event()

        async def second(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            await reopened.wait()
            async for response in stores(requests, context):
                yield response

        a.streams, b.streams = [takes(1), second], [stores]
        publish = asyncio.create_task(client.publish("q", b"1", timeout=BOUND))
        await until(lambda: len(a.seen) == 2)
        await client.admin.purge_queue("q", timeout=BOUND)  # the client now knows the owner
        reopened.set()
        receipt = await publish
        assert (receipt.address, receipt.duplicate) == (a.address, True)
        assert b.seen == []


async def test_publish_does_not_overtake() -> None:
    """A publish follows earlier ones of its queue, although another call of the client has found the owner."""
    refused = asyncio.Event()
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)
        a.on_purge, b.on_purge = refuses_purge(owner), purges
        a.streams, b.streams = [routes(owner, after=2, until_set=refused)], [stores]
        async with client.producer(batch_messages=1, window=2) as p:
            futures = [await p.send("q", str(i)) for i in range(3)]
            await until(lambda: a.seen and len(a.seen[0]) == 2)
            await client.admin.purge_queue("q", timeout=BOUND)
            futures += [await p.send("q", str(i)) for i in range(3, 6)]
            assert b.seen == []
            refused.set()
            await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert bodies(b.seen[0], "q") == [b"%d" % i for i in range(6)]


async def test_order_after_broken_stream_during_redirect() -> None:
    """If the stream breaks between two refusals, the second request is refused, too."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)

        async def breaks(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            first, _, _ = [await anext(requests) for _ in range(3)]
            yield moved(first, owner)
            await abort(
                context, grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN", details=[queue_pb2.Submitted(through=2)]
            )

        a.streams, b.streams = [breaks], [stores]
        async with client.producer(batch_messages=1, window=3) as p:
            futures = [await p.send("q", str(i)) for i in range(5)]
            await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert len(a.seen) == 1
        assert bodies(b.seen[0], "q") == [b"%d" % i for i in range(5)]


async def test_order_after_queue_returns() -> None:
    """The stream breaks after the first of several refusals, and the queue returns to the pair."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:

        async def breaks(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            first, other, *_ = [await anext(requests) for _ in range(5)]
            yield moved(first, owned("q", "b", b))
            yield answer(other)
            await abort(context, grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN")

        returned = owned("q", "a", a, epoch=2)
        a.streams, b.streams = [breaks, stores], [routes(returned)]
        async with client.producer(batch_messages=1, window=5) as p:
            futures = [await p.send(queue, str(i)) for i, queue in enumerate(["q", "other", "q", "other", "q", "q"])]
            await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert bodies(a.seen[1], "q") == [b"0", b"2", b"4", b"5"]
        assert bodies(a.seen[1], "other") == [b"3"]


@pytest.mark.parametrize("unanswered", [2, 3])
async def test_order_after_queue_returns_during_retries(unanswered: int) -> None:
    """The pair refuses the first of several retries. The stream breaks again, and the queue returns to the pair."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:

        async def breaks(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            first, *_ = [await anext(requests) for _ in range(3)]
            yield moved(first, owned("q", "b", b))
            await abort(context, grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN")

        a.streams = [takes(unanswered), breaks, stores]
        async with client.producer(batch_messages=1, window=6) as p:
            futures = [await p.send("q", str(i)) for i in range(unanswered)]
            await until(lambda: len(a.seen) == 1 and len(a.seen[0]) == unanswered)
            futures += [await p.send(("q", "other")[i > 3], str(i)) for i in range(unanswered, 6)]
            receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert bodies(a.seen[2], "q") == [b"0", b"1", b"2", b"3"]
        sent = [r.publish.producer for r in a.seen[2] if r.publish.queue == "q"]
        assert [w.retry for w in sent[:3]] == [False, True, True]
        assert sent[0].sequence > sent[2].sequence > sent[1].sequence == 2
        assert [r.address for r in receipts] == [a.address] * 6
        assert b.seen == []


async def test_own_identity_at_each_pair() -> None:
    """An application's producer ID fences other producers at each pair. Each pair has separate sequences."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [routes(owned("q", "b", b))], [stores]
        async with client.producer(id="mine", epoch=3) as p:
            for queue in ("other", "other", "q"):
                await p.publish(queue, b"1", timeout=BOUND)
        assert [(r.publish.producer.sequence) for r in a.seen[0]] == [1, 2, 3]
        (sent,) = [r.publish.producer for r in b.seen[0]]
        assert (sent.id, sent.epoch, sent.sequence) == ("mine", 3, 1)


async def test_directory_unavailable() -> None:
    """Publishes to a queue with an unknown owner are retried. Other queues are not affected."""
    available = asyncio.Event()
    async with Node() as a, steady_client([a.address]) as client:

        async def stream(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            accepts = False  # set by the first request after the responses to all earlier ones
            async for r in requests:
                assert not r.resumes or r.publish.messages[0].body == b"0"
                accepts = accepts or (available.is_set() and r.resumes)
                if r.publish.queue == "q" and not accepts:
                    yield refusal(r, grpc.StatusCode.UNAVAILABLE, "DIRECTORY_UNAVAILABLE")
                else:
                    yield answer(r)

        async def purge(n: int, context: Context) -> queue_pb2.PurgeQueueResponse:
            if n == 1:
                await abort(context, grpc.StatusCode.UNAVAILABLE, "DIRECTORY_UNAVAILABLE")
            return await purges(n, context)

        a.streams, a.on_purge = [stream], purge
        async with client.producer(batch_messages=1) as p:
            futures = [await p.send("q", str(i)) for i in range(3)]
            await p.publish("other", b"x", timeout=BOUND)
            assert not any(f.done() for f in futures)
            await until(lambda: len(bodies(a.seen[0], "q")) > 3)
            available.set()
            receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert [r.sequence for r in receipts] == sorted(r.sequence for r in receipts)
        assert not any(r.duplicate for r in receipts)
        assert len(a.seen) == 1
        await client.admin.purge_queue("q", timeout=BOUND)
        assert not any(r.producer.retry for r in a.purges)


async def test_settled_refusal_of_retry() -> None:
    """A settled refusal does not end the stream, so that other queues are not affected."""
    async with Node() as a, steady_client([a.address]) as client:

        async def second(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            async for r in requests:
                if r.publish.producer.retry:
                    yield refusal(r, grpc.StatusCode.UNAVAILABLE, "DIRECTORY_UNAVAILABLE", settled=True)
                else:
                    yield answer(r)

        a.streams = [takes(2), second]
        async with client.producer(batch_messages=1) as p:
            futures = [await p.send("q", str(i)) for i in range(2)]
            await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        sent = [(r.publish.producer.sequence, r.publish.producer.retry, r.resumes) for r in a.seen[1]]
        assert sent == [(1, True, False), (2, True, False), (3, False, True), (4, False, False)]


async def test_directory_unavailable_for_retry() -> None:
    """A request with an unknown outcome is retried under the same identity."""
    async with Node() as a, steady_client([a.address]) as client:

        async def second(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            async for r in requests:
                yield refusal(r, grpc.StatusCode.UNAVAILABLE, "DIRECTORY_UNAVAILABLE")

        a.streams = [takes(2), second, stores]
        async with client.producer(batch_messages=1) as p:
            futures = [await p.send("q", str(i)) for i in range(2)]
            await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        sent = [(r.publish.producer.sequence, r.publish.producer.retry) for r in a.seen[2]]
        assert sent == [(1, True), (2, True)]


@pytest.fixture
def no_second_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first wait between two attempts longer than any timeout."""
    monkeypatch.setattr(_options, "RETRY_MIN", 10 * TIMEOUT)


@pytest.mark.usefixtures("no_second_retry")
async def test_cycle_of_calls(clock: Clock) -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.on_purge, b.on_purge = refuses_purge(owned("q", "b-1", b)), refuses_purge(owned("q", "a-1", a))
        fleet = client._called().fleet
        refused = until(lambda: fleet.owner("q") is fleet.home)
        with pytest.raises(errors.Unavailable) as caught:
            await clock.expire(client.admin.purge_queue("q", timeout=TIMEOUT), refused)
        assert caught.value.reason == "NOT_OWNER"
        assert "pair a-1 reports pair b-1" in str(caught.value)
        assert "pair b-1 reports pair a-1" in str(caught.value)
        assert len(a.purges) == len(b.purges) == 1
        assert len(fleet._pairs) == 2, "the addresses of pair a-1 are those of the home pair"


@pytest.mark.usefixtures("no_second_retry")
async def test_cycle_of_publishes(clock: Clock) -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [routes(owned("q", "b-1", b))], [routes(owned("q", "a-1", a))]
        p = client.producer()

        def waits() -> bool:
            return "q" in p._lanes and p._lanes["q"].timer is not None

        with pytest.raises(errors.Unavailable) as caught:
            await clock.expire(p.publish("q", b"1", timeout=TIMEOUT), until(waits))
        assert caught.value.reason == "NOT_OWNER"
        assert "pair a-1 reports pair b-1" in str(caught.value)
        assert "pair b-1 reports pair a-1" in str(caught.value)
        assert [len(s) for s in a.seen + b.seen] == [1, 1]
        assert not p._lanes
        await p.publish("other", b"2", timeout=BOUND)


async def test_outdated_owner_is_not_followed() -> None:
    """A recorded owner with a higher epoch is retained, unless it is the pair that responded."""
    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        fleet = client._called().fleet
        owner = fleet.redirect(fleet.home, owned("q", "b", b, epoch=5))
        assert owner is not fleet.home
        assert fleet.redirect(fleet.home, owned("q", "c", c, epoch=4)) is owner
        assert fleet.redirect(owner, owned("q", "a", a, epoch=4)) is fleet.home
        assert fleet.route("q") is fleet.home


async def test_canceled_move() -> None:
    """The source of a canceled move owns the queue under a lower epoch than that of the move."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:

        async def fenced_first(n: int, context: Context) -> queue_pb2.PurgeQueueResponse:
            if n == 1:
                await abort_not_owner(context, owned("q", "b", b, epoch=5))
            return await purges(n, context)

        a.on_purge, b.on_purge = fenced_first, refuses_purge(owned("q", "a", a, epoch=4))
        assert await client.admin.purge_queue("q", timeout=BOUND) == 3
        assert [len(a.purges), len(b.purges)] == [2, 1]
        b.on_purge, a.on_purge = purges, refuses_purge(owned("q", "b", b, epoch=6))
        assert await client.admin.purge_queue("q", timeout=BOUND) == 3
        assert [len(a.purges), len(b.purges)] == [3, 2]


async def test_administrative_calls() -> None:
    """Each pair has separate producer identities. The owner of a queue is remembered."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.on_purge, b.on_purge = refuses_purge(owned("q", "b", b)), purges
        for _ in range(2):
            assert await client.admin.purge_queue("q", timeout=BOUND) == 3
        assert len(a.purges) == 1
        sent = [r.producer for r in b.purges]
        assert [(s.sequence, s.retry) for s in sent] == [(1, False), (2, False)]
        assert len({s.id for s in sent}) == 1
        assert a.purges[0].producer.id != sent[0].id
        a.on_purge = purges
        await client.admin.purge_queue("other", timeout=BOUND)
        assert (a.purges[1].producer.id, a.purges[1].producer.sequence) == (a.purges[0].producer.id, 2)


async def test_unknown_outcome_of_call_before_redirect(clock: Clock) -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)

        async def hangs(_: int, __: Context) -> queue_pb2.PurgeQueueResponse:
            await asyncio.Event().wait()
            return queue_pb2.PurgeQueueResponse()

        a.on_purge, b.on_purge = hangs, purges
        request, admin = Request(), client.admin
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(
                admin.purge_queue("q", request=request, timeout=TIMEOUT), until(lambda: len(a.purges) == 1)
            )
        a.on_purge = refuses_purge(owner, settled=True)
        await admin.purge_queue("q", timeout=BOUND)  # the client now knows the owner
        assert [len(a.purges), len(b.purges)] == [2, 1]
        assert await admin.purge_queue("q", request=request, timeout=BOUND) == 3
        first, retry, last = a.purges[0].producer, a.purges[2].producer, b.purges[1].producer
        assert (retry.id, retry.sequence, retry.retry) == (first.id, first.sequence, True)
        assert last.id != first.id
        assert not last.retry


async def test_failover_of_owner() -> None:
    """The client follows failovers of the other pair, and addresses that were added to it."""
    async with Node() as a, Node() as b, Node(role=admin_pb2.ROLE_STANDBY) as c, Node() as d:
        a.on_purge = refuses_purge(owned("q", "b", b, c))
        b.on_purge = c.on_purge = d.on_purge = purges
        async with steady_client([a.address]) as client:
            await client.admin.purge_queue("q", timeout=BOUND)
            pair = client._called().fleet.owner("q")
            assert pair is not None
            c.set_role(admin_pb2.ROLE_ACTIVE, 2)
            await until(lambda: pair.locator.target is not None and pair.locator.target.node.address == c.address)
            await client.admin.purge_queue("q", timeout=BOUND)
            d.set_role(admin_pb2.ROLE_ACTIVE, 3)
            a.on_purge = refuses_purge(owned("r", "b", c, d))
            await client.admin.purge_queue("r", timeout=BOUND)
            await until(lambda: pair.locator.target is not None and pair.locator.target.node.address == d.address)
            await client.admin.purge_queue("q", timeout=BOUND)
        assert len(b.purges) == 1
        assert d.purges[-1].name == "q"


async def test_fixed_addresses() -> None:
    """Without follow_hints, the client does not connect to addresses that nodes report."""
    async with Node() as a, Node() as b:
        owner = owned("q", "b", b)
        a.on_purge, a.streams = refuses_purge(owner), [routes(owner)]

        async def attach(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
            await anext(requests)
            await abort_not_owner(context, owner)
            yield queue_pb2.ConsumeResponse()

        a.consumes = [attach]
        async with steady_client([a.address], follow_hints=False) as client:
            for call in (client.admin.purge_queue, lambda q: client.publish(q, b"1"), client.consume):
                with pytest.raises(errors.Unavailable) as caught:
                    await call("q")
                assert caught.value.reason == "NOT_OWNER"


async def test_token_is_not_sent_unencrypted() -> None:
    async with Node() as a:
        owner = types_pb2.NotOwner(queue="q", pair="b", addresses=["b.example.net:7420"], epoch=1)
        a.on_purge, a.streams = refuses_purge(owner), [routes(owner)]
        async with steady_client([a.address], token="t") as client:
            with pytest.raises(errors.InvalidRequest):
                await client.admin.purge_queue("q")
            with pytest.raises(errors.InvalidRequest):
                await client.publish("q", b"1")


def attaches(*sequences: int, ends: types_pb2.NotOwner | None = None, seen: list[int] | None = None):  # type: ignore[no-untyped-def]
    """Return a consume stream that delivers messages and confirms answers; or ends after an answer."""

    async def stream(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        first = await anext(requests)
        assert (first.attach.queue_id, list(first.ack)) == (0, [])
        messages = [types_pb2.StoredMessage(sequence=s) for s in sequences]
        yield queue_pb2.ConsumeResponse(attached=True, queue_id=7, messages=messages)
        async for r in requests:
            if r.ack and ends is not None:
                await abort_not_owner(context, ends)
            if seen is not None:
                seen.extend(s for x in r.ack for s in range(x.first, x.last + 1))
            yield queue_pb2.ConsumeResponse(confirmed=r.confirm)

    return stream


def refuses_attach(owner: types_pb2.NotOwner):  # type: ignore[no-untyped-def]
    async def stream(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        await abort_not_owner(context, owner)
        yield queue_pb2.ConsumeResponse()

    return stream


async def test_consumer_attaches_at_owner() -> None:
    """A consumer attaches at the owner. If the owner changes, sequences may belong to other messages."""
    acked: list[int] = []
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.consumes = [refuses_attach(owned("q", "b", b)), attaches(1, 2, seen=acked)]
        b.consumes = [attaches(1, 2, ends=owned("q", "a", a, epoch=2))]
        consumer = await client.consume("q", timeout=BOUND)
        one, two = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        assert len(a.consumes) == 1
        with pytest.raises(errors.OutcomeLost):
            await one.ack_confirmed(timeout=BOUND)
        again = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        assert two.outdated
        assert not again[0].outdated
        with pytest.raises(errors.InvalidRequest):
            await two.ack_confirmed(timeout=BOUND)
        with pytest.raises(errors.OutcomeLost):
            await consumer.flush(timeout=BOUND)
        await again[1].ack_confirmed(timeout=BOUND)
        assert acked == [2]
        await consumer.close()
        b.consumes, a.consumes = [], [attaches(3)]
        async with await client.consume("q", timeout=BOUND) as later:
            assert (await later.receive(timeout=BOUND)).sequence == 3


@pytest.mark.usefixtures("no_second_retry")
async def test_cycle_of_attaches(clock: Clock) -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.consumes, b.consumes = [refuses_attach(owned("q", "b-1", b))], [refuses_attach(owned("q", "a-1", a))]
        fleet = client._called().fleet
        refused = until(lambda: fleet.owner("q") is fleet.home)
        with pytest.raises(errors.Unavailable) as caught:
            await clock.expire(client.consume("q", timeout=TIMEOUT), refused)
        assert caught.value.reason == "NOT_OWNER"
        assert "pair b-1 reports pair a-1" in str(caught.value)


def commits(*refusals: types_pb2.NotOwner) -> Callable[[int, Context], Awaitable[queue_pb2.CommitResponse]]:
    async def commit(n: int, context: Context) -> queue_pb2.CommitResponse:
        if n <= len(refusals):
            await abort_not_owner(context, refusals[n - 1])
        return queue_pb2.CommitResponse(lsn=1)

    return commit


async def test_transaction_moves_to_owner(clock: Clock) -> None:
    """NOT_OWNER moves the whole transaction, under a new identity; first an unknown outcome is resolved."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)

        async def hangs(n: int, context: Context) -> queue_pb2.CommitResponse:
            if n == 1:
                await asyncio.Event().wait()
            await abort_not_owner(context, owner, settled=True)
            return queue_pb2.CommitResponse()

        a.on_commit, b.on_commit = hangs, commits()
        t = client.transaction().publish("q", b"1").publish("r", b"2")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(t.commit(timeout=TIMEOUT), until(lambda: a.commits))
        await t.commit(timeout=BOUND)
        first, retry = (c.producer for c in a.commits)
        assert (retry.id, retry.sequence, retry.retry) == (first.id, first.sequence, True)
        assert b.commits[0].operations == a.commits[0].operations
        assert b.commits[0].producer.id != first.id
        assert not b.commits[0].producer.retry
        await client.transaction().publish("r", b"3").publish("q", b"4").commit(timeout=BOUND)
        assert [len(a.commits), len(b.commits)] == [2, 2], "the owner of the second queue is known"


async def test_transaction_after_settled_refusal(clock: Clock) -> None:
    """A settled temporary refusal applies to all attempts under a sequence: the next attempt has another sequence."""
    async with Node() as a, steady_client([a.address]) as client:

        async def refuses(n: int, context: Context) -> queue_pb2.CommitResponse:
            if n == 1:
                await asyncio.Event().wait()
            if n == 2:
                await abort(context, grpc.StatusCode.UNAVAILABLE, "DIRECTORY_UNAVAILABLE", settled=True)
            return queue_pb2.CommitResponse(lsn=1)

        a.on_commit = refuses
        t = client.transaction().publish("q", b"1")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(t.commit(timeout=TIMEOUT), until(lambda: a.commits))
        await t.commit(timeout=BOUND)
        first, retry, last = (c.producer for c in a.commits)
        assert (retry.id, retry.sequence, retry.retry) == (first.id, first.sequence, True)
        assert (last.id, last.sequence) != (first.id, first.sequence)
        assert not last.retry


async def taken(client: Client) -> Delivery:
    return await (await client.consume("in", timeout=BOUND)).receive(timeout=BOUND)


async def test_transaction_of_consumer() -> None:
    """A transaction with acknowledgements is sent to the pair of the consumer, and to no other pair."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.consumes, b.consumes = [refuses_attach(owned("in", "b", b))], [attaches(1)]
        a.on_commit, b.on_commit = commits(), commits(owned("out", "a", a))
        d = await taken(client)
        t = client.transaction().publish("out", b"1").take(d)
        with pytest.raises(errors.WrongState) as caught:
            await t.commit(timeout=BOUND)
        assert caught.value.reason == "CROSS_PAIR"
        assert [len(a.commits), len(b.commits)] == [0, 1]
        await client.transaction().publish("here", b"1").take(d).commit(timeout=BOUND)
        assert [len(a.commits), len(b.commits)] == [0, 2]


async def test_two_phases() -> None:
    """A prepared transaction is decided at the pair where it was prepared."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.on_purge, b.on_purge = refuses_purge(owned("q", "b", b)), purges
        await client.admin.purge_queue("q", timeout=BOUND)
        for queue in ("q", "other"):
            await client.transaction().publish(queue, b"1").prepare(f"x-{queue}", timeout=BOUND)
            await client.admin.commit_prepared(f"x-{queue}", timeout=BOUND)
        assert (a.decided, b.decided) == (["x-other"], ["x-q"])


async def test_decision_after_unknown_outcome_of_prepare(clock: Clock) -> None:
    """A decision is sent to the pair that may have prepared the transaction, unless the pair has refused it."""
    lost, forever = asyncio.Event(), asyncio.Event()

    async def lose(_: Context) -> None:
        lost.set()
        await forever.wait()

    async def refuse(context: Context) -> None:
        await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_PREPARED")

    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.on_purge, b.on_purge = refuses_purge(owned("q", "b", b)), purges
        await client.admin.purge_queue("q", timeout=BOUND)
        b.on_prepare = lose
        transaction = client.transaction().publish("q", b"1")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(transaction.prepare("x-unknown", timeout=TIMEOUT), lost.wait())
        b.on_prepare = refuse
        with pytest.raises(errors.LimitExceeded):
            await client.transaction().publish("q", b"1").prepare("x-refused", timeout=BOUND)
        for xid in ("x-unknown", "x-refused"):
            await client.admin.commit_prepared(xid, timeout=BOUND)
        assert (a.decided, b.decided) == (["x-refused"], ["x-unknown"])
        forever.set()


async def test_cross_pair_is_raised() -> None:
    async with Node() as a, steady_client([a.address]) as client:

        async def commit(_: int, context: Context) -> queue_pb2.CommitResponse:
            await abort(context, FAILED_PRECONDITION, "CROSS_PAIR")
            return queue_pb2.CommitResponse()

        a.on_commit = commit
        with pytest.raises(errors.WrongState) as caught:
            await client.transaction().publish("q", b"1").publish("r", b"2").commit(timeout=BOUND)
        assert caught.value.reason == "CROSS_PAIR"
        assert len(a.commits) == 1


async def test_close_with_pending_publishes() -> None:
    """Publishes that were sent to the owner have an unknown outcome; refused and unsent publishes do not."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [routes(owned("q", "b", b), after=2)], [takes(1000)]
        p = client.producer(batch_messages=1, window=2)
        futures = [await p.send("q", str(i)) for i in range(4)]
        await until(lambda: b.seen and len(b.seen[0]) == 2)
        await p.close()
        kinds = [type(f.exception()) for f in futures]
        assert kinds == [errors.OutcomeUnknown, errors.OutcomeUnknown, errors.Closed, errors.Closed]
        with pytest.raises(errors.Closed):
            await p.send("q", b"later")
        await asyncio.wait_for(p.flush(), BOUND)


async def test_close_during_redirect() -> None:
    async with Node() as a, Node() as b, steady_client([a.address]) as client:

        async def one(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            first, _second = [await anext(requests) for _ in range(2)]
            yield moved(first, owned("q", "b", b))
            async for _r in requests:
                pass

        a.streams = [one]
        p = client.producer(batch_messages=1, window=2)
        futures = [await p.send("q", str(i)) for i in range(4)]
        await until(lambda: p._lanes["q"].refused)
        await p.close()
        kinds = [type(f.exception()) for f in futures]
        assert kinds == [errors.Closed, errors.OutcomeUnknown, errors.Closed, errors.Closed]
        assert b.seen == []


@pytest.mark.usefixtures("no_second_retry")
async def test_cancel_and_close_while_waiting() -> None:
    """A publish that waits after a cycle can be canceled, and the memory is released."""
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        a.streams, b.streams = [routes(owned("q", "b", b))], [routes(owned("q", "a", a))]
        p = client.producer(max_pending_bytes=1000)
        first, second = [asyncio.create_task(p.publish("q", b"x" * 400)) for _ in range(2)]
        await until(lambda: "q" in p._lanes and p._lanes["q"].timer is not None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await p.send("q", b"y" * 400)
        await p.close()
        with pytest.raises(errors.Closed):
            await second
        assert p._budget == 1000


def test_queue_of_request() -> None:
    """Each request that concerns one queue is sent to its owner."""
    for kind in vars(queue_pb2).values():
        fields = getattr(getattr(kind, "DESCRIPTOR", None), "fields_by_name", {})
        if not getattr(kind, "__name__", "").endswith("Request") or not {"queue", "name"} & set(fields):
            continue
        request = kind(queue="q") if "queue" in fields else kind(name="q")
        assert _fleet.queue_of(request) == "q", kind.__name__
    schedule = schedule_pb2.PutScheduleRequest(schedule=schedule_pb2.Schedule(name="s", queue="q"))
    assert _fleet.queue_of(schedule) == "q"
    assert _fleet.queue_of(schedule_pb2.DeleteScheduleRequest(name="s")) == ""
    assert _fleet.queue_of(queue_pb2.ListQueuesRequest(prefix="q")) == ""


async def test_limit_of_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fleet, "MAX_OWNERS", 2)
    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        fleet = client._called().fleet
        for q in ("1", "2"):
            fleet.redirect(fleet.home, owned(q, "b", b))
        pair = fleet.owner("1")
        fleet.redirect(fleet.home, owned("3", "b", b))
        assert [fleet.owner(q) for q in ("1", "2", "3")] == [pair, None, pair]
        assert fleet.route("2") is fleet.home


async def test_mixed_addresses() -> None:
    """The addresses of a client can contain nodes of several pairs. The home pair reports only other pairs."""
    async with Node() as a, Node() as b, steady_client([a.address, b.address]) as client:
        fleet = client._called().fleet
        at_b = fleet.redirect(fleet.home, owned("q", "b", b))
        assert at_b is not fleet.home
        assert fleet.redirect(at_b, owned("q", "a", a)) is fleet.home
        at_a = fleet.redirect(fleet.home, owned("q", "a", a))  # another node of the home pair is active now
        assert at_a is not fleet.home
        assert fleet.redirect(at_b, owned("q", "a", a)) is at_a
        assert fleet.redirect(at_a, owned("q", "b", b)) is at_b
