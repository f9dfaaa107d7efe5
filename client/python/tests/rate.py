# SPDX-License-Identifier: Apache-2.0
"""Measure publishing and consuming: python tests/rate.py ADDRESSES [SECONDS] [BYTES]."""

from __future__ import annotations

import asyncio
import sys
import time

from lockstep_mq import Client


async def main(addresses: str, seconds: float, size: int) -> None:
    queue, body = "python.rate", bytes(size)
    async with Client(addresses) as client:
        await client.admin.create_queue(queue, if_not_exists=True)
        await client.admin.purge_queue(queue)
        published = 0
        began = time.perf_counter()
        async with client.producer() as producer:
            while time.perf_counter() - began < seconds:
                for _ in range(256):
                    await producer.send(queue, body)
                published += 256
                await asyncio.sleep(0)
        took = time.perf_counter() - began
        print(f"published {published / took:,.0f}/s of {size} bytes")
        began = time.perf_counter()
        async with await client.consume(queue, prefetch=1000) as consumer:
            for _ in range(published):
                (await consumer.receive()).ack()
        took = time.perf_counter() - began
        print(f"consumed and acknowledged {published / took:,.0f}/s of {size} bytes")
        await client.admin.delete_queue(queue)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float((sys.argv[2:] or ["5"])[0]), int((sys.argv[3:] or ["512"])[0])))
