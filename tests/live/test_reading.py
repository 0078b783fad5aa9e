"""Which checkpoint is read, and what the caller may do with it."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_mongo_saver import CorruptCheckpoint
from tests.building import config
from tests.steps import LARGE, put, values
from tests.surfaces import OpenSurface, Surface


@pytest.fixture
async def two_namespaces(saver: Surface) -> Surface:
    """Thread 1: checkpoints 1, 2, 3 of the root and 2, 4 of a subgraph, stored out of order."""
    for ns, checkpoint_id in (("", "3"), ("sub", "4"), ("", "1"), ("sub", "2"), ("", "2")):
        await put(saver, config("1", ns), {"at": f"{ns}/{checkpoint_id}"}, id=checkpoint_id)
    return saver


PLACES: list[tuple[dict[str, Any], str | None]] = [
    ({"thread_id": "1"}, "/3"),
    ({"thread_id": "1", "checkpoint_ns": None, "checkpoint_id": None}, "/3"),
    ({"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": ""}, "/3"),
    ({"thread_id": "1", "checkpoint_ns": "sub"}, "sub/4"),
    ({"thread_id": "1", "checkpoint_id": "2"}, "/2"),
    ({"thread_id": "1", "checkpoint_ns": "sub", "checkpoint_id": "2", "user": 1}, "sub/2"),
    ({"thread_id": "1", "checkpoint_id": "4"}, None),
    ({"thread_id": "1", "checkpoint_ns": "sub", "checkpoint_id": "3"}, None),
    ({"thread_id": "1", "checkpoint_ns": "SUB"}, None),
    ({"thread_id": "2"}, None),
]


async def test_a_config_finds_one_checkpoint_or_none(two_namespaces: Surface) -> None:
    for configurable, found in PLACES:
        loaded = await two_namespaces.get_tuple({"configurable": configurable})
        assert (loaded and loaded.checkpoint["channel_values"]["at"]) == found, configurable
        if loaded:
            ns, checkpoint_id = str(found).split("/")
            assert loaded.config == config("1", ns, checkpoint_id)


async def test_every_read_gives_fresh_objects(saver: Surface) -> None:
    given = {"list": [1], "large": ["x" * LARGE]}
    stored = await put(saver, config(), given, metadata={"tags": ["a"]})
    await saver.put_writes(stored, [("list", [2])], "t")
    [listed] = await saver.list(config())
    for loaded in (await saver.get_tuple(stored), listed):
        assert loaded is not None
        assert loaded.pending_writes == [("t", "list", [2])]
        loaded.checkpoint["channel_values"]["list"].append(9)
        loaded.checkpoint["channel_values"]["large"].append(9)
        loaded.checkpoint["channel_versions"]["list"] = 9
        loaded.metadata["tags"].append(9)
        loaded.config["configurable"]["thread_id"] = "9"
        loaded.pending_writes.clear()
    given["list"].append(9)
    again = await saver.get_tuple(stored)
    assert again is not None
    assert again.checkpoint["channel_values"] == {"list": [1], "large": ["x" * LARGE]}
    assert again.checkpoint["channel_versions"] == {"list": 1, "large": 1}
    assert again.metadata["tags"] == ["a"]
    assert again.config == stored
    assert again.pending_writes == [("t", "list", [2])]


@pytest.mark.parametrize("owner", ["checkpoint", "write"])
async def test_a_missing_blob_is_an_error_that_names_the_thread(
    saver: Surface, mongo: Any, db_name: str, owner: str
) -> None:
    stored = await put(saver, config("mine"), {"a": "x" * LARGE if owner == "checkpoint" else "x"})
    if owner == "write":
        await saver.put_writes(stored, [("a", "x" * LARGE)], "t")
    assert mongo[db_name].checkpoint_blobs.delete_many({}).deleted_count == 1
    with pytest.raises(CorruptCheckpoint, match="mine"):
        await saver.get_tuple(stored)
    with pytest.raises(CorruptCheckpoint, match="mine"):
        await saver.list(config("mine"))


async def test_a_document_of_a_newer_layout_is_refused(saver: Surface, mongo: Any, db_name: str) -> None:
    stored = await put(saver, config(), {"a": 1})
    mongo[db_name].checkpoints.update_one({}, {"$set": {"layout": 999}})
    with pytest.raises(CorruptCheckpoint, match="999"):
        await saver.get_tuple(stored)


async def test_a_deleted_thread_leaves_nothing(saver: Surface, mongo: Any, db_name: str) -> None:
    for thread_id in ("1", "2"):
        for ns in ("", "sub"):
            stored = await put(saver, config(thread_id, ns), {"a": "x" * LARGE})
            await saver.put_writes(stored, [("a", "y" * LARGE), ("b", 1)], "t")
        await saver.put_writes(config(thread_id, "", "not-there-yet"), [("b", 1)], "t")
    await saver.delete_thread("1")
    await saver.delete_thread("1")
    await saver.delete_thread("never was")
    database = mongo[db_name]
    for name in database.list_collection_names():
        assert database[name].distinct("thread_id") == ["2"], name
    assert await values(saver, config("2", "sub")) == {"a": "x" * LARGE}


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_a_server_that_cannot_join_is_served_as_well(open_saver: OpenSurface) -> None:
    saver = await open_saver(dialect="basic")
    stored = await put(saver, config(), {"a": "x" * LARGE})
    await saver.put_writes(stored, [("a", "y" * LARGE)], "t")
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"a": "x" * LARGE}
    assert loaded.pending_writes == [("t", "a", "y" * LARGE)]
    assert await saver.get_tuple(config("2")) is None
