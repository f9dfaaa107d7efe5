# SPDX-License-Identifier: Apache-2.0
"""Consume messages and publish the results atomically and exactly once."""

import asyncio
import os

from lockstep_mq import Client, Processed


async def main() -> None:
    async with Client(os.environ.get("LOCKSTEP_ADDR", "127.0.0.1:7420,127.0.0.1:7421")) as client:
        for queue in ("raw", "cooked"):
            await client.admin.create_queue(queue, if_not_exists=True)
        await client.publish_batch("raw", [f"{i}" for i in range(10)])

        async with await client.consume("raw") as consumer:
            for _ in range(10):
                delivery = await consumer.receive()
                try:
                    async with client.transaction() as t:
                        t.take(delivery)
                        t.publish("cooked", f"{int(delivery.text) * 2}")
                except Processed:
                    pass  # another consumer was faster: nothing was published
        cooked = [m.text async for m in client.browse("cooked")]
        print(f"cooked: {' '.join(cooked[-10:])}")


asyncio.run(main())
