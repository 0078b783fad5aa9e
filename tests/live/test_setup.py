"""Indexes are made when they are needed, beside whatever is there, and constructing a saver sends nothing."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from langgraph_mongo_saver import AsyncMongoDBSaver, InvalidArgument, MongoDBSaver, UnsuitableCollection
from langgraph_mongo_saver.schema import INDEXES
from tests.building import checkpoint, config
from tests.faults import CommandRecorder, fail_command
from tests.steps import COLLECTIONS, LARGE, at_once, put, values
from tests.surfaces import OpenSurface, Surface

ADDRESS = [("thread_id", 1), ("checkpoint_ns", 1), ("checkpoint_id", -1)]
TASK = [*ADDRESS, ("task_id", 1), ("idx", 1)]
METADATA = {"source": "loop", "step": 1}
# Of each collection, with that of _id.
COUNTS = [1 + sum(index.part == part for index in INDEXES) for part in ("checkpoints", "writes", "blobs")]


def indexes(mongo: Any, db_name: str) -> dict[str, dict[tuple[Any, ...], bool]]:
    """The keys of all indexes by collection, and whether they are unique."""
    return {
        name: {tuple(index["key"].items()): index.get("unique", False) for index in mongo[db_name][name].list_indexes()}
        for name in COLLECTIONS
    }


async def test_constructing_sends_nothing(open_saver: OpenSurface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        saver = await open_saver(uri="mongodb://127.0.0.1:1/", client_serverSelectionTimeoutMS=50, ttl=60)
        assert not seen
        with pytest.raises(InvalidArgument, match="thread_id"):
            await saver.get_tuple(config(None))
        with pytest.raises(ServerSelectionTimeoutError):
            await saver.get_tuple(config())


@pytest.mark.parametrize("operation", ["get_tuple", "list", "put", "put_writes", "delete_thread", "setup"])
@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_the_first_operation_makes_the_indexes(
    saver: Surface, recorder: CommandRecorder, mongo: Any, db_name: str, operation: str
) -> None:
    arguments: dict[str, Any] = {
        "get_tuple": (config(),),
        "list": (None,),
        "put": (config(), checkpoint(), METADATA, {}),
        "put_writes": (config(checkpoint_id="1"), [("a", 1)], "t"),
        "delete_thread": ("1",),
        "setup": (),
    }
    await getattr(saver, operation)(*arguments[operation])
    made = indexes(mongo, db_name)
    assert made["checkpoints"][tuple(ADDRESS)] is True
    assert made["checkpoint_writes"][tuple(TASK)] is True
    with recorder.recording() as seen:
        await saver.get_tuple(config())
        await saver.setup()
    assert seen.names[0] == "aggregate"
    assert "createIndexes" not in seen.names
    assert indexes(mongo, db_name) == made


async def test_many_set_up_at_once(
    open_saver: OpenSurface, recorder: CommandRecorder, mongo: Any, db_name: str
) -> None:
    savers = [await open_saver() for _ in range(8)]
    with recorder.recording() as seen:
        puts = (
            at_once(savers[n % 8], "put", config(str(n)), checkpoint({"a": "x" * LARGE}), METADATA, {"a": 1})
            for n in range(24)
        )
        await asyncio.gather(*puts)
    assert seen.names.count("listCollections") == 8
    assert len(await savers[0].list(None)) == 24
    assert [len(made) for made in indexes(mongo, db_name).values()] == COUNTS


@pytest.mark.needs_mongod
async def test_what_failed_is_done_at_the_next_call(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver(client_appname="victim")
    with fail_command(mongo, ["createIndexes"], times=None, error_code=2, app_name="victim"):
        for _ in range(2):
            with pytest.raises(OperationFailure):
                await put(saver, config(), {"a": 1})
    await put(saver, config(), {"a": 1})
    assert [len(made) for made in indexes(mongo, db_name).values()] == COUNTS


@pytest.mark.needs_mongod
@pytest.mark.parametrize("refused", [["createIndexes"], ["createIndexes", "listIndexes", "listCollections"]])
async def test_a_user_who_may_not_make_indexes_is_warned_and_can_work(
    open_saver: OpenSurface, mongo: Any, caplog: pytest.LogCaptureFixture, refused: list[str]
) -> None:
    saver = await open_saver(client_appname="victim", ttl=60)
    with fail_command(mongo, refused, times=None, error_code=13, app_name="victim"):
        stored = await put(saver, config(), {"a": 1})
    assert await values(saver, stored) == {"a": 1}
    said = [record.getMessage() for record in caplog.records if record.name == "langgraph_mongo_saver.schema"]
    assert sum("not allowed to create the index" in message for message in said) == len(INDEXES)
    assert sum("not allowed to change when threads expire" in message for message in said) == 3


async def test_it_works_beside_the_official_savers_documents(
    open_saver: OpenSurface, mongo: Any, db_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, now = mongo[db_name], datetime.now(timezone.utc)
    place = {"thread_id": "old", "checkpoint_ns": "", "checkpoint_id": "1"}
    for name, keys in (("checkpoints", ADDRESS), ("checkpoint_writes", TASK)):
        database[name].create_index(keys, unique=True)
        database[name].create_index([("created_at", 1)], expireAfterSeconds=86_400)
    database.checkpoints.insert_one({**place, "type": "msgpack", "checkpoint": b"\x80", "created_at": now})
    database.checkpoint_writes.insert_many(
        {**place, "task_id": "t", "idx": idx, "type": "msgpack", "value": b"\x01", "created_at": now} for idx in (0, 1)
    )
    saver = await open_saver(ttl=60)
    for _ in range(2):
        first = await put(saver, config("new"), {"a": "x" * LARGE}, id="1")
    for task in ("t", "u", "t"):
        await saver.put_writes(first, [("a", 1), ("b", 2)], task)
    loaded = await saver.get_tuple(config("new"))
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"a": "x" * LARGE}
    assert [write[:2] for write in loaded.pending_writes] == [("t", "a"), ("t", "b"), ("u", "a"), ("u", "b")]
    assert await saver.list(config("new")) == [loaded]
    # Two of its expiries, three of ours.
    assert [len(made) for made in indexes(mongo, db_name).values()] == [COUNTS[0] + 2, COUNTS[1] + 2, COUNTS[2] + 1]
    assert database.checkpoints.count_documents({"thread_id": "old", "active_at": {"$exists": False}}) == 1
    assert not database.checkpoints.count_documents({"thread_id": "new", "created_at": {"$exists": True}})
    assert "unique" not in caplog.text
    await saver.delete_thread("old")
    assert database.checkpoint_writes.distinct("thread_id") == ["new"]


async def test_stored_duplicates_that_forbid_a_unique_index_are_lived_with(
    saver: Surface, mongo: Any, db_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"thread_id": "old", "checkpoint_ns": "", "checkpoint_id": "1"}
    mongo[db_name].checkpoints.insert_many([dict(place), dict(place)])
    stored = await put(saver, config(), {"a": 1})
    await put(saver, config(), {"a": 2}, id=stored["configurable"]["checkpoint_id"])
    assert await values(saver, stored) == {"a": 2}
    assert len(await saver.list(config())) == 1
    assert indexes(mongo, db_name)["checkpoints"][tuple(ADDRESS)] is False
    assert "no unique index" in caplog.text


@pytest.mark.parametrize("name", COLLECTIONS)
@pytest.mark.parametrize("surface_name", ["sync", "async", "motor"], indirect=True)
async def test_a_collection_that_takes_different_ids_for_the_same_is_refused(
    saver: Surface, mongo: Any, db_name: str, name: str
) -> None:
    mongo[db_name].create_collection(name, collation={"locale": "en", "strength": 2})
    for call in (saver.setup(), saver.get_tuple(config()), put(saver, config())):
        with pytest.raises(UnsuitableCollection, match=name):
            await call
    mongo[db_name].drop_collection(name)
    await put(saver, config(), {"a": 1})


async def test_collections_of_other_names_share_nothing(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    names = {"checkpoint_collection_name": "mine", "writes_collection_name": "mine.writes"}
    mine, other = await open_saver(**names), await open_saver()
    for saver in (mine, other):
        await put(saver, config(), {"a": "x" * LARGE})
    await mine.delete_thread("1")
    assert await values(other, config()) == {"a": "x" * LARGE}
    assert mongo[db_name]["mine.blobs"].count_documents({}) == 0


class NoClient:
    """Has nothing of a client."""


@pytest.mark.parametrize("client", ["mongodb://localhost/", None, 1, NoClient()], ids=["uri", "none", "int", "object"])
@pytest.mark.parametrize("saver_class", [MongoDBSaver, AsyncMongoDBSaver])
def test_what_is_no_client_is_refused(saver_class: Any, client: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"client must be .*{type(client).__name__}"):
        saver_class(client)


async def test_the_client_of_the_other_kind_is_refused_and_the_right_class_named() -> None:
    async with AsyncMongoClient("mongodb://127.0.0.1:1/", connect=False) as client:
        with pytest.raises(InvalidArgument, match="which AsyncMongoDBSaver takes"):
            MongoDBSaver(client)  # type: ignore[arg-type]  # the wrong client is the point
    with (
        MongoClient("mongodb://127.0.0.1:1/", connect=False) as blocking,
        pytest.raises(InvalidArgument, match=r"which MongoDBSaver takes"),
    ):
        AsyncMongoDBSaver(blocking)  # type: ignore[arg-type]  # the wrong client is the point


async def test_an_option_that_cannot_be_is_named(open_saver: OpenSurface) -> None:
    options: list[dict[str, Any]] = [
        {"db_name": ""},
        {"db_name": {"$ne": 1}},
        {"checkpoint_collection_name": "a$b"},
        {"writes_collection_name": "checkpoints"},
        {"blobs_collection_name": "checkpoint_writes"},
        {"blobs_collection_name": "a\0"},
        {"retry_seconds": -1},
        {"retry_seconds": "1"},
        {"dialect": "sqlite"},
        {"queryable_metadata": [1]},
        *({"ttl": ttl} for ttl in (0, -1, True, "60", float("nan"), float("inf"), 2**31)),
    ]
    for option in options:
        with pytest.raises(InvalidArgument, match=next(iter(option))):
            await open_saver(**option)
