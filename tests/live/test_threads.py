"""The list of threads, and threads kept alive."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver import InvalidArgument, ThreadSummary
from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import COLLECTIONS, LARGE, put
from tests.surfaces import OpenSurface, Surface

on_two_surfaces = pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)


async def threads(saver: Surface, **options: Any) -> list[ThreadSummary]:
    if saver.name == "sync":
        return list(saver.raw.list_threads(**options))  # type: ignore[arg-type] # the sync saver's
    if saver.name == "async-from-threads":
        return await asyncio.to_thread(lambda: list(saver.raw.list_threads(**options)))  # type: ignore[arg-type] # as above
    return [summary async for summary in saver.raw.alist_threads(**options)]


async def test_what_is_told_of_a_thread(saver: Surface, mongo: Any, db_name: str) -> None:
    began = datetime.now(timezone.utc)
    first = await put(saver, config("a"), {"n": 1}, id="1")
    await put(saver, first, {"n": "x" * LARGE}, id="2")
    await saver.put_writes(first, [("w", "y" * LARGE)], "t")
    for ns in ("z:1", "memory"):
        await put(saver, config("a", ns), {"n": 1}, id="7")
    for ns, id in (("y", "3"), ("x", "4"), ("z", "1")):
        await put(saver, config("b", ns), {"n": 1}, id=id)
    ended = datetime.now(timezone.utc)
    a, b = await threads(saver)
    assert (a.thread_id, a.namespaces, a.checkpoints, a.head_id) == ("a", ("", "memory", "z:1"), 4, "2")
    assert (b.thread_id, b.namespaces, b.checkpoints, b.head_id) == ("b", ("x", "y", "z"), 3, "4")
    for summary in (a, b):
        size = {"$group": {"_id": None, "n": {"$sum": {"$bsonSize": "$$ROOT"}}}}
        mine = [{"$match": {"thread_id": summary.thread_id}}, size]
        sizes = [found["n"] for name in COLLECTIONS for found in mongo[db_name][name].aggregate(mine)]
        assert summary.bytes == sum(sizes)
        assert began - timedelta(milliseconds=1) <= summary.last_activity <= ended
    assert a.bytes > 2 * LARGE > 5_000 > b.bytes > 500


async def test_writes_are_activity(saver: Surface) -> None:
    first = await put(saver, config(), id="1")
    [before] = await threads(saver)
    await asyncio.sleep(0.005)
    await saver.put_writes(first, [("w", 1)], "t")
    [after] = await threads(saver)
    assert after.last_activity > before.last_activity


async def test_no_threads(saver: Surface) -> None:
    assert await threads(saver) == []
    await put(saver, config())
    assert await threads(saver, limit=0) == await threads(saver, after="1") == []
    await saver.delete_thread("1")
    assert await threads(saver) == []


@on_two_surfaces
@pytest.mark.parametrize("scanned", [7, 5000])
async def test_many_threads_come_in_order(saver: Surface, monkeypatch: pytest.MonkeyPatch, scanned: int) -> None:
    # A page takes several looks at the index where threads are long.
    monkeypatch.setattr("langgraph_mongo_saver.threads._SCANNED", scanned)
    names = sorted(["$a", "", "é", "a:b", "Z", *(f"{n:03}" for n in range(205))])
    for name in reversed(names):
        await put(saver, config(name), id="1")
    for n in range(20):
        await put(saver, config("007"), id=f"{n + 2:02}")
    assert [summary.thread_id for summary in await threads(saver)] == names
    assert {s.thread_id: s.checkpoints for s in await threads(saver)} == {**dict.fromkeys(names, 1), "007": 21}
    for after, limit in (("", 100), ("006", 100), ("050", 101), ("0505", 2), ("203", None), ("zz", 1), (None, 1)):
        later = [name for name in names if after is None or name > after]
        found = await threads(saver, after=after, limit=limit)
        assert [summary.thread_id for summary in found] == later[:limit]


@on_two_surfaces
async def test_what_is_about_to_go_does_not_count_towards_the_limit(saver: Surface, mongo: Any, db_name: str) -> None:
    for name in ("1", "2", "3"):
        await put(saver, config(name), id="1")
    # As delete_for_runs leaves it when it is killed.
    mongo[db_name].checkpoints.update_one({"thread_id": "1"}, {"$set": {"retired": "going"}})
    for limit in (1, 2, 3, None):
        found = [summary.thread_id for summary in await threads(saver, limit=limit)]
        assert found == ["2", "3"][:limit]


@on_two_surfaces
@pytest.mark.parametrize("options", [{"limit": -1}, {"limit": True}, {"limit": "1"}, {"after": 1.5}], ids=str)
async def test_what_cannot_be_listed(saver: Surface, options: Any) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        await threads(saver, **options)


@pytest.mark.needs_mongod
@on_two_surfaces
async def test_threads_are_found_by_the_index(
    saver: Surface, mongo: Any, db_name: str, recorder: CommandRecorder
) -> None:
    for n in range(30):
        await put(saver, config(f"{n:02}"), id="1")
    with recorder.recording() as seen:
        assert len(await threads(saver, after="04", limit=10)) == 10
    commands = [c for c in seen if c.name == "aggregate"]
    assert len(commands) == 5
    for command in commands:
        body = {key: command.body[key] for key in ("aggregate", "pipeline", "cursor")}
        plan = str(mongo[db_name].command({"explain": body, "verbosity": "executionStats"}))
        assert "COLLSCAN" not in plan
        assert "IXSCAN" in plan or "EXPRESS" in plan
    assert "'totalDocsExamined': 0," in str(
        mongo[db_name].command(
            {
                "explain": {key: commands[0].body[key] for key in ("aggregate", "pipeline", "cursor")},
                "verbosity": "executionStats",
            }
        )
    )


# --- keeping alive -------------------------------------------------------------------------------------------------


def times(mongo: Any, db_name: str, thread_id: str) -> set[Any]:
    query = {"thread_id": thread_id}
    return {d.get("active_at") for name in COLLECTIONS for d in mongo[db_name][name].find(query)}


async def delta_thread(saver: Surface, thread_id: str, length: int) -> Any:
    before = config(thread_id)
    for n in range(length):
        given = {"log": _DeltaSnapshot(["x" * LARGE])} if n == 0 else {}
        counted = {"counters_since_delta_snapshot": {"log": (n, n)}} if n else {}
        before = await put(saver, before, given, {"log": n + 1}, metadata=counted, id=f"{n:03}")
        await saver.put_writes(before, [("log", [f"{n:03}" * LARGE if n < 2 else n])], "t")
    return before


async def test_touching_moves_a_whole_thread(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver(ttl=10)  # activity is noted every half second
    await delta_thread(saver, "1", 4)
    await delta_thread(saver, "other", 2)
    [before], others = times(mongo, db_name, "1"), times(mongo, db_name, "other")
    deadline = time.monotonic() + 20
    while times(mongo, db_name, "1") == {before}:
        assert time.monotonic() < deadline
        assert await saver.call("touch_thread", "1") is True
        await asyncio.sleep(0.1)
    [after] = times(mongo, db_name, "1")
    assert after > before
    assert times(mongo, db_name, "other") == others


@on_two_surfaces
async def test_touching_reaches_what_was_stored_without_a_time_just_now(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver, other = await open_saver(ttl=1000), await open_saver()
    first = await put(saver, config(), id="1")
    await put(other, first, {"n": "x" * LARGE}, id="2")
    assert await saver.call("touch_thread", "1") is True
    [active_at] = times(mongo, db_name, "1")
    assert active_at is not None


@pytest.mark.needs_mongod
@pytest.mark.usefixtures("quick_expiry")
@on_two_surfaces
async def test_an_active_thread_keeps_what_its_head_needs(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver(ttl=5)  # a machine under load may stop for as long as 2 s
    idle = await put(saver, config("idle"))
    head = await delta_thread(saver, "1", 4)
    began = time.monotonic()
    # Until the server has looked for what has expired, after the delta thread's first checkpoints would have.
    while time.monotonic() - began < 6 or mongo[db_name].checkpoints.count_documents({"thread_id": "idle"}):
        assert time.monotonic() - began < 120  # the pass that is under way may be of 60 s
        head = await put(saver, head, {}, {"log": 9}, metadata={"counters_since_delta_snapshot": {"log": (1, 1)}})
        [noted] = times(mongo, db_name, "1")
        assert datetime.now(timezone.utc) - noted < timedelta(seconds=2.5)
        await asyncio.sleep(0.2)
    assert await saver.get_tuple(idle) is None
    found = await saver.call("get_delta_channel_history", config=head, channels=["log"])
    same = found["log"]["seed"] == _DeltaSnapshot(["x" * LARGE])
    assert same
    assert [len(value[0]) if isinstance(value[0], str) else value for _, _, value in found["log"]["writes"]] == [
        3 * LARGE,
        3 * LARGE,
        [2],
        [3],
    ]


@pytest.mark.parametrize("ttl", [None, 100])
async def test_touching_tells_whether_there_is_such_a_thread(
    open_saver: OpenSurface, mongo: Any, db_name: str, ttl: Any
) -> None:
    saver = await open_saver(ttl=ttl)
    await put(saver, config(), id="1")
    assert await saver.call("touch_thread", "1") is True
    assert await saver.call("touch_thread", "missing") is False
    assert (times(mongo, db_name, "1") == {None}) == (ttl is None)
    assert times(mongo, db_name, "missing") == set()
    with pytest.raises(InvalidArgument, match="thread_id"):
        await saver.call("touch_thread", None)
