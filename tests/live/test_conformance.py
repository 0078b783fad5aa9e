"""LangGraph's own conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer

from tests.servers import Server
from tests.surfaces import Saver, open_surface

# Named one by one, so that one which the suite no longer detects is missed.
CAPABILITIES = {"put", "put_writes", "get_tuple", "list", "delete_thread", "prune", "copy_thread", "delete_for_runs"}


# The suite knows async methods alone; those of the sync saver run its sync ones in threads.
@pytest.mark.parametrize("name", ["async", "motor", "sync-under-async"])
async def test_the_conformance_suite_passes(name: str, server: Server, db_name: str) -> None:
    async def savers() -> AsyncIterator[Saver]:
        async with open_surface(name, server.uri, db_name) as surface:
            yield surface.raw

    report = await validate(RegisteredCheckpointer(name, savers))

    detected = {name: result for name, result in report.results.items() if result.detected}
    assert [failure for result in detected.values() for failure in result.failures] == []
    assert set(detected) == CAPABILITIES
    assert all(result.passed and result.tests_passed for result in detected.values())
    assert report.passed_all_base()
