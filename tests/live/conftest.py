"""Savers on the session's server: every behaviour test runs on every surface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from tests.faults import CommandRecorder
from tests.graphs import Play, assert_same
from tests.servers import Server
from tests.surfaces import SURFACES, OpenSurface, Surface, open_surface


@pytest.fixture(params=SURFACES)
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def open_saver(
    surface_name: str, server: Server, db_name: str, recorder: CommandRecorder
) -> AsyncIterator[OpenSurface]:
    """Open savers with arguments of the test's choice: ``saver = await open_saver(ttl=60)``."""
    async with AsyncExitStack() as stack:

        async def open_(**options: Any) -> Surface:
            options = {"uri": server.uri, "db_name": db_name, **options}
            return await stack.enter_async_context(open_surface(surface_name, *_address(options), recorder, **options))

        yield open_


def _address(options: dict[str, Any]) -> tuple[str, str]:
    return options.pop("uri"), options.pop("db_name")


@pytest.fixture
async def saver(open_saver: OpenSurface) -> Surface:
    """A saver with default arguments."""
    return await open_saver()


@pytest.fixture
async def play(surface_name: str, open_saver: OpenSurface) -> Play:
    """Play a scenario with a graph: ``await play(compile_, scenario)``; see `assert_same`."""
    savers = [(await open_saver()).raw for _ in range(2)]
    return partial(assert_same, surface_name, savers)


@pytest.fixture
def quick_expiry(mongo: Any) -> Iterator[None]:
    """Let the server look every second for what has expired."""
    before = mongo.admin.command("setParameter", 1, ttlMonitorSleepSecs=1)["was"]
    yield
    mongo.admin.command("setParameter", 1, ttlMonitorSleepSecs=before)
