"""copy_thread, as a plan: bytes are copied by the server, never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Callable

from pymongo.errors import BulkWriteError

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import thread_identifier
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import InvalidArgument, ThreadExists
from langgraph_mongo_saver.pipelines import Part
from langgraph_mongo_saver.plans import Plan, Planner, only_duplicates, without_documents

_PAGE = 100


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
    if replace_target:
        yield from planner.delete_everything(target)
    elif (yield from _holds_more(planner, source, target)):
        raise ThreadExists(
            f"Thread {target!r} holds checkpoints that are not copies of thread {source!r}'s; choose another "
            "target_thread_id, or pass replace_target=True to delete what it holds"
        )
    # Checkpoints last, and those with the smallest ids first: what a kill leaves can be read, and copying again
    # does the rest.
    order: tuple[Part, ...] = ("blobs", "writes", "checkpoints")
    for done, part in enumerate(order, 1):
        if planner.settings.joins:
            yield pipelines.copy(part, planner.settings.name_of(part), source, target, planner.activity())
        else:
            yield from _copy_by_pages(planner, part, source, target)
        if progress:
            progress(done, len(order))


def _holds_more(planner: Planner, source: str, target: str) -> Plan[bool]:
    found = yield pipelines.ids_of_thread("checkpoints", target)
    if not found:
        return False
    copied = {_within_thread(row) for row in (yield pipelines.ids_of_thread("checkpoints", source)) if _ours(row)}
    return any(not _ours(row) or _within_thread(row) not in copied for row in found)


def _within_thread(row: Document) -> tuple[str, str]:
    return row["_id"]["checkpoint_ns"], row["_id"]["checkpoint_id"]


def _ours(row: Document) -> bool:
    return isinstance(row["_id"], dict)


def _copy_by_pages(planner: Planner, part: Part, source: str, target: str) -> Plan[None]:
    keys: list[Document] = [row["_id"] for row in (yield pipelines.ids_of_thread(part, source)) if _ours(row)]
    keys.sort(key=lambda key: key.get("checkpoint_id", ""))
    for start in range(0, len(keys), _PAGE):
        documents = yield pipelines.whole(part, keys[start : start + _PAGE])
        active_at = planner.activity()
        copies = [_copied(document, target) | ({"active_at": active_at} if active_at else {}) for document in documents]
        if not copies:
            continue
        try:
            yield pipelines.insert_all(part, copies)
        except BulkWriteError as error:
            if not only_duplicates(error):
                raise without_documents(error) from None


def _copied(document: Document, target: str) -> Document:
    return {**document, "_id": {**document["_id"], "thread_id": target}, "thread_id": target}
