"""Events of what happens to checkpoints, as a change stream and as polling tell of it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from bson.objectid import ObjectId
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_mongo_saver.errors import FilterNotQueryable, InvalidArgument
from langgraph_mongo_saver.event_pipelines import change_pipeline
from langgraph_mongo_saver.events import event_filter
from tests.building import config
from tests.graphs import Chained, Run
from tests.steps import LARGE, put, writes
from tests.surfaces import OpenSurface, Surface
from tests.watchers import Watcher, places, watching

pytestmark = pytest.mark.needs_replica_set
INTERRUPT, ERROR = "__interrupt__", "__error__"
END = "ffffffff-ffff-6fff-8fff-ffffffffffff"
UNKNOWN = "langgraph_mongo_saver.gathering"


@pytest.fixture(params=["sync", "async", "motor"])
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


async def rest(saver: Surface, watcher: Watcher, **place: Any) -> list[Any]:
    """What came until now: all that comes before a checkpoint that is put for that."""
    await put(saver, config(place.pop("thread_id", "end"), **place), id=END)
    return await watcher.until(END)


def id_of(stored: Any) -> str:
    return stored["configurable"]["checkpoint_id"]


# --- what is told --------------------------------------------------------------------------------------------------


async def test_events_come_in_the_order_of_the_database_across_both_collections(saver: Surface) -> None:
    async with watching(saver) as watcher:
        before, expected = config(), []
        for n in range(10):
            before = await put(saver, before, {"a": n})
            await saver.put_writes(before, [("a", n), ("b", n)], "t")
            await saver.put_writes(before, [("a", n)], "u")
            expected += [(kind, "1", id_of(before)) for kind in ("checkpoint", "writes", "writes")]
        events = await watcher.take(30)
    assert places(events) == expected
    assert [event.task_id for event in events[:3]] == [None, "t", "u"]
    assert events[1].channels == ("a", "b")
    assert len({event.position for event in events}) == 30
    assert all(event.created_at.utcoffset() is not None for event in events)


@pytest.mark.asks
async def test_a_graph_that_asks_and_one_that_fails_tell_of_every_kind(saver: Surface) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no")

    def ask(_: Any) -> Any:
        return {"foo": interrupt({"question": 1})}

    builder = StateGraph(Chained).add_node("ask", ask).add_node("first", lambda _: {"bar": ["x"]})
    run = Run(saver.name, builder.add_edge(START, "first").add_edge("first", "ask").compile, [saver.raw])
    async with watching(saver) as watcher:
        await run.invoke({"foo": "", "bar": []}, "asks")
        failing = StateGraph(Chained).add_node("fail", fail).add_edge(START, "fail").compile
        await Run(saver.name, failing, [saver.raw]).invoke({"foo": ""}, "fails")
        await saver.delete_thread("fails")
        events = await rest(saver, watcher)
    of = {thread: [event for event in events if event.thread_id == thread] for thread in ("asks", "fails")}
    checkpoints = [event for event in of["asks"] if event.kind == "checkpoint"]
    assert [(event.step, event.source) for event in checkpoints] == [(-1, "input"), (0, "loop"), (1, "loop")]
    assert [event.parent_checkpoint_id for event in checkpoints][1:] == [e.checkpoint_id for e in checkpoints][:-1]
    assert checkpoints[0].metadata["step"] == -1
    (asked,) = [event for event in of["asks"] if event.kind == "interrupt"]
    assert [question.value for question in asked.interrupts] == [{"question": 1}]
    assert (asked.checkpoint_id, asked.channels) == (checkpoints[-1].checkpoint_id, (INTERRUPT,))
    loaded = await saver.get_tuple(asked.config)
    assert loaded is not None
    assert asked.task_id in {task_id for task_id, *_ in loaded.pending_writes}
    (failed,) = [event for event in of["fails"] if event.kind == "error"]
    assert failed.error == "ValueError('no')"
    assert [event.kind for event in of["fails"]].count("thread_deleted") == 1
    assert {event.kind for event in events} == {"checkpoint", "writes", "interrupt", "error", "thread_deleted"}


async def test_writes_that_are_added_to_a_task_are_told_of_alone(saver: Surface) -> None:
    async with watching(saver) as watcher:
        stored = await put(saver, config())
        await saver.put_writes(stored, [("a", 1)], "t")
        await saver.put_writes(stored, [("a", 1), ("b", 2)], "t")
        await saver.put_writes(stored, [(INTERRUPT, ["asked"])], "t")
        await saver.put_writes(stored, [("a", 1)], "t")
        events = await rest(saver, watcher)
    kinds = [event.kind for event in events]
    assert kinds[:3] == ["checkpoint", "writes", "writes"]
    assert "b" in events[2].channels
    (asked,) = [event for event in events if event.kind == "interrupt"]
    assert asked.interrupts == ("asked",)


async def test_of_writes_that_are_added_just_the_new_ones_are_told_of(saver: Surface) -> None:
    names = ("0", "a.b", "$x", "%", "")
    added = [*itertools.pairwise(names), ("new", "0")]
    async with watching(saver) as watcher:
        stored = await put(saver, config())
        given = [(name, 1) for name in names]
        await saver.put_writes(stored, given, "t")
        for more in added:
            given += [(name, 2) for name in more]
            await saver.put_writes(stored, given, "t")
        await saver.put_writes(stored, [("other", 1)], "t")  # the first write is there
        events = await rest(saver, watcher)
    assert [set(event.channels) for event in events if event.kind == "writes"] == [set(names), *map(set, added)]
    assert [(channel, value) for _, channel, value in await writes(saver, stored)] == given


async def test_an_interrupt_larger_than_a_document_embeds_comes_whole(saver: Surface) -> None:
    async with watching(saver, kinds=["interrupt", "error"]) as watcher:
        stored = await put(saver, config(), {"a": "x" * LARGE})
        await saver.put_writes(stored, [(INTERRUPT, ["x" * LARGE, {"n": 1}]), ("a", "y" * LARGE)], "t")
        await saver.put_writes(stored, [(ERROR, "e" * LARGE)], "u")
        asked, failed = await watcher.take(2)
    same = asked.interrupts == ("x" * LARGE, {"n": 1}) and failed.error == "e" * LARGE
    assert same


async def test_with_encryption_interrupts_are_readable_and_metadata_are_what_is_in_clear(
    open_saver: OpenSurface,
) -> None:
    saver = await open_saver(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16))
    async with watching(saver, metadata={"step": 1}) as checkpoints, watching(saver, kinds="interrupt") as interrupts:
        stored = await put(saver, config(), metadata={"user": "ann", "run_id": "r"})
        await saver.put_writes(stored, [(INTERRUPT, [{"ask": "ann"}])], "t")
        (event,) = await checkpoints.take(1)
        (asked,) = await interrupts.take(1)
    assert event.metadata == {"source": "loop", "step": 1, "run_id": "r"}
    assert (event.step, event.source, event.run_id) == (1, "loop", "r")
    assert asked.interrupts == ({"ask": "ann"},)
    with pytest.raises(FilterNotQueryable):
        saver.raw.watch(metadata={"user": "ann"})


async def test_a_checkpoint_that_is_put_again_comes_again(saver: Surface) -> None:
    async with watching(saver) as watcher:
        for value in (1, 2):
            await put(saver, config(), {"a": value}, id="c")
        assert places(await rest(saver, watcher)) == [("checkpoint", "1", "c")] * 2


async def test_arguments_that_cannot_be_used_are_refused_at_once(saver: Surface) -> None:
    for named in ({"kinds": "other"}, {"on_gap": "x"}, {"poll_interval": -1}, {"resume_from": "x"}, {"thread_id": 1.5}):
        with pytest.raises(InvalidArgument, match=next(iter(named))):
            saver.raw.watch(**named)


# --- filters -------------------------------------------------------------------------------------------------------


async def some_events(saver: Surface) -> None:
    """Checkpoints and writes of three threads, and of a namespace."""
    for thread_id, checkpoint_ns in (("1", ""), ("2", ""), ("$x", ""), ("1", "sub:1")):
        stored = await put(saver, config(thread_id, checkpoint_ns), metadata={"n": [1, 2], "a.b": checkpoint_ns})
        await put(saver, stored, metadata={"n": 1, "$where": {"b": 1, "a": 2}})
        await saver.put_writes(stored, [("a", 1)], "t")
        await saver.put_writes(stored, [(INTERRUPT, ["asked"])], "u")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"thread_id": "2"}, {("2", "")}),
        ({"thread_id": ["1", "$x"]}, {("1", ""), ("$x", ""), ("1", "sub:1")}),
        ({"checkpoint_ns": "sub:1"}, {("1", "sub:1")}),
        ({"checkpoint_ns": "", "thread_id": ["1"]}, {("1", "")}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),
)
async def test_places_are_filtered(saver: Surface, asked: Any, expected: Any) -> None:
    end = {"thread_id": min(thread for thread, _ in expected), "checkpoint_ns": min(ns for _, ns in expected)}
    async with watching(saver, **asked) as watcher:
        await some_events(saver)
        events = await rest(saver, watcher, **end)
    assert {(event.thread_id, event.checkpoint_ns) for event in events} == expected
    assert len(events) == 4 * len(expected)


@pytest.mark.parametrize(
    "kinds",
    ["checkpoint", ["checkpoint", "interrupt"], {"writes", "checkpoint"}],
    ids=lambda kinds: type(kinds).__name__,
)
async def test_kinds_are_filtered(saver: Surface, kinds: Any) -> None:
    async with watching(saver, kinds=kinds) as watcher:
        await some_events(saver)
        events = await rest(saver, watcher)
    assert {event.kind for event in events} == ({kinds} if isinstance(kinds, str) else set(kinds))


@pytest.mark.parametrize(
    ("metadata", "count"),
    [
        ({"n": 1}, 4),
        ({"n": [1, 2]}, 4),
        ({"n": True}, 0),
        ({"n": [2, 1]}, 0),
        ({"a.b": "sub:1"}, 1),
        ({"$where": {"a": 2, "b": 1}}, 4),
        ({"n": {"$gt": 0}}, 0),
        ({"missing": None, "n": 1}, 4),
    ],
    ids=str,
)
async def test_metadata_are_compared_exactly(saver: Surface, metadata: Any, count: int) -> None:
    async with watching(saver, metadata=metadata) as watcher:
        await some_events(saver)
        await put(saver, config("end"), metadata=metadata, id=END)
        events = await watcher.until(END)
    assert len(events) == count
    assert {event.kind for event in events} <= {"checkpoint"}


# --- deletions -----------------------------------------------------------------------------------------------------


async def test_a_deleted_thread_is_told_of_once(saver: Surface) -> None:
    async with watching(saver, kinds=["thread_deleted", "checkpoint"]) as watcher:
        await some_events(saver)
        await saver.delete_thread("1")
        await saver.delete_thread("nobody")
        events = await rest(saver, watcher)
    assert places(events)[8:] == [("thread_deleted", "1", None)]
    assert events[-1].config == {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


async def test_pruned_and_touched_threads_are_not_deleted(open_saver: OpenSurface) -> None:
    saver = await open_saver(ttl=1000)
    async with watching(saver) as watcher:
        before = config()
        for _ in range(3):
            before = await put(saver, before)
        await saver.call("prune", ["1"])
        await saver.call("touch_thread", "1")
        events = await rest(saver, watcher)
    assert [event.kind for event in events] == ["checkpoint"] * 3


@pytest.mark.parametrize("between", [False, True], ids=["at once", "after another thread"])
@pytest.mark.parametrize("kinds", [None, "thread_deleted"], ids=str)
async def test_a_listener_that_was_away_is_told_of_a_thread_that_was_deleted_and_begun_anew(
    saver: Surface, between: bool, kinds: Any
) -> None:
    async with watching(saver, kinds=kinds) as watcher:
        await put(saver, config())
        await put(saver, config("gone"))
        await saver.delete_thread("gone")
        begin = (await watcher.take(3 if kinds is None else 1))[-1].position
    await saver.delete_thread("1")
    if between:
        await put(saver, config("2"))
    await put(saver, config())
    await put(saver, config("last"))
    await saver.delete_thread("last")
    async with watching(saver, kinds=kinds, resume_from=begin) as watcher:
        deleted: list[str] = []
        while "last" not in deleted:
            deleted += [event.thread_id for event in await watcher.take(1) if event.kind == "thread_deleted"]
    assert deleted == ["1", "last"]


@pytest.fixture
def quick_expiry(mongo: Any) -> Iterator[None]:
    """Let the server look every second for what has expired."""
    before = mongo.admin.command("setParameter", 1, ttlMonitorSleepSecs=1)["was"]
    yield
    mongo.admin.command("setParameter", 1, ttlMonitorSleepSecs=before)


@pytest.mark.needs_mongod
@pytest.mark.usefixtures("quick_expiry")
async def test_an_expired_thread_is_told_of_by_name(open_saver: OpenSurface) -> None:
    saver = await open_saver(ttl=1)
    async with watching(saver, kinds="thread_deleted") as watcher:
        await put(saver, await put(saver, config("idle")))
        (event,) = await watcher.take(1, 120)  # the pass that is under way may be of 60 s
    assert places([event]) == [("thread_deleted", "idle", None)]


# --- what others have stored ---------------------------------------------------------------------------------------


def official(n: int) -> dict[str, Any]:
    place = {"thread_id": "official", "checkpoint_ns": "", "checkpoint_id": f"c{n}"}
    return {**place, "type": "msgpack", "checkpoint": b"\x80", "metadata": {"step": b"1"}, "parent_checkpoint_id": None}


async def test_documents_of_the_official_saver_are_skipped_with_one_warning(
    saver: Surface, mongo: Any, db_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await saver.setup()
    caplog.set_level(logging.WARNING, UNKNOWN)
    async with watching(saver) as watcher:
        for n in range(3):
            mongo[db_name].checkpoints.insert_one(official(n))
        assert await rest(saver, watcher) == []
    assert [record.getMessage() for record in caplog.records if record.name == UNKNOWN] == [
        "Skipping documents of a shape that this release does not know (checkpoints: layout None)"
    ]


async def test_of_writes_only_interrupts_and_errors_are_sent(saver: Surface, mongo: Any, db_name: str) -> None:
    await saver.setup()
    asked = [(INTERRUPT, ["asked"]), ("state", "x" * 1000), (ERROR, "no"), ("state", "y")]
    with mongo[db_name].watch(change_pipeline(saver.raw.settings, event_filter("writes"))) as stream:
        await saver.put_writes(config(checkpoint_id="1"), asked, "t")
        sent = stream.next()["fullDocument"]["writes"]
    assert sent["state"] == [{"idx": 1}, {"idx": 3}]
    assert [set(sent[channel][0]) for channel in (INTERRUPT, ERROR)] == [{"idx", "type", "data"}] * 2


@pytest.mark.parametrize(
    "strange",
    [
        {"writes": 5},
        {"writes": {"a": 1}},
        {"writes": [5, None, [1]]},
        {"metadata": 5, "layout": 1, "checkpoint_ns": "", "checkpoint_id": "c", "stored_at": "today"},
        {"layout": 1, "task_id": 5, "writes": {"a": {"$b": 1}}},
        {"layout": 1, "task_id": 5, "writes": {"__interrupt__": [5], "__error__": None}},
        {"stored_at": 5, "updated": {"writes.a": 2}},
    ],
    ids=str,
)
async def test_strange_documents_do_not_end_a_watch(saver: Surface, mongo: Any, db_name: str, strange: Any) -> None:
    await saver.setup()
    async with watching(saver) as watcher:
        for name in ("checkpoints", "checkpoint_writes"):
            mongo[db_name][name].insert_one({"_id": ObjectId(), "thread_id": "x", **strange, "id": str(uuid6())})
            mongo[db_name][name].update_one({"thread_id": "x"}, {"$set": {"other": 1}})
            mongo[db_name][name].delete_many({"thread_id": "x"})
        assert [event.kind for event in await rest(saver, watcher)] == []
