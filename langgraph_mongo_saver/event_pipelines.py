"""What is asked of the server for events: change streams, stored documents, and the positions of listeners."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from pymongo import ASCENDING, DESCENDING

from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.events import EventFilter, Kind
from langgraph_mongo_saver.metadata import field
from langgraph_mongo_saver.pipelines import Part, Request
from langgraph_mongo_saver.settings import Settings

TOLD = (INTERRUPT, ERROR)
"""Channels whose values are part of an event."""

STORED_PAGE = 128
"""Documents read at a time, to make events of."""

_OF_WRITES: frozenset[Kind] = frozenset({"writes", "interrupt", "error"})
# What of a document an event is made of; the server sends no more.
_FIELDS = (
    *("layout", "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "metadata", "stored_at"),
    "task_id",
)

# --- change streams -------------------------------------------------------------------------------------------------


def change_pipeline(settings: Settings, wanted: EventFilter) -> list[Document]:
    """The stages behind ``$changeStream`` that select what may become an event, and send no state."""
    place = _place("documentKey._id.", wanted)
    cases: list[Document] = [{"operationType": "invalidate"}]
    if "checkpoint" in wanted.kinds:
        stored = {"ns.coll": settings.checkpoints, "operationType": {"$in": ["insert", "replace"]}}
        cases.append({**stored, **place, **metadata_query("fullDocument.", wanted)})
    if _OF_WRITES & wanted.kinds:
        cases.append({"ns.coll": settings.writes, "operationType": {"$in": ["insert", "update"]}, **place})
    if "thread_deleted" in wanted.kinds:
        thread = {name: value for name, value in place.items() if not name.endswith("_ns")}
        cases.append({"ns.coll": settings.checkpoints, "operationType": "delete", **thread})
        # Where a thread begins anew, another of its name is gone.
        root = {"fullDocument.parent_checkpoint_id": None, "fullDocument.checkpoint_ns": ""}
        cases.append({"ns.coll": settings.checkpoints, "operationType": "insert", **root, **thread})
    changed = {"$objectToArray": {"$ifNull": ["$updateDescription.updatedFields", {}]}}
    shown = {
        **dict.fromkeys(("operationType", "clusterTime", "documentKey", "ns"), 1),
        "changed": {"$map": {"input": changed, "as": "field", "in": "$$field.k"}},
        **{f"fullDocument.{name}": 1 for name in _FIELDS},
        "fullDocument.writes": _told_writes("$fullDocument.writes"),
    }
    stages: list[Document] = [{"$match": {"$or": cases}}, {"$project": shown}]
    told = told_channels(wanted)
    if told is not None:
        other = {"ns.coll": {"$ne": settings.writes}}
        stages.append({"$match": {"$or": [other, *written_to(told, "fullDocument.")]}})
    return stages


def told_channels(wanted: EventFilter) -> list[str] | None:
    """The channels that all writes asked for have; None where any writes are."""
    if "writes" in wanted.kinds:
        return None
    return [channel for channel, kind in ((INTERRUPT, "interrupt"), (ERROR, "error")) if kind in wanted.kinds]


def written_to(channels: Sequence[str], path: str = "") -> list[Document]:
    """The conditions of which documents of writes to any of some channels meet one."""
    return [{f"{path}writes.{field(channel)}": {"$exists": True}} for channel in channels]


def projection() -> Document:
    """What is read of stored documents to make events of them."""
    return {**dict.fromkeys(_FIELDS, 1), "writes": _told_writes("$writes")}


def _told_writes(path: str) -> Document:
    # A foreign document may hold anything here.
    writes = {"$cond": [{"$eq": [{"$type": path}, "object"]}, path, {}]}
    entries = {"$cond": [{"$isArray": ["$$of.v"]}, "$$of.v", []]}
    bare = {"$map": {"input": entries, "as": "write", "in": {"idx": "$$write.idx"}}}
    kept = {"$cond": [{"$in": ["$$of.k", {"$literal": list(TOLD)}]}, entries, bare]}
    by_channel = {"$map": {"input": {"$objectToArray": writes}, "as": "of", "in": {"k": "$$of.k", "v": kept}}}
    return {"$arrayToObject": by_channel}


def _place(path: str, wanted: EventFilter) -> Document:
    place: Document = {}
    if wanted.thread_ids is not None:
        place[f"{path}thread_id"] = {"$in": sorted(wanted.thread_ids)}
    if wanted.checkpoint_ns is not None:
        place[f"{path}checkpoint_ns"] = wanted.checkpoint_ns
    return place


def stored_query(wanted: EventFilter) -> Document:
    """The query for stored documents that may become events; of checkpoints, with `metadata_query`."""
    return _place("", wanted)


def metadata_query(path: str, wanted: EventFilter) -> Document:
    """The condition on metadata: exactly these values, so that one does not match within an array."""
    tests = [
        {"$eq": [{"$ifNull": [f"${path}metadata.{field(key)}", None]}, {"$literal": value}]}
        for key, value in wanted.metadata.items()
    ]
    return {"$expr": {"$and": tests}} if tests else {}


# --- stored documents ----------------------------------------------------------------------------------------------

# A checkpoint's id is minted by its writer's clock, when its superstep ends.
_ID_MARGIN = timedelta(hours=1)
_GREGORIAN = datetime(1582, 10, 15, tzinfo=timezone.utc)


def threads_present(thread_ids: Sequence[str]) -> Request:
    """Which of some threads have a checkpoint."""
    stages = [{"$match": {"thread_id": {"$in": list(thread_ids)}}}, {"$group": {"_id": "$thread_id"}}]
    return Request("checkpoints", "aggregate", (stages,), rows=True)


def stored_since(query: Document, since: datetime, after: tuple[str, str, str] | None, projection: Document) -> Request:
    """The next checkpoints with ids from a time on, oldest first.

    Args:
        query: what else they must be.
        since: the time.
        after: checkpoint id, thread and namespace of the last one of the page before.
        projection: what is read of them.
    """
    names = ("checkpoint_id", "thread_id", "checkpoint_ns")
    conditions: list[Document] = [query, {"checkpoint_id": {"$gte": after[0] if after else _id_at(since - _ID_MARGIN)}}]
    if after is not None:
        last = dict(zip(names, after, strict=True))
        conditions.append(
            {
                "$or": [
                    {"checkpoint_id": {"$gt": last["checkpoint_id"]}},
                    {"checkpoint_id": last["checkpoint_id"], "thread_id": {"$lt": last["thread_id"]}},
                    {**last, "checkpoint_ns": {"$lt": last["checkpoint_ns"]}},
                ]
            }
        )
    sort = [("checkpoint_id", ASCENDING), ("thread_id", DESCENDING), ("checkpoint_ns", DESCENDING)]
    options = {"projection": projection, "sort": sort, "limit": STORED_PAGE, "batch_size": STORED_PAGE}
    return Request("checkpoints", "find", ({"$and": conditions},), options, rows=True)


def _id_at(time: datetime) -> str:
    # The layout of UUID version 6, as langgraph.checkpoint.base.id makes them: the time in 100 ns, highest bits first.
    ticks = (time - _GREGORIAN) // timedelta(microseconds=1) * 10
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}-0000-000000000000"


def stored_lately(part: Part, query: Document, projection: Document) -> Request:
    """Documents by the time at which they were stored."""
    options = {"projection": projection, "sort": [("stored_at", ASCENDING)]}
    return Request(part, "find", (query,), options, rows=True)


def index_by_time(part: Part) -> Request:
    """The index of `stored_lately`, which polling needs alone."""
    return Request(part, "create_index", ([("stored_at", ASCENDING)],))
