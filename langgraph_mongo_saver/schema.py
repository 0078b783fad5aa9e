"""Collections and indexes as data, and what has to change for a database to have them.

Indexes are recognized by their keys, so that those of the official saver, which has the same on the fields that it
shares, are used as they are. A unique index is asked for where our documents and the official saver's both satisfy
it; where stored data or the service refuses one, a plain one will do, since the documents' ``_id`` is unique by itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from langgraph_mongo_saver.errors import UnsuitableCollection
from langgraph_mongo_saver.pipelines import Part, Request
from langgraph_mongo_saver.retry import is_transient
from langgraph_mongo_saver.settings import Settings

logger = logging.getLogger(__name__)

Keys = tuple[tuple[str, int], ...]

_ADDRESS: Keys = (("thread_id", 1), ("checkpoint_ns", 1), ("checkpoint_id", -1))

ACTIVE_AT: Keys = (("active_at", 1),)
"""The TTL index: a thread's documents carry the same time, and expire together."""


@dataclass(frozen=True)
class Index:
    """An index that a collection must have.

    Attributes:
        part: the collection.
        keys: its fields and their order.
        unique: whether it refuses equal keys.
        where: a field that documents must have to be in it; None for all documents.
    """

    part: Part
    keys: Keys
    unique: bool = False
    where: str | None = None

    def model(self, *, unique: bool) -> IndexModel:
        """What the driver creates it from."""
        partial = {} if self.where is None else {"partialFilterExpression": {self.where: {"$exists": True}}}
        return IndexModel(list(self.keys), **({"unique": True} if unique else {}), **partial)


INDEXES = (
    Index("checkpoints", _ADDRESS, unique=True),  # one checkpoint, the latest, a page of one namespace
    Index("checkpoints", (("thread_id", 1), ("checkpoint_id", -1), ("checkpoint_ns", 1))),  # a page of one thread
    Index("checkpoints", (("checkpoint_id", -1), ("thread_id", 1), ("checkpoint_ns", 1))),  # a page of everything
    # The ancestors, with all that is asked of them: no document is fetched, and 1,000 take 4.2 ms and not 6; of 60 kB
    # each 6.5 ms and not 23.
    Index(
        "checkpoints",
        (
            *(("thread_id", 1), ("checkpoint_ns", 1), ("segment", 1), ("seq", 1)),
            *(("checkpoint_id", 1), ("parent_checkpoint_id", 1), ("populated", 1)),
        ),
        where="segment",
    ),
    # Whether one on the way was compacted while a history was read; of very few checkpoints.
    Index("checkpoints", (("thread_id", 1), ("checkpoint_ns", 1), ("compacted", 1)), where="compacted"),
    Index("checkpoints", (("metadata.run_id", 1),), where="metadata.run_id"),  # delete_for_runs
    # The official saver's; our documents have no idx, which makes this one document a task.
    Index("writes", (*_ADDRESS, ("task_id", 1), ("idx", 1)), unique=True),
    Index("blobs", (("thread_id", 1),)),
)

# A page of one namespace across threads (list(config) always has a thread) is not offered, and needs no index.


def missing(part: Part, existing: Iterable[Mapping[str, Any]]) -> list[Index]:
    """The indexes that a collection lacks."""
    present = {_keys(index) for index in existing}
    return [index for index in INDEXES if index.part == part and index.keys not in present]


def _keys(index: Mapping[str, Any]) -> Keys:
    return tuple((name, int(order) if isinstance(order, (int, float)) else 0) for name, order in index["key"].items())


def check_collations(collections: Iterable[Mapping[str, Any]]) -> None:
    """Refuse collections that compare strings by a language's rules.

    Raises:
        UnsuitableCollection: if one has a default collation, under which ids such as "A" and "a" may be the same.
    """
    for collection in collections:
        collation = collection.get("options", {}).get("collation")
        if collation is not None and collation.get("locale") != "simple":
            raise UnsuitableCollection(
                f"Collection {collection['name']!r} has the default collation {collation.get('locale')!r}, under "
                "which ids that differ may be taken for the same. Use a collection without one."
            )


# --- expiry --------------------------------------------------------------------------------------------------------


def throttle(ttl: float) -> float:
    """Seconds within which a thread's activity is noted once: a twentieth of its time to live."""
    return ttl / 20


