# SPDX-License-Identifier: Apache-2.0
"""Clients of a fleet, while all nodes of a pair are down. Pair b owns the queues; a is the home pair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from scripted import ConsumeRequests, Context, Node, Requests, Stream, abort, answer, stores
from test_fleet import abort_not_owner, attaches, bodies, moved, owned, purges, refuses_attach, refuses_purge
from waiting import BOUND, TIMEOUT, Clock, steady_client, until

from lockstep_mq import Request, _lookup, errors
from lockstep_mq._proto import queue_pb2, types_pb2

Lookup = Callable[[str, Context], Awaitable[None]]


@pytest.fixture(autouse=True)
def frequent_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients of steady_client() look up owners every 50 ms, on average."""
    monkeypatch.setattr(_lookup, "_PROBES", 0.05 / (10 * TIMEOUT))


def names(owners: list[types_pb2.NotOwner]) -> Lookup:
    """Return a behavior of lookups: the queues of other pairs, which can change."""

    async def lookup(queue: str, context: Context) -> None:
        for owner in owners:
            if owner.queue == queue:
                await abort_not_owner(context, owner)

    return lookup


async def several_lookups(node: Node) -> None:
    """Wait for two complete lookups at the node."""
    before = len(node.lookups)
    await until(lambda: len(node.lookups) >= before + 3)


