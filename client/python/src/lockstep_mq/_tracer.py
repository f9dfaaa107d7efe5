# SPDX-License-Identifier: Apache-2.0
"""The interface for tracing publishes, deliveries and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from lockstep_mq._rpc import Metadata
    from lockstep_mq.consumer import Delivery
    from lockstep_mq.message import Publishable, Receipt

    Outcome: TypeAlias = Receipt | BaseException


class DeliveryTrace(Protocol):
    """The trace record of a delivery."""

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager in which the span of the delivery is the parent of new spans."""

    def answered(self, how: str) -> None:
        """Called at most once, when the application has answered; how is "ack", "nack" or "reject"."""


class Tracer(Protocol):
    """Receives publishes, deliveries and calls to record them as trace spans.

    lockstep_mq.tracing implements this protocol with OpenTelemetry. The methods must not block.
    """

    def publish(
        self, queue: str, ms: Sequence[Publishable]
    ) -> tuple[Sequence[Publishable], Callable[[Outcome], None] | None]:
        """Called before each publish of a producer.

        It returns the messages to send, and a callback or None. The messages are ms, or copies with properties that
        identify the span. The callback is called once with the outcome.
        """

    def deliver(self, d: Delivery) -> DeliveryTrace | None:
        """Called for each delivery to the application. If it returns None, the delivery is not recorded."""

    def call(self, method: str) -> tuple[Metadata, Callable[[BaseException | None], None]]:
        """Called before each attempt of a unary call, except GetStatus; method is its path.

        It returns metadata that identifies the span, and a callback that is called once when the attempt has ended.
        """
