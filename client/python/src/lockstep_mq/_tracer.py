# SPDX-License-Identifier: Apache-2.0
"""What a client tells of publishes, deliveries and calls, to be recorded as spans of traces."""

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
    """What a Tracer records of a delivery."""

    def current(self) -> AbstractContextManager[object]:
        """Give a context in which the delivery is the span that others are made below."""

    def answered(self, how: str) -> None:
        """Is called once, when the application has answered: with "ack", "nack" or "reject"."""


class Tracer(Protocol):
    """Is told of publishes, deliveries and calls; lockstep_mq.tracing has one for OpenTelemetry.

    Its methods are called where the application publishes and receives, and must not block.
    """

    def publish(
        self, queue: str, ms: Sequence[Publishable]
    ) -> tuple[Sequence[Publishable], Callable[[Outcome], None] | None]:
        """Is called with each publish of a producer before it is sent.

        It returns what is to be sent: ms, or copies of them with properties that name the span; and what is called once
        with the outcome, or None if that is not of interest.
        """

    def deliver(self, d: Delivery) -> DeliveryTrace | None:
        """Is called with each delivery that the application gets. None: it is not recorded."""

    def call(self, method: str) -> tuple[Metadata, Callable[[BaseException | None], None]]:
        """Is called before each attempt of a call with one answer; method is its path.

        It returns metadata that name the span, and what is called once when the attempt has ended.
        """
