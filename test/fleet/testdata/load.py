# SPDX-License-Identifier: Apache-2.0
"""Publish to queues alternately, until the input ends or contains a line.

Usage: load.py ADDRESSES INTERVAL QUEUE...

The program writes a line for each receipt, in the order of the publishes:

    published QUEUE NUMBER SEQUENCE LSN ADDRESS

The last line is "stopped": all publishes have a receipt. SIGUSR1 writes the stacks of all tasks to standard error.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from lockstep_mq import Client, Receipt

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
    write_line("stopped")


async def main(addresses: str, interval: str, *queues: str) -> None:
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
        await publish(client, float(interval), list(queues), stop)
        await reading


asyncio.run(main(*sys.argv[1:]))
