"""An encrypting serde: what the database sees, and what is no longer trusted."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_mongo_saver import FilterNotQueryable, InvalidArgument, PlaintextRefused
from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import LARGE, put, raw, writes
from tests.surfaces import OpenSurface, Surface

SECRET = "Zx-secret-zX"
METADATA = {"source": "loop", "step": 1, "run_id": "run-in-clear", "writes": {"node": SECRET}, "user": SECRET}


def serde(key: bytes = b"0" * 16) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


async def fill(saver: Surface) -> Any:
    """A checkpoint with secrets in its values, writes and metadata, embedded and in blobs; and one after it."""
    channel_values = {"small": SECRET, "large": [SECRET] * 30_000, "bytes": SECRET.encode(), "huge": SECRET * LARGE}
    first = await put(saver, config(), channel_values, metadata=METADATA)
    stored = await put(saver, first, channel_values, new={}, metadata=METADATA)
    await saver.put_writes(stored, [("small", SECRET), ("large", SECRET * LARGE), ("__error__", {"e": SECRET})], "t")
    await saver.put_writes(stored, [("__error__", {"e": SECRET}), ("x", 0), ("x", 0), ("x", SECRET)], "t")
    return stored


async def test_no_secret_is_in_any_document(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    plain = await open_saver(db_name=db_name, checkpoint_collection_name="p", writes_collection_name="pw")
    await fill(plain)
    assert SECRET.encode() in raw(mongo, db_name)  # the search can find it
    mongo.drop_database(db_name)
    saver = await open_saver(serde=serde())
    stored = await fill(saver)
    assert SECRET.encode() not in raw(mongo, db_name)
    assert all(mongo[db_name][name].count_documents({}) for name in ("checkpoints", "checkpoint_writes"))
    assert mongo[db_name].checkpoint_blobs.count_documents({}) > 1
    loaded = await saver.get_tuple(stored)
    assert loaded is not None
    assert loaded.metadata == METADATA
    same = loaded.checkpoint["channel_values"] == {
        "small": SECRET,
        "large": [SECRET] * 30_000,
        "bytes": SECRET.encode(),
        "huge": SECRET * LARGE,
    }
    assert same
    assert {channel for _, channel, _ in loaded.pending_writes} == {"small", "large", "__error__", "x"}


async def test_what_stays_in_clear_can_be_filtered(open_saver: OpenSurface, recorder: CommandRecorder) -> None:
    saver = await open_saver(serde=serde())
    await put(saver, config(), metadata=METADATA)
    await put(saver, config("2"), metadata={**METADATA, "run_id": "other"})
    for filter, count in (({"source": "loop"}, 2), ({"step": 1, "run_id": "other"}, 1), ({"step": 2}, 0)):
        assert len(await saver.list(None, filter=filter)) == count
    with recorder.recording() as seen, pytest.raises(FilterNotQueryable, match=r"'user'.*queryable_metadata"):
        await saver.list(None, filter={"source": "loop", "user": SECRET})
    assert not seen


async def test_queryable_metadata_says_what_stays_in_clear(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver(serde=serde(), queryable_metadata=["user"])
    await put(saver, config(), metadata={**METADATA, "user": "ann"})
    assert mongo[db_name].checkpoints.find_one()["metadata"] == {"user": "ann"}
    assert len(await saver.list(None, filter={"user": "ann"})) == 1
    with pytest.raises(FilterNotQueryable, match="'source'"):
        await saver.list(None, filter={"source": "loop"})
    with pytest.raises(InvalidArgument, match="queryable_metadata"):
        await open_saver(serde=serde(), queryable_metadata="user")


async def test_queryable_metadata_holds_without_encryption_too(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver = await open_saver(queryable_metadata=[])
    stored = await put(saver, config(), metadata=METADATA)
    assert mongo[db_name].checkpoints.find_one()["metadata"] == {}
    loaded = await saver.get_tuple(stored)
    assert loaded is not None
    assert loaded.metadata == METADATA


async def test_plaintext_is_refused_unless_it_is_accepted(open_saver: OpenSurface) -> None:
    plain, given = await open_saver(), {"small": "x", "large": "x" * LARGE}
    stored = await put(plain, config(), given)
    strict, lenient = await open_saver(serde=serde()), await open_saver(serde=serde(), accept_plaintext=True)
    for call in (strict.get_tuple, strict.list):
        with pytest.raises(PlaintextRefused, match="accept_plaintext"):
            await call(stored)
    after = await put(lenient, stored, given, new={})
    for place in (stored, after):
        loaded = await lenient.get_tuple(place)
        assert loaded is not None
        assert loaded.checkpoint["channel_values"] == given


async def test_plaintext_slipped_into_an_encrypted_document_is_refused(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver, plain = await open_saver(serde=serde()), await open_saver()
    for storing, thread_id in ((saver, "1"), (plain, "2")):
        stored = await put(storing, config(thread_id), {"a": 1})
        await storing.put_writes(stored, [("a", 1)], "t")
    for part in ("values", "skeleton", "exact_metadata", "writes"):
        collection = mongo[db_name]["checkpoint_writes" if part == "writes" else "checkpoints"]
        own, other = (collection.find_one({"thread_id": thread_id})[part] for thread_id in ("1", "2"))
        assert await saver.get_tuple(config("1"))
        collection.update_one({"thread_id": "1"}, {"$set": {part: other}})
        with pytest.raises(PlaintextRefused):
            await saver.get_tuple(config("1"))
        collection.update_one({"thread_id": "1"}, {"$set": {part: own}})


async def test_equal_large_values_are_stored_once_while_they_do_not_change(
    open_saver: OpenSurface, mongo: Any, db_name: str
) -> None:
    saver = await open_saver(serde=serde())
    before = await put(saver, config(), {"a": "x" * LARGE, "n": 0})
    for n in range(1, 5):
        before = await put(saver, before, {"a": "x" * LARGE, "n": n}, {"a": 1, "n": n + 1}, new={"n": n + 1})
        saver = await open_saver(serde=serde())
    assert mongo[db_name].checkpoint_blobs.count_documents({}) == 1
    await saver.put_writes(before, [("a", "y" * LARGE)], "t")
    assert await writes(saver, before) == [("t", "a", "y" * LARGE)]


async def test_another_key_opens_nothing(open_saver: OpenSurface) -> None:
    stored = await put(await open_saver(serde=serde()), config(), {"a": 1})
    with pytest.raises(ValueError, match="MAC"):
        await (await open_saver(serde=serde(b"1" * 16))).get_tuple(stored)
