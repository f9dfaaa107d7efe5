# SPDX-License-Identifier: Apache-2.0
"""Use of a client after a fork, and backoff for connections that are closed without a response."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from lockstep_mq import Client, _failure, _locator, _reach
from lockstep_mq._failure import Failure
from lockstep_mq._options import Backoff

FORK = """
import asyncio, os, sys
from lockstep_mq import Client, errors

before = Client(["127.0.0.1:1"])

async def use(client):
    async with client:
        await client.wait_active(timeout=0.05)

async def publish(client):
    await client.publish("q", b"1", timeout=0.05)

try:
    asyncio.run(use(Client(["127.0.0.1:1"])))
except errors.Unavailable:
    pass
child = os.fork()
if child == 0:
    status = 0
    for call in (use, publish):
        for client in (before, Client(["127.0.0.1:1"])):
            try:
                asyncio.run(call(client))
                status = 1
            except errors.Forked:
                pass
    os._exit(status)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="fork is not available")
def test_use_after_fork_fails() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


async def test_backoff_for_closed_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    enough = asyncio.Event()

    async def ends(_self: object, node: _locator.Node) -> tuple[bool, bool, Failure]:
        f = _failure.lost(node.address, "Socket closed")
        f.mistake = _reach.PERHAPS
        return False, False, f

    async def rest(_self: object, _node: object, seconds: float, _changed: object) -> None:
        waits.append(seconds)
        if len(waits) >= 30:
            enough.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    monkeypatch.setattr(_locator.Locator, "_watch_once", ends)
    monkeypatch.setattr(_locator.Locator, "_rest", rest)
    async with Client(["127.0.0.1:1"], probe_interval=1.0) as client:
        assert client.admin is not None  # starts watching
        await enough.wait()
    assert waits[0] < 0.01, "a node that was killed during a stream is retried immediately"
    assert min(waits[-5:]) >= 0.7, "once per probe_interval"


def test_backoff() -> None:
    for maximum in (0.05, 1.0):
        backoff = Backoff(maximum)
        last = [backoff.next() for _ in range(40)][-1]
        assert 0.7 * maximum <= last <= 1.3 * maximum
