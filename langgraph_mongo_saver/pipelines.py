"""Every query, aggregation and write, as data: what is sent to which collection, named for what it answers.

A `Request` is performed by a shell; nothing here touches a client. Collections go by their part: ``checkpoints``,
``writes``, ``blobs``, ``listeners``, or ``database`` for commands on the database itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from pymongo import ASCENDING, DESCENDING

from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Document, populated
from langgraph_mongo_saver.metadata import field, filter_query

T = TypeVar("T")
Part = Literal["checkpoints", "writes", "blobs", "listeners", "database"]

PARTS: tuple[Part, ...] = ("checkpoints", "writes", "blobs")
"""The collections, in the order in which a thread is deleted: what is left by a kill is then unreachable."""

# A range is read faster than its ids, but each is planned like a query of its own.
_MOST_RANGES = 32

# The same writes again, as a put that is repeated has them: to look for each takes 30 s for 20,000 of one channel.
_FEW = 100

# One batch, however many documents: the server cuts it at 16 MB by itself.
_ONE_BATCH = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """One call of the driver.

    Attributes:
        part: the collection it goes to, or the database.
        method: the name of the driver's method, the same in pymongo, its async API and Motor.
        args: positional arguments.
        kwargs: keyword arguments.
        rows: whether the reply is a cursor, to be read to its end.
    """

    part: Part
    method: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: bool = False


Plan = Generator[Request, Any, T]
"""Yields requests, is sent the driver's replies or thrown its errors, and returns an operation's result."""


def _find(part: Part, query: Document, **options: Any) -> Request:
    return Request(part, "find", (query,), {"batch_size": _ONE_BATCH, **options}, rows=True)


def _computed(part: Part, query: Document, shown: Document) -> Request:
    # A find, but that its projection may have expressions, which only servers from 4.4 on take in a find.
    stages: list[Document] = [{"$match": query}, {"$project": shown}]
    return Request(part, "aggregate", (stages,), {"batchSize": _ONE_BATCH}, rows=True)


# What is read of many documents at once. The server names fields faster than it leaves out others (1.5 ms against 2.5
# for 200 documents), and what is not read takes the driver a third of its time.
_READ = {
    "_id": 0,
    **dict.fromkeys(("layout", "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"), 1),
    **dict.fromkeys(("skeleton", "exact_metadata", "values"), 1),
}
_READ_OF_WRITES = {
    "_id": 0,
    **dict.fromkeys(("layout", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path", "writes"), 1),
}

# --- reading -------------------------------------------------------------------------------------------------------


Retired = Literal["kept", "going"]
"""A checkpoint that clean-up has retired is there for what its descendants need of it, and found by its id alone; or it
is about to go, and no longer found."""

IN_USE: Document = {"retired": {"$exists": False}}
"""The condition on checkpoints that clean-up has not retired."""

_THERE = {"retired": {"$ne": "going"}}


def _of(address: Address) -> Document:
    return {key: value for key, value in address._asdict().items() if value is not None}


def _at(address: Address) -> list[Document]:
    """The stages that find a checkpoint, or the latest of a namespace."""
    if address.checkpoint_id is not None:
        return [{"$match": {**_of(address), **_THERE}}]
    return [{"$match": {**_of(address), **IN_USE}}, {"$sort": {"checkpoint_id": DESCENDING}}, {"$limit": 1}]


def checkpoint_with_writes(address: Address, writes_collection: str) -> Request:
    """The checkpoint at an address, or the latest of its namespace, with the documents of its writes."""
    # Thread and namespace are constants here, so that only one field is joined: 0.86 ms against 1.2 ms for three.
    join = {
        "from": writes_collection,
        "localField": "checkpoint_id",
        "foreignField": "checkpoint_id",
        "pipeline": [{"$match": _of(address.at(None))}],
        "as": "writes",
    }
    return Request("checkpoints", "aggregate", ([*_at(address), {"$lookup": join}],), rows=True)


def checkpoint(address: Address) -> Request:
    """The checkpoint at an address, or the latest of its namespace, alone."""
    query = {**_of(address), **(_THERE if address.checkpoint_id else IN_USE)}
    return _find("checkpoints", query, sort=[("checkpoint_id", DESCENDING)], limit=1)


def known_of(address: Address) -> Request:
    """What a checkpoint hands on to the next: its versions, values and place."""
    names = ("layout", "skeleton", "values", "segment", "seq", "active_at")
    return _find("checkpoints", address.key, projection=dict.fromkeys(names, 1), limit=1)


def checkpoints_page(
    thread_id: str | None,
    checkpoint_ns: str | None,
    *,
    checkpoint_id: str | None,
    before: str | None,
    filter: Mapping[str, Any],
    after: tuple[str, str, str] | None,
    size: int,
) -> Request:
    """The next checkpoints, newest first.

    Args:
        thread_id: of this thread only.
        checkpoint_ns: of this namespace only.
        checkpoint_id: this one only.
        before: older ones only.
        filter: metadata values, checked.
        after: checkpoint id, thread and namespace of the last one of the page before.
        size: how many at most.
    """
    ids: Document = {}
    if checkpoint_id is not None:
        ids["$eq"] = checkpoint_id
    if before is not None:
        ids["$lt"] = before
    if after is not None:
        ids["$lte"] = after[0]
    query: Document = {"checkpoint_id": ids} if ids else {}
    query.update(_THERE if checkpoint_id is not None else IN_USE)
    sort = [("checkpoint_id", DESCENDING)]
    for name, value in (("thread_id", thread_id), ("checkpoint_ns", checkpoint_ns)):
        if value is not None:
            query[name] = value
        else:
            sort.append((name, ASCENDING))
    query.update(filter_query(filter))
    if after is not None:
        query["$or"] = _behind(after, [name for name, _ in sort[1:]])
    return _find("checkpoints", query, projection=_READ, sort=sort, limit=size)


def _behind(after: tuple[str, str, str], tied: Sequence[str]) -> list[Document]:
    last = dict(zip(("checkpoint_id", "thread_id", "checkpoint_ns"), after, strict=True))
    behind: list[Document] = [{"checkpoint_id": {"$lt": last["checkpoint_id"]}}]
    equal: Document = {"checkpoint_id": last["checkpoint_id"]}
    for name in tied:
        behind.append({**equal, name: {"$gt": last[name]}})
        equal[name] = last[name]
    return behind


# What a walk along the ancestors needs of a checkpoint: not its values, but which there are and where.
_NODE = {
    "_id": 0,
    "checkpoint_id": 1,
    "parent_checkpoint_id": 1,
    "segment": 1,
    "retired": 1,
    "compacted": 1,
    **{f"values.{name}": 1 for name in ("channel", "type", "blob", "parts", "bytes")},
}


def lineage(address: Address, collection: str, channels: Sequence[str], hops: int) -> Request:
    """A checkpoint (or the latest) and those before it in its segment and in the segments that led to it.

    Only the first document of a segment is walked over: a stage's memory holds whole documents, and 5,000 of 60 kB
    end in "$graphLookup reached maximum memory consumption".

    Args:
        address: where to begin.
        collection: the name of the collection of checkpoints.
        channels: the channels of whose values to tell.
        hops: from segment to segment, at most.
    """
    namespace = _of(address.at(None))
    openers = {
        "from": collection,
        "startWith": "$segment",
        "connectFromField": "grew_from.segment",
        "connectToField": "checkpoint_id",
        "restrictSearchWithMatch": namespace,
        "maxDepth": hops,
        "as": "openers",
    }
    # Columns: a thousand documents of three fields take the driver three times as long. All are in the index.
    columns = {
        "ids": {"$push": "$checkpoint_id"},
        "parents": {"$push": {"$ifNull": ["$parent_checkpoint_id", None]}},
        "populated": {"$push": {"$ifNull": ["$populated", None]}},
    }
    # Also those that come after the last one on the way: to leave them out by their seq costs more (1 ms in 1,000).
    members = {
        "from": collection,
        "localField": "segment",
        "foreignField": "segment",
        "pipeline": [{"$match": namespace}, {"$group": {"_id": None, **columns}}],
        "as": "nodes",
    }
    # To join by a field that is not there would join all documents that do not have it.
    segments = {"$concatArrays": [[{"$ifNull": ["$segment", False]}], "$openers.grew_from.segment"]}
    # Snapshots are at openers: what is needed to read one comes with it.
    light = {name: f"$$value.{name}" for name in ("channel", "type", "blob", "parts", "bytes")}
    held = {"$map": {"input": _of_channels(channels, "$$node.values"), "as": "value", "in": light}}
    names = ("checkpoint_id", "parent_checkpoint_id", "segment", "compacted")
    node = {**{name: f"$$node.{name}" for name in names}, "values": held}
    known = {"input": {"$concatArrays": [["$$ROOT"], "$openers"]}, "as": "node", "in": node}
    shown = {"_id": 0, "segment": segments, "known": {"$map": known}}
    stages = [{"$graphLookup": openers}, {"$project": shown}, {"$unwind": "$segment"}, {"$lookup": members}]
    return Request("checkpoints", "aggregate", ([*_at(address), *stages],), rows=True)


def _in(path: str, names: Sequence[str]) -> Document:
    if len(names) == 1:  # 0.3 ms less in 1,000 documents
        return {"$eq": [path, {"$literal": names[0]}]}
    return {"$in": [path, {"$literal": list(names)}]}


def _of_channels(channels: Sequence[str], values: str = "$values") -> Document:
    return {"$filter": {"input": values, "as": "value", "cond": _in("$$value.channel", channels)}}


def begun(address: Address, place: tuple[str, int]) -> Request:
    """A checkpoint and those before it in its segment, as light documents.

    Args:
        address: the checkpoint.
        place: its segment and its number in there.
    """
    query = {**_of(address.at(None)), "segment": place[0], "seq": {"$lte": place[1]}}
    return _find("checkpoints", query, projection=_NODE)


def at_place(address: Address, place: tuple[str, int]) -> Request:
    """The checkpoint of a namespace that is at a place, a segment and a number in there, if there is one."""
    query = {**_of(address.at(None)), "segment": place[0], "seq": place[1]}
    return _find("checkpoints", query, projection={"_id": 0, "seq": 1}, limit=1)


def latest(address: Address) -> Request:
    """The id of the latest checkpoint of a namespace."""
    query = {**_of(address.at(None)), **IN_USE}
    return _find("checkpoints", query, projection={"checkpoint_id": 1}, sort=[("checkpoint_id", DESCENDING)], limit=1)


def older(address: Address, size: int) -> Request:
    """A checkpoint and those of its namespace with the next smaller ids, as light documents."""
    query = {**_of(address.at(None)), "checkpoint_id": {"$lte": address.key["checkpoint_id"]}}
    return _find("checkpoints", query, projection=_NODE, sort=[("checkpoint_id", DESCENDING)], limit=size)


def writes_of(addresses: Sequence[Address], *, gaps: bool = True) -> Request:
    """The writes of several checkpoints.

    Args:
        addresses: the checkpoints.
        gaps: whether there may be other checkpoints between them. Where there are none a range is read, also with what
            else is in it: of a hundred checkpoints in half the time that the server takes for a hundred ids.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for address in addresses:
        groups.setdefault((address.thread_id, address.checkpoint_ns), []).append(address.key["checkpoint_id"])
    queries = [
        {"thread_id": thread_id, "checkpoint_ns": ns, **({"checkpoint_id": {"$in": ids}} if gaps else _between(ids))}
        for (thread_id, ns), ids in groups.items()
    ]
    query = queries[0] if len(queries) == 1 else {"$or": queries}
    return _find("writes", query, projection=_READ_OF_WRITES)


