"""Values too large for a document, and values too large to be stored at every step."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver import CorruptCheckpoint, MongoDBSaver, Removed
from tests.building import checkpoint, config
from tests.faults import Beside, CommandRecorder
from tests.steps import LARGE, put, values, writes
from tests.surfaces import OpenSurface, Surface

MEGABYTE = 2**20


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no compression makes smaller."""
    return random.Random(seed).randbytes(size)


async def test_values_and_writes_larger_than_any_document(saver: Surface) -> None:
    huge, large = noise(40_000_000), noise(17_000_000)
    stored = await put(saver, config(), {"huge": huge, "small": 1})
    await saver.put_writes(stored, [("a", 1), ("b", large), ("c", 2)], "t")
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    same = loaded.checkpoint["channel_values"] == {"huge": huge, "small": 1}  # no diff of 40 MB on failure
    assert same
    same = loaded.pending_writes == [("t", "a", 1), ("t", "b", large), ("t", "c", 2)]
    assert same


async def test_many_values_that_only_together_are_too_large(saver: Surface) -> None:
    given = {f"c{n}": noise(200_000, n) for n in range(100)}
    stored = await put(saver, config(), given)
    await saver.put_writes(stored, list(given.items()), "t")
    same = await values(saver, stored) == given
    assert same
    same = await writes(saver, stored) == [("t", channel, value) for channel, value in given.items()]
    assert same


@pytest.mark.parametrize("memory", ["warm", "cold"])
async def test_a_megabyte_that_does_not_change_is_stored_once(
    saver: Surface, open_saver: OpenSurface, mongo: Any, db_name: str, memory: str
) -> None:
    text = "x" * MEGABYTE
    before = await put(saver, config(), {"text": text, "n": 0})
    for n in range(1, 40):
        if memory == "cold" and n % 10 == 0:
            saver = await open_saver()
        before = await put(saver, before, {"text": text, "n": n}, {"text": 1, "n": n + 1}, new={"n": n + 1})
    blobs = list(mongo[db_name].checkpoint_blobs.find())
    assert len(blobs) == 1
    assert len(blobs[0]["data"]) < 1.1 * MEGABYTE
    documents = list(mongo[db_name].checkpoints.aggregate([{"$project": {"size": {"$bsonSize": "$$ROOT"}}}]))
    assert sum(document["size"] for document in documents) < 40 * 4096
    assert await values(saver, before) == {"text": text, "n": 39}


