# SPDX-License-Identifier: Apache-2.0
"""Tracing with OpenTelemetry: `pip install lockstep-mq[tracing]`.

    client = Client(addresses, tracer=OpenTelemetryTracer(provider))

A sampled publish stores its span context in the message properties traceparent and tracestate (W3C Trace Context).
Nodes with tracing record child spans, and the span of a delivery links to the publish. Clients in other languages
use the same two properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc.aio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lockstep_mq._version import __version__
from lockstep_mq.message import Message, Receipt

if TYPE_CHECKING:
    from opentelemetry.util.types import Attributes

    from lockstep_mq._rpc import Metadata
    from lockstep_mq._tracer import DeliveryTrace, Outcome
    from lockstep_mq.consumer import Delivery
    from lockstep_mq.message import Publishable

_SCOPE = "lockstep_mq.tracing"
_PARENT, _STATE = "traceparent", "tracestate"
_MAX_PROPERTIES_BYTES = 64 << 10
"""Maximum size of the properties of a message. A message without space for the span context is sent without it."""
_FRAMING = 8


class OpenTelemetryTracer:
    """A Tracer that records spans with the application's provider.

    Args:
        provider: The application's provider; None uses the global one.
        deliveries_in_trace: Make the span of a delivery part of the publish's trace. If False, the span of a delivery
            starts a new trace, subject to the provider's sampler, with a link to the publish.
    """

    def __init__(self, provider: trace.TracerProvider | None = None, *, deliveries_in_trace: bool = False) -> None:
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer(_SCOPE, __version__)
        self._deliveries_in_trace = deliveries_in_trace
        self._carrier = TraceContextTextMapPropagator()

    def publish(
        self, queue: str, ms: Sequence[Publishable]
    ) -> tuple[Sequence[Publishable], Callable[[Outcome], None] | None]:
        """Start the span of a publish; see Tracer."""
        span = self._tracer.start_span(
            f"publish {queue}",
            kind=SpanKind.PRODUCER,
            links=[link for m in ms for link in self._named(m.properties if isinstance(m, Message) else {})],
            attributes=_attributes("publish", queue, {"messaging.batch.message_count": len(ms)}),
        )
        if not span.is_recording():
            return ms, None
        return self._inject(span, ms), lambda outcome: _end_publish(span, outcome)

    def deliver(self, d: Delivery) -> DeliveryTrace | None:
        """Start the span of a delivery; see Tracer."""
        context, links = Context(), self._named(d.properties)
        if self._deliveries_in_trace and links:
            context, links = trace.set_span_in_context(trace.NonRecordingSpan(links[0].context), context), []
        span = self._tracer.start_span(
            f"process {d.queue}",
            context=context,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes=_attributes(
                "process",
                d.queue,
                {
                    "messaging.destination.subscription.name": d.consumer.subscription,
                    "lockstep.sequence": d.sequence,
                    "lockstep.delivery_count": d.delivery_count,
                },
            ),
        )
        return _Delivery(span) if span.is_recording() else None

    def call(self, method: str) -> tuple[Metadata, Callable[[BaseException | None], None]]:
        """Start the span of a call; see Tracer."""
        service, _, name = method.strip("/").partition("/")
        span = self._tracer.start_span(
            f"{service}/{name}",
            kind=SpanKind.CLIENT,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
        )
        return tuple(self._names(span).items()), lambda err: _end_call(span, err)

    def _names(self, span: Span) -> dict[str, str]:
        names: dict[str, str] = {}
        self._carrier.inject(names, trace.set_span_in_context(span, Context()))
        return names

    def _named(self, properties: Mapping[str, object]) -> list[Link]:
        """Return a link to the span in the properties, if any."""
        named = {k: v for k in (_PARENT, _STATE) if isinstance(v := properties.get(k), str)}
        if _PARENT not in named:
            return []
        found: SpanContext = trace.get_current_span(self._carrier.extract(named, Context())).get_span_context()
        return [Link(found)] if found.is_valid else []

    def _inject(self, span: Span, ms: Sequence[Publishable]) -> list[Publishable]:
        """Copy messages and add the span context. Span contexts set by the application are retained."""
        names = self._names(span)
        size, out = _bytes_of(names), []
        for one in ms:
            m = one if isinstance(one, Message) else Message(one.encode() if isinstance(one, str) else one)
            named = m.properties.get(_PARENT) or not isinstance(m.properties.get(_STATE, ""), str)
            if named or size + _bytes_of(m.properties) > _MAX_PROPERTIES_BYTES:
                out.append(one)
            else:
                out.append(replace(m, properties={**m.properties, **names}))
        return out


class _Delivery:
    def __init__(self, span: Span) -> None:
        self._span = span

    def current(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, end_on_exit=False)

    def answered(self, how: str) -> None:
        self._span.set_attribute("lockstep.answer", how)
        self._span.end()


def _attributes(operation: str, queue: str, more: Mapping[str, str | int]) -> Attributes:
    return {
        "messaging.system": "lockstep",
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        **more,
    }


def _bytes_of(properties: Mapping[str, object]) -> int:
    """Return the maximum size of string properties as counted by a node, including lengths."""
    return sum(len(k.encode()) + len(v.encode()) + _FRAMING for k, v in properties.items() if isinstance(v, str))


def _end_publish(span: Span, outcome: Outcome) -> None:
    if isinstance(outcome, Receipt):
        span.set_attributes(
            {
                "lockstep.sequence": outcome.sequence,
                "lockstep.lsn": outcome.lsn,
                "lockstep.duplicate": outcome.duplicate,
                "server.address": outcome.address,
            }
        )
    else:
        span.set_status(StatusCode.ERROR, str(outcome) or type(outcome).__name__)
    span.end()


def _end_call(span: Span, err: BaseException | None) -> None:
    if isinstance(err, grpc.aio.AioRpcError):
        span.set_attribute("rpc.grpc.status_code", err.code().value[0])
        span.set_status(StatusCode.ERROR, err.details() or err.code().name)
    elif err is not None:
        span.set_status(StatusCode.ERROR, str(err) or type(err).__name__)
    else:
        span.set_attribute("rpc.grpc.status_code", 0)
    span.end()
