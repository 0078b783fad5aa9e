"""Following what happens to checkpoints, as a plan: opening, resuming, and going on where events are lost.

The plan is a generator of steps. A shell takes each, sends the reply or throws the driver's error, and hands what is
delivered to its caller. It goes on until its shell closes it, or raises what does not pass by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.changes import deleted_thread, deletion, position_of, reaction
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.errors import ChangeStreamsUnavailable, EventsLost
from langgraph_mongo_saver.event_pipelines import change_pipeline
from langgraph_mongo_saver.events import CheckpointEvent, Position
from langgraph_mongo_saver.gathering import Deliver, Gathering, Next, Open, Pause, Seen, Steps, Watch
from langgraph_mongo_saver.pipelines import Plan
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.recall import Recent
from langgraph_mongo_saver.retry import pauses
from langgraph_mongo_saver.stored_events import Polling, catch_up

logger = logging.getLogger(__name__)


_THREADS = 4096
# A server waits for half a second before it says that nothing has happened. An answer at once comes from a stream that
# breaks and is opened again by the driver, or from a server that does not wait: both are asked less often.
_AT_ONCE = 0.05
_LONGEST_REST = 0.5


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
    # Threads that got smaller and were not gone when it was asked, and threads that were told to be gone.
    _smaller: Recent[str, datetime] = field(default_factory=lambda: Recent(_THREADS))
    _told_of: Recent[str, bool] = field(default_factory=lambda: Recent(_THREADS))

    def __post_init__(self) -> None:
        self.position = self.watch.start
        self._gathering = Gathering(self.planner, self.watch.wanted)
        self._polling = Polling(self._gathering)
        self._restless = pauses(float("inf"), self.monotonic)

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
        if delivered.read:
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
        yield Deliver([], self.position if options else opened, read=False)
        while True:
            asked = self.monotonic()
            seen: Seen = yield Next()
            if seen.change is None or seen.change["operationType"] == "invalidate":
                gone = yield from self._gone()
                here = self.position if seen.token is None else Position(seen.token, self.planner.clock())
                yield Deliver(gone, here)
                if seen.alive and self.monotonic() - asked < _AT_ONCE:
                    yield Pause(min(next(self._restless), _LONGEST_REST))
                else:
                    self._restless = pauses(float("inf"), self.monotonic)
            elif seen.change["operationType"] == "delete":
                self._shrink(seen.change)
            else:
                yield from self._stored(seen.change)
            if not seen.alive:
                # What comes after that is in a stream of its own.
                logger.warning("The database was dropped; waiting for checkpoints in a new one")
                return

    def _stored(self, change: Document) -> Steps:
        document = change.get("fullDocument") or {}
        thread_id = document.get("thread_id")
        if self._shrunk:
            yield Deliver((yield from self._gone()), self._after_deletions)
        if isinstance(thread_id, str) and "task_id" not in document:
            is_root = document.get("checkpoint_ns") == "" and document.get("parent_checkpoint_id", "") is None
            smaller = self._smaller.get(thread_id)
            if is_root and smaller is not None:
                # Where there was a thread: that one was deleted, and this is a new one of its name.
                yield Deliver(self._told({thread_id: smaller}), self.position)
            if self._told_of.get(thread_id):
                self._told_of.discard(thread_id.__eq__)
        yield Deliver((yield from self._gathering.of_change(change)), position_of(change))

    def _shrink(self, change: Document) -> None:
        # Nothing is delivered, so that the position stays before the deletions until it is known what they mean.
        thread_id = deleted_thread(change)
        self._after_deletions = position_of(change)
        if isinstance(thread_id, str) and self._after_deletions.at is not None:
            self._shrunk[thread_id] = self._after_deletions.at

    def _gone(self) -> Plan[list[CheckpointEvent]]:
        """Tell of the threads of which nothing is left, asking once for many deletions."""
        shrunk = dict(self._shrunk)
        gone = set((yield from self._gathering.gone(shrunk)))
        self._shrunk.clear()
        for thread_id, at in shrunk.items():
            if thread_id not in gone:  # it may have begun anew since
                self._smaller.put(thread_id, at)
        return self._told({thread_id: at for thread_id, at in shrunk.items() if thread_id in gone})

    def _told(self, gone: Mapping[str, datetime]) -> list[CheckpointEvent]:
        self._smaller.discard(gone.__contains__)
        events = [deletion(thread_id, self._after_deletions, at) for thread_id, at in gone.items()]
        events = [e for e in events if self.watch.wanted.takes(e) and not self._told_of.get(e.thread_id)]
        for event in events:
            self._told_of.put(event.thread_id, True)
        return events
