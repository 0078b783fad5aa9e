"""What many behaviour tests do: put a checkpoint, call several things at once, look at what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bson
from pymongo import MongoClient

from tests.building import checkpoint
from tests.surfaces import Surface

LARGE = 300_000
"""More bytes than a document embeds of one value."""

_CALLERS = ThreadPoolExecutor(40)

COLLECTIONS = ("checkpoints", "checkpoint_writes", "checkpoint_blobs")


async def put(
    saver: Surface,
    config: Any,
    values: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    *,
    new: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> Any:
    """Put a checkpoint; all its channels changed unless ``new`` tells otherwise. Returns its config."""
    made = checkpoint(values, versions, id)
    changed = made["channel_versions"] if new is None else new
    return await saver.put(config, made, {"source": "loop", "step": 1, **(metadata or {})}, changed)


async def values(saver: Surface, config: Any) -> dict[str, Any]:
    """The channel values of a stored checkpoint."""
    loaded = await saver.get_tuple(config)
    assert loaded is not None
    return loaded.checkpoint["channel_values"]


async def writes(saver: Surface, config: Any) -> list[Any]:
    """The pending writes of a stored checkpoint."""
    loaded = await saver.get_tuple(config)
    assert loaded is not None
    return loaded.pending_writes


def at_once(saver: Surface, method: str, *args: Any) -> Any:
    """A call that runs beside others, also of a sync method."""
    if saver.name in ("sync", "async-from-threads"):
        # Not the loop's own threads: the async driver looks hosts up in them.
        return asyncio.get_running_loop().run_in_executor(_CALLERS, getattr(saver.raw, method), *args)
    return saver.call(method, *args)


def stored(mongo: MongoClient[Any], db_name: str) -> dict[str, list[dict[str, Any]]]:
    """Every document of the database, by collection."""
    database = mongo[db_name]
    return {name: list(database[name].find()) for name in sorted(database.list_collection_names())}


def raw(mongo: MongoClient[Any], db_name: str) -> bytes:
    """Every document of the database as its bytes."""
    return b"".join(bson.encode(document) for found in stored(mongo, db_name).values() for document in found)


def ids(listed: Any) -> list[str]:
    """The checkpoint ids of checkpoints."""
    return [loaded.config["configurable"]["checkpoint_id"] for loaded in listed]
