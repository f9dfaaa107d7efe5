# SPDX-License-Identifier: Apache-2.0
"""Successive streams on the active node, for producers and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from lockstep_mq import _failure, _lookup, _options, _rpc
from lockstep_mq._calls import MAX_RENEWALS
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Fleet, Pair
from lockstep_mq._locator import Target

C = TypeVar("C", bound=grpc.aio.Call)


@dataclass(frozen=True)
class Ended:
    """The end of a stream: the failure, the target, and whether another stream may continue."""

    failure: Failure
    target: Target
    again: bool


class Streams:
    """Runs streams on the active node, one at a time, with a backoff between failed ones."""

    def __init__(self, fleet: Fleet, pair: Pair) -> None:
        self._fleet, self._pair = fleet, pair
        self._retry = _options.Backoff()
        self._refusals = 0  # consecutive rejected tokens

    def move(self, pair: Pair) -> None:
        """Run the following streams on another pair."""
        self._pair = pair

    def progress(self) -> None:
        """Record that the node has responded on the current stream, which resets the backoff."""
        self._retry.reset()
        self._refusals = 0

    async def run(
        self,
        open_on: Callable[[Target, _rpc.Metadata], C],
        send: Callable[[C], Awaitable[None]],
        receive: Callable[[C, str], Awaitable[None]],
    ) -> Ended | None:
        """Wait for an active node, and run one stream on it until it breaks or the target ends.

        Return None if the owner of the queue must be looked up, because the pair has no active node.

        open_on opens the stream. send writes to it while it is open. receive reads it to its end, and is called with
        the address of the node. The receiver determines the cause of the end: a failed write does not report it.

        Raises:
            Failure: All reachable nodes reject this client.
            Closed: The client is closed.
        """
        target = await _lookup.wait(self._fleet, self._pair)
        if target is None:
            return None
        metadata: _rpc.Metadata = ()
        try:
            metadata = await self._pair.locator.tokens.metadata()
        except Exception as err:  # the application's token source
            f = _failure.lost(target.node.address, f"no valid token: {err}")
        else:
            f = await self._session(target, metadata, open_on, send, receive)
        self._refusals = self._refusals + 1 if f.unauthenticated else 0
        fresh = (
            f.unauthenticated and self._refusals <= MAX_RENEWALS and await self._pair.locator.tokens.renewed(metadata)
        )
        return Ended(f, target, f.retry or fresh)

    async def pause(self, ended: Ended) -> None:
        """Poll the nodes after a stream has ended, and wait before the next one."""
        self._pair.locator.failed(ended.failure)
        await self._pair.locator.pause(ended.target, max(self._retry.next(), ended.failure.retry_after))

    async def _session(
        self,
        target: Target,
        metadata: _rpc.Metadata,
        open_on: Callable[[Target, _rpc.Metadata], C],
        send: Callable[[C], Awaitable[None]],
        receive: Callable[[C, str], Awaitable[None]],
    ) -> Failure:
        address = target.node.address
        target.node.users += 1
        call = open_on(target, metadata)
        sender = asyncio.ensure_future(send(call))
        sender.add_done_callback(lambda _: call.cancel())  # a write fails after the status has arrived, which is kept
        try:
            await _rpc.bound(receive(call, address), address, stop=target.gone)
        except Failure as f:
            return f
        except Exception as err:  # an error while reading must not end the producer or consumer silently
            return _failure.lost(address, f"the stream was canceled: {err}")
        finally:
            target.node.users -= 1
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return _failure.lost(address, "the node closed the stream")
