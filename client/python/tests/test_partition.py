# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta

import grpc
import pytest
from scripted import Context, Node, abort
from waiting import steady_client

from lockstep_mq import (
    AlreadyExists,
    Client,
    InvalidRequest,
    Message,
    NotEmpty,
    Processed,
    QueueConfig,
    QueueNotFound,
    RedeliveryPolicy,
    Reject,
    Request,
    SubscriptionNotFound,
    WrongState,
    partition,
    partition_name,
)
from lockstep_mq._proto import types_pb2

VECTORS = {
    "a": (1, 2, 58),
    "b": (0, 1, 28),
    "customer-7": (0, 0, 0),
    "customer-8": (1, 1, 36),
    "0123456789abcdef": (0, 1, 26),
    "größe": (0, 1, 22),
}


@pytest.mark.parametrize("group", VECTORS)
def test_vectors(group: str) -> None:
    """The partitions are those of docs/reference/protocol.md and of the Go client."""
    assert tuple(partition(group, count) for count in (2, 3, 64)) == VECTORS[group]


@pytest.mark.parametrize(
    ("queue", "group"), [("orders{eu}", ""), ("orders", "dead#1/2"), ("orders{}", "dead#1/2"), ("orders{", "dead#1/2")]
)
async def test_placement_group(queue: str, group: str) -> None:
    """Without a tag in the name, the default of the placement group is the partition of the dead-letter queue."""

    async def lookup(name: str, context: Context) -> None:
        if name == "dead":
            detail = types_pb2.QueuePartitioned(queue=name, count=2)
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "QUEUE_PARTITIONED", details=[detail])

    async with Node() as node, steady_client([node.address]) as client:
        node.on_lookup = lookup
        await client.admin.create_queue(queue, QueueConfig(dead_letter="dead"), partitions=2)
        assert [r.config.dead_letter for r in node.creates] == ["dead#0/2", "dead#1/2"]
        assert node.creates[1].placement_group == group


async def test_publish_and_consume(client: Client) -> None:
    count, groups, messages = 4, 10, 20
    await client.admin.create_queue("parted", partitions=count)
    async with client.producer() as producer:
        futures = [
            await producer.send("parted", Message(str(i).encode(), group=f"g{g}"))
            for i in range(messages)
            for g in range(groups)
        ]
        await producer.flush()
        assert all(f.result().sequence for f in futures)
        assert futures[0].result().partition == partition_name("parted", partition("g0", count), count)
        with pytest.raises(InvalidRequest):
            await producer.publish_batch("parted", [Message(b"", group="a"), Message(b"", group="b")])
    received: dict[str, list[int]] = defaultdict(list)
    async with await client.consume("parted", prefetch=20) as consumer:
        for _ in range(groups * messages):
            d = await consumer.receive(timeout=30)
            assert d.queue == "parted"
            assert d.partition == partition_name("parted", partition(d.group, count), count)
            received[d.group].append(int(d.body))
            d.ack()
        await consumer.flush()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.01)
        await client.publish("parted", b"without group")
        assert [d.body for d in await consumer.receive_batch(timeout=30)] == [b"without group"]
    assert received == {f"g{g}": list(range(messages)) for g in range(groups)}


async def test_run(client: Client) -> None:
    await client.admin.create_queue("parted.dead", partitions=2)
    await client.admin.create_queue(
        "parted.run", QueueConfig(dead_letter="parted.dead", ack_timeout=timedelta(minutes=1)), partitions=2
    )
    for i in range(10):
        await client.publish("parted.run", Message(str(i).encode(), group=str(i)))
    rejected = asyncio.Event()
    seen = []

    async def handle(d: object) -> None:
        seen.append(d)
        if len(seen) == 10:
            rejected.set()
        raise Reject

    consumer = await client.consume("parted.run")
    assert consumer.ack_timeout == timedelta(minutes=1)
    running = asyncio.create_task(consumer.run(handle, concurrency=3))
    await rejected.wait()
    await consumer.flush()
    await consumer.close()
    await running
    dead = await client.consume("parted.dead")
    assert {(await dead.receive(timeout=30)).group for _ in range(10)} == {str(i) for i in range(10)}
    await dead.close()


async def test_interrupted_creation(client: Client) -> None:
    await client.admin.create_queue(partition_name("parted.half", 1, 3))
    with pytest.raises(WrongState) as refused:
        await client.admin.create_queue("parted.half", partitions=2)
    assert refused.value.reason == "PARTITIONS_DIFFER"
    with pytest.raises(QueueNotFound):
        await client.consume("parted.half")
    await client.admin.create_queue("parted.half", partitions=3)
    with pytest.raises(AlreadyExists):
        await client.admin.create_queue("parted.half", partitions=3)
    with pytest.raises(WrongState) as refused:
        await client.admin.move_messages("parted.half", [1], to="parted.half")
    assert (refused.value.reason, refused.value.partitions) == ("QUEUE_PARTITIONED", 3)
    assert refused.value.partitioned_queue == "parted.half"
    await client.admin.delete_queue("parted.half")
    await client.admin.create_queue("parted.half")
    with pytest.raises(QueueNotFound):
        await client.publish(partition_name("parted.half", 0, 3), b"")
    await (await client.consume("parted.half")).close()