def _between(ids: Sequence[str], but: str | None = None) -> Document:
    # Two conditions, as SecantusDB 0.7 gets both bounds in one wrong where the index descends.
    bounds = [{"$gte": min(ids)}, {"$lte": max(ids)}, *([{"$ne": but}] if but is not None else [])]
    return {"$and": [{"checkpoint_id": bound} for bound in bounds]}


def writes_to(address: Address, runs: Sequence[Sequence[str]], channels: Sequence[str]) -> Request:
    """The writes to some channels that were made in a namespace on runs of checkpoints.

    Args:
        address: the thread and the namespace; if it has an id, not the writes of that checkpoint.
        runs: ids of checkpoints, those together that lie near each other: what is between them is read with them.
        channels: the channels; no other writes are sent.
    """
    if len(runs) > _MOST_RANGES:
        query = some(address, [checkpoint_id for ids in runs for checkpoint_id in ids])
    else:
        ranges = [{**_of(address.at(None)), **_between(ids, but=address.checkpoint_id)} for ids in runs]
        query = ranges[0] if len(ranges) == 1 else {"$or": ranges}
    names = ("checkpoint_id", "task_id", "task_path", "layout", *(f"writes.{field(c)}" for c in channels))
    return _find("writes", query, projection={"_id": 0, **dict.fromkeys(names, 1)})


