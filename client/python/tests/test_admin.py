# SPDX-License-Identifier: Apache-2.0
"""The calls of Client.admin against a real pair, and their retries against a scripted node."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import grpc
import pytest
from pair import Pair
from scripted import Context, Node, abort
from waiting import BOUND, TIMEOUT, Clock, steady_client, until

from lockstep_mq import (
    Client,
    Forward,
    Message,
    Policy,
    QueueConfig,
    RedeliveryPolicy,
    Request,
    SearchProgress,
    errors,
)
from lockstep_mq._proto import queue_pb2
from lockstep_mq.queues import Sources


async def bodies(client: Client, queue: str, subscription: str = "") -> list[str]:
    return [m.text async for m in client.browse(queue, subscription=subscription, timeout=BOUND)]


async def test_alter_subscription(client: Client) -> None:
    admin = client.admin
    await admin.create_queue("sub-dead")
    own = RedeliveryPolicy(max_deliveries=2, redelivery_delay=timedelta(milliseconds=1500), redelivery_multiplier=2.5)
    await admin.create_queue("sub", QueueConfig(max_deliveries=9), topic=True)
    made = await admin.create_subscription("sub", "s", redelivery=own, filter="size > 1")
    assert (made.redelivery, made.filter) == (own, "size > 1")

    altered = await admin.alter_subscription(
        "sub", "s", filter="", redelivery=RedeliveryPolicy(dead_letter="sub-dead", max_deliveries=1)
    )
    assert altered.filter == ""
    assert altered.redelivery == RedeliveryPolicy(1, "sub-dead", own.redelivery_delay, 2.5, None)
    altered = await admin.alter_subscription("sub", "s", inherit=["redelivery_delay", "redelivery_multiplier"])
    assert altered.redelivery == RedeliveryPolicy(1, "sub-dead")
    (described,) = (await admin.get_queue("sub")).subscriptions
    assert described == altered

    await client.publish("sub", b"x")
    async with await client.consume("sub", subscription="s") as consumer:
        (await consumer.receive(timeout=BOUND)).nack()
        await consumer.flush(timeout=BOUND)
    assert await bodies(client, "sub-dead") == ["x"], "after one delivery"

    with pytest.raises(errors.InvalidRequest, match="max_deliveries"):
        await admin.alter_subscription(
            "sub", "s", redelivery=RedeliveryPolicy(max_deliveries=1), inherit=["max_deliveries"]
        )
    with pytest.raises(errors.InvalidRequest):
        await admin.alter_subscription("sub", "s")
    with pytest.raises(errors.InvalidRequest):
        await admin.alter_subscription("sub", "s", filter="no such thing")
    with pytest.raises(errors.SubscriptionNotFound):
        await admin.alter_subscription("sub", "t", filter="")


async def test_forwards(client: Client) -> None:
    for q in ("f-from", "f-all", "f-some"):
        await client.admin.create_queue(q)
    rules = (Forward("f-all"), Forward("f-some", move=True, filter="size == 2"))
    assert (await client.admin.set_forwards("f-from", rules)).forwards == rules
    for body in ("1", "22", "333"):
        await client.publish("f-from", body)
    assert await bodies(client, "f-from") == ["1", "333"]
    assert await bodies(client, "f-all") == ["1", "22", "333"]
    assert await bodies(client, "f-some") == ["22"]
    with pytest.raises(errors.InvalidRequest):
        await client.admin.set_forwards("f-all", [Forward("f-from")])  # a chain
    with pytest.raises(errors.QueueNotFound):
        await client.admin.set_forwards("f-from", [Forward("f-none")])
    assert (await client.admin.set_forwards("f-from", [])).forwards == ()


async def test_policies(client: Client) -> None:
    admin = client.admin
    await admin.create_queue("pol.dead")
    await admin.create_queue("pol.own", explicit=["ttl"])
    policy = Policy(
        "pol.*",
        10,
        QueueConfig(max_deliveries=5, dead_letter="pol.dead", ttl=timedelta(hours=1)),
        QueueConfig(max_messages=100),
    )
    assert await admin.put_policy(policy) == policy
    assert await admin.policies() == (policy,)
    created = await admin.create_queue("pol.new", QueueConfig(max_messages=1000))
    assert created.config == QueueConfig(
        max_messages=100, max_deliveries=5, dead_letter="pol.dead", ttl=timedelta(hours=1)
    )
    assert created.sources == Sources(
        QueueConfig(max_messages=1000), ("max_messages",), "pol.*", "pol.*", ("max_messages",)
    )
    own = await admin.get_queue("pol.own")
    assert own.config.ttl == timedelta()
    own = await admin.alter_queue("pol.own", QueueConfig(max_deliveries=2), ["max_deliveries"], reset=["ttl"])
    assert (own.config.max_deliveries, own.config.ttl) == (2, timedelta(hours=1))
    await admin.delete_policy("pol.*")
    assert await admin.policies() == ()
    assert (await admin.get_queue("pol.new")).sources is None
    with pytest.raises(errors.WrongState) as missing:
        await admin.delete_policy("pol.*")
    assert missing.value.reason == "POLICY_NOT_FOUND"


async def test_pause(client: Client) -> None:
    await client.admin.create_queue("p")
    paused = await client.admin.pause_queue("p", publish=True, reason="maintenance")
    assert paused.pause is not None
    assert (paused.pause.publish, paused.pause.deliver, paused.pause.reason) == (True, False, "maintenance")
    with pytest.raises(errors.Refused) as refused:
        await client.publish("p", b"refused")
    assert refused.value.reason == "QUEUE_PAUSED"
    assert (await client.admin.resume_queue("p")).pause is None
    one = await client.admin.pause_queue("p", "default")
    assert one.pause is None
    assert one.subscriptions[0].pause is not None
    await client.publish("p", b"stored")
    async with await client.consume("p") as consumer:
        await client.admin.resume_queue("p", "default")
        (await consumer.receive(timeout=BOUND)).ack()


async def test_duplicates(client: Client) -> None:
    await client.admin.create_queue("d", QueueConfig(dedup_window=timedelta(minutes=10), dedup_max=1000))
    first = await client.publish("d", Message(b"body", message_id="a"))
    again = await client.publish("d", Message(b"body", message_id="a"))
    assert (again.sequence, again.duplicate, again.discarded) == (first.sequence, True, 1)
    some = await client.publish_batch("d", [Message(b"body", message_id=i) for i in ("a", "b", "b", "c")])
    assert (some.sequence, some.duplicate, some.discarded) == (first.sequence + 1, False, 2)
    concurrent = await asyncio.gather(*(client.publish("d", Message(b"body", message_id=i)) for i in ("d", "a", "e")))
    assert [r.sequence - first.sequence for r in concurrent] == [3, 0, 4]
    q = await client.admin.get_queue("d")
    assert (q.messages, q.message_ids, q.duplicates) == (5, 5, 4)


async def test_history(client: Client) -> None:
    await client.admin.create_queue("h")
    await client.publish("h", b"one")
    history = await client.admin.history("h")
    assert history.interval == timedelta(seconds=10)
    assert all(p.messages <= 1 for p in history.points)
    assert (await client.admin.history(period=timedelta(hours=24))).interval == timedelta(minutes=1)
    with pytest.raises(errors.QueueNotFound):
        await client.admin.history("none")
    with pytest.raises(errors.InvalidRequest):
        await client.admin.history("h", timedelta(days=2))


async def test_schedules(client: Client) -> None:
    await client.admin.create_queue("sched")
    put = await client.admin.put_schedule(
        "yearly", "sched", b"job", cron="0 2 1 1 *", time_zone="Europe/Berlin", missed="all"
    )
    assert put.next_at is not None
    assert (put.queue, put.cron, put.missed, put.every) == ("sched", "0 2 1 1 *", "all", None)
    run = await client.admin.run_schedule("yearly")
    shown = await client.admin.get_schedule("yearly")
    assert [(r.outcome, r.sequence, r.manual) for r in shown.history] == [("published", run, True)]
    assert (await client.admin.pause_schedule("yearly")).next_at is None
    assert (await client.admin.resume_schedule("yearly")).next_at == put.next_at
    await client.admin.put_schedule("poll", "sched", "x", every=timedelta(hours=1), paused=True)
    assert [s.name for s in await client.admin.list_schedules()] == ["poll", "yearly"]
    async with await client.consume("sched") as consumer:
        delivery = await consumer.receive(timeout=BOUND)
        assert delivery.message_id.startswith("yearly@")
        delivery.ack()
    await client.admin.delete_schedule("poll")
    with pytest.raises(errors.WrongState) as missing:
        await client.admin.delete_schedule("poll")
    assert missing.value.reason == "SCHEDULE_NOT_FOUND"
    with pytest.raises(errors.InvalidRequest):
        await client.admin.put_schedule("sched", "sched", "x", cron="sometimes")
    await client.admin.delete_schedule("yearly")


async def test_ack_deadline(client: Client) -> None:
    second = timedelta(seconds=1)
    await client.admin.create_queue("deadline")
    altered = await client.admin.alter_subscription(
        "deadline", "default", redelivery=RedeliveryPolicy(ack_timeout=second)
    )
    assert altered.redelivery.ack_timeout == second
    await client.publish("deadline", b"late")
    async with await client.consume("deadline", ack_timeout=timedelta(hours=1)) as consumer:
        assert consumer.ack_timeout == second
        late = await consumer.receive(timeout=BOUND)
        again = await consumer.receive(timeout=BOUND)
        assert again.sequence == late.sequence
        assert again.delivery_count > late.delivery_count
        assert late.expired
        with pytest.raises(errors.WrongState) as refused:
            await late.extend(timeout=BOUND)
        assert refused.value.reason == "ACK_DEADLINE_EXPIRED"
        late.ack()
    assert (await client.admin.get_queue("deadline")).messages == 1, "a late ack has no effect"
    with pytest.raises(errors.InvalidRequest):
        await client.consume("deadline", ack_timeout=timedelta(milliseconds=1))


async def test_extend(client: Client) -> None:
    await client.admin.create_queue("extend")
    await client.publish("extend", b"1")
    async with await client.consume("extend", ack_timeout=timedelta(hours=1)) as consumer:
        d = await consumer.receive(timeout=BOUND)
        await d.extend(timeout=BOUND)
        await d.ack_confirmed(timeout=BOUND)
    assert (await client.admin.get_queue("extend")).messages == 0


async def test_replay_dead_letters(client: Client) -> None:
    await client.admin.create_queue("r-dead")
    await client.admin.create_queue("r", QueueConfig(dead_letter="r-dead"))
    await client.publish_batch("r", [Message(f"{i}".encode(), properties={"n": i}) for i in range(6)])
    async with await client.consume("r") as consumer:
        for _ in range(6):
            (await consumer.receive(timeout=BOUND)).reject()
        await consumer.flush(timeout=BOUND)
    await client.publish("r-dead", b"no dead letter")
    some = await client.admin.replay_dead_letters("r-dead", filter="has(properties.n) && properties.n > 3")
    assert (some.moved, some.skipped) == (2, 0)
    one = await client.admin.replay_dead_letters("r-dead", start=2, limit=1)
    assert one.moved == 1
    rest = await client.admin.replay_dead_letters("r-dead")
    assert (rest.moved, rest.skipped) == (3, 1)
    assert await bodies(client, "r", "default") == ["4", "5", "1", "0", "2", "3"]
    assert (await client.admin.replay_dead_letters("r-dead", to="r")).moved == 1
    with pytest.raises(errors.QueueNotFound):
        await client.admin.replay_dead_letters("r-none")
    with pytest.raises(errors.SubscriptionNotFound):
        await client.admin.replay_dead_letters("r-dead", subscription="none")


async def test_search(client: Client) -> None:
    for name in ("s", "s-to"):
        await client.admin.create_queue(name, timeout=BOUND)
    for n in range(30):
        await client.publish("s", Message(f'{{"n": {n}, "customer": {{"id": "{n % 3}"}}}}'.encode()), timeout=BOUND)
    seen: list[SearchProgress] = []
    found = [
        m.sequence
        async for m in client.browse(
            "s", filter='body.customer.id == "1"', newest=True, limit=3, progress=seen.append, timeout=BOUND
        )
    ]
    assert found == [29, 26, 23]
    found = [m.sequence async for m in client.browse("s", filter="body.n < 3", progress=seen.append, timeout=BOUND)]
    assert found == [1, 2, 3]
    assert (seen[-1].scanned, seen[-1].start, seen[-1].before) == (30, 31, 31)
    found = [m.sequence async for m in client.browse("s", start=5, before=7, timeout=BOUND)]
    assert found == [5, 6]
    seen.clear()
    moved = await client.admin.move_matching(
        "s", 'body.customer.id == "1"', to="s-to", progress=seen.append, timeout=BOUND
    )
    assert (moved.moved, moved.skipped, seen[-1].scanned) == (10, 0, 30)
    assert await client.admin.remove_matching("s", "body.n < 10", before=10, timeout=BOUND) == 6
    assert (await client.admin.replay_dead_letters("s", to="s-to", filter="body.n > 15", limit=4)).moved == 4
    assert len([m async for m in client.browse("s", timeout=BOUND)]) == 10
    with pytest.raises(errors.InvalidRequest, match="1:8"):
        await client.admin.remove_matching("s", "body.n =", timeout=BOUND)


async def test_move_and_remove_messages(client: Client) -> None:
    made = await client.admin.create_queue("m-from", subscriptions=["a", "b"])
    await client.admin.create_queue("m-to")
    await client.publish_batch("m-from", [str(i) for i in range(1, 11)])
    moved = await client.admin.move_messages("m-from", [1, (3, 4)], to="m-to", queue_id=made.id)
    assert (moved.moved, moved.skipped) == (3, 0)
    again = await client.admin.move_messages("m-from", [1, (3, 4)], to="m-to")
    assert (again.moved, again.skipped) == (0, 3), "each once"
    assert (await client.admin.move_messages("m-from", [5], to="m-to", subscription="a")).moved == 1
    assert await client.admin.remove_messages("m-from", [(6, 8)]) == 3
    assert await client.admin.remove_messages("m-from", [9], subscription="b") == 1
    assert await bodies(client, "m-to") == ["1", "3", "4", "5"]
    assert await bodies(client, "m-from", "a") == ["2", "9", "10"]
    assert await bodies(client, "m-from", "b") == ["2", "5", "10"]
    for wrong in ([], [0], [(2, 1)]):
        with pytest.raises(errors.InvalidRequest):
            await client.admin.move_messages("m-from", wrong, to="m-to")
    with pytest.raises(errors.LimitExceeded):
        await client.admin.remove_messages("m-from", [(1, 10_001)])
    with pytest.raises(errors.QueueNotFound):
        await client.admin.remove_messages("m-from", [2], queue_id=made.id + 1000)


async def test_queue_table(client: Client) -> None:
    for i, q in enumerate(("tbl/Aa", "tbl/bb", "tbl/cA")):
        await client.admin.create_queue(q)
        await client.publish_batch(q, [b"x"] * (i + 1))
    largest = await client.admin.queue_table("tbl/", order="messages", descending=True, limit=2)
    assert [q.name for q in largest.queues] == ["tbl/cA", "tbl/bb"]
    assert largest.total == 3
    assert largest.queues[0].activity is not None
    with_a = await client.admin.queue_table("tbl/", contains="A", offset=1)
    assert ([q.name for q in with_a.queues], with_a.total) == (["tbl/cA"], 2)
    with pytest.raises(errors.InvalidRequest, match="none of name"):
        await client.admin.queue_table(order="size")  # type: ignore[arg-type] # the mistake


async def test_connections(pair: Pair, client: Client) -> None:
    await asyncio.to_thread(pair.wait_in_sync)
    await client.admin.create_queue("conn")
    active = await client.wait_active(timeout=BOUND)
    async with steady_client(pair.addresses) as other, await other.consume("conn", timeout=BOUND) as consumer:
        (mine,) = [c async for c in client.admin.list_connections(active, queue="conn", timeout=BOUND)]
        (stream,) = mine.streams
        assert (stream.kind, stream.queues, stream.subscription) == ("consume", ("conn",), "default")
        assert "grpc-python" in mine.client
        assert not mine.peer
        closed = await client.admin.close_connection(active, mine.id, timeout=BOUND)
        assert closed.id == mine.id
        with pytest.raises(errors.WrongState):
            await client.admin.close_connection(active, mine.id, timeout=BOUND)
        await client.publish("conn", b"after", timeout=BOUND)
        d = await consumer.receive(timeout=BOUND)
        assert d.text == "after", "the consumer reconnects automatically"
        d.ack()
        everything = [c async for c in client.admin.list_connections(active, timeout=BOUND)]
        assert any(c.peer for c in everything), "the standby is connected"
    with pytest.raises(errors.InvalidRequest, match="unknown node"):
        await client.admin.close_connection("127.0.0.1:1", 1)


async def test_timed_out_call_can_be_retried(pair: Pair, client: Client, clock: Clock) -> None:
    await asyncio.to_thread(pair.wait_in_sync)
    await client.admin.create_queue("ask-again")
    await client.publish_batch("ask-again", [b"x"] * 5)
    await client.wait_active(timeout=BOUND)
    request = Request()
    nodes = client._called().locator.nodes
    attempts = sum(n.users for n in nodes)
    for address in pair.addresses:  # if only the active were stopped, the other node might take over and respond
        pair.signal(address, signal.SIGSTOP)
    try:
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(
                client.admin.purge_queue("ask-again", request=request, timeout=TIMEOUT),
                until(lambda: sum(n.users for n in nodes) > attempts),
            )
        with pytest.raises(errors.InvalidRequest, match="in use for another call"):
            await client.admin.delete_queue("ask-again", request=request)
    finally:
        for address in pair.addresses:
            pair.signal(address, signal.SIGCONT)
    await client.publish("ask-again", b"later", timeout=BOUND)
    purged = await client.admin.purge_queue("ask-again", request=request, timeout=BOUND)
    assert purged in {5, 6}, "the first attempt was executed before the publish, or not at all"
    assert len(await bodies(client, "ask-again", "default")) == 6 - purged, "no other attempt was executed"
    with pytest.raises(errors.InvalidRequest, match="already executed"):
        await client.admin.purge_queue("ask-again", request=request)
    await asyncio.to_thread(pair.wait_in_sync)


async def test_retry_with_same_request_keeps_sequence(clock: Clock) -> None:
    async def purge(n: int, context: Context) -> queue_pb2.PurgeQueueResponse:
        if n == 1:
            await asyncio.Event().wait()  # the client times out
        if n == 2:
            await abort(context, grpc.StatusCode.NOT_FOUND, "QUEUE_NOT_FOUND")
        return queue_pb2.PurgeQueueResponse(messages=7)

    async with Node() as node, steady_client([node.address]) as client, steady_client([node.address]) as other:
        node.on_purge, request = purge, Request()
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(
                client.admin.purge_queue("q", request=request, timeout=TIMEOUT), until(lambda: node.purges)
            )
        for wrong in (
            client.admin.purge_queue("another", request=request),
            client.admin.delete_queue("q", request=request),
            other.admin.purge_queue("q", request=request),
        ):
            with pytest.raises(errors.InvalidRequest, match="in use for another call"):
                await wrong
        with pytest.raises(errors.OutcomeUnknown) as caught:  # the first attempt may have been committed before
            await client.admin.purge_queue("q", request=request, timeout=BOUND)
        assert isinstance(caught.value.refusal, errors.QueueNotFound)
        assert await client.admin.purge_queue("q", request=request, timeout=BOUND) == 7
        await client.admin.purge_queue("q", timeout=BOUND)
        sent = [p.producer for p in node.purges]
        assert len({p.id for p in sent}) == 1
        assert [(p.sequence, p.retry) for p in sent] == [(1, False), (1, True), (1, True), (2, False)]


async def test_replay_with_unknown_outcome_is_not_retried() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        with pytest.raises(errors.OutcomeUnknown):
            await client.admin.replay_dead_letters("q", timeout=BOUND)
        assert node.replays == 2, "only the attempt that a standby refused is retried"
        assert (await client.admin.replay_dead_letters("q", timeout=BOUND)).moved == 3


async def test_transaction_with_unknown_outcome(clock: Clock) -> None:
    async def silent(_: int, context: Context) -> queue_pb2.CommitResponse:
        await asyncio.Event().wait()
        return queue_pb2.CommitResponse()

    async with Node() as node, steady_client([node.address]) as client:
        node.on_commit = silent
        t = client.transaction().publish("q", b"1")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(t.commit(timeout=TIMEOUT), until(lambda: node.commits))
        with pytest.raises(errors.InvalidRequest, match=r"commit\(\) is unknown"):
            await t.prepare("xid", timeout=BOUND)
