# SPDX-License-Identifier: Apache-2.0
"""The adapter of this client for Lockstep's test/conformance; its README.md describes the schema.

LOCKSTEP_ADAPTER="python -m lockstep_mq.conformance" go test ./test/conformance
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from lockstep_mq import (
    Client,
    Consumer,
    Delivery,
    LockstepError,
    Message,
    OutcomeUnknown,
    Producer,
    QueueConfig,
    Receipt,
    StoredMessage,
    errors,
)

Json = dict[str, Any]
_SHOWN = 1024  # bytes of a body that are reported
_LONGEST_LINE = 16 << 20


def _message(m: Json) -> Message:
    def ms(name: str) -> timedelta | None:
        return timedelta(milliseconds=m[name]) if name in m else None

    texts = ("message_id", "correlation_id", "reply_to", "content_type", "subject", "group")
    return Message(
        body=m["body"].encode() + b"x" * m.get("pad", 0),
        properties=m.get("properties", {}),
        priority=m.get("priority"),
        ttl=ms("ttl_ms"),
        delay=ms("delay_ms"),
        **{name: m.get(name, "") for name in texts},
    )


def _told(m: StoredMessage) -> Json:
    body = m.body
    return {
        "body": body[:_SHOWN].decode(errors="replace"),
        "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "properties": {k: v for k, v in m.properties.items() if isinstance(v, str)},
        "message_id": m.message_id,
        "correlation_id": m.correlation_id,
        "reply_to": m.reply_to,
        "content_type": m.content_type,
        "subject": m.subject,
        "group": m.group,
        "priority": m.priority,
        "sequence": m.sequence,
        "delivery_count": m.delivery_count,
        "dead_letter_of": m.dead_letter.queue if m.dead_letter else "",
    }


def _receipt(r: Receipt) -> Json:
    return {"sequence": r.sequence, "lsn": r.lsn, "duplicate": r.duplicate}


def _timeout(r: Json) -> float | None:
    return r["timeout_ms"] / 1000 if r.get("timeout_ms") else None


class Adapter:
    """The objects named by the runner, and the operations on them."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._producers: dict[str, Producer] = {}
        self._consumers: dict[str, Consumer] = {}
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._numbers: dict[str, int] = {}

    async def serve(self) -> None:
        """Respond to requests until the input ends. Each request has a task; tasks start in the order of the lines."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(self._one(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        for client in self._clients.values():
            await client.close()

    async def _one(self, r: Json) -> None:
        answer: Json = {"id": r["id"]}
        try:
            op: Callable[[Json], Awaitable[Json]] = getattr(self, "op_" + r["op"])
            answer["ok"] = await op(r)
        except LockstepError as err:
            outcome = "unknown" if isinstance(err, OutcomeUnknown) else "not-done"
            answer["error"] = {"outcome": outcome, "reason": err.reason, "message": str(err)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    async def op_open(self, r: Json) -> Json:
        """Create a client."""
        self._clients[r["client"]] = Client(
            r["addresses"],
            follow_hints=not r.get("fixed_addresses", False),
            token=r.get("token"),
            ca=r.get("ca"),
            cert=r.get("cert"),
            key=r.get("key"),
        )
        return {}

    async def op_close(self, r: Json) -> Json:
        """Close a client."""
        await self._clients[r["client"]].close()
        return {}

    async def op_queue_create(self, r: Json) -> Json:
        """Create a queue, and report whether it was created."""
        admin, timeout = self._clients[r["client"]].admin, _timeout(r)
        subscriptions, config = r.get("subscriptions", []), QueueConfig(**r.get("config", {}))
        if r.get("if_not_exists"):
            try:
                await admin.get_queue(r["queue"], timeout=timeout)
            except errors.QueueNotFound:
                pass
            else:
                await admin.create_queue(
                    r["queue"], config, subscriptions=subscriptions, if_not_exists=True, timeout=timeout
                )
                return {"created": False}
        await admin.create_queue(r["queue"], config, subscriptions=subscriptions, timeout=timeout)
        return {"created": True}

    async def op_queue_get(self, r: Json) -> Json:
        """Describe a queue."""
        q = await self._clients[r["client"]].admin.get_queue(r["queue"], timeout=_timeout(r))
        return {"messages_stored": q.messages, "next_sequence": q.next_sequence}

    async def op_queue_delete(self, r: Json) -> Json:
        """Delete a queue."""
        return {"messages_stored": await self._clients[r["client"]].admin.delete_queue(r["queue"])}

    async def op_publish(self, r: Json) -> Json:
        """Publish a batch; the batches of one producer are passed to it in the order of the lines."""
        client, queue = self._clients[r["client"]], r["queue"]
        ms = [_message(m) for m in r["messages"]]
        if "producer" not in r:
            return _receipt(await client.publish_batch(queue, ms, timeout=_timeout(r)))
        p = self._producers.get(r["producer"])
        if p is None:
            p = client.producer(id=r.get("producer_id", ""), epoch=r.get("epoch", 0))
            self._producers[r["producer"]] = p
        if _timeout(r) is not None:
            return _receipt(await p.publish_batch(queue, ms, timeout=_timeout(r)))
        return _receipt(await (await p.send_batch(queue, ms)))

    async def op_browse(self, r: Json) -> Json:
        """Browse a queue."""
        client = self._clients[r["client"]]
        seen = client.browse(
            r["queue"],
            subscription=r.get("subscription", ""),
            limit=r.get("limit", 0),
            filter=r.get("filter", ""),
            newest=r.get("newest", False),
            timeout=_timeout(r),
        )
        return {"messages": [_told(m) async for m in seen]}

    async def op_consume(self, r: Json) -> Json:
        """Attach a consumer."""
        self._consumers[r["consumer"]] = await self._clients[r["client"]].consume(
            r["queue"],
            subscription=r.get("subscription", "default"),
            filter=r.get("filter", ""),
            prefetch=r.get("prefetch", 256),
            timeout=_timeout(r),
        )
        return {}

    async def op_receive(self, r: Json) -> Json:
        """Return the next message, or nothing after the timeout."""
        name = r["consumer"]
        try:
            d = await self._consumers[name].receive(timeout=_timeout(r))
        except TimeoutError:
            return {}
        number = self._numbers.get(name, 0) + 1
        self._numbers[name] = number
        self._deliveries[name, number] = d
        return {"delivery": number, "message": _told(d)}

    async def op_answer(self, r: Json) -> Json:
        """Answer a delivery."""
        d = self._deliveries[r["consumer"], r["delivery"]]
        match r["how"]:
            case "ack":
                d.ack()
            case "reject":
                d.reject()
            case "extend":
                await d.extend(timeout=_timeout(r))
            case _ if "delay_ms" in r:
                d.nack_after(timedelta(milliseconds=r["delay_ms"]))
            case _:
                d.nack()
        return {}

    async def op_flush(self, r: Json) -> Json:
        """Wait for confirmations."""
        await self._consumers[r["consumer"]].flush(timeout=_timeout(r))
        return {}

    async def op_consumer_close(self, r: Json) -> Json:
        """Detach a consumer."""
        await self._consumers[r["consumer"]].close()
        return {}

    async def op_transact(self, r: Json) -> Json:
        """Publish and acknowledge atomically."""
        t = self._clients[r["client"]].transaction()
        for p in r.get("publish", []):
            t.publish(p["queue"], *[_message(m) for m in p["messages"]])
        for name, add in (("ack", t.ack), ("take", t.take)):
            for held in r.get(name, []):
                add(self._deliveries[held["consumer"], held["delivery"]])
        result = await t.commit(timeout=_timeout(r))
        return {"lsn": result.lsn, "duplicate": result.duplicate}


if __name__ == "__main__":
    asyncio.run(Adapter().serve())