def values_of(address: Address, checkpoint_ids: Sequence[str], channels: Sequence[str]) -> Request:
    """The values of some channels that these checkpoints of a namespace hold."""
    shown = {"_id": 0, "checkpoint_id": 1, "values": _of_channels(channels)}
    return _computed("checkpoints", some(address, checkpoint_ids), shown)


def marks(address: Address) -> Request:
    """A checkpoint, and all of its namespace that were compacted, as what tells whether a lineage is still the same."""
    compacted = {**_of(address.at(None)), "compacted": True}
    names = ("checkpoint_id", "retired", "compacted", "values.channel")
    return _find("checkpoints", {"$or": [address.key, compacted]}, projection={"_id": 0, **dict.fromkeys(names, 1)})


def together(requests: Sequence[Request], name_of: Callable[[str], str]) -> Request:
    """Several finds as one command, for a server that can join collections.

    The rows of all come in this order; those of any but the first tell by ``of`` which one's they are, from 1 on.

    Args:
        requests: the finds.
        name_of: the name of a collection by its part.
    """

    def stages(request: Request) -> list[Document]:
        if request.method == "aggregate":
            return list(request.args[0])
        projection = request.kwargs.get("projection")
        return [{"$match": request.args[0]}, *([{"$project": projection}] if projection else [])]

    first, *others = requests
    unions = [
        {"$unionWith": {"coll": name_of(other.part), "pipeline": [*stages(other), {"$set": {"of": number}}]}}
        for number, other in enumerate(others, 1)
    ]
    return Request(first.part, "aggregate", ([*stages(first), *unions],), {"batchSize": _ONE_BATCH}, rows=True)


