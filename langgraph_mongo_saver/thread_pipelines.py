"""What is asked of the server to list threads."""

from __future__ import annotations

from collections.abc import Sequence

from pymongo import ASCENDING, DESCENDING

from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.pipelines import IN_USE, Part, Request


def next_thread_ids(after: str | None, scanned: int) -> Request:
    """The thread ids among the next entries of the index, each with how many of these are its."""
    stages: list[Document] = [
        {"$match": {"thread_id": {"$gt": after}} if after is not None else {}},
        {"$sort": {"thread_id": ASCENDING, "checkpoint_ns": ASCENDING, "checkpoint_id": DESCENDING}},
        {"$limit": scanned},
        {"$project": {"_id": 0, "thread_id": 1}},
        {"$group": {"_id": "$thread_id", "n": {"$sum": 1}}},
    ]
    return Request("checkpoints", "aggregate", (stages,), rows=True)


def namespaces_of(thread_ids: Sequence[str]) -> Request:
    """For each namespace of some threads, how many checkpoints it has and the latest one's id."""
    group = {
        "_id": {"thread_id": "$thread_id", "checkpoint_ns": "$checkpoint_ns"},
        "checkpoints": {"$sum": 1},
        "head": {"$max": "$checkpoint_id"},
    }
    stages = [{"$match": {"thread_id": {"$in": list(thread_ids)}, **IN_USE}}, {"$group": group}]
    return Request("checkpoints", "aggregate", (stages,), rows=True)


def sizes_of(part: Part, thread_ids: Sequence[str]) -> Request:
    """For each of some threads, the size of its documents in a collection, and when the last one was stored."""
    group = {"_id": "$thread_id", "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}, "last": {"$max": "$stored_at"}}
    stages = [{"$match": {"thread_id": {"$in": list(thread_ids)}}}, {"$group": group}]
    return Request(part, "aggregate", (stages,), rows=True)
