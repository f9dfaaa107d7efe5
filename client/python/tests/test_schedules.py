# SPDX-License-Identifier: Apache-2.0
"""Schedules of a fleet, with scripted nodes of three pairs."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from scripted import Node
from waiting import BOUND, TIMEOUT, Clock, steady_client, until

from lockstep_mq import Request, errors
from lockstep_mq._proto import fleet_pb2


async def started(stack: AsyncExitStack, **schedules: str) -> dict[str, Node]:
    """Start a fleet with one node per pair, and schedules."""
    nodes = {name: await stack.enter_async_context(Node(pair=name)) for name in schedules}
    fleet = [fleet_pb2.FleetPair(name=name, addresses=[n.address]) for name, n in nodes.items()]
    for name, n in nodes.items():
        n.fleet = fleet_pb2.GetFleetResponse(pair=name, pairs=fleet)
        n.schedules = set(schedules[name].split())
    return nodes


async def test_schedules_of_fleet() -> None:
    """The calls find a schedule at all pairs, and prefer the home pair. If the name is ambiguous, they raise."""
    async with AsyncExitStack() as stack:
        nodes = await started(stack, a="own", b="other own twice", c="twice")
        client = await stack.enter_async_context(steady_client([nodes["a"].address]))
        admin = client.admin
        assert (await admin.get_schedule("own", timeout=BOUND)).queue == "a.q"
        assert (await admin.get_schedule("other", timeout=BOUND)).queue == "b.q"
        assert (await admin.pause_schedule("other", timeout=BOUND)).paused
        assert not (await admin.resume_schedule("other", timeout=BOUND)).paused
        assert await admin.run_schedule("other", request=Request(), timeout=BOUND) > 0
        with pytest.raises(errors.WrongState) as caught:
            await admin.delete_schedule("twice", timeout=BOUND)
        assert "b, c" in str(caught.value)
        with pytest.raises(errors.WrongState) as caught:
            await admin.delete_schedule("none", timeout=BOUND)
        assert caught.value.reason == "SCHEDULE_NOT_FOUND"
        await admin.delete_schedule("own", timeout=BOUND)
        await admin.delete_schedule("other", timeout=BOUND)
        assert [nodes[n].schedules for n in "abc"] == [set(), {"own", "twice"}, {"twice"}]


async def test_schedules_without_fleet() -> None:
    async with Node() as a, steady_client([a.address]) as client:
        a.schedules = {"own"}
        assert (await client.admin.get_schedule("own", timeout=BOUND)).name == "own"
        with pytest.raises(errors.WrongState) as caught:
            await client.admin.run_schedule("none", timeout=BOUND)
        assert caught.value.reason == "SCHEDULE_NOT_FOUND"


async def test_schedule_of_unavailable_pair(clock: Clock) -> None:
    """If one of the pairs has no active node, the schedule may be there."""
    async with AsyncExitStack() as stack:
        nodes = await started(stack, a="", b="x", c="x")
        await nodes["c"].stop()
        client = await stack.enter_async_context(steady_client([nodes["a"].address]))
        fleet = client._called().fleet
        with pytest.raises(errors.Unavailable):
            await clock.expire(
                client.admin.delete_schedule("x", timeout=TIMEOUT),
                until(lambda: any(p.name == "c" for p in fleet._pairs)),
            )
        assert nodes["b"].schedules == {"x"}