def blobs_there(keys: Sequence[Document]) -> Request:
    """Which of some parts of blobs are there."""
    return _find("blobs", {"_id": {"$in": list(keys)}}, projection={"_id": 1})


# --- writing -------------------------------------------------------------------------------------------------------


def insert(part: Part, document: Document) -> Request:
    """Store a document that is expected to be new."""
    return Request(part, "insert_one", (document,))


def hold_blobs(keys: Sequence[Document], times: Mapping[str, datetime]) -> Request:
    """Let clean-up and expiry spare blobs that are there already, and that a checkpoint is about to refer to."""
    return Request("blobs", "update_many", ({"_id": {"$in": list(keys)}}, {"$max": dict(times)}))


def replace_checkpoint(document: Document) -> Request:
    """Put a checkpoint in the place of the one that has its address, whatever that one's `_id`.

    It leaves its segment: another may have taken the place there that it would have now.
    """
    query = {name: document[name] for name in ("thread_id", "checkpoint_ns", "checkpoint_id")}
    left_out = ("_id", "segment", "seq", "grew_from")
    return Request("checkpoints", "replace_one", (query, {k: v for k, v in document.items() if k not in left_out}))


def merge_writes(document: Document) -> Request:
    """Add writes to those of the same task: special channels (negative idx) replace, of others the first stays."""
    update: Document = {"stored_at": document["stored_at"]}
    for name, writes in document["writes"].items():
        given: Document = {"$literal": [{"task_path": document["task_path"], **write} for write in writes]}
        if writes[0]["idx"] >= 0:
            stored = {"$ifNull": [f"$writes.{name}", []]}
            new: Document = {
                "$filter": {"input": given, "as": "new", "cond": {"$not": {"$in": ["$$new.idx", "$idxs"]}}}
            }
            if len(writes) > _FEW:
                same = {"$map": {"input": stored, "as": "old", "in": "$$old.idx"}}
                new = {"$cond": [{"$eq": [same, {"$literal": [write["idx"] for write in writes]}]}, [], new]}
            given = {"$concatArrays": [stored, new]}
        update[f"writes.{name}"] = given
    update["idxs"] = {"$setUnion": ["$idxs", {"$literal": document["idxs"]}]}
    if "active_at" in document:  # never back, whoever comes late
        update["active_at"] = {"$max": ["$active_at", document["active_at"]]}
    query = {"_id": document["_id"], "thread_id": document["thread_id"]}  # the thread leads to its shard
    return Request("writes", "update_one", (query, [{"$set": update}]))


