# SPDX-License-Identifier: Apache-2.0
"""Outcomes of batched publishes, of rejects that wait for space, and of closed consumers, with a real pair."""

from __future__ import annotations

import asyncio

import pytest
from waiting import BOUND

from lockstep_mq import Client, QueueConfig, Receipt, errors
from lockstep_mq import consumer as consumer_module


async def outcomes(client: Client, queue: str, bodies: list[bytes]) -> list[Receipt | BaseException]:
    async with client.producer() as producer:
        futures = [await producer.send(queue, b) for b in bodies]
        return await asyncio.gather(*futures, return_exceptions=True)


async def test_publishes_have_separate_outcomes(client: Client) -> None:
    """A full queue accepts messages up to its limit, in order; with drop-head, it accepts all and keeps the newest."""
    await client.admin.create_queue("five", QueueConfig(max_messages=5))
    got = await outcomes(client, "five", [b"%d" % i for i in range(8)])
    assert [isinstance(r, Receipt) for r in got] == [True] * 5 + [False] * 3
    assert all(isinstance(r, errors.LimitExceeded) for r in got[5:])
    await client.admin.create_queue("ring", QueueConfig(max_messages=1, overflow="drop-head"))
    got = await outcomes(client, "ring", [b"%d" % i for i in range(50)])
    assert all(isinstance(r, Receipt) for r in got)
    async with await client.consume("ring") as consumer:
        assert (await consumer.receive(timeout=BOUND)).body == b"49"


async def test_reject_waits_for_space(client: Client) -> None:
    """A reject that waits for space in the dead-letter queue does not delay other answers; flush() raises it once."""
    await client.admin.create_queue("full.dead", QueueConfig(max_messages=1))
    await client.publish("full.dead", b"in the way")
    await client.admin.create_queue("full", QueueConfig(dead_letter="full.dead"))
    for i in range(3):
        await client.publish("full", b"%d" % i)
    consumer = await client.consume("full")
    got = [await consumer.receive(timeout=BOUND) for _ in range(3)]
    got[0].reject()
    await got[1].ack_confirmed(timeout=BOUND)
    with pytest.raises(errors.LimitExceeded):
        await consumer.flush(timeout=BOUND)
    got[2].ack()
    await consumer.flush(timeout=BOUND)
    await consumer.close()


async def test_unreceived_messages_are_not_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """close() requeues messages that the application has not received, and does not count them as delivered."""
    monkeypatch.setattr(consumer_module, "_CLOSE_WAIT", BOUND)
    await client.admin.create_queue("seen")
    for i in range(20):
        await client.publish("seen", b"%d" % i)
    for turn in range(2):
        consumer = await client.consume("seen")
        first = await consumer.receive(timeout=BOUND)
        assert (first.sequence, first.delivery_count) == (1, turn)
        await consumer.close()
    async with await client.consume("seen") as consumer:
        counts = [(await consumer.receive(timeout=BOUND)).delivery_count for _ in range(20)]
    assert counts == [2] + [0] * 19
