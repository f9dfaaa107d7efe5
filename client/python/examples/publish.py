# SPDX-License-Identifier: Apache-2.0
"""Publish one message and wait for its receipt, then publish many in a pipeline."""

import asyncio
import os

from lockstep_mq import Client, OutcomeUnknown, QueueConfig


async def main() -> None:
    async with Client(os.environ.get("LOCKSTEP_ADDR", "127.0.0.1:7420,127.0.0.1:7421")) as client:
        await client.admin.create_queue("orders", QueueConfig(max_messages=1_000_000), if_not_exists=True)

        receipt = await client.publish("orders", b"hello")
        print(f"stored with sequence {receipt.sequence}")

        async with client.producer() as producer:
            receipts = [await producer.send("orders", f"order {i}") for i in range(1000)]
        # The end of the block has waited for all publishes; result() raises the error of a failed one.
        print(f"stored {len([r.result() for r in receipts])} more")

        try:
            await client.publish("orders", b"with a timeout", timeout=60)
        except OutcomeUnknown:
            print("it may or may not be stored: inspect the queue before publishing it again")


asyncio.run(main())