def keep_alive(part: Part, thread_id: str, active_at: datetime) -> Request:
    """Let all documents of a thread expire together, `ttl` after this time."""
    query = {"thread_id": thread_id, "active_at": {"$not": {"$gte": active_at}}}
    return Request(part, "update_many", (query, {"$set": {"active_at": active_at}}))


# --- maintenance ---------------------------------------------------------------------------------------------------


def nodes_of_thread(thread_id: str) -> Request:
    """All checkpoints of a thread, as light documents."""
    more = {"layout": 1, "checkpoint_ns": 1, "stored_at": 1, "metadata.run_id": 1}
    return _find("checkpoints", {"thread_id": thread_id}, projection={**_NODE, **more})


def contents_of(address: Address, checkpoint_ids: Sequence[str]) -> Request:
    """Metadata and bookkeeping of some checkpoints of a namespace."""
    projection = {"_id": 0, "checkpoint_id": 1, "exact_metadata": 1, "skeleton": 1}
    return _find("checkpoints", some(address, checkpoint_ids), projection=projection)


def any_write(address: Address, channel: str) -> Request:
    """Whether a checkpoint has a write to a channel."""
    return _find(
        "writes", {**address.key, f"writes.{field(channel)}.0": {"$exists": True}}, projection={"_id": 1}, limit=1
    )


def threads_of_runs(run_ids: Sequence[str]) -> Request:
    """The threads that have a checkpoint of one of these runs."""
    # The index is on those that have the field, and is not used unless the query says so too.
    query = {"metadata.run_id": {"$in": list(run_ids), "$exists": True}}
    stages: list[Document] = [{"$match": query}, {"$group": {"_id": "$thread_id"}}]
    return Request("checkpoints", "aggregate", (stages,), rows=True)


