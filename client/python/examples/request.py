# SPDX-License-Identifier: Apache-2.0
"""Send a request and wait for its reply."""

import asyncio
import os

from lockstep_mq import Client


async def serve(client: Client) -> None:
    async with await client.consume("prices") as questions:
        async for question in questions:
            await client.reply(question, f"{question.text} costs 42")


async def main() -> None:
    async with Client(os.environ.get("LOCKSTEP_ADDR", "127.0.0.1:7420,127.0.0.1:7421")) as client:
        await client.admin.create_queue("prices", if_not_exists=True)
        server = asyncio.create_task(serve(client))
        answer = await client.request("prices", b"item 17", timeout=60)
        print(answer.text)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


asyncio.run(main())