def redirects(owners: list[types_pb2.NotOwner]) -> Stream:
    """Return a stream that refuses requests for queues of other pairs, which can change, and stores others."""

    async def stream(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        async for r in requests:
            refused = [o for o in owners if o.queue == r.publish.queue]
            yield moved(r, refused[0]) if refused else answer(r)

    return stream


async def hangs(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
    """A stream that responds to no request."""
    async for _r in requests:
        pass
    yield queue_pb2.PublishStreamResponse()


def removed() -> types_pb2.NotActive:
    return types_pb2.NotActive(role="REMOVED")


@pytest.mark.parametrize("home", [False, True])
async def test_consumer_of_lost_pair(home: bool) -> None:
    """The consumer attaches to the next owner of the queue, and discards its deliveries."""
    acked: list[int] = []
    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        a.on_lookup = names([owned("q", "b", b)])
        a.consumes, b.consumes = [refuses_attach(owned("q", "b", b))], [attaches(1, 2)]
        consumer = await client.consume("q", timeout=BOUND)
        one, two = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        await b.stop()
        one.ack()
        await several_lookups(a)
        assert consumer._era == 0
        (a if home else c).consumes = [attaches(1, seen=acked)]
        a.on_lookup = None if home else names([owned("q", "c", c, epoch=2)])
        new = await consumer.receive(timeout=BOUND)
        assert two.outdated
        with pytest.raises(errors.InvalidRequest):
            await two.ack_confirmed(timeout=BOUND)
        with pytest.raises(errors.OutcomeLost):
            await consumer.flush(timeout=BOUND)
        await new.ack_confirmed(timeout=BOUND)
        assert acked == [1]
        await consumer.close()


async def test_pair_returns() -> None:
    """As long as the owner does not change, clients continue as after a failover.

    The home pair reports an outdated owner, which does not confirm it.
    """
    reattached = asyncio.Event()
    acked: list[int] = []

    async def again(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        async for r in requests:
            acked.extend(s for x in r.ack for s in range(x.first, x.last + 1))
            yield queue_pb2.ConsumeResponse(attached=bool(r.attach.queue), queue_id=7, confirmed=r.confirm)
            reattached.set()

    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        owner = owned("q", "b", b, epoch=2)
        a.streams, b.streams = [redirects([owner])], [hangs, stores]
        a.consumes, b.consumes = [refuses_attach(owner)], [attaches(1, 2), again]
        a.on_lookup, c.on_lookup = names([owned("q", "c", c)]), names([owner])
        consumer = await client.consume("q", timeout=BOUND)
        one, two = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        publish = asyncio.create_task(client.publish("q", b"1"))
        await until(lambda: b.seen and b.seen[0])
        await b.stop()
        one.ack()
        await several_lookups(c)
        await b.start()
        receipt = await asyncio.wait_for(publish, BOUND)
        assert (receipt.address, receipt.duplicate) == (b.address, True)
        await asyncio.wait_for(reattached.wait(), BOUND)
        await two.ack_confirmed(timeout=BOUND)
        await consumer.flush(timeout=BOUND)
        assert acked == [1, 2]
        await consumer.close()


@pytest.mark.parametrize("home", [False, True])
async def test_producer_of_lost_pair(home: bool) -> None:
    """Publishes that were sent have an unknown outcome. The others are sent to the next owner of their queue."""
    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        owners = [owned("other", "b", b), owned("q", "b", b)]
        a.streams, b.streams, c.streams = [redirects(owners)], [hangs, stores], [stores]
        a.on_lookup = names(owners)
        async with client.producer(batch_messages=1, window=3) as p:
            sent = [await p.send(queue, str(i)) for i, queue in enumerate(("q", "other", "q"))]
            await until(lambda: b.seen and len(b.seen[0]) == 3)
            await b.stop()
            later = [await p.send(queue, str(i)) for i, queue in enumerate(("q", "other", "q"), start=3)]
            await several_lookups(a)
            assert not any(f.done() for f in sent + later)
            owners[1:] = [] if home else [owned("q", "c", c, epoch=2)]
            for f in sent[::2]:
                with pytest.raises(errors.OutcomeUnknown):
                    await asyncio.wait_for(f, BOUND)
            to = a if home else c
            receipts = await asyncio.wait_for(asyncio.gather(*later[::2]), BOUND)
            assert [r.address for r in receipts] == [to.address] * 2
            assert bodies(to.seen[-1], "q")[-2:] == [b"3", b"5"]
            assert not (sent[1].done() or later[1].done())
            await b.start()
            receipts = await asyncio.wait_for(asyncio.gather(*[sent[1], later[1]]), BOUND)
            assert [(r.address, r.duplicate) for r in receipts] == [(b.address, True), (b.address, False)]
            assert bodies(b.seen[-1], "q") == []
            assert bodies(b.seen[-1], "other") == [b"1", b"4"]


async def test_calls_of_lost_pair(clock: Clock) -> None:
    """Calls without an unanswered attempt are sent to the next owner. Others wait for their pair."""

    async def hanging(_: int, __: Context) -> queue_pb2.PurgeQueueResponse:
        await asyncio.Event().wait()
        return queue_pb2.PurgeQueueResponse()

    async def commit(_: int, __: Context) -> queue_pb2.CommitResponse:
        return queue_pb2.CommitResponse(lsn=1)

    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        a.on_purge, b.on_purge, c.on_purge = refuses_purge(owned("q", "b", b)), purges, purges
        a.on_commit = b.on_commit = c.on_commit = commit
        admin, request = client.admin, Request()
        await admin.purge_queue("q", timeout=BOUND)
        await client.transaction().publish("q", b"1").prepare("x", timeout=BOUND)
        b.on_purge = hanging
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(
                admin.purge_queue("q", request=request, timeout=TIMEOUT), until(lambda: len(b.purges) == 2)
            )
        lost = client._called().fleet.owner("q")
        assert lost is not None
        await b.stop()
        await until(lambda: lost.locator.target is None)
        a.on_purge = refuses_purge(owned("q", "c", c, epoch=2))
        assert await admin.purge_queue("q", timeout=BOUND) == 3
        await client.transaction().publish("q", b"1").commit(timeout=BOUND)
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(admin.purge_queue("q", request=request, timeout=TIMEOUT), asyncio.sleep(0.2))
        with pytest.raises(errors.Unavailable):
            await clock.expire(admin.commit_prepared("x", timeout=TIMEOUT), asyncio.sleep(0.2))
        assert [len(c.purges), len(c.commits), a.commits, a.decided] == [1, 1, [], []]


async def test_transaction_of_lost_pair() -> None:
    """A transaction with deliveries of a lost pair is not sent to another pair."""
    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        a.on_lookup = names([owned("q", "b", b)])
        a.consumes, b.consumes, c.consumes = [refuses_attach(owned("q", "b", b))], [attaches(1)], [attaches(1)]
        consumer = await client.consume("q", timeout=BOUND)
        d = await consumer.receive(timeout=BOUND)
        await b.stop()
        await until(lambda: consumer._pair.locator.target is None)
        commit = asyncio.create_task(client.transaction().publish("q", b"1").take(d).commit())
        await several_lookups(a)
        assert not commit.done()
        a.on_lookup = names([owned("q", "c", c, epoch=2)])
        with pytest.raises(errors.InvalidRequest):
            await asyncio.wait_for(commit, BOUND)
        assert not a.commits + b.commits + c.commits
        await consumer.close()


async def test_removed_pair() -> None:
    """The nodes of a pair that was removed from its fleet refuse clients."""

    async def refuses(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "NOT_ACTIVE", details=[removed()])
        yield queue_pb2.ConsumeResponse()

    async with Node() as a, Node() as b, Node() as c, steady_client([a.address]) as client:
        a.on_lookup = names([owned("q", "c", c, epoch=2)])
        a.consumes, b.consumes = [refuses_attach(owned("q", "b", b))], [refuses]
        c.consumes = [attaches(1)]
        async with await client.consume("q", timeout=BOUND) as consumer:
            assert (await consumer.receive(timeout=BOUND)).sequence == 1


async def test_partitioned_queue() -> None:
    """The queue of a lost pair is created again as a partitioned queue."""

    async def partitioned(queue: str, context: Context) -> None:
        if queue == "q":
            detail = types_pb2.QueuePartitioned(queue="q", count=2)
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "QUEUE_PARTITIONED", details=[detail])

    async with Node() as a, Node() as b, steady_client([a.address]) as client:
        owner = owned("q", "b", b)
        a.streams, b.streams = [redirects([owner])], [hangs]
        a.consumes, b.consumes = [refuses_attach(owner)], [attaches(1)]
        a.on_lookup = names([owner])
        consumer = await client.consume("q", timeout=BOUND)
        async with client.producer(batch_messages=1, window=1) as p:
            first, second = [await p.send("q", str(i)) for i in range(2)]
            await until(lambda: b.seen and b.seen[0])
            await b.stop()
            a.on_lookup = partitioned
            with pytest.raises(errors.OutcomeUnknown):
                await asyncio.wait_for(first, BOUND)
            receipt = await asyncio.wait_for(second, BOUND)
            assert receipt.partition in {"q#0/2", "q#1/2"}
        await until(lambda: consumer._error is not None)
        with pytest.raises(errors.WrongState) as caught:
            await consumer.receive(timeout=BOUND)
        assert caught.value.reason == "QUEUE_PARTITIONED"


async def test_new_pair_at_same_addresses() -> None:
    """Answers to deliveries of a lost pair are not sent to a new pair at its addresses."""
    acked: list[int] = []
    async with Node() as a, Node(pair="old") as b, steady_client([a.address]) as client:
        a.on_lookup = names([owned("q", "b", b)])
        a.consumes, b.consumes = [refuses_attach(owned("q", "b", b))], [attaches(1, 2), attaches(1, seen=acked)]
        consumer = await client.consume("q", timeout=BOUND)
        one, two = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        await b.stop()
        one.ack()
        b.pair = "new"
        await b.start()
        new = await consumer.receive(timeout=BOUND)
        assert two.outdated
        with pytest.raises(errors.OutcomeLost):
            await consumer.flush(timeout=BOUND)
        await new.ack_confirmed(timeout=BOUND)
        assert acked == [1]
        await consumer.close()
