# SPDX-License-Identifier: Apache-2.0
"""Clients of two sites, with scripted nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from scripted import Consume, ConsumeRequests, Context, Node, Requests, abort, not_active, stores
from waiting import BOUND, steady_client, until

from lockstep_mq import Client, _options, errors
from lockstep_mq._pair import Pairs, Report
from lockstep_mq._proto import admin_pb2, queue_pb2, site_pb2, types_pb2

ACTIVE, STANDBY, BLOCKED = admin_pb2.ROLE_ACTIVE, admin_pb2.ROLE_STANDBY, admin_pb2.ROLE_BLOCKED
PRIMARY, REPLICA, STOPPED = site_pb2.SITE_ROLE_PRIMARY, site_pb2.SITE_ROLE_REPLICA, site_pb2.SITE_ROLE_STOPPED


async def observed(client: Client) -> None:
    """Wait until each node has reported its role."""
    nodes = client._called().locator.nodes
    await until(lambda: all(n.observed for n in nodes))


async def test_client_follows_switch() -> None:
    """Requests wait during a switch, and are retried on the new primary with the same producer ID and sequence."""
    started = asyncio.Event()
    async with Node(term=50) as a, Node(pair="q") as b:
        a.set_site(PRIMARY, 1, b.address)
        b.set_site(REPLICA, 1, a.address)

        async def stops(requests: Requests, _: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            async for _r in requests:
                a.set_site(STOPPED, 1, b.address)
                started.set()
            yield queue_pb2.PublishStreamResponse()

        a.streams, b.streams = [stops], [stores]
        async with steady_client([a.address, b.address]) as client:
            publish = asyncio.create_task(client.publish("q", b"1", timeout=BOUND))
            await asyncio.wait_for(started.wait(), BOUND)
            await until(lambda: client._called().locator.target is None)
            with pytest.raises(errors.Unavailable) as caught:
                await client.wait_active(timeout=0.05)
            assert caught.value.reason == "REPLICA"
            assert not publish.done()
            b.set_site(PRIMARY, 2, a.address)
            a.set_site(REPLICA, 2, b.address)
            receipt = await publish
            assert (receipt.address, receipt.duplicate) == (b.address, True)
            assert await client.wait_active(timeout=BOUND) == b.address


async def test_superseded_primary_is_not_used() -> None:
    async with Node(term=50) as a, Node(pair="q") as b:
        a.set_site(PRIMARY, 1)
        b.set_site(PRIMARY, 2)
        a.streams = b.streams = [stores]
        async with steady_client([a.address, b.address]) as client:
            locator = client._called().locator
            await client.wait_active(timeout=BOUND)
            await observed(client)
            assert (await client.publish("q", b"1", timeout=BOUND)).address == b.address
            b.set_role(STANDBY, 2)
            await until(lambda: locator.target is None)
            async with client.producer() as p:  # the stream of an earlier producer may not have ended
                with pytest.raises(errors.Unavailable):
                    await p.publish("q", b"2", timeout=0.05)
            assert a.seen == []


async def test_client_learns_addresses_of_other_site() -> None:
    """The client learns the addresses of the other site from the status while the primary serves."""
    async with Node() as a, Node(pair="q") as b:
        a.set_site(PRIMARY, 1, b.address)
        b.set_site(REPLICA, 1, a.address)
        b.streams = [stores]
        async with steady_client([a.address]) as client, steady_client([a.address], follow_hints=False) as fixed:
            for c in (client, fixed):
                assert await c.wait_active(timeout=BOUND) == a.address
            locator = client._called().locator
            assert [n.address for n in locator.nodes] == [a.address, b.address]
            assert [n.address for n in fixed._called().locator.nodes] == [a.address]
            a.set_site(REPLICA, 2)
            b.set_site(PRIMARY, 2)
            await until(lambda: locator.target is not None and locator.target.node.address == b.address)
            assert (await client.publish("q", b"1", timeout=BOUND)).address == b.address


async def test_refusal_of_replica_is_retried() -> None:
    """The refusal of a replica proves that the attempt was not executed, and names the primary."""
    async with Node() as a, Node(pair="q", role=STANDBY) as b:

        async def refuses(_: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
            a.role, b.role = STANDBY, ACTIVE  # not reported before the refusal
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "REPLICA", details=[not_active("", b.address)])
            yield queue_pb2.PublishStreamResponse()

        a.streams, b.streams = [refuses], [stores]
        async with steady_client([a.address]) as client:
            assert (await client.publish("q", b"1", timeout=BOUND)).address == b.address


async def test_only_replicas_available() -> None:
    async with Node() as a, Node(role=STANDBY) as b:
        for role in (REPLICA, STOPPED):
            a.set_site(role, 1)
            b.set_site(role, 1)
            async with steady_client([a.address, b.address]) as client:
                await observed(client)
                with pytest.raises(errors.Unavailable) as caught:
                    await client.wait_active(timeout=0.05)
                assert caught.value.reason == "REPLICA"
                assert caught.value.address == a.address


def site(role: site_pb2.SiteRole, epoch: int) -> admin_pb2.SiteInfo:
    return admin_pb2.SiteInfo(role=role, lineage="l", epoch=epoch)


@pytest.mark.parametrize(
    ("reports", "want"),
    [
        ([Report(ACTIVE, 3, "p"), Report(ACTIVE, 4, "p")], 1),
        ([Report(STANDBY, 4, "p"), Report(ACTIVE, 3, "p")], 1),
        ([Report(BLOCKED, 4, "p"), Report(ACTIVE, 3, "p")], 0),
        ([Report(ACTIVE, 1, "p", site(REPLICA, 1))], None),
        ([Report(ACTIVE, 1, "p", site(STOPPED, 1))], None),
        ([Report(ACTIVE, 9, "p", site(REPLICA, 1)), Report(ACTIVE, 2, "q", site(PRIMARY, 1))], 1),
        ([Report(ACTIVE, 9, "p", site(PRIMARY, 1)), Report(ACTIVE, 2, "q", site(PRIMARY, 2))], 1),
        ([Report(ACTIVE, 9, "p", site(PRIMARY, 1)), Report(STANDBY, 2, "q", site(PRIMARY, 2))], None),
        ([Report(ACTIVE, 9, "p", site(PRIMARY, 1)), Report(ACTIVE, 2, "q", site(REPLICA, 3))], None),
        ([Report(ACTIVE, 5, "p", site(REPLICA, 1)), Report(ACTIVE, 4, "p", site(PRIMARY, 1))], None),
        ([Report(STANDBY, 5, "p", site(PRIMARY, 1)), Report(ACTIVE, 9, "q")], None),
        ([Report(ACTIVE, 5, "p"), Report(STANDBY, 5, "p", site(PRIMARY, 1))], 0),
        ([Report(ACTIVE, 0, "", site(PRIMARY, 1)), Report(ACTIVE, 0, "", site(PRIMARY, 2))], 1),
        ([Report(ACTIVE, 5, "p"), Report(ACTIVE, 9, "q")], 0),
    ],
)
def test_choose(reports: list[Report], want: int | None) -> None:
    best = Pairs().choose(reports, None)
    assert best is (None if want is None else reports[want])


def test_choose_keeps_state() -> None:
    """Terms and epochs are kept while a node belongs to the pair and the lineage. The current pair is preferred."""
    pairs = Pairs()
    old, new = Report(ACTIVE, 9, "p", site(PRIMARY, 1)), Report(ACTIVE, 2, "q", site(PRIMARY, 2))
    assert pairs.choose([old, new], old) is new
    down = Report(admin_pb2.ROLE_UNSPECIFIED, 2, "q", site(PRIMARY, 2))
    assert pairs.choose([old, down], None) is None
    assert pairs.choose([old], None) is None
    a, b = Report(ACTIVE, 1, "x"), Report(ACTIVE, 9, "y")
    assert pairs.choose([a, b], a) is a
    assert pairs.choose([a, b], b) is b
    assert pairs.choose([old], None) is old, "no node has reported the lineage"


def test_limit_of_addresses() -> None:
    limit = [f"a:{i}" for i in range(1, _options.MAX_ADDRESSES + 2)]
    assert len(_options.check_addresses(limit[:-1])) == 16
    with pytest.raises(errors.InvalidRequest):
        _options.check_addresses(limit)


def held(*sequences: int) -> Consume:
    """Return a consume stream that delivers messages, and confirms no answers."""

    async def stream(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        first = await anext(requests)
        assert first.attach.queue_id == 0
        messages = [types_pb2.StoredMessage(sequence=s) for s in sequences]
        yield queue_pb2.ConsumeResponse(attached=True, queue_id=7, messages=messages)
        async for _r in requests:
            pass

    return stream


async def test_lossy_promotion() -> None:
    """The new primary assigns the sequence of a lost message to another message, which is delivered."""
    acked: list[int] = []

    async def second(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        first = await anext(requests)
        assert (first.attach.queue_id, list(first.ack), first.confirm) == (0, [], 0)
        messages = [types_pb2.StoredMessage(sequence=s) for s in (1, 2, 3)]
        yield queue_pb2.ConsumeResponse(attached=True, queue_id=8, messages=messages)
        async for r in requests:
            acked.extend(s for x in r.ack for s in range(x.first, x.last + 1))
            yield queue_pb2.ConsumeResponse(confirmed=r.confirm)

    async def commit(_: int, __: Context) -> queue_pb2.CommitResponse:
        return queue_pb2.CommitResponse(lsn=1)

    async with Node() as a, Node(pair="q") as b:
        a.set_site(PRIMARY, 1, b.address)
        b.set_site(REPLICA, 1, a.address)
        a.consumes, b.consumes, b.on_commit = [held(1, 2, 3)], [second], commit
        async with steady_client([a.address, b.address]) as client:
            consumer = await client.consume("q", timeout=BOUND)
            one, two, three = [await consumer.receive(timeout=BOUND) for _ in range(3)]
            late = client.transaction().take(three).publish("out", b"1")
            one.ack()
            b.set_site(PRIMARY, 2, a.address, lossy=2)
            again = [await consumer.receive(timeout=BOUND) for _ in range(3)]
            assert [d.sequence for d in again] == [1, 2, 3]
            with pytest.raises(errors.OutcomeLost):
                await one.ack_confirmed(timeout=BOUND)
            with pytest.raises(errors.InvalidRequest):
                await two.ack_confirmed(timeout=BOUND)
            with pytest.raises(errors.InvalidRequest):
                await two.extend(timeout=BOUND)
            for t in (late, client.transaction().ack(two), client.transaction().release(two)):
                with pytest.raises(errors.InvalidRequest):
                    await t.commit(timeout=BOUND)
            with pytest.raises(errors.InvalidRequest):
                await late.prepare("x", timeout=BOUND)
            assert two.outdated
            assert not again[1].outdated
            two.ack()
            three.nack()
            with pytest.raises(errors.OutcomeLost):
                await consumer.flush(timeout=BOUND)
            await consumer.flush(timeout=BOUND)
            assert acked == []
            await again[1].ack_confirmed(timeout=BOUND)
            assert acked == [2]
            await client.transaction().take(again[2]).commit(timeout=BOUND)
            assert [len(n.commits) for n in (a, b)] == [0, 1]
            await consumer.close()


async def test_lossy_promotion_during_commit() -> None:
    """A transaction with an unknown outcome is not sent to the new primary."""
    async with Node() as a, Node(pair="q") as b:
        a.set_site(PRIMARY, 1, b.address)
        b.set_site(REPLICA, 1, a.address)
        a.consumes, b.consumes = [held(1)], [held()]

        async def loses_response(_: int, context: Context) -> queue_pb2.CommitResponse:
            b.set_site(PRIMARY, 2, a.address, lossy=2)
            await asyncio.Event().wait()
            return queue_pb2.CommitResponse()

        a.on_commit = loses_response
        async with steady_client([a.address, b.address]) as client:
            consumer = await client.consume("q", timeout=BOUND)
            t = client.transaction().take(await consumer.receive(timeout=BOUND))
            for _ in range(2):
                with pytest.raises(errors.OutcomeLost):
                    await t.commit(timeout=BOUND)
            assert [len(n.commits) for n in (a, b)] == [1, 0]
            await consumer.close()


async def test_outdated_epoch() -> None:
    """If the node was promoted with a loss after its last status, the consumer discards earlier deliveries."""
    attached: list[queue_pb2.Attach] = []

    async def gone(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        messages = [types_pb2.StoredMessage(sequence=n) for n in (1, 2)]
        yield queue_pb2.ConsumeResponse(attached=True, queue_id=7, messages=messages)
        async for r in requests:
            if r.ack:
                break
        await abort(context, grpc.StatusCode.UNAVAILABLE, "")

    async def outdated(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        attached.append((await anext(requests)).attach)
        await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "SITE_EPOCH")
        yield queue_pb2.ConsumeResponse()

    async def new(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        first = await anext(requests)
        assert list(first.ack) == []
        attached.append(first.attach)
        yield queue_pb2.ConsumeResponse(
            attached=True, queue_id=8, messages=[types_pb2.StoredMessage(sequence=s) for s in (1, 2)]
        )
        async for r in requests:
            yield queue_pb2.ConsumeResponse(confirmed=r.confirm)

    async def refuse(_: int, context: Context) -> queue_pb2.CommitResponse:
        await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "SITE_EPOCH")
        return queue_pb2.CommitResponse()

    async with Node() as a:
        a.set_site(PRIMARY, 1)
        a.consumes, a.on_commit = [gone, outdated, new], refuse
        async with Client([a.address]) as client:
            consumer = await client.consume("q", timeout=BOUND)
            one, two = [await consumer.receive(timeout=BOUND) for _ in range(2)]
            with pytest.raises(errors.InvalidRequest):
                await client.transaction().ack(two).commit(timeout=BOUND)
            assert a.commits[0].operations[0].ack.site_epoch == 1
            with pytest.raises(errors.OutcomeLost):
                await one.ack_confirmed(timeout=BOUND)
            again = [await consumer.receive(timeout=BOUND) for _ in range(2)]
            assert [d.sequence for d in again] == [1, 2]
            assert two.outdated
            assert not again[1].outdated
            with pytest.raises(errors.InvalidRequest):
                await two.ack_confirmed(timeout=BOUND)
            assert [(at.site_epoch, at.queue_id) for at in attached] == [(1, 7), (1, 0)]
            await consumer.close()
