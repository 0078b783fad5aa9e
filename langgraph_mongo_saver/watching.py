"""Following what happens to checkpoints, as a plan: opening, resuming, and going on where events are lost.

The plan is a generator of steps. A shell takes each, sends the reply or throws the driver's error, and hands what is
delivered to its caller. It goes on until its shell closes it, or raises what does not pass by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.changes import deleted_thread, deletion, position_of, reaction
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import ChangeStreamsUnavailable, EventsLost
from langgraph_mongo_saver.event_pipelines import change_pipeline
from langgraph_mongo_saver.events import CheckpointEvent, Position
from langgraph_mongo_saver.gathering import Deliver, Gathering, Next, Open, Pause, Seen, Steps, Watch
from langgraph_mongo_saver.plans import Plan, Planner
from langgraph_mongo_saver.retry import pauses
from langgraph_mongo_saver.stored_events import Polling, catch_up

logger = logging.getLogger(__name__)


@dataclass
class Feed:
    """One watch, and how far it has got.

    Attributes:
        planner: makes requests.
        watch: what is watched.
        monotonic: tells seconds.
        reconnects: how often it had to be opened again.
        connected: whether it is open.
    """

    planner: Planner
    watch: Watch
    monotonic: Callable[[], float]
    reconnects: int = 0
    connected: bool = False
    _opened: bool = False
    _gap: datetime | None = None
    _pauses: Iterator[float] | None = None
    # Threads from which checkpoints were deleted just now; and where the stream was after that.
    _shrunk: dict[str, datetime] = field(default_factory=dict)
    _after_deletions: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        self.position = self.watch.start
        self._gathering = Gathering(self.planner, self.watch.wanted)
        self._polling = Polling(self._gathering)

    def steps(self) -> Steps:
        """The plan."""
        interval = self.watch.poll_interval
        while True:
            try:
                if interval is None:
                    yield from self._stream()
                else:
                    yield from self._polling.steps(interval, self.position.at)
            except PyMongoError as error:
                self.connected = False
                yield from self._recover(error)

    def note(self, delivered: Deliver) -> None:
        """Take note of what a shell has handed over; it is where the plan goes on after a failure."""
        self.position = delivered.position
        self.connected = self._opened = True
        self._pauses = None

    # --- failures --------------------------------------------------------------------------------------------------

    def _recover(self, error: PyMongoError) -> Steps:
        what = reaction(error)
        if what == "raise":
            raise error
        if what == "unavailable":
            raise ChangeStreamsUnavailable(
                "This server has no change streams: they need a replica set, of one member at least. Start mongod with "
                "--replSet rs0 and run rs.initiate() once; or watch with poll_interval=..., which asks again and again."
            ) from error
        if what == "lost":
            self._lose(error)
            return
        if self._pauses is None:
            patience = self.watch.retry_seconds if self._opened else self.planner.settings.retry_seconds
            self._pauses = pauses(patience, self.monotonic)
        pause = next(self._pauses, None)
        if pause is None:
            raise error
        logger.warning("The stream of checkpoint events broke (%s); resuming", type(error).__name__)
        self.reconnects += 1
        yield Pause(pause)

    def _lose(self, error: PyMongoError) -> None:
        since, until = self.position.at, self.planner.clock()
        if self.watch.on_gap == "raise":
            raise EventsLost(
                f"The server no longer has the events from {since} to {until}. Watch from now on, without resume_from "
                "and start_at; or with on_gap='catch_up', which reads the checkpoints of that time first.",
                since,
                until,
            ) from error
        logger.warning("The server no longer has the events from %s to %s; reading the checkpoints", since, until)
        self._gap = since or until

    # --- the stream ------------------------------------------------------------------------------------------------

    def _stream(self) -> Steps:
        # Behind a gap it begins now, and what was stored until now is read once it is open: nothing is missed between.
        options = {} if self._gap else self.position.options()
        token = yield Open(change_pipeline(self.planner.settings, self.watch.wanted), options)
        opened = Position(token, self.planner.clock())
        if self._gap:
            yield from catch_up(self._gathering, self._gap)
            self._gap = None
        yield Deliver([], self.position if options else opened)
        while True:
            seen: Seen = yield Next()
            if seen.change is None or seen.change["operationType"] == "invalidate":
                gone = yield from self._gone()
                here = self.position if seen.token is None else Position(seen.token, self.planner.clock())
                yield Deliver(gone, here)
            elif seen.change["operationType"] == "delete":
                self._shrink(seen.change)
            else:
                if self._shrunk:
                    yield Deliver((yield from self._gone(seen.change.get("fullDocument"))), self._after_deletions)
                yield Deliver((yield from self._gathering.of_change(seen.change)), position_of(seen.change))
            if not seen.alive:
                # What comes after that is in a stream of its own.
                logger.warning("The database was dropped; waiting for checkpoints in a new one")
                return

    def _shrink(self, change: Document) -> None:
        # Nothing is delivered, so that the position stays before the deletions until it is known what they mean.
        thread_id = deleted_thread(change)
        self._after_deletions = position_of(change)
        if thread_id is not None and self._after_deletions.at is not None:
            self._shrunk[thread_id] = self._after_deletions.at

    def _gone(self, following: Document | None = None) -> Plan[list[CheckpointEvent]]:
        """Tell of the threads of which nothing is left, asking once for many deletions."""
        shrunk = dict(self._shrunk)
        gone = yield from self._gathering.gone(shrunk)
        self._shrunk.clear()
        if following and following.get("checkpoint_ns") == "" and following.get("parent_checkpoint_id", "") is None:
            # A root checkpoint where there was a thread: that one was deleted, and this is a new one of its name.
            gone += [thread_id for thread_id in shrunk if thread_id == following["thread_id"] and thread_id not in gone]
        events = [deletion(thread_id, self._after_deletions, shrunk[thread_id]) for thread_id in gone]
        return [event for event in events if self.watch.wanted.takes(event)]
