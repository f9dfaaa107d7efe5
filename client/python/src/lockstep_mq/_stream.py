# SPDX-License-Identifier: Apache-2.0
"""One stream after another on the active node: what producers and consumers have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from lockstep_mq import _failure, _options, _rpc
from lockstep_mq._calls import MAX_RENEWALS
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Locator, Target

C = TypeVar("C", bound=grpc.aio.Call)


@dataclass(frozen=True)
class Ended:
    """How a stream ended, on which target, and whether another one may go on where it was."""

    failure: Failure
    target: Target
    again: bool


class Streams:
    """Runs streams on the active node, one at a time, with waits between those that come to nothing."""

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._retry = _options.Backoff()
        self._refusals = 0  # tokens that were refused one after the other

    def progress(self) -> None:
        """Take note that the node has answered on the present stream: the next one is tried soon."""
        self._retry.reset()
        self._refusals = 0

    async def run(
        self,
        open_on: Callable[[grpc.aio.Channel, _rpc.Metadata], C],
        send: Callable[[C], Awaitable[None]],
        receive: Callable[[C, str], Awaitable[None]],
    ) -> Ended:
        """Wait for an active node, and run one stream on it until it breaks or the target is gone.

        open_on opens the stream; send writes to it for as long as it lives, and receive, which gets the address of the
        node, reads to its end. The reason of the end is the receiver's: a write only fails.

        Raises:
            Failure: All nodes that can be reached refuse this client.
            Closed: The client was closed.
        """
        target = await self._locator.wait()
        metadata: _rpc.Metadata = ()
        try:
            metadata = await self._locator.tokens.metadata()
        except Exception as err:  # the application's own source of tokens
            f = _failure.lost(target.node.address, f"no token to show: {err}")
        else:
            f = await self._session(target, metadata, open_on, send, receive)
        self._refusals = self._refusals + 1 if f.unauthenticated else 0
        fresh = f.unauthenticated and self._refusals <= MAX_RENEWALS and await self._locator.tokens.renewed(metadata)
        return Ended(f, target, f.retry or fresh)

    async def pause(self, ended: Ended) -> None:
        """Have the nodes asked after a stream has ended, and wait before the next one."""
        self._locator.failed(ended.failure)
        await self._locator.pause(ended.target, max(self._retry.next(), ended.failure.retry_after))

    async def _session(
        self,
        target: Target,
        metadata: _rpc.Metadata,
        open_on: Callable[[grpc.aio.Channel, _rpc.Metadata], C],
        send: Callable[[C], Awaitable[None]],
        receive: Callable[[C, str], Awaitable[None]],
    ) -> Failure:
        address = target.node.address
        target.node.users += 1
        call = open_on(target.channel, metadata)
        sender = asyncio.ensure_future(send(call))
        sender.add_done_callback(lambda _: call.cancel())  # a write fails when the status is there, which stays
        try:
            await _rpc.bound(receive(call, address), address, stop=target.gone)
        except Failure as f:
            return f
        except Exception as err:  # what reading has met must not end the producer or consumer without a word
            return _failure.lost(address, f"the stream was given up: {err}")
        finally:
            target.node.users -= 1
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return _failure.lost(address, "the node ended the stream")
