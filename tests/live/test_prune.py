"""Pruning by the rules of langgraph-checkpoint-postgres, and what goes beyond them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot

from langgraph_mongo_saver import CorruptCheckpoint, DeltaThreadRefused, Removed
from tests.building import checkpoint, config
from tests.steps import COLLECTIONS, LARGE, at_once, ids, put, stored, values, writes
from tests.surfaces import Surface
from tests.trees import counts, unused_and_missing_blobs

NOW = timedelta(0)
on_two_surfaces = pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)


async def chain(saver: Surface, length: int, thread_id: str = "1", ns: str = "", metadata: Any = None) -> list[Any]:
    """Checkpoints "1", "2", ... with a large value each and one that all share, and a write with a large value."""
    places, before = [], config(thread_id, ns)
    for n in range(1, length + 1):
        versions = {"own": n, "shared": 1}
        new = versions if n == 1 else {"own": n}
        given = {"own": f"{n:03}{ns}" * (LARGE // 3), "shared": f"s{ns}" * LARGE}
        before = await put(saver, before, given, versions, new=new, metadata={"step": n, **(metadata or {})}, id=str(n))
        await saver.put_writes(before, [("w", f"w{n:02}{ns}" * (LARGE // 3))], "t")
        places.append(before)
    return places


def parents(listed: Any) -> list[str | None]:
    return [loaded.parent_config and loaded.parent_config["configurable"]["checkpoint_id"] for loaded in listed]


async def prune(saver: Surface, *thread_ids: str, **options: Any) -> Removed:
    return await saver.call("prune", list(thread_ids or ["1"]), **{"grace": NOW, **options})


def kept(head: Any) -> Any:
    """The newest checkpoint without its parent, which goes."""
    return head._replace(parent_config=None)


async def test_the_head_its_writes_and_its_blobs_stay(saver: Surface, mongo: Any, db_name: str) -> None:
    places = await chain(saver, 4)
    await chain(saver, 3, "other")
    others = await saver.list(config("other"))
    [head, *_] = await saver.list(places[-1])
    before = counts(mongo[db_name], "1")
    assert before == (4, 4, 9)
    removed = await prune(saver)
    assert removed == Removed(3, 3, 6)
    assert counts(mongo[db_name], "1") == (1, 1, 3)
    assert unused_and_missing_blobs(mongo[db_name], "1") == (0, 0)
    assert await saver.list(config()) == [kept(head)]
    assert await saver.get_tuple(config()) == kept(head)
    assert await saver.list(config("other")) == others
    assert await prune(saver) == Removed()


async def test_the_values_of_what_goes_do_not_wait_for_the_grace(saver: Surface, mongo: Any, db_name: str) -> None:
    await chain(saver, 4)
    assert await prune(saver, grace=timedelta(hours=1)) == Removed(3, 3, 6)
    assert unused_and_missing_blobs(mongo[db_name], "1") == (0, 0)


@on_two_surfaces
@pytest.mark.parametrize("layout", [None, 999])
async def test_a_thread_with_another_layout_is_refused_before_anything_goes(
    saver: Surface, mongo: Any, db_name: str, layout: Any
) -> None:
    await chain(saver, 3, metadata={"run_id": "r"})
    mongo[db_name].checkpoints.update_one({"checkpoint_id": "1"}, {"$set": {"layout": layout}})
    with pytest.raises(CorruptCheckpoint, match=f"layout {layout}"):
        await prune(saver)
    with pytest.raises(CorruptCheckpoint, match=f"layout {layout}"):
        await saver.call("delete_for_runs", ["r"])
    assert counts(mongo[db_name], "1") == (3, 3, 7)


async def test_the_thread_goes_on_by_the_pruning_saver_and_by_another(open_saver: Any) -> None:
    savers = [await open_saver() for _ in range(2)]
    [*_, head] = await chain(savers[0], 3)
    await prune(savers[1])
    for n, saver in enumerate(savers, 4):
        given, versions = {"own": n, "shared": "s" * LARGE}, {"own": n, "shared": 1}
        head = await put(saver, head, given, versions, new={"own": n}, id=str(n))
        assert await values(savers[0], head) == await values(savers[1], head) == given
    assert parents(await savers[0].list(config())) == ["4", "3", None]


@pytest.mark.parametrize("thread_ids", ["1", b"1", None, 1, iter("1")], ids=lambda given: type(given).__name__)
async def test_what_is_no_list_of_threads_is_a_type_error(saver: Surface, thread_ids: Any) -> None:
    await chain(saver, 2)
    for strategy in ("keep_latest", "delete", "odd"):
        with pytest.raises(TypeError, match="thread_ids"):
            await saver.call("prune", thread_ids, strategy=strategy)
    assert ids(await saver.list(config())) == ["2", "1"]


@on_two_surfaces
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "odd"},
        {"strategy": "keep_last"},
        {"strategy": None},
        {"keep_last": 0},
        {"keep_last": -1},
        {"keep_last": True},
        {"keep_last": "2"},
        {"older_than": 60},
        {"grace": None},
        {"grace": 60},
        {"grace": timedelta(seconds=-1)},
        {"grace": timedelta.max},
        {"older_than": timedelta(days=-1)},
        {"older_than": timedelta.max},
        {"progress": 5},
        {"strategy": "delete", "keep_last": 0},
        {"strategy": "delete", "keep_last": 3},
        {"strategy": "delete_all", "older_than": timedelta(days=30)},
        {"strategy": "delete", "refuse_delta": True},
    ],
    ids=str,
)
async def test_what_cannot_be_used_is_refused_before_anything_goes(saver: Surface, options: Any) -> None:
    await chain(saver, 2)
    with pytest.raises(ValueError, match=next(reversed(options))):
        await saver.call("prune", ["1"], **options)
    with pytest.raises(ValueError, match="thread_ids"):
        await saver.call("prune", ["1", None], strategy="delete")
    assert ids(await saver.list(config())) == ["2", "1"]


@on_two_surfaces
async def test_a_thread_that_is_named_twice_goes_once(saver: Surface) -> None:
    for strategy in ("keep_latest", "delete"):
        await chain(saver, 3)
        told = await prune(saver, "1", "1", strategy=strategy, dry_run=True)
        assert told == await prune(saver, "1", "1", strategy=strategy)


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
async def test_all_of_some_threads(saver: Surface, mongo: Any, db_name: str, strategy: str) -> None:
    for thread_id in ("1", "2", "3"):
        await chain(saver, 2, thread_id)
        await chain(saver, 2, thread_id, "sub:1")
    told = await prune(saver, "1", "missing", "3", strategy=strategy, dry_run=True)
    assert counts(mongo[db_name], "1") == (4, 4, 10)
    progress: list[tuple[int, int]] = []
    removed = await prune(
        saver, "1", "missing", "3", strategy=strategy, progress=lambda *done: progress.append(done), grace=NOW
    )
    assert removed == told == Removed(8, 8, 20)
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert {d["thread_id"] for documents in stored(mongo, db_name).values() for d in documents} == {"2"}
    assert ids(await saver.list(config("2"))) == ["2", "1"]


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
async def test_nothing_to_do(saver: Surface, strategy: str) -> None:
    await chain(saver, 1)
    assert await prune(saver, "missing", "1" if strategy == "keep_latest" else "x", strategy=strategy) == Removed()
    assert await saver.call("prune", [], strategy=strategy) == Removed()
    assert ids(await saver.list(config())) == ["1"]


async def test_finished_calls_go_with_their_root_checkpoint(saver: Surface) -> None:
    await chain(saver, 3)
    for ns, root in (("old:1", "1"), ("old:1|inner:2", "2"), ("now:1", "3"), ("early:1", "4"), ("none:1", None)):
        await chain(saver, 2, ns=ns, metadata={"parents": {"": root}} if root else {})
    await chain(saver, 3, ns="memory", metadata={"parents": {"": "1"}})
    await prune(saver)
    left = {loaded.config["configurable"]["checkpoint_ns"]: ids([loaded]) for loaded in await saver.list(at_all())}
    assert left == {"": ["3"], "now:1": ["2"], "early:1": ["2"], "none:1": ["2"], "memory": ["3"]}
    assert len(await saver.list(at_all())) == 5


def at_all() -> Any:
    return {"configurable": {"thread_id": "1"}}


@on_two_surfaces
@pytest.mark.parametrize("keep_last", [1, 2, 3, 5, 9])
async def test_the_newest_of_each_namespace(saver: Surface, mongo: Any, db_name: str, keep_last: int) -> None:
    await chain(saver, 5)
    await chain(saver, 4, ns="memory")
    before = {ns: await saver.list(config("1", ns)) for ns in ("", "memory")}
    await prune(saver, keep_last=keep_last)
    for ns, all_ in before.items():
        left = await saver.list(config("1", ns))
        assert left[:-1] == all_[: min(keep_last, len(all_)) - 1]
        assert left[-1] == kept(all_[len(left) - 1])
        assert len(left) == min(keep_last, len(all_))
    assert unused_and_missing_blobs(mongo[db_name], "1") == (0, 0)


@on_two_surfaces
async def test_only_what_was_stored_long_ago(saver: Surface, mongo: Any, db_name: str) -> None:
    await chain(saver, 6)
    for id, hours in (("1", 9), ("2", 9), ("3", 1), ("4", 9), ("5", 1), ("6", 9)):
        query, ago = {"checkpoint_id": id}, {"$subtract": ["$stored_at", hours * 3_600_000]}
        mongo[db_name].checkpoints.update_one(query, [{"$set": {"stored_at": ago}}])
    await prune(saver, older_than=timedelta(hours=5))
    left = await saver.list(config())
    assert (ids(left), parents(left)) == (["6", "5", "3"], ["5", None, None])
    await prune(saver, older_than=NOW)
    assert ids(await saver.list(config())) == ["6"]


@on_two_surfaces
@pytest.mark.parametrize("keep_last", [1, 2])
@pytest.mark.parametrize(("version", "channel"), [(3, TASKS), (3, "other"), (4, TASKS)])
async def test_before_version_4_the_parent_holds_pending_sends(
    saver: Surface, mongo: Any, db_name: str, version: int, channel: str, keep_last: int
) -> None:
    before = config()
    for n in range(1, 6):
        made = {**checkpoint({"n": n}, {"n": n}, str(n)), "v": version}
        before = await saver.put(before, made, {"step": n}, {"n": n})
        await saver.put_writes(before, [(channel, f"send {n}")], "t")
    await prune(saver, keep_last=keep_last)
    held = keep_last + (version < 4 and channel == TASKS)
    assert ids(await saver.list(config())) == ["5", "4"][:keep_last]
    assert counts(mongo[db_name], "1")[:2] == (held, held)
    assert await writes(saver, config(checkpoint_id=str(6 - held))) == [("t", channel, f"send {6 - held}")]


@on_two_surfaces
async def test_a_send_whose_place_was_taken_is_none(saver: Surface, mongo: Any, db_name: str) -> None:
    before = config()
    for n in (1, 2):
        made = {**checkpoint({"n": n}, {"n": n}, str(n)), "v": 3}
        before = await saver.put(before, made, {"step": n}, {"n": n})
        await saver.put_writes(before, [("other", n)], "t")
        await saver.put_writes(before, [(TASKS, n)], "t")
    assert await prune(saver) == Removed(1, 1, 0)


async def delta_chain(saver: Surface, thread_id: str, head_is_snapshot: bool = False) -> None:
    before = config(thread_id)
    for n in range(1, 5):
        snapshot = n == 1 or (n == 4 and head_is_snapshot)
        counted = {} if snapshot else {"counters_since_delta_snapshot": {"log": (n - 1, n - 1)}}
        given = {"log": _DeltaSnapshot([n])} if snapshot else {}
        before = await put(saver, before, given, {"log": n}, metadata={"step": n, **counted}, id=str(n))
        await saver.put_writes(before, [("log", [n])], "t")


async def test_delta_threads_are_refused_on_request_before_anything_goes(saver: Surface) -> None:
    await chain(saver, 3, "plain")
    await delta_chain(saver, "delta")
    with pytest.raises(DeltaThreadRefused, match="delta"):
        await prune(saver, "plain", "delta", refuse_delta=True)
    assert ids(await saver.list(config("plain"))) == ["3", "2", "1"]
    assert ids(await saver.list(config("delta"))) == ["4", "3", "2", "1"]
    assert await prune(saver, "delta") == Removed()
    assert (await prune(saver, "plain", refuse_delta=True)).checkpoints == 2


@on_two_surfaces
async def test_a_delta_thread_whose_head_is_a_snapshot(saver: Surface) -> None:
    await delta_chain(saver, "1", head_is_snapshot=True)
    before = await saver.call("get_delta_channel_history", config=config(checkpoint_id="3"), channels=["log"])
    await prune(saver, keep_last=2)
    after = await saver.call("get_delta_channel_history", config=config(checkpoint_id="3"), channels=["log"])
    assert before == after == {"log": {"writes": [("t", "log", [n]) for n in (1, 2)], "seed": _DeltaSnapshot([1])}}
    assert await prune(saver) == Removed(3, 3, 1)


@on_two_surfaces
async def test_a_call_goes_whose_root_checkpoint_stays_for_others_alone(saver: Surface) -> None:
    await delta_chain(saver, "1")
    assert await prune(saver) == Removed()
    await chain(saver, 2, ns="late:1", metadata={"parents": {"": "3"}})
    assert (await prune(saver)).checkpoints == 2
    assert ids(await saver.list(at_all())) == ["4"]


async def test_a_dry_run_tells_what_would_go_and_changes_nothing(saver: Surface, mongo: Any, db_name: str) -> None:
    await chain(saver, 4)
    await chain(saver, 2, ns="old:1", metadata={"parents": {"": "1"}})
    before, progress = stored(mongo, db_name), list[Any]()
    told = await prune(saver, keep_last=2, dry_run=True, progress=lambda *done: progress.append(done))
    assert stored(mongo, db_name) == before
    assert told == await prune(saver, keep_last=2) == Removed(4, 4, 9)
    assert progress[-1] == (4, 4)


@on_two_surfaces
async def test_progress(saver: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_mongo_saver.maintenance._BATCH", 3)
    await chain(saver, 9)
    seen: list[tuple[int, int]] = []
    await prune(saver, progress=lambda *done: seen.append(done))
    assert seen == [(3, 8), (6, 8), (8, 8)]


@on_two_surfaces
async def test_what_nothing_refers_to_goes_when_it_is_old(saver: Surface, mongo: Any, db_name: str) -> None:
    [*_, head] = await chain(saver, 3)
    for id in ("0", "2+", "4"):  # the last is of a checkpoint that is still to come
        await saver.put_writes(config(checkpoint_id=id), [("w", f"{id}" * LARGE)], "t")
    orphan = {"thread_id": "1", "blob": "0" * 40, "part": 0}
    some = mongo[db_name].checkpoint_blobs.find_one({"thread_id": "1"})
    mongo[db_name].checkpoint_blobs.insert_one({**some, "_id": orphan})
    assert await prune(saver, keep_last=3, grace=timedelta(minutes=5)) == Removed()
    for name in COLLECTIONS:
        ago = {"$subtract": ["$stored_at", 360_000]}
        mongo[db_name][name].update_many({}, [{"$set": {"stored_at": ago}}])
    assert await prune(saver, keep_last=3, grace=timedelta(minutes=7)) == Removed()
    assert await prune(saver, keep_last=3, grace=timedelta(minutes=5)) == Removed(0, 2, 3)
    await put(saver, head, id="4")
    assert await writes(saver, config(checkpoint_id="4")) == [("t", "w", "4" * LARGE)]


@on_two_surfaces
async def test_a_dry_run_counts_once_what_a_killed_deletion_has_left(saver: Surface, mongo: Any, db_name: str) -> None:
    await chain(saver, 3)
    mongo[db_name].checkpoints.update_many({}, {"$set": {"retired": "going"}})
    told = await prune(saver, dry_run=True)
    assert told == await prune(saver) == Removed(3, 3, 7)


@on_two_surfaces
async def test_writes_in_a_namespace_without_a_checkpoint_go_when_they_are_old(
    saver: Surface, mongo: Any, db_name: str
) -> None:
    await chain(saver, 1)
    await saver.put_writes(config("1", "call:1", "1"), [("w", "x" * LARGE)], "t")
    assert await prune(saver, grace=timedelta(minutes=5)) == Removed()
    assert await prune(saver) == Removed(0, 1, 1)
    assert counts(mongo[db_name], "1") == (1, 1, 3)


@on_two_surfaces
async def test_beside_a_run_that_appends(saver: Surface, open_saver: Any) -> None:
    appender = await open_saver()
    places = [config()]
    ended = asyncio.Event()

    async def append() -> None:
        for n in range(1, 60):
            given = checkpoint({"n": n, "same": f"{n // 4:03}" * LARGE}, {"n": n, "same": n // 4 + 1}, f"{n:03}")
            early = config(checkpoint_id=f"{n:03}")
            await at_once(appender, "put_writes", early, [("w", f"{n:03}" * LARGE)], "t")
            new = given["channel_versions"] if n % 4 == 0 or n == 1 else {"n": n}
            places.append(await at_once(appender, "put", places[-1], given, {"step": n}, new))
        ended.set()

    appending, removed = asyncio.create_task(append()), Removed()
    while not ended.is_set() and not appending.done():
        # As in use: what is young may belong to a put that is under way.
        removed += await at_once(saver, "prune", ["1"])
        await asyncio.sleep(0)
    await appending
    assert removed.checkpoints > 3
    await prune(saver)
    [head] = await saver.list(config())
    whole = head.checkpoint["channel_values"] == {"n": 59, "same": "014" * LARGE}
    assert whole
    assert head.pending_writes == [("t", "w", "059" * LARGE)]
