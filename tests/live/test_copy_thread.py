"""A copy of a thread is the same to the byte, and lives a life of its own."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import bson
import pytest

from langgraph_mongo_saver import CorruptCheckpoint, InvalidArgument, MongoDBSaver, ThreadExists
from tests.building import checkpoint, config
from tests.live.test_interrupted_cleanup import Killed, killed_after
from tests.steps import COLLECTIONS, LARGE, ids, put, writes
from tests.surfaces import OpenSurface, Surface
from tests.trees import unused_and_missing_blobs

HUGE = bytes(range(256)) * 1200
MARKS = {"active_at", "held_until", "copied_until"}
on_two_surfaces = pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
DIALECTS = pytest.mark.parametrize("dialect", ["mongodb", "basic"])


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs of several parts without megabytes."""
    monkeypatch.setattr("langgraph_mongo_saver.values.PART_BYTES", 120_000)


def small_batches(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for name in ("_BATCH", "_PAGE"):
        monkeypatch.setattr(f"langgraph_mongo_saver.copying.{name}", size)


async def fill(saver: Surface, thread_id: str = "1") -> None:
    """A tree in two namespaces: two segments, blobs in values and writes, odd names."""
    for ns in ("", "node:1|inner:2"):
        first = await put(saver, config(thread_id, ns), {"huge": HUGE, "$a.b": "$x"}, id="1", metadata={"a.$b": "$c"})
        for id, parent in (("2", first), ("3", config(thread_id, ns, "2")), ("4", first)):
            given = {"huge": HUGE, "n": id * LARGE}
            made = await put(saver, parent, given, {"huge": 1, "n": int(id)}, new={"n": int(id)}, id=id)
            await saver.put_writes(made, [("n", f"write {id}"), ("large", f"{id}." * LARGE)], "t", "~path")
    await saver.put_writes(config(thread_id, "", "to come"), [("n", 1)], "t")


def documents(mongo: Any, db_name: str, thread_id: str) -> dict[str, list[bytes]]:
    """The documents of a thread as bytes, but for the thread's id, and for when they may go."""
    found: dict[str, list[bytes]] = {}
    for name in COLLECTIONS:
        mine = mongo[db_name][name].find({"thread_id": thread_id})
        plain = [{**d, "_id": {**d["_id"], "thread_id": 0}, "thread_id": 0} for d in mine]
        found[name] = sorted(bson.encode({k: v for k, v in d.items() if k not in MARKS}) for d in plain)
    return found


def moved(listed: Any, thread_id: str) -> list[Any]:
    """Checkpoints as they would be in another thread."""
    for loaded in listed:
        for place in filter(None, (loaded.config, loaded.parent_config)):
            place["configurable"]["thread_id"] = thread_id
    return listed


@on_two_surfaces
@DIALECTS
@pytest.mark.parametrize("target", ["copy", "$thread_id", "$$ROOT", "a.$b", ""], ids=repr)
async def test_everything_is_copied(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, target: str
) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    await put(saver, config("other"), {"n": 1})
    before = documents(mongo, db_name, "1")
    assert [len(before[name]) for name in COLLECTIONS] == [8, 7, 3 + 3 * 3 + 3 * 6]
    progress: list[tuple[int, int]] = []
    await saver.call("copy_thread", "1", target, progress=lambda *done: progress.append(done))
    assert progress == [(1, 3), (2, 3), (3, 3)]
    # Compared outside of assert, which would print megabytes.
    same = documents(mongo, db_name, target) == before
    unchanged = documents(mongo, db_name, "1") == before
    assert (same, unchanged) == (True, True)
    for name in COLLECTIONS:
        assert mongo[db_name][name].count_documents({"_id.thread_id": target}) == len(before[name])
    everywhere = {"configurable": {"thread_id": target}}
    copies = await saver.list(everywhere)
    same = copies == moved(await saver.list({"configurable": {"thread_id": "1"}}), target)
    assert same
    assert ids(copies) == ["4", "4", "3", "3", "2", "2", "1", "1"]
    assert len(await saver.list(config("other"))) == 1


@DIALECTS
async def test_a_thread_whose_id_looks_like_a_path(open_saver: OpenSurface, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    await put(saver, config("$a"), {"n": 1}, id="1")
    await put(saver, config("$$b"), {"n": 2}, id="2")
    await saver.call("copy_thread", "$a", "$c")
    assert ids(await saver.list(config("$c"))) == ["1"]
    assert ids(await saver.list(None)) == ["2", "1", "1"]


@DIALECTS
async def test_the_copy_goes_on_by_itself(open_saver: OpenSurface, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    await saver.call("copy_thread", "1", "copy")
    before = await saver.list(config("1"))
    given, versions = {"huge": HUGE, "n": "on"}, {"huge": 1, "n": 9}
    made = await put(saver, config("copy", "", "4"), given, versions, new={"n": 9}, id="5")
    assert ids(await saver.list(config("copy"))) == ["5", "4", "3", "2", "1"]
    same = await saver.list(config("1")) == before
    await saver.delete_thread("1")
    loaded = await saver.get_tuple(made)
    assert loaded is not None
    whole = loaded.checkpoint["channel_values"] == given
    old = (await saver.list(config("copy")))[1:] == moved(before, "copy")
    assert (same, whole, old) == (True, True, True)


@on_two_surfaces
@DIALECTS
async def test_copying_again_adds_what_is_new(open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    for _ in range(2):
        await saver.call("copy_thread", "1", "copy")
    same = [documents(mongo, db_name, "copy") == documents(mongo, db_name, "1")]
    await put(saver, config("1", "", "4"), {"n": "new"}, {"n": 9}, id="5")
    for name in COLLECTIONS:  # as a kill would leave it
        gone = mongo[db_name][name].find_one({"thread_id": "copy"})
        mongo[db_name][name].delete_one({"_id": gone["_id"]})
    await saver.call("copy_thread", "1", "copy")
    same.append(documents(mongo, db_name, "copy") == documents(mongo, db_name, "1"))
    assert same == [True, True]


@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
async def test_a_target_with_something_else_is_refused_or_replaced(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str
) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    await put(saver, config("copy", "elsewhere"), {"n": 1}, id="1")
    with pytest.raises(ThreadExists, match=r"'copy'.*replace_target"):
        await saver.call("copy_thread", "1", "copy")
    with pytest.raises(ThreadExists, match="'copy'"):
        await saver.call("copy_thread", "missing", "copy")
    assert ids(await saver.list({"configurable": {"thread_id": "copy"}})) == ["1"]
    await saver.call("copy_thread", "1", "copy", replace_target=True)
    same = documents(mongo, db_name, "copy") == documents(mongo, db_name, "1")
    assert same


@on_two_surfaces
@DIALECTS
async def test_beside_a_run_that_appends_the_copy_is_as_of_the_start(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str
) -> None:
    saver, other = await open_saver(dialect=dialect), MongoDBSaver(mongo, db_name)
    await fill(saver)
    before = moved(await saver.list(config("1")), "copy")
    told = iter(range(5, 10))

    def go_on(done: int, total: int) -> None:
        name = str(next(told))
        at = config("1", "", str(int(name) - 1))
        made = checkpoint({"huge": HUGE, "n": name * LARGE}, {"huge": 1, "n": int(name)}, name)
        other.put(at, made, {"source": "loop", "step": 1}, {"n": int(name)})
        other.put_writes(at, [("late", f"{name}!" * LARGE)], "late")

    await saver.call("copy_thread", "1", "copy", progress=go_on)
    copies = await saver.list(config("copy"))
    assert ids(copies) == ["4", "3", "2", "1"]
    same = [loaded._replace(pending_writes=[]) for loaded in copies] == [
        loaded._replace(pending_writes=[]) for loaded in before
    ]
    assert same
    assert unused_and_missing_blobs(mongo[db_name], "copy")[1] == 0


@DIALECTS
async def test_a_target_that_holds_only_writes_is_not_empty(open_saver: OpenSurface, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    for id in ("9", "to come"):  # the source has writes at the second, too
        await saver.put_writes(config(f"copy {id}", "", id), [("n", 1)], "t")
        with pytest.raises(ThreadExists, match=f"'copy {id}'"):
            await saver.call("copy_thread", "1", f"copy {id}")


@on_two_surfaces
@DIALECTS
@pytest.mark.parametrize("replace_target", [False, True])
async def test_what_another_saver_has_written_is_not_copied(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, replace_target: bool
) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver, "copy")
    theirs = {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1", "type": "msgpack", "checkpoint": b""}
    mongo[db_name]["checkpoints"].insert_one(theirs)
    before = documents(mongo, db_name, "copy")
    with pytest.raises(CorruptCheckpoint, match=r"'1'.*another saver"):
        await saver.call("copy_thread", "1", "copy", replace_target=replace_target)
    same = documents(mongo, db_name, "copy") == before
    assert same


@on_two_surfaces
@DIALECTS
async def test_writes_of_another_saver_stay_where_they_are(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str
) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    before = documents(mongo, db_name, "1")
    theirs = {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "4", "task_id": "theirs", "idx": 0, "value": b""}
    mongo[db_name]["checkpoint_writes"].insert_one(theirs)
    await saver.call("copy_thread", "1", "copy")
    same = documents(mongo, db_name, "copy") == before
    assert same


@pytest.mark.parametrize("replace_target", [False, True])
async def test_what_cannot_be_copied(saver: Surface, replace_target: bool) -> None:
    await put(saver, config(), id="1")
    with pytest.raises(InvalidArgument, match="target_thread_id"):
        await saver.call("copy_thread", "1", "1", replace_target=replace_target)
    for source, target in ((None, "2"), ("1", None), ("1", {"$gt": ""})):
        with pytest.raises(InvalidArgument, match="thread_id"):
            await saver.call("copy_thread", source, target, replace_target=replace_target)
    await saver.call("copy_thread", "missing", "copy", replace_target=replace_target)
    assert ids(await saver.list(None)) == ["1"]


@on_two_surfaces
@DIALECTS
async def test_a_copy_expires_as_one_thread(open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str) -> None:
    await fill(await open_saver())
    saver = await open_saver(ttl=1000, dialect=dialect)
    await saver.call("copy_thread", "1", "copy")
    for name in COLLECTIONS:  # as a copy of long ago
        mongo[db_name][name].update_many({"thread_id": "copy"}, {"$set": {"active_at": datetime(2020, 1, 1)}})
    await saver.call("copy_thread", "1", "copy")
    times = {time for name in COLLECTIONS for time in mongo[db_name][name].distinct("active_at", {"thread_id": "copy"})}
    assert len(times) == 1
    assert min(times).year > 2020


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@DIALECTS
async def test_a_copy_that_is_stopped_anywhere_can_be_read_and_finished(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_batches(monkeypatch, 5)
    saver, again = await open_saver(dialect=dialect), await open_saver(dialect=dialect)
    await fill(saver)
    whole = moved(await saver.list({"configurable": {"thread_id": "1"}}), "copy")
    for requests in itertools.count():
        with killed_after(saver.raw, requests, monkeypatch):
            try:
                await saver.call("copy_thread", "1", "copy")
                break
            except Killed:
                pass
        copies = await again.list({"configurable": {"thread_id": "copy"}})
        there = [loaded.config for loaded in copies]
        same = all(loaded in whole for loaded in copies)
        linked = all(loaded.parent_config is None or loaded.parent_config in there for loaded in copies)
        assert (same, linked) == (True, True), requests
        await again.call("copy_thread", "1", "copy")
        same = documents(mongo, db_name, "copy") == documents(mongo, db_name, "1")
        assert same, requests
        await again.delete_thread("copy")
    assert requests > 10


@on_two_surfaces
@DIALECTS
async def test_what_the_copy_has_got_of_its_own_is_not_overwritten(open_saver: OpenSurface, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    await saver.call("copy_thread", "1", "copy")
    place = config("copy", "", "4")
    await saver.put_writes(place, [("n", "write 4"), ("large", ""), ("own", 1)], "t", "~path")
    with pytest.raises(ThreadExists, match="'copy'"):
        await saver.call("copy_thread", "1", "copy")
    assert ("t", "own", 1) in await writes(saver, place)
    await saver.put_writes(config("1", "", "4"), [("n", "write 4"), ("large", ""), ("of the source", 1)], "t", "~path")
    await saver.call("copy_thread", "1", "copy", replace_target=True)
    assert [channel for _, channel, _ in await writes(saver, place)] == ["n", "large", "of the source"]


@on_two_surfaces
@DIALECTS
async def test_copying_again_brings_what_was_added_to_the_writes_of_a_task(
    open_saver: OpenSurface, mongo: Any, db_name: str, dialect: str
) -> None:
    saver = await open_saver(dialect=dialect)
    await fill(saver)
    await saver.call("copy_thread", "1", "copy")
    place = config("1", "", "4")
    await saver.put_writes(place, [("n", "write 4"), ("large", ""), ("later", "x" * LARGE)], "t", "~path")
    await saver.call("copy_thread", "1", "copy")
    same = documents(mongo, db_name, "copy") == documents(mongo, db_name, "1")
    assert same
