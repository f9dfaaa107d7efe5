# SPDX-License-Identifier: Apache-2.0
"""Waiting for events, in tests that do not depend on the speed of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from lockstep_mq import Client

T = TypeVar("T")

BOUND = 120.0
"""Limits the wait for an event that must happen, in seconds. It is long, because the machine may be slow."""

TIMEOUT = 600.0
"""The timeout, in seconds, of a call that Clock.expire() lets expire."""


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline, f"not within {BOUND} s"
        await asyncio.sleep(0.002)


def steady_client(addresses: Sequence[str], **options: Any) -> Client:
    """Return a client that does not replace the connection to a node that responds slowly.

    It would send requests again, which a test may not expect.
    """
    return Client(addresses, probe_interval=10 * TIMEOUT, **options)


class Clock:
    """The clock of an event loop, which a test can advance: a timeout expires after its cause, and not earlier."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real, self._ahead = loop.time, 0.0

    def time(self) -> float:
        """Return the time of the loop, in seconds."""
        return self._real() + self._ahead

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._ahead += seconds

    async def expire(self, call: Awaitable[T], cause: Awaitable[object]) -> T:
        """Await a call with the timeout TIMEOUT, which expires when the cause has happened."""
        calling, causing = asyncio.ensure_future(call), asyncio.ensure_future(cause)
        try:
            await asyncio.wait((calling, causing), return_when=asyncio.FIRST_COMPLETED)
            if causing.done():
                causing.result()
                self.advance(TIMEOUT)
            return await calling
        finally:
            calling.cancel()
            causing.cancel()
