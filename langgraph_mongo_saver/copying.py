"""copy_thread, as a plan: bytes are copied by the server, never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo.errors import BulkWriteError

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import thread_identifier
from langgraph_mongo_saver.blobs import already_there
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument, ThreadExists
from langgraph_mongo_saver.pipelines import Part, Plan
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.selection import copy_order

_BATCH = 500  # checkpoints copied within the server at a time
_PAGE = 100  # documents that go through this process at a time

# How long clean-up of the target spares blobs and writes that are as old as the source's, while what refers to them is
# still to come.
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
    rows = yield pipelines.ids_of_thread("checkpoints", source)
    checkpoints = [row["_id"] for row in rows]
    if not all(isinstance(key, dict) for key in checkpoints):
        raise CorruptCheckpoint(
            f"Thread {source!r} has checkpoints that were written by another saver; this release cannot copy them"
        )
    if replace_target:
        yield from planner.delete_everything(target)
    elif (yield from _holds_more(source, target, rows)):
        raise ThreadExists(
            f"Thread {target!r} holds checkpoints or writes that are not copies of thread {source!r}'s; choose another "
            "target_thread_id, or pass replace_target=True to delete what it holds"
        )
    times = {} if (active_at := planner.activity()) is None else {"active_at": active_at}
    held = {**times, "copied_until": planner.clock() + _HOLD}
    tell = progress or _ignore
    # Checkpoints last: what a kill leaves can be read, and copying again does the rest.
    yield from _copy(planner, "blobs", source, target, None, held)
    tell(1, 3)
    yield from _copy(planner, "writes", source, target, None, held)
    yield from _copy_late_blobs(planner, source, target, held)
    tell(2, 3)
    yield from _copy(planner, "checkpoints", source, target, copy_order(checkpoints), times)
    yield from _check_copy(source, target, checkpoints)
    yield from _copy_late_blobs(planner, source, target, held)
    tell(3, 3)
    yield from planner.note_activity(target, always=True)


def _ignore(done: int, total: int) -> None:
    pass


def _copy_late_blobs(planner: Planner, source: str, target: str, times: Mapping[str, datetime]) -> Plan[None]:
    """Copy the blobs that the source has got since: what runs have written, or a compaction, may refer to them."""
    missing = _places((yield from _keys("blobs", source))) - _places((yield from _keys("blobs", target)))
    late = [{"thread_id": source, "blob": blob, "part": number} for blob, number in sorted(missing)]
    yield from _copy(planner, "blobs", source, target, late, times)


def _check_copy(source: str, target: str, checkpoints: Sequence[Document]) -> Plan[None]:
    """Refuse to take for a copy what lacks checkpoints that the source has, or the source's heads.

    Clean-up of the source may have taken others meanwhile; heads it leaves, but for those of finished calls.
    """
    missing = _places(checkpoints) - _places((yield from _keys("checkpoints", target)))
    if not missing:
        return
    heads = {ns: i for ns, i in sorted(_places(checkpoints)) if ":" not in ns}
    lost = missing & (_places((yield from _keys("checkpoints", source))) | set(heads.items()))
    if lost:
        raise CorruptCheckpoint(
            f"Thread {target!r} lacks {len(lost)} of thread {source!r}'s checkpoints: another process has pruned or "
            "deleted one of them meanwhile; copy it again, with replace_target=True, when that is over"
        )


def _keys(part: Part, thread_id: str) -> Plan[list[Any]]:
    return [row["_id"] for row in (yield pipelines.ids_of_thread(part, thread_id))]


def _holds_more(source: str, target: str, checkpoints: Iterable[Document]) -> Plan[bool]:
    """Whether a thread has what a copy would leave or overwrite: what its source has not, or not yet."""
    found = yield pipelines.ids_of_thread("checkpoints", target)
    if _is_more(found, checkpoints):
        return True
    found = yield pipelines.ids_of_thread("writes", target)
    return bool(found) and _is_more(found, (yield pipelines.ids_of_thread("writes", source)))


def _is_more(found: Iterable[Document], originals: Iterable[Document]) -> bool:
    times = {_place(row["_id"]): row.get("stored_at") for row in originals}
    places = ((_place(row["_id"]), row) for row in found)
    return any(place not in times or row["stored_at"] > times[place] for place, row in places)


def _place(key: Any) -> Any:
    return tuple(value for name, value in key.items() if name != "thread_id") if isinstance(key, dict) else key


def _places(keys: Iterable[Any]) -> set[Any]:
    return {_place(key) for key in keys}


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
        page = keys[start : start + _PAGE]
        found = {_place(document["_id"]): document for document in (yield pipelines.whole(part, page))}
        # A find has them in an order of its own.
        copies = [{**_copied(found[place], target), **times} for key in page if (place := _place(key)) in found]
        if copies:
            yield from _store(part, copies)


def _store(part: Part, copies: Sequence[Document]) -> Plan[None]:
    there: list[Document] = []
    try:
        yield pipelines.insert_all(part, copies)
    except BulkWriteError as error:
        there = already_there(copies, error)
    for copy in there:  # what was killed has left them
        yield pipelines.replace(part, copy)


def _copied(document: Document, target: str) -> Document:
    return {**document, "_id": {**document["_id"], "thread_id": target}, "thread_id": target}
