# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from collector import Collector
from pair import Pair
from waiting import Clock, steady_client

from lockstep_mq import Client


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with Collector() as c:
        yield c


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Pair]:
    binary = os.environ.get("LOCKSTEP_BINARY")
    if not binary:
        pytest.skip("LOCKSTEP_BINARY does not name a lockstep binary: test/python/run.sh builds one")
    p = Pair(binary, Path(tmp_path_factory.mktemp("pair")), collector.address)
    yield p
    p.close()


@pytest_asyncio.fixture
async def client(pair: Pair) -> AsyncIterator[Client]:
    async with steady_client(pair.addresses) as c:
        yield c


@pytest_asyncio.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    c = Clock(loop)
    monkeypatch.setattr(loop, "time", c.time)
    return c
