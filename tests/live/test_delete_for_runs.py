"""The checkpoints of a run go from all threads and namespaces, with what only they need."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver import FilterNotQueryable, InvalidArgument, Removed
from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import LARGE, ids, put, stored, writes
from tests.surfaces import OpenSurface, Surface
from tests.trees import counts, unused_and_missing_blobs

NOW = timedelta(0)
on_two_surfaces = pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)


async def chain(saver: Surface, runs: str, thread_id: str = "1", ns: str = "") -> None:
    """A checkpoint for each letter, of the run that it names, with blobs in values and writes."""
    before = config(thread_id, ns)
    for n, run in enumerate(runs, 1):
        given, versions = {"n": f"{n:03}{ns}" * LARGE, "same": f"s{ns}" * LARGE}, {"n": n, "same": 1}
        new = versions if n == 1 else {"n": n}
        before = await put(saver, before, given, versions, new=new, metadata={"run_id": run, "step": n}, id=str(n))
        await saver.put_writes(before, [("w", f"w{n:02}{ns}" * LARGE)], "t")


async def delete(saver: Surface, *run_ids: str, **options: Any) -> Removed:
    return await saver.call("delete_for_runs", list(run_ids), **{"grace": NOW, **options})


async def test_all_of_a_run_goes_everywhere_and_nothing_else(saver: Surface, mongo: Any, db_name: str) -> None:
    await chain(saver, "aabbc")
    await chain(saver, "ab", ns="node:1")
    await chain(saver, "bbb", "2")
    await chain(saver, "ac", "3")
    others = await saver.list(config("3"))
    before = stored(mongo, db_name)
    told = await delete(saver, "b", dry_run=True)
    assert stored(mongo, db_name) == before
    # "n" and "w" of every checkpoint, and of thread 2 what they share.
    assert await delete(saver, "b") == told == Removed(6, 6, 2 * 6 + 1)
    left = await saver.list(config())
    assert ids(left) == ["5", "2", "1"]
    assert [loaded.parent_config for loaded in left] == [None, config(checkpoint_id="1"), None]
    assert ids(await saver.list(config("1", "node:1"))) == ["1"]
    assert counts(mongo[db_name], "2") == (0, 0, 0)
    assert await saver.list(config("3")) == others
    for thread_id in ("1", "3"):
        assert unused_and_missing_blobs(mongo[db_name], thread_id) == (0, 0)
    assert await delete(saver, "b") == Removed()


async def test_without_its_last_run_the_thread_is_where_it_was(saver: Surface, open_saver: OpenSurface) -> None:
    other = await open_saver()
    await chain(saver, "aab")
    [_, previous, _] = await saver.list(config())
    await delete(other, "b")
    for each in (saver, other):
        assert await each.get_tuple(config()) == previous
    made = await put(
        saver, previous.config, {"n": "on", "same": "s" * LARGE}, {"n": 9, "same": 1}, new={"n": 9}, id="4"
    )
    for each in (saver, other):
        loaded = await each.get_tuple(config())
        assert loaded is not None
        assert loaded.config == made
        assert loaded.checkpoint["channel_values"] == {"n": "on", "same": "s" * LARGE}


async def test_what_surviving_delta_heads_need_stays(saver: Surface) -> None:
    before = config()
    for n, run in enumerate("aaabbbcc", 1):
        snapshot = n in (1, 3, 5)
        counted = {} if snapshot else {"counters_since_delta_snapshot": {"log": (1, 1)}}
        given = {"log": _DeltaSnapshot([n])} if snapshot else {}
        metadata = {"run_id": run, "step": n, **counted}
        before = await put(saver, before, given, {"log": n}, metadata=metadata, id=str(n))
        await saver.put_writes(before, [("log", [n])], "t")
    places = [config(checkpoint_id=str(n)) for n in (2, 7, 8)]
    histories = [await history(saver, place) for place in places]
    removed = await delete(saver, "b")
    assert removed == Removed(1, 1, 0)
    # What stays for others alone is no longer listed.
    assert ids(await saver.list(config())) == list("87321")
    assert [await history(saver, place) for place in places] == histories
    assert await writes(saver, config(checkpoint_id="5")) == [("t", "log", [5])]
    # Once nothing needs it any more, it goes as well.
    assert await delete(saver, "c") == Removed(4, 4, 1)
    assert await delete(saver, "b") == Removed()
    assert ids(await saver.list(config())) == list("321")


async def history(saver: Surface, place: Any) -> Any:
    return await saver.call("get_delta_channel_history", config=place, channels=["log"])


@pytest.mark.parametrize("runs", [["a", "c"], {"a", "c"}, ("missing", "c", "a")], ids=lambda runs: type(runs).__name__)
async def test_several_runs(saver: Surface, runs: Any) -> None:
    await chain(saver, "aabbc")
    await saver.call("delete_for_runs", runs, grace=NOW)
    assert ids(await saver.list(config())) == ["4", "3"]


async def test_nothing_to_do(saver: Surface) -> None:
    await chain(saver, "ab")
    assert await delete(saver) == await delete(saver, "missing") == Removed()
    assert ids(await saver.list(config())) == ["2", "1"]


@pytest.mark.parametrize("run_ids", ["a", b"a", None, 1, iter("a")], ids=lambda given: type(given).__name__)
async def test_what_is_no_list_of_runs_is_a_type_error(saver: Surface, run_ids: Any) -> None:
    await chain(saver, "a")
    with pytest.raises(TypeError, match="run_ids"):
        await saver.call("delete_for_runs", run_ids)
    assert ids(await saver.list(config())) == ["1"]


@on_two_surfaces
@pytest.mark.parametrize("options", [{"grace": 5}, {"grace": timedelta.max}, {"progress": "all"}], ids=str)
async def test_what_cannot_be_used_is_refused_before_anything_goes(saver: Surface, options: Any) -> None:
    await chain(saver, "ab")
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        await saver.call("delete_for_runs", ["a"], **options)
    assert ids(await saver.list(config())) == ["2", "1"]


@on_two_surfaces
async def test_a_run_id_is_a_string(saver: Surface) -> None:
    await chain(saver, "a")
    for run_id in (1.5, 5, None, {"$exists": True}):
        with pytest.raises(InvalidArgument, match="run_ids"):
            await delete(saver, "a", run_id)  # type: ignore[arg-type] # what is refused
    assert ids(await saver.list(config())) == ["1"]


async def test_encrypted_runs_cannot_be_found(open_saver: OpenSurface) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    hidden = await open_saver(serde=serde, queryable_metadata={"source"})
    await chain(hidden, "ab")
    with pytest.raises(FilterNotQueryable, match=r"'run_id'.*queryable_metadata"):
        await delete(hidden, "b")
    assert ids(await hidden.list(config())) == ["2", "1"]
    clear = await open_saver(serde=serde, queryable_metadata={"run_id"})
    await chain(clear, "ab", "2")
    assert await delete(clear, "b") == Removed(1, 1, 2)


@on_two_surfaces
async def test_progress(saver: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_mongo_saver.maintenance._BATCH", 2)
    await chain(saver, "abbbbb")
    seen: list[tuple[int, int]] = []
    await delete(saver, "b", progress=lambda *done: seen.append(done))
    assert seen == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.needs_mongod
@on_two_surfaces
async def test_the_runs_threads_are_found_by_an_index(
    saver: Surface, mongo: Any, db_name: str, recorder: CommandRecorder
) -> None:
    for n in range(20):
        await put(saver, config(str(n)), metadata={"run_id": f"run {n}"})
    with recorder.recording() as seen:
        await delete(saver, "run 3", "run 5", dry_run=True)
    command = next(c for c in seen if c.name == "aggregate" and "metadata.run_id" in str(c.body))
    keys = ("aggregate", "pipeline", "cursor")
    explain = {"explain": {key: command.body[key] for key in keys}, "verbosity": "executionStats"}
    plan = str(mongo[db_name].command(explain))
    assert "metadata.run_id_1" in plan
    assert "COLLSCAN" not in plan
    assert "'totalDocsExamined': 2," in plan
