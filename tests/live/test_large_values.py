"""Values too large for a document, and values too large to be stored at every step."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.building import config
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
