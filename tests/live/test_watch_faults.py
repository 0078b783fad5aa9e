"""A watch on a server that fails, forgets, holds huge documents, or has no change streams."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from langgraph_mongo_saver.embedded import find_mongod
from langgraph_mongo_saver.errors import ChangeStreamsUnavailable, EventsLost
from langgraph_mongo_saver.mongod import Mongod
from tests.building import config
from tests.faults import CommandRecorder, fail_command
from tests.steps import put
from tests.surfaces import OpenSurface, Surface
from tests.watchers import Watcher, places, watching

pytestmark = [pytest.mark.needs_mongod, pytest.mark.needs_replica_set]
WATCHER = "watcher"
LABEL = "ResumableChangeStreamError"
LOST = {"error_code": 286, "app_name": WATCHER}


@pytest.fixture(params=["sync", "async", "motor"])
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def victim(open_saver: OpenSurface) -> Surface:
    """A saver whose commands can be made to fail."""
    return await open_saver(client_appname=WATCHER)


async def stored(saver: Surface, *ids: str) -> list[Any]:
    """Put checkpoints with these ids, and what is expected to be told of them."""
    for id in ids:
        await put(saver, config(), id=id)
    return [("checkpoint", "1", id) for id in ids]


async def settled(watcher: Watcher, saver: Surface, expected: list[Any]) -> None:
    """Nothing came but what was expected, and then what is stored now."""
    last = await stored(saver, "zz")
    assert places(await watcher.take(len(expected) + 1)) == expected + last
    assert watcher.failure is None


# --- what passes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        {"error_code": 10107, "labels": [LABEL]},
        {"error_code": 7},  # 91 and the like would wait for the next heartbeat
        {"error_code": 43},
        {"error_code": 234, "labels": [LABEL]},
        {"error_code": 262},
        {"error_code": 6, "labels": [LABEL]},
        {"close_connection": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("commands", [["getMore"], ["getMore", "aggregate"]], ids=",".join)
async def test_what_passes_is_survived_several_times_in_a_row_without_loss(
    victim: Surface, open_saver: OpenSurface, mongo: Any, failure: Any, commands: list[str]
) -> None:
    writer = await open_saver()
    async with watching(victim, kinds="checkpoint") as watcher:
        expected = await stored(writer, "a")
        with fail_command(mongo, commands, times=6, app_name=WATCHER, **failure):
            expected += await stored(writer, *"bcdefg")
            await asyncio.sleep(0.3)
            expected += await stored(writer, "h")
            assert places(await watcher.take(8)) == expected
        await settled(watcher, writer, [])


async def test_opening_survives_what_passes(victim: Surface, mongo: Any) -> None:
    await victim.setup()
    with fail_command(mongo, ["aggregate"], times=4, close_connection=True, app_name=WATCHER):
        async with watching(victim) as watcher:
            await settled(watcher, victim, [])


async def test_a_stream_that_always_breaks_is_not_tried_without_pauses(
    victim: Surface, open_saver: OpenSurface, mongo: Any, recorder: CommandRecorder
) -> None:
    writer = await open_saver()
    async with watching(victim) as watcher:
        failing = fail_command(mongo, ["getMore"], times=None, error_code=234, labels=[LABEL], app_name=WATCHER)
        with recorder.recording() as seen, failing:
            await asyncio.sleep(2)
        await settled(watcher, writer, [])
    assert seen.names.count("aggregate") < 60


async def test_what_passes_is_raised_after_retry_seconds(victim: Surface, mongo: Any) -> None:
    async with watching(victim, retry_seconds=1) as watcher:
        with fail_command(mongo, ["getMore", "aggregate"], times=None, close_connection=True, app_name=WATCHER):
            assert type(await watcher.fail()).__name__ == "AutoReconnect"


async def test_what_does_not_pass_is_raised(victim: Surface, mongo: Any) -> None:
    async with watching(victim) as watcher:
        with fail_command(mongo, ["getMore"], error_code=13, app_name=WATCHER):
            failure = await watcher.fail()
    assert isinstance(failure, OperationFailure)
    assert failure.code == 13
    with fail_command(mongo, ["aggregate"], error_code=13, app_name=WATCHER), pytest.raises(OperationFailure):
        async with watching(victim):
            pass


# --- gaps ----------------------------------------------------------------------------------------------------------


def has_bounds(failure: BaseException) -> bool:
    assert isinstance(failure, EventsLost)
    assert failure.since is not None
    assert failure.until is not None
    return failure.since <= failure.until


async def test_lost_events_are_told_of_with_their_bounds(victim: Surface, open_saver: OpenSurface, mongo: Any) -> None:
    writer = await open_saver()
    async with watching(victim) as watcher:
        await stored(writer, "a")
        (event,) = await watcher.take(1)
        with fail_command(mongo, ["getMore"], **LOST):
            assert has_bounds(await watcher.fail())
    with fail_command(mongo, ["aggregate"], **LOST), pytest.raises(EventsLost) as caught:
        async with watching(victim, resume_from=event.position):
            pass
    assert has_bounds(caught.value)


async def test_after_lost_events_what_was_stored_meanwhile_comes_once(
    victim: Surface, open_saver: OpenSurface, mongo: Any
) -> None:
    writer = await open_saver()
    async with watching(victim, on_gap="catch_up") as watcher:
        expected = await stored(writer, *"abc")
        assert places(await watcher.take(3)) == expected
        with fail_command(mongo, ["getMore"], **LOST):
            expected = await stored(writer, "d")
            assert places(await watcher.take(1)) == expected
        await settled(watcher, writer, [])


async def test_a_catch_up_after_being_away_delivers_each_checkpoint_once(
    victim: Surface, open_saver: OpenSurface, mongo: Any
) -> None:
    writer = await open_saver()
    async with watching(victim) as watcher:
        await stored(writer, "first")
        (event,) = await watcher.take(1)
    before, made = config(), []
    for _ in range(200):  # more than a page, with ids as langgraph makes them
        before = await put(writer, before)
        made.append(before["configurable"]["checkpoint_id"])
    with fail_command(mongo, ["aggregate"], **LOST):
        async with watching(victim, on_gap="catch_up", resume_from=event.position, kinds="checkpoint") as watcher:
            await put(writer, before, id="zz")
            found = [event.checkpoint_id for event in await watcher.until("zz")]
    # What was stored within a minute before may come again.
    assert [id for id in found if id != "first"] == made


# --- huge documents ------------------------------------------------------------------------------------------------


async def test_a_foreign_document_as_large_as_can_be_does_not_end_the_watch(
    saver: Surface, mongo: Any, db_name: str
) -> None:
    await saver.setup()
    huge = b"x" * (16 * 2**20 - 200)
    async with watching(saver) as watcher:
        for name in ("checkpoints", "checkpoint_writes"):
            document = {"thread_id": "x", "checkpoint": huge}
            mongo[db_name][name].insert_one(document)
            mongo[db_name][name].update_one({"_id": document["_id"]}, {"$set": {"n": 1}})
            mongo[db_name][name].replace_one({"_id": document["_id"]}, {**document, "checkpoint": huge[:-2]})
        await settled(watcher, saver, [])


# --- a server without change streams -------------------------------------------------------------------------------


class Standalone(Mongod):
    """A mongod that is no member of a replica set."""

    def __init__(self, folder: Path, binary: str) -> None:
        super().__init__(folder, binary, remove=folder)
        at = self._command.index("--replSet")
        del self._command[at : at + 2]
        at = self._command.index("--oplogSize")
        del self._command[at : at + 2]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = find_mongod()
    if binary is None:
        pytest.skip("no mongod in reach")
    folder = tmp_path_factory.mktemp("standalone")
    server = Standalone(folder, binary)
    try:
        server.start()
        yield f"mongodb://{server.address}/?directConnection=true"
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_standalone_server_has_no_change_streams_and_can_be_polled(
    open_saver: OpenSurface, standalone: str
) -> None:
    saver = await open_saver(uri=standalone)
    with pytest.raises(ChangeStreamsUnavailable, match=r"--replSet.*poll_interval"):
        async with watching(saver):
            pass
    async with watching(saver, poll_interval=0.02) as watcher:
        assert places(await settle(watcher, saver)) == [("checkpoint", "1", "a"), ("thread_deleted", "1", None)]


async def settle(watcher: Watcher, saver: Surface) -> list[Any]:
    await stored(saver, "a")
    found = await watcher.take(1)
    await saver.delete_thread("1")
    return found + await watcher.take(1)
