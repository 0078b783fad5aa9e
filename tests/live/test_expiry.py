"""A thread expires as a whole, some time after its last activity."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime, timezone
from typing import Any

import pytest
from pymongo.read_concern import ReadConcern

from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import COLLECTIONS, LARGE, put, stored, values
from tests.surfaces import OpenSurface, Surface

LOG = "langgraph_mongo_saver.schema"


async def step(saver: Surface, before: Any, n: int) -> Any:
    """A checkpoint after another one, whose large value does not change, and a write."""
    kept = {"kept": "x" * LARGE, "n": n}
    made = await put(saver, before, kept, {"kept": 1, "n": n}, new={"n": n} if n else {"kept": 1, "n": n})
    await saver.put_writes(made, [("n", n)], "t")
    return made


def expiries(mongo: Any, db_name: str) -> dict[str, list[int]]:
    """The seconds of the TTL indexes by collection."""
    return {
        name: [i["expireAfterSeconds"] for i in mongo[db_name][name].list_indexes() if "expireAfterSeconds" in i]
        for name in COLLECTIONS
    }


async def test_all_documents_of_a_thread_carry_one_time_and_activity_renews_it(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver = await open_saver(ttl=10)  # activity is noted every half second
    first = await step(saver, config(), 0)
    await step(saver, config("other"), 0)
    times = set()
    deadline = time.monotonic() + 20
    while len(times) < 3:
        assert time.monotonic() < deadline
        await saver.put_writes(first, [("a", 1)], "again")
        found = [document for documents in stored(mongo, db_name).values() for document in documents]
        [now] = {document["active_at"] for document in found if document["thread_id"] == "1"}
        assert len([document for document in found if document["thread_id"] == "1"]) == 4
        times.add(now)
        await asyncio.sleep(0.05)
    assert mongo[db_name].checkpoints.find_one({"thread_id": "other"})["active_at"] < max(times)


async def test_whose_clock_is_behind_does_not_shorten_a_threads_life(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver, other = await open_saver(ttl=1000), await open_saver(ttl=1000)
    first = await step(saver, config(), 0)
    later = datetime(2100, 1, 1, tzinfo=timezone.utc)
    for name in COLLECTIONS:
        mongo[db_name][name].update_many({}, {"$set": {"active_at": later}})
    await other.put_writes(first, [("n", 0), ("more", 1)], "t")
    await other.call("touch_thread", "1")
    await put(other, config(), {"kept": "x" * LARGE}, id="0")
    found = stored(mongo, db_name)
    times = {d["active_at"] for name in ("checkpoint_blobs", "checkpoint_writes") for d in found[name]}
    assert times == {later}
    assert [d["active_at"] == later for d in found["checkpoints"]].count(True) == 1


async def test_activity_is_noted_seldom(open_saver: OpenSurface, recorder: CommandRecorder) -> None:
    saver = await open_saver(ttl=100_000)
    before = await step(saver, config(), 0)
    with recorder.recording() as seen:
        for n in range(1, 5):
            before = await step(saver, before, n)
    assert seen.names == ["insert"] * 8


async def test_without_ttl_nothing_expires(saver: Surface, mongo: Any, db_name: str) -> None:
    await step(saver, config(), 0)
    assert expiries(mongo, db_name) == {name: [] for name in COLLECTIONS}
    found = [document for documents in stored(mongo, db_name).values() for document in documents]
    assert found
    assert not any("active_at" in document for document in found)


async def test_another_ttl_changes_existing_collections_and_says_so(
    open_saver: OpenSurface, mongo: Any, db_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOG)
    for ttl, expected, said in (
        (None, [], None),
        (100, [105], "100 s after"),
        (100, [105], None),
        (1000.5, [1051], "1000.5 s after"),
        (None, [], "no longer expire"),
        (100, [105], "100 s after"),
    ):
        caplog.clear()
        saver = await open_saver(ttl=ttl)
        await step(saver, config(), 0)
        assert expiries(mongo, db_name) == dict.fromkeys(COLLECTIONS, expected)
        messages = [record.getMessage() for record in caplog.records if record.name == LOG]
        assert len(messages) == (3 if said else 0)
        assert all(said in message for message in messages)
        for name in COLLECTIONS if said else ():
            assert any(message.startswith(f"{name}:") for message in messages)


async def test_a_thread_from_before_ttl_expires_from_its_next_activity_on(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    first = await step(await open_saver(), config(), 0)
    await step(await open_saver(), config("idle"), 0)
    await step(await open_saver(ttl=100), first, 1)
    found = [document for documents in stored(mongo, db_name).values() for document in documents]
    assert all(("active_at" in document) == (document["thread_id"] == "1") for document in found)


@pytest.mark.needs_mongod
@pytest.mark.usefixtures("quick_expiry")
@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_an_idle_thread_goes_and_an_active_one_keeps_everything(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver = await open_saver(ttl=2)
    idle = await step(saver, config("idle"), 0)
    before, made, deadline = config("active"), [], time.monotonic() + 120  # the pass that is under way may be of 60 s
    while len(made) < 2 or any(documents_of(mongo, db_name, "idle")):
        assert time.monotonic() < deadline
        before = await step(saver, before, len(made))
        made.append(before)
        await asyncio.sleep(0.2)
    assert await saver.get_tuple(idle) is None
    assert documents_of(mongo, db_name, "active") == [len(made), len(made), 1]
    for n, place in enumerate(made):
        assert (await values(saver, place)) == {"kept": "x" * LARGE, "n": n}
    assert len(await saver.list(config("active"))) == len(made) > 8


@pytest.mark.needs_mongod
@pytest.mark.usefixtures("quick_expiry")
@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_a_step_that_outlasts_the_ttl_is_stored_whole(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver(ttl=1)
    first = await step(saver, config(), 0)
    deadline = time.monotonic() + 120  # the pass that is under way may be of 60 s
    while any(documents_of(mongo, db_name, "1")):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    second = await step(saver, first, 1)
    assert await values(saver, second) == {"kept": "x" * LARGE, "n": 1}


def documents_of(mongo: Any, db_name: str, thread_id: str) -> list[int]:
    """How many documents of a thread each collection holds, as savers see it: once a majority knows."""
    database = mongo.get_database(db_name, read_concern=ReadConcern("majority"))
    return [database[name].count_documents({"thread_id": thread_id}) for name in COLLECTIONS]
