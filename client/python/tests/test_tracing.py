# SPDX-License-Identifier: Apache-2.0
"""Traces, against a real pair that sends its spans to a collector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from collector import Collector
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from pair import Pair
from waiting import BOUND, steady_client, until

from lockstep_mq import Client, Message, errors
from lockstep_mq.tracing import OpenTelemetryTracer


class Traced:
    def __init__(self, *, sampler: Sampler = ALWAYS_ON, deliveries_in_trace: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OpenTelemetryTracer(self.provider, deliveries_in_trace=deliveries_in_trace)

    def named(self, name: str) -> list[ReadableSpan]:
        return [s for s in self.exporter.get_finished_spans() if s.name == name]


def context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


@pytest_asyncio.fixture
async def queue(client: Client, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    name = str(request.node.name)
    await client.admin.create_queue(name, timeout=BOUND)
    yield name
    await client.admin.delete_queue(name, timeout=BOUND)


async def test_publish_trace_includes_nodes(pair: Pair, collector: Collector, queue: str) -> None:
    t = Traced()
    async with steady_client(pair.addresses, tracer=t.tracer) as client:
        with t.provider.get_tracer("application").start_as_current_span("application") as outer:
            receipt = await client.publish(queue, b"1", timeout=BOUND)
        (span,) = t.named(f"publish {queue}")
        assert span.kind is SpanKind.PRODUCER
        assert span.parent is not None
        assert span.parent.span_id == outer.get_span_context().span_id
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "lockstep"
        assert span.attributes["lockstep.lsn"] == receipt.lsn
        assert span.attributes["server.address"] == receipt.address
        async with await client.consume(queue) as consumer:
            d = await consumer.receive(timeout=BOUND)
            name = f"00-{context(span).trace_id:032x}-{context(span).span_id:016x}-{context(span).trace_flags:02x}"
            assert d.properties == {"traceparent": name}
            with d.in_trace():
                await client.publish(queue, "a part of the delivery's", timeout=BOUND)
            assert not t.named(f"process {queue}"), "the delivery is not answered"
            d.ack()
            (delivery,) = t.named(f"process {queue}")
            assert [link.context.span_id for link in delivery.links] == [context(span).span_id]
            assert delivery.parent is None
            assert delivery.attributes is not None
            assert delivery.attributes["lockstep.answer"] == "ack"
            inner = t.named(f"publish {queue}")[1]
            assert inner.parent is not None
            assert inner.parent.span_id == context(delivery).span_id

    trace_id = context(span).trace_id.to_bytes(16, "big")
    span_id = context(span).span_id.to_bytes(8, "big")  # the parent of the node's first span
    await until(lambda: collector.has(trace_id, span_id, b"publish " + queue.encode(), b"append", b"log sync"))


async def test_deliveries_in_the_trace(pair: Pair, queue: str) -> None:
    t = Traced(deliveries_in_trace=True)
    async with steady_client(pair.addresses, tracer=t.tracer) as client:
        await client.publish_batch(queue, [b"1", "2", Message(b"3")], timeout=BOUND)
        (span,) = t.named(f"publish {queue}")
        async with await client.consume(queue) as consumer:
            for answer in ("ack", "nack", "reject"):
                d = await consumer.receive(timeout=BOUND)
                getattr(d, answer)()
            again = await consumer.receive(timeout=BOUND)
            async with client.transaction() as transaction:
                transaction.take(again)
        deliveries = t.named(f"process {queue}")
        assert {context(d).trace_id for d in deliveries} == {context(span).trace_id}
        assert {d.parent.span_id for d in deliveries if d.parent} == {context(span).span_id}
        answers = [d.attributes["lockstep.answer"] for d in deliveries if d.attributes]
        assert answers == ["ack", "nack", "reject", "ack"]
        (commit,) = t.named("lockstep.v1.QueueService/Commit")
        assert commit.kind is SpanKind.CLIENT
        assert commit.attributes is not None
        assert commit.attributes["rpc.grpc.status_code"] == 0
        assert not t.named("lockstep.v1.AdminService/GetStatus")


async def test_given_span_context_is_kept(pair: Pair, client: Client, queue: str) -> None:
    t = Traced()
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    large = {"k": "v" * ((64 << 10) - 6)}  # the maximum size minus six bytes
    nearly = {"k": "v" * ((64 << 10) - 70)}  # space for the 66 bytes of a span context, but not for their lengths
    async with steady_client(pair.addresses, tracer=t.tracer) as traced:
        await traced.publish(queue, Message(b"1", properties={"traceparent": given, "n": 1}), timeout=BOUND)
        await traced.publish(queue, Message(b"2", properties=large), timeout=BOUND)
        await traced.publish(queue, Message(b"2", properties=nearly), timeout=BOUND)
        await traced.publish(queue, Message(b"3", properties={"tracestate": b"raw"}), timeout=BOUND)
        await traced.publish(queue, Message(b"4", properties={"traceparent": "nonsense"}), timeout=BOUND)
    seen = [m.properties async for m in client.browse(queue)]
    assert seen == [{"traceparent": given, "n": 1}, large, nearly, {"tracestate": b"raw"}, {"traceparent": "nonsense"}]
    spans = t.named(f"publish {queue}")
    assert [[link.context.span_id for link in s.links] for s in spans] == [[0xB7AD6B7169203331], [], [], [], []]


async def test_unsampled_traces(pair: Pair, queue: str) -> None:
    t = Traced(sampler=ALWAYS_OFF)
    async with steady_client(pair.addresses, tracer=t.tracer) as client:
        await client.publish(queue, b"1", timeout=BOUND)
        async with await client.consume(queue) as consumer:
            d = await consumer.receive(timeout=BOUND)
            assert d.properties == {}
            with d.in_trace():
                assert not trace.get_current_span().get_span_context().is_valid
            d.ack()
    assert t.exporter.get_finished_spans() == ()


async def test_errors_are_in_the_span(pair: Pair) -> None:
    t = Traced()
    async with steady_client(pair.addresses, tracer=t.tracer) as client:
        with pytest.raises(errors.QueueNotFound):
            await client.publish("not-there", b"1", timeout=BOUND)
        with pytest.raises(errors.QueueNotFound):
            await client.admin.delete_queue("not-there", timeout=BOUND)
        with pytest.raises(errors.InvalidRequest):
            await client.publish("not-there", Message(b"", priority=10))
        (publish,) = t.named("publish not-there")
        (call,) = t.named("lockstep.v1.QueueService/DeleteQueue")
    async with Client(["127.0.0.1:1"], tracer=t.tracer) as client:
        p = client.producer(max_pending_bytes=100)
        late = await p.send("far", b"x" * 100)
        with pytest.raises(errors.Unavailable):
            await p.publish("far", b"no room", timeout=0.05)
        await p.close()
        with pytest.raises(errors.Closed):
            await p.send("far", b"closed")
        assert isinstance(late.exception(), errors.Closed)
        await asyncio.sleep(0)
        far = t.named("publish far")
        assert len(far) == 3
    for span in (publish, call, *far):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description
