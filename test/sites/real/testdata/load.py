# SPDX-License-Identifier: Apache-2.0
"""Publish to two queues alternately, and consume one of them, until the input ends.

Usage: load.py ADDRESSES KEPT WORK

A line on the input stops the publishes. The program writes lines with a word and numbers:

    published QUEUE NUMBER SEQUENCE     receipt of a publish
    stopped                             all publishes have a receipt
    delivered SEQUENCE NUMBER           message received from WORK
    confirmed SEQUENCE                  acknowledgement of a message is confirmed
"""

from __future__ import annotations

import asyncio
import os
import sys

from lockstep_mq import Client, Receipt

INTERVAL = 0.005  # seconds between publishes
BODY = 512
BATCH = 20  # acknowledgements per flush


def write_line(*words: object) -> None:
    """Write the words as a line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def publish(client: Client, queues: list[str], stop: asyncio.Event) -> None:
    """Publish numbered messages until stop is set, and report the receipts in the order of the publishes."""
    receipts: asyncio.Queue[tuple[str, int, asyncio.Future[Receipt]] | None] = asyncio.Queue()

    async def report() -> None:
        while (sent := await receipts.get()) is not None:
            queue, n, future = sent
            receipt = await future
            write_line("published", queue, n, receipt.sequence)

    reporter = asyncio.create_task(report())
    async with client.producer() as producer:
        n = 0
        while not stop.is_set() and not reporter.done():
            queue, number = queues[n % len(queues)], f"{n}:".encode()
            body = number + os.urandom(BODY - len(number))
            await receipts.put((queue, n, await producer.send(queue, body)))
            n += 1
            await asyncio.sleep(INTERVAL)
        await receipts.put(None)
        await reporter
    write_line("stopped")


async def consume(client: Client, queue: str) -> None:
    """Acknowledge messages."""
    async with await client.consume(queue) as consumer:
        while True:
            batch = await consumer.receive_batch(BATCH)
            for d in batch:
                write_line("delivered", d.sequence, int(d.body.split(b":", 1)[0]))
                d.ack()
            await consumer.flush()
            for d in batch:
                write_line("confirmed", d.sequence)


async def main(addresses: str, kept: str, work: str) -> None:
    """Run until the input ends, or a task fails."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    stop = asyncio.Event()

    async def read_input() -> None:
        while await stdin.readline():
            stop.set()

    async with Client(addresses) as client:
        publishing = asyncio.create_task(publish(client, [kept, work], stop))
        consuming = asyncio.create_task(consume(client, work))
        ending = asyncio.create_task(read_input())
        while not ending.done():
            running = {t for t in (publishing, consuming, ending) if not t.done()}
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises the error of a task
        for task in (publishing, consuming):
            task.cancel()
        await asyncio.gather(publishing, consuming, return_exceptions=True)


asyncio.run(main(*sys.argv[1:]))
