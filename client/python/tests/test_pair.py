# SPDX-License-Identifier: Apache-2.0
"""Tests with a real pair; some kill the active."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from pair import Pair
from waiting import BOUND, TIMEOUT, Clock, until

from lockstep_mq import Client, Delivery, Message, PreparedQueue, QueueConfig, Receipt, Reject, errors
from lockstep_mq import client as client_module
from lockstep_mq import consumer as consumer_module
from lockstep_mq.message import Value


async def test_no_loss_or_duplicates_with_killed_active(pair: Pair) -> None:
    """The active is killed while a producer publishes to two queues and consumers acknowledge.

    Each message is stored once, in order.
    """
    total, queues = 4000, ("kill", "kill-too")
    await asyncio.to_thread(pair.wait_in_sync)
    async with Client(pair.addresses) as client:
        for q in queues:
            await client.admin.create_queue(q, subscriptions=["default", "audit"])
        active = await client.wait_active(timeout=BOUND)
        duplicates = 0
        seen: dict[str, list[int]] = {q: [] for q in queues}

        async def consume(queue: str) -> None:
            async with await client.consume(queue) as consumer:
                while len(seen[queue]) < total // 2:
                    for d in await consumer.receive_batch(100, timeout=BOUND):
                        seen[queue].append(int(d.text))
                        d.ack()

        consuming = [asyncio.create_task(consume(q)) for q in queues]
        async with client.producer() as producer:
            futures: list[asyncio.Future[Receipt]] = []
            killing: asyncio.Task[None] | None = None
            for i in range(total):
                if i == total // 3:
                    await asyncio.wait_for(asyncio.shield(futures[0]), BOUND)
                    killing = asyncio.create_task(asyncio.to_thread(pair.kill, active))
                if i == 2 * total // 3:
                    assert killing is not None
                    await killing
                futures.append(await producer.send(queues[i % 2], str(i)))
                if i % 50 == 0:
                    await asyncio.sleep(0.005)  # publishes are in progress when the active is killed
        receipts = [f.result() for f in futures]
        duplicates = sum(r.duplicate for r in receipts)
        await asyncio.wait_for(asyncio.gather(*consuming), BOUND)

        for n, q in enumerate(queues):
            of_queue, expected = receipts[n::2], list(range(n, total, 2))
            assert sorted(r.sequence for r in of_queue) == [r.sequence for r in of_queue], "in the order of the calls"
            stored = [int(m.text) async for m in client.browse(q, subscription="audit")]
            assert stored == expected, "stored once each, in order"
            assert sorted(seen[q]) == expected, "delivered once each, without another consumer"
            left = (await client.admin.get_queue(q, timeout=BOUND)).subscriptions
            assert {s.name: s.backlog for s in left} == {"default": 0, "audit": total // 2}
        print(f"{duplicates} of {total} were returned as duplicates")
    await asyncio.to_thread(pair.wait_in_sync)


async def test_transactions_while_the_active_is_killed(pair: Pair) -> None:
    total = 60
    await asyncio.to_thread(pair.wait_in_sync)
    async with Client(pair.addresses) as client:
        for q in ("chain-in", "chain-out"):
            await client.admin.create_queue(q)
        await client.publish_batch("chain-in", [str(i) for i in range(total)])
        killing: asyncio.Task[None] | None = None
        async with await client.consume("chain-in", prefetch=10) as consumer:
            for i in range(total):
                if i == total // 3:
                    active = await client.wait_active(timeout=BOUND)
                    killing = asyncio.create_task(asyncio.to_thread(pair.kill, active))
                d = await consumer.receive(timeout=BOUND)
                async with client.transaction(timeout=BOUND) as t:
                    t.take(d).publish("chain-out", d.text)
        assert killing is not None
        await killing
        out = [int(m.text) async for m in client.browse("chain-out", timeout=BOUND)]
        assert out == list(range(total))
    await asyncio.to_thread(pair.wait_in_sync)


async def test_failed_transaction_releases_messages(client: Client) -> None:
    for q in ("t-in", "t-out"):
        await client.admin.create_queue(q)
    await client.publish("t-in", b"1")
    async with await client.consume("t-in") as consumer:
        d = await consumer.receive(timeout=BOUND)
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as t:
                t.take(d).publish("t-out", b"2")
                raise ZeroDivisionError
        again = await consumer.receive(timeout=BOUND)
        assert again.delivery_count == 1
        await again.ack_confirmed(timeout=BOUND)
        with pytest.raises(errors.Processed):
            await client.transaction().take(again).publish("t-out", b"3").commit(timeout=BOUND)
    assert (await client.admin.get_queue("t-out")).messages == 0


async def test_rollback_requeues_all_deliveries(client: Client) -> None:
    """A rollback requeues the deliveries of take(), ack() and release(), but not one that was answered before."""
    await client.admin.create_queue("rolled-back")
    await client.publish_batch("rolled-back", ["taken", "acked", "released", "answered"])
    async with await client.consume("rolled-back") as consumer:
        ds = {d.text: d for d in [await consumer.receive(timeout=BOUND) for _ in range(4)]}
        await ds["answered"].ack_confirmed(timeout=BOUND)
        t = client.transaction().take(ds["taken"]).ack(ds["acked"], ds["answered"]).release(ds["released"])
        t.rollback()
        again = [await consumer.receive(timeout=BOUND) for _ in range(3)]
        assert sorted((d.text, d.delivery_count) for d in again) == [("acked", 1), ("released", 1), ("taken", 1)]
        for d in again:
            await d.ack_confirmed(timeout=BOUND)
    assert (await client.admin.get_queue("rolled-back")).messages == 0


async def test_two_phases(client: Client) -> None:
    await client.admin.create_queue("2pc")
    for xid, decide in (("tx-1", client.admin.commit_prepared), ("tx-2", client.admin.rollback_prepared)):
        await client.transaction().publish("2pc", xid).prepare(xid, timeout=BOUND)
        (waits,) = [x async for x in client.admin.list_prepared()]
        assert (waits.xid, waits.queues) == (xid, (PreparedQueue("2pc", publishes=1, acks=0),))
        assert not await decide(xid, timeout=BOUND)
        assert not await decide(xid, timeout=BOUND)
    assert [m.text async for m in client.browse("2pc")] == ["tx-1"]
    with pytest.raises(errors.Decided):
        await client.admin.rollback_prepared("tx-1")
    with pytest.raises(errors.NoTransaction):
        await client.admin.commit_prepared("tx-3")


async def test_message_fields_round_trip(client: Client) -> None:
    await client.admin.create_queue("fields")
    properties: dict[str, Value] = {"text": "eu", "yes": True, "whole": -(1 << 63), "number": 0.5, "raw": b"\x00\xff"}
    later = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)
    sent = Message(
        body=b"\x00body",
        properties=properties,
        message_id="m",
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        subject="s",
        group="g",
        priority=0,
        expires_at=later,
    )
    await client.publish("fields", sent)
    (got,) = [m async for m in client.browse("fields")]
    assert got.message() == sent
    assert type(got.properties["yes"]) is bool
    assert abs((datetime.now(timezone.utc) - got.published_at).total_seconds()) < BOUND


async def test_message_limits(client: Client) -> None:
    await client.admin.create_queue("limits")
    wrong: list[Message] = [
        Message(b"", properties={"": "x"}),
        Message(b"", properties={"k" * 256: "x"}),
        Message(b"", properties={"k": 1 << 63}),
        Message(b"", priority=10),
        Message(b"", ttl=timedelta(1), expires_at=datetime.now(timezone.utc)),
        Message(b"", deliver_at=datetime.now()),  # no time zone
    ]
    for m in wrong:
        with pytest.raises(errors.InvalidRequest):
            await client.publish("limits", m)
    with pytest.raises(errors.LimitExceeded):
        await client.publish("limits", bytes((64 << 20) + 1))
    with pytest.raises(errors.InvalidRequest):
        await client.publish_batch("limits", [])
    with pytest.raises(errors.QueueNotFound):
        await client.publish("not-there", b"")
    with pytest.raises(errors.QueueNotFound):
        await client.consume("not-there", timeout=BOUND)
    with pytest.raises(errors.InvalidRequest):
        await client.admin.create_queue("no spaces", timeout=BOUND)
    assert (await client.admin.get_queue("limits")).messages == 0


async def test_large_messages(client: Client) -> None:
    await client.admin.create_queue("large")
    body = bytes(range(256)) * (6 << 12)  # 6 MiB
    await client.publish("large", body)
    assert [m.body async for m in client.browse("large")] == [body]
    async with await client.consume("large") as consumer:
        d = await consumer.receive(timeout=BOUND)
        assert d.body == body
        d.ack()


async def test_queues(client: Client) -> None:
    config = QueueConfig(
        max_messages=10, ttl=timedelta(hours=1), overflow="drop-head", priorities=True, redelivery_multiplier=2.5
    )
    made = await client.admin.create_queue("admin/a", config, subscriptions=["one", "two"])
    assert made.config == config
    assert [s.name for s in made.subscriptions] == ["one", "two"]
    with pytest.raises(errors.AlreadyExists):
        await client.admin.create_queue("admin/a")
    await client.admin.create_queue("admin/a", if_not_exists=True)
    altered = await client.admin.alter_queue("admin/a", QueueConfig(max_messages=5), ["max_messages"])
    assert altered.config.max_messages == 5
    assert altered.config.ttl == config.ttl
    await client.admin.create_queue("admin/b", topic=True)
    assert [q.name async for q in client.admin.list_queues("admin/")] == ["admin/a", "admin/b"]
    await client.publish_batch("admin/a", [str(i) for i in range(4)])
    s = await client.admin.create_subscription("admin/a", "late", start="earliest", filter="size == 1")
    assert (s.name, s.backlog, s.filter) == ("late", 4, "size == 1")
    assert await client.admin.seek("admin/a", 3, subscription="late") == 3
    await client.admin.delete_subscription("admin/a", "late")
    assert await client.admin.purge_queue("admin/a", "one") == 4
    assert await client.admin.delete_queue("admin/a") == 4
    with pytest.raises(errors.QueueNotFound):
        await client.admin.get_queue("admin/a")


async def test_run_answers_by_handler_result(client: Client) -> None:
    for q in ("run-dead", "run"):
        config = QueueConfig(dead_letter="run-dead") if q == "run" else QueueConfig()
        await client.admin.create_queue(q, config, timeout=BOUND)
    await client.publish_batch("run", ["fine", "broken", "later"], timeout=BOUND)
    seen: list[str] = []
    async with await client.consume("run", timeout=BOUND) as consumer:

        async def handle(d: Delivery) -> None:
            seen.append(d.text)
            if d.text == "broken":
                raise Reject
            if d.text == "later" and d.delivery_count == 0:
                raise ValueError(d.text)
            if len(seen) == 4:
                closing.set()

        closing = asyncio.Event()
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await asyncio.wait_for(closing.wait(), BOUND)
        await consumer.flush(timeout=BOUND)
        await consumer.close()
        await asyncio.wait_for(running, BOUND)
    assert sorted(seen) == ["broken", "fine", "later", "later"]
    assert (await client.admin.get_queue("run", timeout=BOUND)).messages == 0
    assert [m.text async for m in client.browse("run-dead")] == ["broken"]


async def test_status_and_switchover(pair: Pair, client: Client) -> None:
    await asyncio.to_thread(pair.wait_in_sync)
    status = await client.admin.status(timeout=BOUND)
    assert set(status) == set(pair.addresses)
    assert not [s for s in status.values() if isinstance(s, errors.LockstepError)]
    before = after = ""
    while not after:
        before = await client.wait_active(timeout=BOUND)
        try:
            after = await client.admin.switchover(timeout=BOUND)
        except errors.WrongState as err:  # on a slow machine, the coordinator may be electing a leader
            assert err.reason == "SWITCHOVER"
            await asyncio.to_thread(pair.wait_in_sync)
    assert after != before
    while await client.wait_active(timeout=BOUND) != after:
        await asyncio.sleep(0.01)
    await client.admin.create_queue("after-switchover", timeout=BOUND)
    await asyncio.to_thread(pair.wait_in_sync)


async def test_request_and_reply(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_DELETE_WAIT", BOUND)
    monkeypatch.setattr(consumer_module, "_CLOSE_WAIT", BOUND)
    await client.admin.create_queue("ask")

    async def asked() -> None:
        while (await client.admin.get_queue("ask")).messages == 0:
            await asyncio.sleep(0.005)
        await client._producer().flush()

    with pytest.raises(TimeoutError):
        await clock.expire(client.request("ask", b"?", timeout=TIMEOUT), asked())

    async def serve() -> None:
        async with await client.consume("ask") as questions:
            async for q in questions:
                await client.reply(q, q.body + b"!")

    task = asyncio.create_task(serve())
    answers = await asyncio.gather(*(client.request("ask", f"{i}", timeout=BOUND) for i in range(5)))
    assert [a.text for a in answers] == [f"{i}!" for i in range(5)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [q.name async for q in client.admin.list_queues("request/")] == [], "reply queues are deleted"


async def test_cancelled_consumer_releases_messages(pair: Pair) -> None:
    client = Client(pair.addresses)
    await client.admin.create_queue("cancel", timeout=BOUND)
    await client.publish_batch("cancel", [str(i) for i in range(10)])
    held: list[Delivery] = []

    async def work() -> None:
        async with await client.consume("cancel") as consumer:
            async for d in consumer:
                held.append(d)  # noqa: PERF401 # read concurrently

    task = asyncio.create_task(work())
    await until(lambda: len(held) == 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with await client.consume("cancel", timeout=BOUND) as again:
        for _ in range(10):
            d = await again.receive(timeout=BOUND)
            assert d.delivery_count == 1
            d.ack()
    assert (await client.admin.get_queue("cancel")).messages == 0
    await client.close()
    await client.close()
    with pytest.raises(errors.Closed):
        await client.publish("cancel", b"")
    # gRPC has its own tasks, which end shortly afterwards.
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_unreachable_addresses() -> None:
    async with Client(["127.0.0.1:1", "127.0.0.1:2"]) as client:
        with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:1"):
            await client.publish("q", b"", timeout=0.5)
