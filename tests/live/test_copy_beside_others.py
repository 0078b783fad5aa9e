"""A copy is whole whatever other processes do meanwhile, or says that it is not."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from langgraph_mongo_saver import CorruptCheckpoint, MongoDBSaver, Removed
from langgraph_mongo_saver.pipelines import PARTS
from tests.building import config
from tests.faults import Beside, nth
from tests.live.test_copy_thread import DIALECTS, documents, fill, moved, small_batches
from tests.live.test_interrupted_cleanup import Killed
from tests.steps import COLLECTIONS, LARGE, ids
from tests.surfaces import OpenSurface, Surface

LONG_AGO: Any = {"$set": {"stored_at": datetime(2020, 1, 1)}, "$unset": {"held_until": ""}}

# The method that stores copies.
STORES = {"mongodb": "aggregate", "basic": "insert_many"}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs of several parts without megabytes."""
    monkeypatch.setattr("langgraph_mongo_saver.values.PART_BYTES", 120_000)


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_what_a_copy_begins_with_is_spared_and_nothing_else(saver: Surface, mongo: Any, db_name: str) -> None:
    for id in ("1", "2"):
        await saver.put_writes(config("1", "call:1", id), [("w", f"{id}" * LARGE)], "t")
    later = {"$set": {"copied_until": datetime.now(timezone.utc) + timedelta(minutes=5)}}
    mongo[db_name].checkpoint_writes.update_one({"checkpoint_id": "2"}, later)
    assert await saver.call("prune", ["1"], grace=timedelta(0)) == Removed(0, 1, 3)
    assert mongo[db_name].checkpoint_writes.distinct("checkpoint_id") == ["2"]


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@DIALECTS
async def test_an_old_thread_is_copied_whole_beside_clean_up_of_the_copy(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the copy says so: what it has begun with is referred to by nothing yet, and as old as the thread."""
    small_batches(monkeypatch, 5)
    saver, other = await open_saver(dialect=dialect), MongoDBSaver(mongo, db_name)
    await fill(saver)
    for name in COLLECTIONS:
        mongo[db_name][name].update_many({}, LONG_AGO)
    whole = moved(await saver.list({"configurable": {"thread_id": "1"}}), "copy")
    checkpoints, outcomes = mongo[db_name]["checkpoints"], []

    def clean_up() -> None:
        if checkpoints.count_documents({"thread_id": "copy"}) < len(whole):  # afterwards it is a thread like any other
            other.prune(["copy"], grace=timedelta(0))

    for number in itertools.count(1):
        sent = Beside(saver.raw, clean_up, nth(number, *PARTS))
        with monkeypatch.context() as patched:
            patched.setattr(saver.raw, "_send", sent)
            try:
                await saver.call("copy_thread", "1", "copy", replace_target=True)
                outcomes.append("whole")
            except CorruptCheckpoint as error:
                outcomes.append("refused" if "replace_target=True" in str(error) else str(error))
        if not sent.done:
            break
        if outcomes[-1] == "whole":
            copies = await saver.list({"configurable": {"thread_id": "copy"}})
            same = copies == whole
            assert same, number
    assert outcomes.count("whole") > 10
    assert set(outcomes) == {"whole", "refused"}


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@DIALECTS
async def test_a_copy_that_begins_after_clean_up_has_looked_loses_nothing(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed copy has left, long ago, is about to be deleted; then the thread is copied again."""
    saver, other = await open_saver(dialect=dialect), MongoDBSaver(mongo, db_name)
    await fill(saver)
    for name in COLLECTIONS:
        mongo[db_name][name].update_many({}, LONG_AGO)
    for number in itertools.count(1):
        await saver.call("copy_thread", "1", "copy", replace_target=True)
        mongo[db_name].checkpoints.delete_many({"thread_id": "copy"})
        for name in COLLECTIONS[1:]:
            mongo[db_name][name].update_many({}, {"$unset": {"copied_until": ""}})
        copied = Beside(other, lambda: saver.raw.copy_thread("1", "copy"), nth(number, "delete_many"))
        with monkeypatch.context() as patched:
            patched.setattr(other, "_send", copied)
            other.prune(["copy"])
        if not copied.done:
            break
        same = documents(mongo, db_name, "copy") == documents(mongo, db_name, "1")
        # What went before the copy began does not matter; what goes later does.
        assert same, number
    assert number > 3


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@DIALECTS
async def test_of_a_source_that_is_pruned_meanwhile_the_heads_are_copied_and_of_a_deleted_one_nothing_is(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_batches(monkeypatch, 3)
    saver, other = await open_saver(dialect=dialect), MongoDBSaver(mongo, db_name)
    for source, clean_up, outcome in (
        ("pruned", lambda: other.prune(["pruned"], grace=timedelta(0)), None),
        ("deleted", lambda: other.delete_thread("deleted"), CorruptCheckpoint),
    ):
        await fill(saver, source)
        heads = moved([await saver.get_tuple(config(source, ns)) for ns in ("", "node:1|inner:2")], "copy")
        first = Beside(
            saver.raw, clean_up, lambda request: (request.part, request.method) == ("checkpoints", STORES[dialect])
        )
        with monkeypatch.context() as patched:
            patched.setattr(saver.raw, "_send", first)
            if outcome:
                with pytest.raises(outcome, match="'copy' lacks"):
                    await saver.call("copy_thread", source, "copy", replace_target=True)
            else:
                await saver.call("copy_thread", source, "copy", replace_target=True)
        assert first.done
        if not outcome:
            copies = [await saver.get_tuple(config("copy", ns)) for ns in ("", "node:1|inner:2")]
            same = [c and c.checkpoint for c in copies] == [h and h.checkpoint for h in heads]
            assert same


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@DIALECTS
@pytest.mark.parametrize("before", ["writes", "checkpoints"])
async def test_a_copy_beside_a_run_that_is_killed_can_be_read(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run adds large writes to the head before that part is copied: their blobs come before the checkpoints."""
    saver, other = await open_saver(dialect=dialect), MongoDBSaver(mongo, db_name)
    await fill(saver)
    method = STORES[dialect]

    def run() -> None:
        other.put_writes(config("1", "", "4"), [("late", "late!" * LARGE)], "late")

    run_first = Beside(saver.raw, run, lambda request: (request.part, request.method) == (before, method))
    with monkeypatch.context() as patched:
        stored = [False]

        def sending(request: Any) -> Any:
            if stored[0]:
                raise Killed
            reply = run_first(request)
            stored[0] = (request.part, request.method) == ("checkpoints", method)
            return reply

        patched.setattr(saver.raw, "_send", sending)
        with pytest.raises(Killed):
            await saver.call("copy_thread", "1", "copy")
    assert run_first.done
    assert ids(await saver.list({"configurable": {"thread_id": "copy"}})) == ["4", "4", "3", "3", "2", "2", "1", "1"]
