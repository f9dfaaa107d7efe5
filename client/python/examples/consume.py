# SPDX-License-Identifier: Apache-2.0
"""Receive and acknowledge messages, until none arrives for a second."""

import asyncio
import os
from datetime import timedelta

from lockstep_mq import Client


async def main() -> None:
    async with Client(os.environ.get("LOCKSTEP_ADDR", "127.0.0.1:7420,127.0.0.1:7421")) as client:
        received = 0
        async with await client.consume("orders", prefetch=100) as consumer:
            while True:
                try:
                    delivery = await consumer.receive(timeout=1)
                except TimeoutError:
                    break
                if not delivery.body:
                    delivery.reject()  # invalid message: move it to the dead-letter queue
                elif delivery.body == b"later" and delivery.delivery_count < 3:
                    delivery.nack_after(timedelta(seconds=30))
                else:
                    delivery.ack()
                    received += 1
        # The end of the block has waited until all acknowledgements were confirmed.
        print(f"received {received}")


asyncio.run(main())