def writes_of_thread(thread_id: str) -> Request:
    """To what checkpoints a thread has writes, since when, and the blobs that they refer to, by channel."""
    names = ("layout", "thread_id", "checkpoint_ns", "checkpoint_id", "stored_at", "copied_until")
    blob = {"$map": {"input": "$$of.v", "as": "write", "in": {"$ifNull": ["$$write.blob", None]}}}
    blobs = {"$map": {"input": {"$objectToArray": "$writes"}, "as": "of", "in": blob}}
    # Not what another saver has written to the thread.
    query = {"thread_id": thread_id, "layout": {"$exists": True}}
    return _computed("writes", query, {"_id": 0, **dict.fromkeys(names, 1), "blobs": blobs})


def some(address: Address, checkpoint_ids: Sequence[str]) -> Document:
    """The query for some checkpoints of a namespace, or for their writes."""
    return {**_of(address.at(None)), "checkpoint_id": {"$in": list(checkpoint_ids)}}


def unless(query: Document, names: Sequence[str], now: datetime) -> Document:
    """The query, but for documents that are to be spared: times in fields of these names are not over."""
    return {**query, **{name: {"$not": {"$gt": now}} for name in names}}


def count(part: Part, query: Document) -> Request:
    """How many documents a query selects."""
    return Request(part, "aggregate", ([{"$match": query}, {"$count": "n"}],), rows=True)


def delete(part: Part, query: Document) -> Request:
    """Delete what a query selects."""
    return Request(part, "delete_many", (query,))


def cut_parents(address: Address, checkpoint_ids: Sequence[str]) -> Request:
    """Let some checkpoints have no parent any more."""
    change = {"$set": {"parent_checkpoint_id": None}}
    return Request("checkpoints", "update_many", (some(address, checkpoint_ids), change))


def retire(address: Address, checkpoint_ids: Sequence[str], how: Retired) -> Request:
    """Let some checkpoints be no longer listed, nor be the latest."""
    return Request("checkpoints", "update_many", (some(address, checkpoint_ids), {"$set": {"retired": how}}))


def add_values(address: Address, entries: Sequence[Document]) -> Request:
    """Let a checkpoint hold the values of some channels, if it holds none of theirs yet."""
    channels = [entry["channel"] for entry in entries]
    change = {
        "values": {"$concatArrays": ["$values", {"$literal": list(entries)}]},
        "populated": {"$concat": ["$populated", {"$literal": populated(channels)}]},
        "compacted": True,
    }
    query = {**address.key, "values.channel": {"$nin": channels}}
    return Request("checkpoints", "update_one", (query, [{"$set": change}]))


def ids_of_thread(part: Part, thread_id: str, limit: int = 0) -> Request:
    """The `_id` of the documents of a thread, and since when they are there; 0 for all."""
    return _find(part, {"thread_id": thread_id}, projection={"stored_at": 1}, limit=limit)


def whole(part: Part, keys: Sequence[Document]) -> Request:
    """Whole documents by their `_id`."""
    return _find(part, {"_id": {"$in": list(keys)}})


def copy(part: Part, collection: str, query: Document, target: str, times: Mapping[str, datetime]) -> Request:
    """Copy documents of one collection to another thread, within the server, with times of their own."""
    change: Document = {"thread_id": {"$literal": target}, "_id.thread_id": {"$literal": target}, **times}
    stages: list[Document] = [{"$match": query}]
    if part == "checkpoints":
        stages.append({"$sort": {"checkpoint_id": ASCENDING, "checkpoint_ns": DESCENDING}})
    stages += [{"$set": change}, {"$merge": {"into": collection, "on": "_id", "whenMatched": "replace"}}]
    # The sort takes whole documents, of a batch.
    return Request(part, "aggregate", (stages,), {"allowDiskUse": True}, rows=True)


def insert_all(part: Part, documents: Sequence[Document]) -> Request:
    """Store documents, all that are not there yet."""
    return Request(part, "insert_many", (list(documents),), {"ordered": False})


def replace(part: Part, document: Document) -> Request:
    """Store a document in the place of the one that has its `_id`."""
    # The thread leads to its shard.
    return Request(part, "replace_one", ({"_id": document["_id"], "thread_id": document["thread_id"]}, document))
