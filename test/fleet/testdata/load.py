# SPDX-License-Identifier: Apache-2.0
"""Publish to queues alternately, or consume from them, until the input ends or contains a line.

Usage: load.py publish ADDRESSES INTERVAL QUEUE...
       load.py consume ADDRESSES SUBSCRIPTION PREFETCH FLUSH_INTERVAL NACK_INTERVAL QUEUE...

publish writes a line for each receipt, in the order of the publishes:

    published QUEUE NUMBER SEQUENCE LSN ADDRESS

consume acknowledges each message, but nacks one of NACK_INTERVAL messages at its first delivery. It writes:

    delivered QUEUE SEQUENCE DELIVERY_COUNT ack|nack BODY
    confirmed QUEUE NUMBER  (the first acknowledgements without a confirmation, in the order of the deliveries)
    refused QUEUE           (all acknowledgements without a confirmation)

The last line is "stopped": all publishes have a receipt. SIGUSR1 writes the stacks of all tasks to standard error.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from lockstep_mq import Client, Consumer, LockstepError, Receipt

BODY = 200


def write_line(*words: object) -> None:
    """Write the words as a line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def publish(client: Client, interval: float, queues: list[str], stop: asyncio.Event) -> None:
    """Publish numbered messages until stop is set."""
    receipts: asyncio.Queue[tuple[str, int, asyncio.Future[Receipt]] | None] = asyncio.Queue()

    async def report() -> None:
        while (sent := await receipts.get()) is not None:
            queue, n, future = sent
            r = await future
            write_line("published", queue, n, r.sequence, r.lsn, r.address)

    reporter = asyncio.create_task(report())
    async with client.producer() as producer:
        n = 0
        while not stop.is_set() and not reporter.done():
            queue, body = queues[n % len(queues)], f"python:{n}:".encode().ljust(BODY, b"x")
            await receipts.put((queue, n, await producer.send(queue, body)))
            n += 1
            await asyncio.sleep(interval)
        await receipts.put(None)
        await reporter


class QueueConsumer:
    """A consumer of a queue."""

    def __init__(self, queue: str, nack_interval: int) -> None:
        self.queue, self.nack_interval = queue, nack_interval
        self.open = 0  # acknowledgements without a confirmation
        self.newest = self.first = 0  # highest sequence, number of first deliveries

    async def receive(self, consumer: Consumer) -> None:
        """Answer messages."""
        while True:
            d = await consumer.receive()
            first = d.sequence > self.newest
            self.newest, self.first = max(self.newest, d.sequence), self.first + first
            nack = first and self.first % self.nack_interval == 0
            write_line("delivered", self.queue, d.sequence, d.delivery_count, "nack" if nack else "ack", d.text)
            if nack:
                d.nack()
            else:
                self.open += 1
                d.ack()

    async def flush(self, consumer: Consumer, interval: float) -> None:
        """Wait for confirmations. After an error, no open acknowledgement is confirmed."""
        while True:
            await asyncio.sleep(interval)
            n = self.open
            try:
                await consumer.flush()
            except LockstepError:
                write_line("refused", self.queue)
                self.open = 0
            else:
                write_line("confirmed", self.queue, n)
                self.open -= n

    async def run(self, client: Client, subscription: str, prefetch: int, interval: float) -> None:
        """Consume until the task is canceled."""
        consumer = await client.consume(self.queue, subscription=subscription, prefetch=prefetch)
        await asyncio.gather(self.receive(consumer), self.flush(consumer, interval))


async def consume(client: Client, stop: asyncio.Event, args: list[str]) -> None:
    """Consume until stop is set."""
    subscription, prefetch, interval, nack_interval, *queues = args
    tasks = [
        asyncio.create_task(
            QueueConsumer(q, int(nack_interval)).run(client, subscription, int(prefetch), float(interval))
        )
        for q in queues
    ]
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def main(command: str, addresses: str, *args: str) -> None:
    """Run until the input ends."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    stop = asyncio.Event()

    def write_stacks() -> None:
        for task in asyncio.all_tasks():
            for frame in task.get_stack():
                sys.stderr.write(f"{task.get_name()}: {frame.f_code.co_filename}:{frame.f_lineno}\n")

    loop.add_signal_handler(signal.SIGUSR1, write_stacks)

    async def read_input() -> None:
        await stdin.readline()
        stop.set()

    async with Client(addresses) as client:
        reading = asyncio.create_task(read_input())
        if command == "publish":
            await publish(client, float(args[0]), list(args[1:]), stop)
        else:
            await consume(client, stop, list(args))
        write_line("stopped")
        await reading


asyncio.run(main(*sys.argv[1:]))
