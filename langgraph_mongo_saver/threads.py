"""list_threads and touch_thread, as plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph_mongo_saver import pipelines, thread_pipelines
from langgraph_mongo_saver.address import thread_identifier
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.pipelines import Plan
from langgraph_mongo_saver.plans import Planner

PAGE = 100
"""Threads fetched at a time by `list_threads`."""

# Index entries looked at for the next thread ids.
_SCANNED = 5000


@dataclass(frozen=True)
class ThreadSummary:
    """A thread at a glance.

    Attributes:
        thread_id: its id.
        namespaces: its namespaces, sorted; the root graph's is ``""``.
        checkpoints: how many checkpoints it has, in all namespaces; not those that are kept for delta channels alone.
        head_id: the id of the latest checkpoint of the root graph; of any namespace if the root graph has none.
        last_activity: when something was last stored in it.
        bytes: the size of its documents, in all collections.
    """

    thread_id: str
    namespaces: tuple[str, ...]
    checkpoints: int
    head_id: str
    last_activity: datetime
    bytes: int


@dataclass(frozen=True)
class ThreadListing:
    """How far `list_threads` has got: the last thread id, and how many are left to list."""

    after: str | None
    left: int | None


def threads_listing(after: str | None, limit: int | None) -> ThreadListing:
    """Check what `list_threads` is asked for."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        given = limit if isinstance(limit, int) else type(limit).__name__
        raise InvalidArgument(f"limit must be None (all) or a number of threads from 0 on, but {given} was given")
    return ThreadListing(None if after is None else thread_identifier(after, "after"), limit)


def threads_page(planner: Planner, listing: ThreadListing) -> Plan[tuple[list[ThreadSummary], ThreadListing | None]]:
    """Fetch the next threads, by id, and tell how to go on; None at the end."""
    size = PAGE if listing.left is None else min(PAGE, listing.left)
    if size == 0:
        return [], None
    ids: list[str] = []
    after, found = listing.after, 0
    while len(ids) < size:
        rows = yield thread_pipelines.next_thread_ids(after, _SCANNED)
        new = sorted(row["_id"] for row in rows)
        found = sum(row["n"] for row in rows)
        ids += new[: size - len(ids)]
        if found < _SCANNED:
            break
        after = ids[-1]
    if not ids:
        return [], None
    summaries = yield from _summaries(planner, ids)
    left = None if listing.left is None else listing.left - len(summaries)
    at_end = left == 0 or len(ids) < size
    return summaries, None if at_end else ThreadListing(ids[-1], left)


def _summaries(planner: Planner, ids: Sequence[str]) -> Plan[list[ThreadSummary]]:
    rows = yield thread_pipelines.namespaces_of(ids)
    sizes: dict[str, int] = {}
    latest: dict[str, datetime] = {}
    for part in pipelines.PARTS:
        for row in (yield thread_pipelines.sizes_of(part, ids)):
            sizes[row["_id"]] = sizes.get(row["_id"], 0) + row["bytes"]
            if row["last"] is not None:
                latest[row["_id"]] = max(latest.get(row["_id"], row["last"]), row["last"])
    by_thread: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_thread.setdefault(row["_id"]["thread_id"], {})[row["_id"]["checkpoint_ns"]] = row
    return [
        ThreadSummary(
            thread_id=thread_id,
            namespaces=tuple(sorted(namespaces)),
            checkpoints=sum(row["checkpoints"] for row in namespaces.values()),
            head_id=namespaces[""]["head"] if "" in namespaces else max(row["head"] for row in namespaces.values()),
            last_activity=latest[thread_id],
            bytes=sizes[thread_id],
        )
        for thread_id, namespaces in sorted(by_thread.items())
        if thread_id in latest
    ]


def touch_thread(planner: Planner, thread_id: str) -> Plan[bool]:
    """The plan for `touch_thread`."""
    return _touch(planner, thread_identifier(thread_id))


def _touch(planner: Planner, thread_id: str) -> Plan[bool]:
    yield from planner.note_activity(thread_id, always=True)
    return bool((yield pipelines.ids_of_thread("checkpoints", thread_id, limit=1)))
