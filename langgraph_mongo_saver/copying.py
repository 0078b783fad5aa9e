"""copy_thread, as a plan: bytes are copied by the server, never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo.errors import BulkWriteError

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import thread_identifier
from langgraph_mongo_saver.blobs import only_duplicates, without_documents
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument, ThreadExists
from langgraph_mongo_saver.pipelines import Part, Plan
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.selection import copy_order

_ORDER: tuple[Part, ...] = ("blobs", "writes", "checkpoints")
_BATCH = 500  # checkpoints copied within the server at a time
_PAGE = 100  # documents that go through this process at a time

# How long clean-up of the target spares what is as old as the source's, and referred to by nothing yet.
_HOLD = timedelta(hours=1)


def copy_thread(
    planner: Planner,
    source_thread_id: str,
    target_thread_id: str,
    *,
    replace_target: bool,
    progress: Callable[[int, int], object] | None,
) -> Plan[None]:
    """The plan for `copy_thread`."""
    source = thread_identifier(source_thread_id, "source_thread_id")
    target = thread_identifier(target_thread_id, "target_thread_id")
    if source == target:
        raise InvalidArgument(f"target_thread_id must differ from source_thread_id, but both are {source!r}")
    return _copy_thread(planner, source, target, replace_target, progress)


def _copy_thread(
    planner: Planner, source: str, target: str, replace_target: bool, progress: Callable[[int, int], object] | None
) -> Plan[None]:
    # The copy is the source as of now: what runs append to it meanwhile stays away.
    checkpoints = yield from _keys("checkpoints", source)
    if not all(isinstance(key, dict) for key in checkpoints):
        raise CorruptCheckpoint(
            f"Thread {source!r} has checkpoints that were written by another saver; this release cannot copy them"
        )
    if replace_target:
        yield from planner.delete_everything(target)
    elif (yield from _holds_more(source, target, checkpoints)):
        raise ThreadExists(
            f"Thread {target!r} holds checkpoints or writes that are not copies of thread {source!r}'s; choose another "
            "target_thread_id, or pass replace_target=True to delete what it holds"
        )
    checkpoints = copy_order(checkpoints)
    until = planner.clock() + _HOLD
    times = {} if (active_at := planner.activity()) is None else {"active_at": active_at}
    held = {**times, "held_until": until}
    # Checkpoints last, and those with the smallest ids first: what a kill leaves can be read, and copying again does
    # the rest.
    for done, part in enumerate(_ORDER, 1):
        if part == "checkpoints":
            yield from _copy(planner, part, source, target, checkpoints, times)
            yield from _check_target(source, target, checkpoints)
        else:
            yield from _copy(planner, part, source, target, None, held)
        if part != "blobs":
            # What runs have written since, or a compaction, may refer to blobs that are as new.
            missing = _places((yield from _keys("blobs", source))) - _places((yield from _keys("blobs", target)))
            late = [{"thread_id": source, "blob": blob, "part": number} for blob, number in sorted(missing)]
            yield from _copy(planner, "blobs", source, target, late, held)
        if progress:
            progress(done, len(_ORDER))
    yield from planner.note_activity(target, always=True)
    # Lest they stay behind if the copy is pruned at once; there are few of them, and many writes.
    yield pipelines.release_blobs(target, until)


def _check_target(source: str, target: str, checkpoints: Sequence[Document]) -> Plan[None]:
    """Refuse to take for a copy what another process has deleted from; what is gone from the source too may be gone.

    A fork that is copied after its ancestors were pruned would lack their part of its state.
    """
    missing = _places(checkpoints) - _places((yield from _keys("checkpoints", target)))
    if missing and (lost := missing & _places((yield from _keys("checkpoints", source)))):
        raise CorruptCheckpoint(
            f"Thread {target!r} lacks {len(lost)} of thread {source!r}'s checkpoints: another process has pruned or "
            "deleted it while it was being copied; copy it again, with replace_target=True, when that is over"
        )


def _keys(part: Part, thread_id: str) -> Plan[list[Any]]:
    return [row["_id"] for row in (yield pipelines.ids_of_thread(part, thread_id))]


def _holds_more(source: str, target: str, checkpoints: Sequence[Document]) -> Plan[bool]:
    found = yield from _keys("checkpoints", target)
    if not _places(found) <= _places(checkpoints):
        return True
    found = yield from _keys("writes", target)
    return bool(found) and not _places(found) <= _places((yield from _keys("writes", source)))


def _places(keys: Iterable[Any]) -> set[Any]:
    return {
        tuple(value for name, value in key.items() if name != "thread_id") if isinstance(key, dict) else key
        for key in keys
    }


def _copy(
    planner: Planner,
    part: Part,
    source: str,
    target: str,
    keys: Sequence[Document] | None,
    times: Mapping[str, datetime],
) -> Plan[None]:
    if not planner.settings.joins:
        yield from _copy_by_pages(part, source, target, keys, times)
        return
    # Not what another saver has written to the thread, whose _id is not ours to make.
    queries: list[Document] = [{"thread_id": source, "_id.thread_id": source}]
    if keys is not None:
        queries = [{"_id": {"$in": keys[n : n + _BATCH]}} for n in range(0, len(keys), _BATCH)]
    for query in queries:
        yield pipelines.copy(part, planner.settings.name_of(part), query, target, times)


def _copy_by_pages(
    part: Part, source: str, target: str, keys: Sequence[Document] | None, times: Mapping[str, datetime]
) -> Plan[None]:
    if keys is None:
        keys = [key for key in (yield from _keys(part, source)) if isinstance(key, dict)]
    for start in range(0, len(keys), _PAGE):
        documents = yield pipelines.whole(part, keys[start : start + _PAGE])
        copies = [{**_copied(document, target), **times} for document in documents]
        if not copies:
            continue
        try:
            yield pipelines.insert_all(part, copies)
        except BulkWriteError as error:
            if not only_duplicates(error):
                raise without_documents(error) from None


def _copied(document: Document, target: str) -> Document:
    return {**document, "_id": {**document["_id"], "thread_id": target}, "thread_id": target}
