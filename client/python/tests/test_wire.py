# SPDX-License-Identifier: Apache-2.0
"""Requests encoded by the client are identical to those of the generated code."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

import pytest

from lockstep_mq import Message, _wire, message
from lockstep_mq._proto import queue_pb2, types_pb2

MESSAGES: list[list[message.Publishable]] = [
    [b""],
    [b"x", b"", b"\x00" * 127, b"\x00" * 128, bytes(16_384), bytes(3_000_000)],
    ["ä text"],
    [Message(b"")],
    [
        Message(
            b"body",
            properties={"a": "b", "n": -1, "f": 0.5, "t": True, "r": b"\xff"},
            message_id="m" * 200,
            priority=0,
            ttl=timedelta(seconds=3),
            deliver_at=datetime(2027, 1, 1, tzinfo=timezone.utc),
        ),
        b"plain",
    ],
]


def request(  # by the generated code
    queue: str, ms: list[message.Publishable], producer: types_pb2.Producer
) -> queue_pb2.PublishStreamRequest:
    encoded = [message.encode(m, 1 << 30) for m in ms]
    publish = queue_pb2.PublishRequest(queue=queue, messages=encoded, producer=producer)
    return queue_pb2.PublishStreamRequest(correlation=producer.sequence, publish=publish, accepts_more=True)


def own(queue: str, ms: list[message.Publishable], p: types_pb2.Producer) -> _wire.Request:
    pieces = [piece for m in ms for piece in message.pieces(m, 1 << 30)]
    return _wire.Request(queue, pieces, p.id, p.epoch, p.sequence, p.retry)


@pytest.mark.parametrize("sequence", [1, 127, 128, (1 << 64) - 1])
@pytest.mark.parametrize("retry", [False, True])
def test_requests(sequence: int, retry: bool) -> None:
    for queue in ("q", "q" * 255, "with/ä"):
        for ms in MESSAGES:
            p = types_pb2.Producer(id="i" * 64, epoch=(1 << 32) - 1, sequence=sequence, retry=retry)
            got = queue_pb2.PublishStreamRequest.FromString(_wire.bundle([own(queue, ms, p)]))
            assert got == request(queue, ms, p)


def test_bundles() -> None:
    chance = random.Random(1)
    for n in (2, 3, 64, 256):
        parts = [(f"queue{i % 3}", chance.choice(MESSAGES[:1] + MESSAGES[2:])) for i in range(n)]
        whos = [types_pb2.Producer(id="p", epoch=1, sequence=i + 1, retry=i < 2) for i in range(n)]
        want = [request(q, ms, who) for (q, ms), who in zip(parts, whos, strict=True)]
        want[0].more.extend(want[1:])
        raw = _wire.bundle([own(q, ms, who) for (q, ms), who in zip(parts, whos, strict=True)])
        assert queue_pb2.PublishStreamRequest.FromString(raw) == want[0]
        assert len(raw) == want[0].ByteSize(), "the size is that of the generated code"


def test_splits() -> None:
    p = types_pb2.Producer(id="p", epoch=1, sequence=3)
    pieces = [piece for m in MESSAGES[1] for piece in message.pieces(m, 1 << 30)]
    want = request("q", MESSAGES[1], p)
    want.publish.splits = True
    raw = _wire.bundle([_wire.Request("q", pieces, p.id, p.epoch, p.sequence, p.retry, True)])
    assert queue_pb2.PublishStreamRequest.FromString(raw) == want


def test_resumes() -> None:
    p = types_pb2.Producer(id="p", epoch=1, sequence=3)
    pieces = [piece for m in MESSAGES[1] for piece in message.pieces(m, 1 << 30)]
    want = request("q", MESSAGES[1], p)
    want.resumes = True
    raw = _wire.bundle([_wire.Request("q", pieces, p.id, p.epoch, p.sequence, p.retry, resumes=True)])
    assert queue_pb2.PublishStreamRequest.FromString(raw) == want
    assert len(raw) == want.ByteSize(), "the size is that of the generated code"
