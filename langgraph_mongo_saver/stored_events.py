"""Events from stored documents: to catch up where changes are lost, and by polling where there are none."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pymongo.errors import OperationFailure

from langgraph_mongo_saver import event_pipelines
from langgraph_mongo_saver.changes import EVERYTHING, Changed, deletion, entries_of
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.event_pipelines import metadata_query, projection, stored_query, told_channels, written_to
from langgraph_mongo_saver.events import EventFilter, Position
from langgraph_mongo_saver.gathering import Deliver, Gathering, Pause, Steps
from langgraph_mongo_saver.pipelines import Part, Plan
from langgraph_mongo_saver.recall import Recent

logger = logging.getLogger(__name__)

# What was stored this long before a gap may have been delivered or not: a put repeats what fails for half of it.
_MARGIN = timedelta(minutes=1)
# How far back each poll looks again: a writer's clock may be behind, or its write on the way for long.
_POLL_MARGIN = timedelta(seconds=10)
_REMEMBERED = 65_536
_KNOWN_THREADS = 1000

Entry = tuple[tuple[str, int], int]
"""A write, by channel and place, and what it says."""


def catch_up(gathering: Gathering, since: datetime) -> Steps:
    """Deliver the checkpoints that were stored since a time, in the order of their ids.

    The position stays at that time meanwhile: who is interrupted begins again.
    """
    if "checkpoint" not in gathering.wanted.kinds:
        return
    wanted = gathering.wanted
    query = {**stored_query(wanted), **metadata_query("", wanted), "stored_at": {"$gte": since - _MARGIN}}
    after: tuple[str, str, str] | None = None
    while True:
        rows = yield event_pipelines.stored_since(query, since, after, projection())
        for row in rows:
            yield Deliver((yield from gathering.of_stored(row)), Position(at=since))
        if len(rows) < event_pipelines.STORED_PAGE:
            return
        after = (rows[-1]["checkpoint_id"], rows[-1]["thread_id"], rows[-1]["checkpoint_ns"])


@dataclass(frozen=True)
class Polling:
    """Looks for what has been stored, again and again, and remembers what it has seen.

    What becomes visible more than ten seconds after the time that its writer has put on it is missed.
    """

    gathering: Gathering
    _seen: Recent[tuple[str, datetime], bool] = field(default_factory=lambda: Recent(_REMEMBERED))
    _entries: Recent[str, frozenset[Entry]] = field(default_factory=lambda: Recent(_REMEMBERED))
    _threads: Recent[str, bool] = field(default_factory=lambda: Recent(_KNOWN_THREADS))

    def steps(self, interval: float, start: datetime | None) -> Steps:
        """The plan. Without a start, what is there already is no news."""
        wanted, since = self.gathering.wanted, start or self.gathering.planner.clock()
        parts = _parts(wanted)
        for part in parts:
            yield from _index(part)
        if start is None:
            for row in (yield from _lately(wanted, parts, since)):
                self._news(row)
        yield Deliver([], Position(at=since), read=False)
        while True:
            for row in (yield from _lately(wanted, parts, since)):
                if (news := self._news(row)) is not None:
                    since = max(since, row["stored_at"])
                    yield Deliver((yield from self.gathering.of_stored(row, news)), Position(at=since))
            if "thread_deleted" in wanted.kinds:
                gone = yield from self.gathering.gone(self._threads.keys())
                self._threads.discard(set(gone).__contains__)
                now, here = self.gathering.planner.clock(), Position(at=since)
                yield Deliver([deletion(thread_id, here, now) for thread_id in gone], here)
            yield Pause(interval)

    def _news(self, row: Document) -> Changed | None:
        """What of a document is new; None if it has been seen as it is."""
        id_ = str(row["_id"])
        if self._seen.get((id_, row["stored_at"])):
            return None
        self._seen.put((id_, row["stored_at"]), True)
        self._threads.put(row["thread_id"], True)
        entries = frozenset(entries_of(row).items())
        if not entries:
            return EVERYTHING
        # A task that goes on after its interrupt stores more in the same document.
        new = entries - (self._entries.get(id_) or frozenset())
        self._entries.put(id_, entries)
        return frozenset(place for place, _ in new)


def _parts(wanted: EventFilter) -> list[Part]:
    parts: list[Part] = ["checkpoints"] if wanted.kinds & {"checkpoint", "thread_deleted"} else []
    return [*parts, "writes"] if wanted.kinds & {"writes", "interrupt", "error"} else parts


def _lately(wanted: EventFilter, parts: list[Part], since: datetime) -> Plan[list[Document]]:
    found: list[Document] = []
    for part in parts:
        query = {**stored_query(wanted), "stored_at": {"$gte": since - _POLL_MARGIN}}
        told = told_channels(wanted)
        if part == "checkpoints":
            query.update(metadata_query("", wanted))
        elif told is not None:
            query["$or"] = written_to(told)
        found += yield event_pipelines.stored_lately(part, query, projection())
    return sorted(found, key=lambda row: row["stored_at"])


def _index(part: Part) -> Plan[None]:
    try:
        yield event_pipelines.index_by_time(part)
    except OperationFailure as error:
        logger.warning("No index on stored_at in %s (code %s); each poll reads all of it", part, error.code)