def expire_after(ttl: float) -> int:
    """Seconds after the noted activity at which the server deletes; never before `ttl` after the real one."""
    return math.ceil(ttl + throttle(ttl))


def activity(now: datetime, ttl: float) -> datetime:
    """The time to note for activity at `now`.

    Every process notes the same time within a throttle's length, so that all documents of a thread always carry one
    and the same, and none can expire before another that needs it.
    """
    step = throttle(ttl)
    return datetime.fromtimestamp(math.floor(now.timestamp() / step) * step, timezone.utc)


def ttl_change(
    part: Part, name: str, existing: Sequence[Mapping[str, Any]], ttl: float | None
) -> tuple[Request, str] | None:
    """What brings a collection's TTL index to `ttl`, and how to tell of it; None if nothing has to be done.

    Args:
        part: the collection.
        name: its name in the database.
        existing: its indexes.
        ttl: seconds; None for no expiry.
    """
    found = next((index for index in existing if _keys(index) == ACTIVE_AT), None)
    wanted = None if ttl is None else expire_after(ttl)
    if found is None:
        if wanted is None:
            return None
        request = Request(part, "create_index", (list(ACTIVE_AT),), {"expireAfterSeconds": wanted})
        return request, f"{name}: threads now expire {ttl} s after their last activity"
    if wanted is None:
        return Request(part, "drop_index", (found["name"],)), f"{name}: threads no longer expire (ttl is None)"
    if found.get("expireAfterSeconds") == wanted:
        return None
    change = {"keyPattern": dict(ACTIVE_AT), "expireAfterSeconds": wanted}
    return (
        Request("database", "command", ("collMod", name), {"index": change}),
        f"{name}: threads now expire {ttl} s after their last activity (it was another time before)",
    )


# --- setting up ----------------------------------------------------------------------------------------------------

# Unauthorized, and Atlas' own way to say so.
_NOT_ALLOWED = frozenset({13, 8000})


def setup(settings: Settings) -> Generator[Request, Any, None]:
    """The plan that gives a database the indexes it needs. It can be repeated, and run by several at once.

    A user without the right to see or create indexes can still work, on the indexes that an administrator has made:
    what is missing is logged.

    Raises:
        UnsuitableCollection: if an existing collection would mix threads up.
    """
    names: dict[Part, str] = {
        "checkpoints": settings.checkpoints,
        "writes": settings.writes,
        "blobs": settings.blobs,
    }
    if settings.joins:
        query = {"name": {"$in": list(names.values())}}
        check_collations((yield from _seen(Request("database", "list_collections", (), {"filter": query}, rows=True))))
    for part, name in names.items():
        existing = yield from _seen(Request(part, "list_indexes", rows=True))
        yield from _create(missing(part, existing), name)
        change = ttl_change(part, name, existing, settings.ttl)
        if change is not None:
            request, news = change
            try:
                yield request
            except OperationFailure as error:
                if error.code not in _NOT_ALLOWED:
                    raise
                logger.warning("%s: not allowed to change when threads expire", name)
            else:
                # Loud, since it changes what other processes on these collections rely on.
                logger.warning(news)


def _seen(request: Request) -> Generator[Request, Any, Sequence[Mapping[str, Any]]]:
    try:
        found: Sequence[Mapping[str, Any]] = yield request
    except OperationFailure as error:
        if error.code not in _NOT_ALLOWED:
            raise
        return ()
    return found


def _create(indexes: Sequence[Index], name: str) -> Generator[Request, Any, None]:
    if not indexes:
        return
    try:
        yield _creation(indexes)
    except OperationFailure as error:
        if is_transient(error):
            raise
        for index in indexes:
            yield from _create_one(index, name)


def _creation(indexes: Sequence[Index], *, plain: bool = False) -> Request:
    models = [index.model(unique=index.unique and not plain) for index in indexes]
    return Request(indexes[0].part, "create_indexes", (models,))


def _create_one(index: Index, name: str) -> Generator[Request, Any, None]:
    try:
        yield _creation([index])
    except OperationFailure as error:
        if error.code in _NOT_ALLOWED:
            logger.warning("%s: not allowed to create the index %s, which queries need", name, dict(index.keys))
        elif index.unique and not is_transient(error):
            logger.warning("%s: no unique index on %s (code %s); using a plain one", name, dict(index.keys), error.code)
            yield _creation([index], plain=True)
        else:
            raise
