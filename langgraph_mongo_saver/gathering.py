"""What every way to follow checkpoints is made of: its steps, and events from what the database says."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langgraph_mongo_saver import event_pipelines
from langgraph_mongo_saver.changes import EVERYTHING, Changed, Draft, draft_of, draft_of_change
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.events import (
    CheckpointEvent,
    EventFilter,
    OnGap,
    Position,
    event_filter,
    kinds_of,
    start_of,
)
from langgraph_mongo_saver.pipelines import Plan, Request
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.recall import Recent
from langgraph_mongo_saver.settings import Settings

logger = logging.getLogger(__name__)

# Checkpoints delivered last, and shapes of unknown documents that a warning has told of.
_REMEMBERED = 16_384
_SHAPES = 100


@dataclass(frozen=True)
class Open:
    """Open a change stream on the database, in place of an open one; the reply is its resume token."""

    stages: Sequence[Document]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Next:
    """Wait a moment for the next change; the reply is a `Seen`."""


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Deliver:
    """Hand over events, if there are any, and tell where to go on after them.

    Attributes:
        events: the events.
        position: the place behind them.
        read: whether something has been read; what was just opened may break again at once.
    """

    events: Sequence[CheckpointEvent]
    position: Position
    read: bool = True


@dataclass(frozen=True)
class Seen:
    """What a change stream says: a change or none, its resume token, and whether it goes on."""

    change: Document | None
    token: Mapping[str, Any] | None
    alive: bool = True


Step = Open | Next | Pause | Deliver | Request
Steps = Generator[Step, Any, None]


@dataclass(frozen=True)
class Watch:
    """What is watched, and how.

    Attributes:
        wanted: the events.
        start: where to begin.
        on_gap: what to do where the server no longer has the events since a position.
        poll_interval: seconds between two looks, in place of a change stream; None for a change stream.
        retry_seconds: how long to try again, once it has been open.
    """

    wanted: EventFilter
    start: Position
    on_gap: OnGap = "raise"
    poll_interval: float | None = None
    retry_seconds: float = float("inf")


def watch_of(
    settings: Settings,
    *,
    thread_id: object,
    checkpoint_ns: object,
    kinds: object,
    metadata: Mapping[str, Any] | None,
    resume_from: object,
    start_at: object,
    on_gap: OnGap,
    poll_interval: float | None,
    retry_seconds: float | None,
) -> Watch:
    """Check what `watch` is asked for.

    Raises:
        InvalidArgument: naming the argument that cannot be used.
    """
    if on_gap not in ("raise", "catch_up"):
        raise InvalidArgument(f"on_gap must be 'raise' or 'catch_up', but another {type(on_gap).__name__} was given")
    for name, seconds in (("poll_interval", poll_interval), ("retry_seconds", retry_seconds)):
        if seconds is None or (name == "retry_seconds" and seconds == float("inf")):
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
            given = seconds if isinstance(seconds, (int, float)) else f"a {type(seconds).__name__}"
            raise InvalidArgument(f"{name} must be a number of seconds from 0 on or None, but {given} was given")
    wanted = event_filter(
        *kinds_of(kinds),
        thread_id=thread_id,
        checkpoint_ns=checkpoint_ns,
        metadata=metadata,
        clear_keys=settings.clear_keys,
    )
    patience = float("inf") if retry_seconds is None else retry_seconds
    return Watch(wanted, start_of(resume_from, start_at), on_gap, poll_interval, patience)


@dataclass(frozen=True)
class Gathering:
    """Makes events, those that are wanted, and each checkpoint once."""

    planner: Planner
    wanted: EventFilter
    _delivered: Recent[tuple[str, str, str | None], datetime] = field(default_factory=lambda: Recent(_REMEMBERED))
    _unknown: set[str] = field(default_factory=set)

    def of_change(self, change: Document) -> Plan[list[CheckpointEvent]]:
        """The event of an insert, a replacement or an update, if it is one."""
        try:
            draft = draft_of_change(change)
        except ValueError as error:
            self._skip(f"{change['ns']['coll']}: {error}")
            return []
        return (yield from self._finished([] if draft is None else [draft]))

    def of_stored(self, document: Document, changed: Changed = EVERYTHING) -> Plan[list[CheckpointEvent]]:
        """The event of a stored document, if anything in it is new."""
        try:
            draft = draft_of(document, Position(at=document.get("stored_at")), changed)
        except ValueError as error:
            self._skip(str(error))
            return []
        return (yield from self._finished([draft] if draft else []))

    def gone(self, thread_ids: Collection[str]) -> Plan[list[str]]:
        """Those of some threads of which no checkpoint is left."""
        rows = (yield event_pipelines.threads_present(list(thread_ids))) if thread_ids else []
        there = {row["_id"] for row in rows}
        return [thread_id for thread_id in thread_ids if thread_id not in there]

    def _finished(self, drafts: Sequence[Draft]) -> Plan[list[CheckpointEvent]]:
        wanted = [draft for draft in drafts if self.wanted.takes(draft.event) and self._is_new(draft.event)]
        parts = yield from self.planner.blobs.fetch({key for draft in wanted for key in draft.keys})
        return [draft.finish(self.planner.sealer, parts) for draft in wanted]

    def _is_new(self, event: CheckpointEvent) -> bool:
        # A checkpoint comes twice if its put was repeated because an acknowledgement had got lost, and if it was read
        # to catch up and comes in the stream as well.
        if event.kind != "checkpoint":
            return True
        address = (event.thread_id, event.checkpoint_ns, event.checkpoint_id)
        if self._delivered.get(address) == event.created_at:
            return False
        self._delivered.put(address, event.created_at)
        return True

    def _skip(self, shape: str) -> None:
        # Once a shape: the official saver may go on writing beside ours for months.
        if shape not in self._unknown and len(self._unknown) < _SHAPES:
            self._unknown.add(shape)
            logger.warning("Skipping documents of a shape that this release does not know (%s)", shape)