async def test_admin(client: Client) -> None:
    admin, count = client.admin, 3
    names = [partition_name("parted.admin", i, count) for i in range(count)]
    await admin.create_queue("parted.bin", partitions=count)
    created = await admin.create_queue("parted.admin", QueueConfig(max_messages=100), partitions=count)
    assert (created.name, created.id, [p.name for p in created.partitions]) == ("parted.admin", 0, names)
    for i in range(12):
        await client.publish("parted.admin", Message(b"1234", group=f"g{i}"))
    q = await admin.get_queue("parted.admin")
    assert (q.name, q.messages, sum(p.messages for p in q.partitions)) == ("parted.admin", 12, 12)
    assert [(s.name, s.backlog) for s in q.subscriptions] == [("default", 12)]
    assert [o.name async for o in admin.list_queues("parted.admin")] == names

    altered = await admin.alter_queue("parted.admin", QueueConfig(dead_letter="parted.bin"), ["dead_letter"])
    assert altered.config.dead_letter == "parted.bin"
    assert altered.config.max_messages == 100
    for i, name in enumerate(names):
        assert (await admin.get_queue(name)).config.dead_letter == partition_name("parted.bin", i, count)
    paused = await admin.pause_queue("parted.admin", deliver=True, reason="why")
    assert [p.pause is not None and p.pause.reason for p in paused.partitions] == ["why"] * count
    assert (await admin.resume_queue("parted.admin")).pause is None

    s = await admin.create_subscription("parted.admin", "s", start="earliest")
    assert (s.name, s.backlog) == ("s", 12)
    await admin.delete_subscription(names[1], "s")
    assert (await admin.create_subscription("parted.admin", "s", start="earliest")).backlog == 12
    changed = await admin.alter_subscription("parted.admin", "s", redelivery=RedeliveryPolicy(max_deliveries=7))
    assert changed.redelivery.max_deliveries == 7
    assert await admin.purge_queue("parted.admin", "s") == 12
    assert await admin.seek("parted.admin", "earliest", subscription="s") == 0
    with pytest.raises(WrongState):
        await admin.seek("parted.admin", 1, subscription="s")
    assert await admin.purge_queue("parted.admin", "s") == 12
    await admin.delete_subscription(names[0], "s")
    await admin.delete_subscription("parted.admin", "s")

    with pytest.raises(NotEmpty):
        await admin.delete_queue("parted.admin", if_empty=True)
    assert len((await admin.get_queue("parted.admin")).partitions) == count
    assert await admin.purge_queue("parted.admin") == 12
    await admin.delete_queue(names[0])
    assert [p.name for p in (await admin.get_queue("parted.admin")).partitions] == names[1:]
    await admin.delete_queue("parted.admin", if_empty=True)
    with pytest.raises(QueueNotFound):
        await admin.get_queue("parted.admin")


async def test_admin_with_request(client: Client) -> None:
    """A retry with the same Request continues with the partitions that have not been changed."""
    create, purge = Request(), Request()
    await client.admin.create_queue("parted.again", partitions=2, request=create)
    for i in range(10):
        await client.publish("parted.again", Message(b"x", group=f"g{i}"))
    assert await client.admin.purge_queue("parted.again", request=purge) == 10
    with pytest.raises(InvalidRequest):
        await client.admin.purge_queue("parted.again", request=purge)
    missing = Request()
    first, second = (partition_name("parted.again", i, 2) for i in range(2))
    await client.admin.create_subscription(first, "s", start="earliest")
    with pytest.raises(SubscriptionNotFound):
        await client.admin.purge_queue("parted.again", "s", request=missing)
    await client.publish(first, b"later")
    await client.admin.create_subscription(second, "s", start="earliest")
    assert await client.admin.purge_queue("parted.again", "s", request=missing) == 0
    assert [s.backlog for s in (await client.admin.get_queue(first)).subscriptions if s.name == "s"] == [1]


async def test_replay(client: Client) -> None:
    await client.admin.create_queue("parted.target")
    await client.admin.create_queue("parted.letters", partitions=2)
    for i in range(6):
        await client.publish("parted.letters", Message(b"x", group=f"g{i}"))
    assert (await client.admin.replay_dead_letters("parted.letters", to="parted.target", limit=5)).moved == 5
    assert (await client.admin.replay_dead_letters("parted.letters", to="parted.target")).moved == 1
    assert (await client.admin.get_queue("parted.target")).messages == 6


async def test_transaction(client: Client) -> None:
    count = 4
    for name in ("parted.in", "parted.out"):
        await client.admin.create_queue(name, partitions=count)
    await client.admin.create_queue("parted.log")
    await client.publish("parted.in", Message(b"order", group="g7"))
    async with await client.consume("parted.in") as consumer:
        d = await consumer.receive(timeout=30)
        groups = ["a", "b", "customer-8", "a"]
        assert len({partition(g, count) for g in groups}) == 3
        async with client.transaction() as t:
            t.take(d)
            t.publish("parted.log", b"log")
            t.publish("parted.out", *(Message(g.encode(), group=g) for g in groups), Message(b"none"))
        assert t.result is not None
        assert [(r.first_sequence > 0, r.changed, r.discarded) for r in t.result.results] == [
            (False, 1, 0),
            (True, 0, 0),
            (True, 0, 0),
        ]
        again = client.transaction()
        again.take(d)
        with pytest.raises((InvalidRequest, Processed)):
            await again.commit()
    stored = {p.name: p.messages for p in (await client.admin.get_queue("parted.out")).partitions}
    expected = dict.fromkeys((partition_name("parted.out", i, count) for i in range(count)), 0)
    for g in groups:
        expected[partition_name("parted.out", partition(g, count), count)] += 1
    expected[d.partition.replace("parted.in", "parted.out")] += 1  # the message without a group
    assert stored == expected
    assert (await client.admin.get_queue("parted.in")).messages == 0

    prepared = client.transaction()
    prepared.publish("parted.out", Message(b"p", group="a"), Message(b"p", group="b"))
    await prepared.prepare("parted-1")
    assert (await client.admin.get_queue("parted.out")).messages == 5
    await client.admin.commit_prepared("parted-1")
    assert (await client.admin.get_queue("parted.out")).messages == 7
