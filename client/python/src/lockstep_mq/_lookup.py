# SPDX-License-Identifier: Apache-2.0
"""Lookups of the owners of queues at the home pair, while the pair that operations are sent to has no active node."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from lockstep_mq import _rpc, errors
from lockstep_mq._failure import Failure
from lockstep_mq._fleet import Pair, Redirects
from lockstep_mq._proto import queue_pb2

if TYPE_CHECKING:
    from lockstep_mq._calls import Caller
    from lockstep_mq._fleet import Fleet
    from lockstep_mq._locator import Target

_PROBES = 5
"""Probe intervals without an active node before a lookup, and between two lookups.

With default settings, this time is usually longer than a failover, so that requests with an unknown outcome are
retried at their pair.
"""


async def wait(fleet: Fleet, pair: Pair, deadline: float | None = None) -> Target | None:
    """Wait like Locator.wait(). Return None if another pair than the home pair has no active node for some time."""
    if pair is fleet.home or pair.locator.target is not None:
        return await pair.locator.wait(deadline)
    # A random interval, so that the lookups of many clients are distributed over time.
    seconds = _PROBES * fleet.probe_interval * random.uniform(0.7, 1.3)  # noqa: S311 # no secret depends on it
    limit = asyncio.get_running_loop().time() + seconds
    if deadline is not None and deadline <= limit:
        return await pair.locator.wait(deadline)
    try:
        return await pair.locator.wait(limit)
    except TimeoutError:
        return None


async def owner(caller: Caller, lost: Pair, queue: str) -> Pair | Failure | None:
    """Return the owner of a queue, after the home pair has reported it and its active node has confirmed it.

    Return None if the owner is still `lost`, which has no active node, or if it is unknown. Return the failure if the
    queue is partitioned.
    """
    fleet = caller.fleet
    if fleet.home.locator.target is None:
        return None
    fleet.unavailable(lost)
    at, redirects = fleet.home, Redirects(fleet)
    deadline = asyncio.get_running_loop().time() + fleet.probe_interval
    while at is not lost:
        try:
            await _ask(caller, at, queue, deadline)
        except Failure as err:
            f = err
        except Exception:  # no active node, or an error of the application's token source
            return None
        else:
            return at
        if f.partitioned is not None:
            return f
        if f.not_owner is None:
            return None
        try:
            at, repeated = redirects.follow(f"look up {queue}", at, f)
        except errors.LockstepError:
            return None
        if repeated:
            return None
    return None


async def _ask(caller: Caller, at: Pair, queue: str, deadline: float) -> None:
    target = await at.locator.wait(deadline)
    metadata = await at.locator.tokens.metadata()
    request = queue_pb2.GetQueueRequest(name=queue)
    await caller.attempt(
        target,
        lambda channel, sent: caller.unary(channel, _rpc.QUEUE + "GetQueue", request, queue_pb2.GetQueueResponse, sent),
        metadata,
        deadline,
    )
