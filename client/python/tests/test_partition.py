# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta

import pytest

from lockstep_mq import (
    Client,
    InvalidRequest,
    Message,
    QueueConfig,
    QueueNotFound,
    Reject,
    WrongState,
    partition,
    partition_name,
)

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
    with pytest.raises(WrongState) as refused:
        await client.admin.get_queue("parted.half")
    assert (refused.value.reason, refused.value.partitions) == ("QUEUE_PARTITIONED", 3)
    for i in range(3):
        await client.admin.delete_queue(partition_name("parted.half", i, 3))
    await client.admin.create_queue("parted.half")
    with pytest.raises(QueueNotFound):
        await client.publish(partition_name("parted.half", 0, 3), b"")
    await (await client.consume("parted.half")).close()