async def test_equal_values_of_a_thread_share_a_blob_whoever_stores_them(
    saver: Surface, open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    text = "x" * LARGE
    for place in (config(), config("1", "sub")):
        for storing in (saver, await open_saver()):
            stored = await put(storing, place, {"a": text, "b": text})
            await storing.put_writes(stored, [("a", text), ("b", text)], "t")
    assert mongo[db_name].checkpoint_blobs.count_documents({}) == 1
    await put(saver, config("2"), {"a": text})
    assert mongo[db_name].checkpoint_blobs.count_documents({}) == 2
    await saver.delete_thread("1")
    assert await values(saver, config("2")) == {"a": text}


async def test_two_forks_with_one_version_keep_their_own_values(saver: Surface, open_saver: OpenSurface) -> None:
    root = await put(saver, config(), {"a": "r" * LARGE}, {"a": 1})
    left = await put(saver, root, {"a": "x" * LARGE}, {"a": 2})
    right = await put(await open_saver(), root, {"a": "y" * LARGE}, {"a": 2})
    for fork, text in ((left, "x"), (right, "y")):
        for storing in (saver, await open_saver()):
            after = await put(storing, fork, {"a": text * LARGE, "n": 1}, {"a": 2, "n": 1}, new={"n": 1})
            assert await values(saver, after) == {"a": text * LARGE, "n": 1}
        assert await values(saver, fork) == {"a": text * LARGE}


# --- values that are taken over ------------------------------------------------------------------------------------


async def prune(saver: Surface) -> None:
    await saver.call("prune", ["1"], grace=timedelta(0))


async def delete(saver: Surface) -> None:
    await saver.delete_thread("1")


@pytest.mark.parametrize("clean_up", [prune, delete])
@pytest.mark.parametrize("fresh", [False, True], ids=["stored it", "loaded it"])
async def test_a_value_that_was_deleted_under_a_run_is_stored_again(
    open_saver: OpenSurface, monkeypatch: pytest.MonkeyPatch, clean_up: Any, fresh: bool
) -> None:
    """Two runs of one thread; the second ends, and old checkpoints are deleted, before the first goes on."""
    monkeypatch.setattr("langgraph_mongo_saver.blobs.SURE", timedelta(0))
    saver, other = await open_saver(), await open_saver()
    big, versions = "x" * LARGE, {"big": 1, "n": 1}
    first = await put(other if fresh else saver, config(), {"big": big, "n": 1}, versions, id="1")
    assert await saver.get_tuple(config())
    await put(other, first, {"big": "new", "n": 2}, {"big": 2, "n": 2}, id="2")
    await clean_up(other)
    later = await put(saver, first, {"big": big, "n": 3}, {"big": 1, "n": 3}, new={"n": 3}, id="3")
    for reader in (saver, other, await open_saver()):
        loaded = await reader.get_tuple(config())
        assert loaded is not None
        assert loaded.config == later
        assert loaded.checkpoint["channel_values"] == {"big": big, "n": 3}
        assert len(await reader.list(config())) == (2 if clean_up is prune else 1)


async def delete_all(saver: Surface) -> None:
    await saver.call("prune", ["1"], strategy="delete_all")


async def delete_run(saver: Surface) -> None:
    await saver.call("delete_for_runs", ["r"])


@pytest.mark.parametrize("clean_up", [prune, delete, delete_all, delete_run])
async def test_a_value_that_the_saver_has_just_deleted_itself_is_not_taken_to_be_there(
    saver: Surface, clean_up: Any
) -> None:
    big, versions = "x" * LARGE, {"big": 1, "n": 1}
    first = await put(saver, config(), {"big": big, "n": 1}, versions, metadata={"run_id": "r"}, id="1")
    await put(saver, first, {"big": "new", "n": 2}, {"big": 2, "n": 2}, id="2")
    await clean_up(saver)
    later = await put(saver, first, {"big": big, "n": 3}, {"big": 1, "n": 3}, new={"n": 3}, id="3")
    assert await values(saver, later) == {"big": big, "n": 3}


@pytest.mark.parametrize("method", ["put", "put_writes"])
async def test_a_value_that_was_stored_once_and_deleted_by_somebody_else_is_stored_again(
    open_saver: OpenSurface, method: str
) -> None:
    saver, other = await open_saver(), await open_saver()
    first = await put(saver, config(), {"big": "x" * LARGE}, {"big": 1}, id="1")
    head = await put(other, first, {"big": "y" * LARGE}, {"big": 2}, id="2")
    await prune(other)
    if method == "put":
        later = await put(saver, head, {"big": "x" * LARGE}, {"big": 3}, id="3")
        assert await values(other, later) == {"big": "x" * LARGE}
    else:
        await saver.put_writes(head, [("big", "x" * LARGE)], "t")
        assert await writes(other, head) == [("t", "big", "x" * LARGE)]


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
@pytest.mark.parametrize("request_", [("blobs", "update_many"), ("checkpoints", "insert_one")], ids=" ".join)
async def test_a_value_that_older_checkpoints_share_is_there_though_they_go_meanwhile(
    saver: Surface, open_saver: OpenSurface, monkeypatch: pytest.MonkeyPatch, request_: tuple[str, str]
) -> None:
    """Somebody prunes the thread just before a put, of another process, sends a certain request."""
    first = await put(saver, config(), {"big": "x" * LARGE}, {"big": 1}, id="1")
    head = await put(saver, first, {"big": "y" * LARGE}, {"big": 2}, id="2")
    other: MongoDBSaver = (await open_saver()).raw
    other.setup()
    pruned: list[Removed] = []
    prunes = Beside(
        other,
        lambda: pruned.append(saver.raw.prune(["1"])),
        lambda request: (request.part, request.method) == request_,
    )
    monkeypatch.setattr(other, "_send", prunes)
    made = checkpoint({"big": "x" * LARGE}, {"big": 3}, "3")
    later = other.put(head, made, {"source": "loop", "step": 3}, {"big": 3})
    assert [removed.checkpoints for removed in pruned] == [1]
    assert await values(saver, later) == {"big": "x" * LARGE}


async def test_a_snapshot_that_was_deleted_under_a_run_is_not_left_out(
    open_saver: OpenSurface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_mongo_saver.blobs.SURE", timedelta(0))
    saver, other = await open_saver(), await open_saver()
    first = await put(saver, config(), {"log": _DeltaSnapshot(["all"]), "n": 1}, {"log": 1, "n": 1}, id="1")
    await other.delete_thread("1")
    with pytest.raises(CorruptCheckpoint, match=r"'1'.*'log'.*cannot be stored without it"):
        await put(saver, first, {"n": 2}, {"log": 1, "n": 2}, new={"n": 2}, id="2")
    assert await other.get_tuple(config()) is None


async def test_whether_a_value_is_there_is_looked_at_now_and_then(
    open_saver: OpenSurface, monkeypatch: pytest.MonkeyPatch, recorder: CommandRecorder
) -> None:
    saver = await open_saver()
    place = await put(saver, config(), {"big": "x" * LARGE, "n": 0}, {"big": 1, "n": 0}, id="0")
    for sure, names in ((timedelta(minutes=5), ["insert"]), (timedelta(0), ["find", "insert"])):
        monkeypatch.setattr("langgraph_mongo_saver.blobs.SURE", sure)
        n = len(names)
        with recorder.recording() as seen:
            place = await put(saver, place, {"big": "x" * LARGE, "n": n}, {"big": 1, "n": n}, new={"n": n}, id=str(n))
        assert seen.names == names
