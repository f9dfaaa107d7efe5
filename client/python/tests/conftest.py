# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from collector import Collector
from pair import Pair

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
    async with Client(pair.addresses) as c:
        yield c
