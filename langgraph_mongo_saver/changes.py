"""Change documents of the server, and stored documents, as events."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from langgraph_mongo_saver.codec import Document, has_layout
from langgraph_mongo_saver.event_pipelines import TOLD
from langgraph_mongo_saver.events import CheckpointEvent, Kind, Position
from langgraph_mongo_saver.metadata import key_of, readable
from langgraph_mongo_saver.retry import is_transient
from langgraph_mongo_saver.values import BlobParts, Packed, PartKey, Sealer, part_keys, unpack

logger = logging.getLogger(__name__)

# The channel, by its name in the database, and which of its writes; neither where all are new.
_WRITES_FIELD = re.compile(r"writes(?:\.([^.]+)(?:\.(\d+))?)?(?:\.|$)")

Changed = frozenset[tuple[str | None, int | None]]

EVERYTHING: Changed = frozenset({(None, None)})
"""All of a document is new."""


# --- what it answers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """An event whose values are still serialized.

    Attributes:
        event: the event without them.
        told: the values, each with its channel.
        keys: the blob parts that they are in.
    """

    event: CheckpointEvent
    told: Sequence[tuple[str, Packed]] = ()
    keys: Sequence[PartKey] = ()

    def finish(self, sealer: Sealer, parts: BlobParts) -> CheckpointEvent:
        """The event. Where a value cannot be deserialized, which is logged, it comes without its values."""
        interrupts: list[Any] = []
        error: str | None = None
        try:
            values = unpack(sealer, self.event.thread_id, (packed for _, packed in self.told), parts)
            for (channel, _), value in zip(self.told, values, strict=True):
                if channel == ERROR:
                    error = str(value)
                else:
                    interrupts.extend(value if isinstance(value, (list, tuple)) else [value])
        except Exception as failure:  # noqa: BLE001 - a serde may raise anything, and one event must not end a stream
            logger.warning(
                "Thread %r, checkpoint %r: the values of an event of kind %s cannot be read (%s)",
                *(self.event.thread_id, self.event.checkpoint_id, self.event.kind, type(failure).__name__),
            )
            return self.event
        return replace(self.event, interrupts=tuple(interrupts), error=error)


def position_of(change: Document) -> Position:
    """Where a change stands."""
    return Position(change["_id"], _time(change))


def _time(change: Document) -> datetime:
    at: datetime = change["clusterTime"].as_datetime()
    return at.astimezone(timezone.utc)


def deleted_thread(change: Document) -> str | None:
    """The thread that a delete takes a document from; None where it does not say."""
    key = change["documentKey"]["_id"]
    return key.get("thread_id") if isinstance(key, Mapping) else None


def deletion(thread_id: str, position: Position, at: datetime) -> CheckpointEvent:
    """The event that a thread is gone."""
    return CheckpointEvent("thread_deleted", thread_id, at, str(position))


def draft_of_change(change: Document) -> Draft | None:
    """The event of an insert, a replacement or an update; None if it is none.

    Raises:
        ValueError: if the document has a shape that this release does not know.
    """
    document = change.get("fullDocument")
    if not document or "thread_id" not in document:
        return None  # an update of what has been deleted since
    changed: Changed = EVERYTHING
    if change["operationType"] == "update":
        matches = [match for match in map(_WRITES_FIELD.match, change.get("changed") or ()) if match]
        if not matches:
            return None  # a thread that was kept alive, or writes that were there already
        changed = frozenset((match[1], int(match[2]) if match[2] else None) for match in matches)
    return draft_of(document, position_of(change), changed)


def draft_of(document: Document, position: Position, changed: Changed = EVERYTHING) -> Draft | None:
    """The event of a stored document; None if none of its writes is new.

    Args:
        document: a checkpoint's, or a task's writes.
        position: where it stands.
        changed: which writes are new.

    Raises:
        ValueError: if the document has a shape that this release does not know.
    """
    try:
        if not has_layout(document):
            raise ValueError(f"layout {document.get('layout')!r}")
        at = document["stored_at"]
        common: dict[str, Any] = {
            "thread_id": document["thread_id"],
            "checkpoint_ns": document["checkpoint_ns"],
            "checkpoint_id": document["checkpoint_id"],
            "created_at": at if at.tzinfo else at.replace(tzinfo=timezone.utc),
            "position": str(position),
        }
        return _of_writes(document, common, changed) if "task_id" in document else _of_checkpoint(document, common)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _of_checkpoint(document: Document, common: dict[str, Any]) -> Draft:
    metadata = readable(document["metadata"])
    step, run_id = metadata.get("step"), metadata.get("run_id")
    return Draft(
        CheckpointEvent(
            kind="checkpoint",
            parent_checkpoint_id=document.get("parent_checkpoint_id"),
            step=step if isinstance(step, int) else None,
            source=metadata.get("source"),
            run_id=None if run_id is None else str(run_id),
            metadata=metadata,
            **common,
        )
    )


def entries_of(document: Document) -> dict[tuple[str, int], int]:
    """What tells later whether writes are new: for each, by channel and place, a hash of what is told of it."""
    writes = document.get("writes")
    return {
        (name, n): hash((str(write.get("type")), str(write.get("data")), str(write.get("blob"))))
        for name, of_channel in (writes.items() if isinstance(writes, Mapping) else ())
        for n, write in enumerate(of_channel)
        if isinstance(write, Mapping)
    }


def _of_writes(document: Document, common: dict[str, Any], changed: Changed) -> Draft | None:
    writes = [
        (key_of(name), write)
        for name, of_channel in document["writes"].items()
        for n, write in enumerate(of_channel)
        if not changed.isdisjoint([(None, None), (name, None), (name, n)])
    ]
    if not writes:
        return None
    writes.sort(key=lambda each: each[1]["idx"])
    channels = tuple(dict.fromkeys(channel for channel, _ in writes))
    kind: Kind = "error" if ERROR in channels else "interrupt" if INTERRUPT in channels else "writes"
    told = [(channel, write) for channel, write in writes if channel in TOLD]
    keys = part_keys(document["thread_id"], (packed for _, packed in told))
    return Draft(CheckpointEvent(kind=kind, task_id=document["task_id"], channels=channels, **common), told, keys)


# --- what went wrong -----------------------------------------------------------------------------------------------

Reaction = Literal["retry", "lost", "unavailable", "raise"]

# ChangeStreamHistoryLost, and two names for a token that is not in the oplog any more.
_LOST = frozenset({280, 286, 260})
# Location40573: "The $changeStream stage is only supported on replica sets"; and servers without the stage.
_UNAVAILABLE = frozenset({40573, 40324, 115, 59, 303, 304, 238})
# Those of the change-stream specification that are not in `retry`: CursorNotFound, StaleShardVersion, StaleEpoch,
# ExceededTimeLimit, StaleConfig, FailedToSatisfyReadPreference, MaxTimeMSExpired, RetryChangeStream.
_RESUMABLE = frozenset({43, 63, 150, 262, 13388, 133, 50, 234, 237})


def reaction(error: PyMongoError) -> Reaction:
    """What to do when a change stream has failed.

    Codes: github.com/mongodb/specifications, source/change-streams, "Resumable Error".
    """
    code = error.code if isinstance(error, OperationFailure) else None
    if code in _LOST:
        return "lost"
    if code in _UNAVAILABLE:
        return "unavailable"
    passing = is_transient(error) or isinstance(error, ServerSelectionTimeoutError) or code in _RESUMABLE
    return "retry" if passing or error.has_error_label("ResumableChangeStreamError") else "raise"
