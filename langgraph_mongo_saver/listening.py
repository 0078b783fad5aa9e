"""What the two listeners share: their arguments, their subscribers, and how they are doing. Nothing in it waits."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.address import identifier
from langgraph_mongo_saver.changes import reaction
from langgraph_mongo_saver.delivery import Ledger, ListenerStatus, Mailbox, OnError, Policy, State, lag_of
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.events import CheckpointEvent, OnGap, event_filter
from langgraph_mongo_saver.gathering import watch_of
from langgraph_mongo_saver.plans import Planner

logger = logging.getLogger(__name__)

SaverT = TypeVar("SaverT")
StreamT = TypeVar("StreamT")

_SAVE_SECONDS = 1.0


class Listening(Generic[SaverT, StreamT]):
    """A listener, but for how it waits."""

    _saver_type: ClassVar[type]

    def __init__(
        self,
        saver: SaverT,
        *,
        name: str | None = None,
        thread_id: Any = None,
        checkpoint_ns: str | None = None,
        kinds: str | Collection[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from: str | None = None,
        start_at: datetime | None = None,
        on_gap: OnGap = "raise",
        poll_interval: float | None = None,
        retry_seconds: float | None = None,
        lease_seconds: float = 15.0,
        standby: bool = True,
        on_error: OnError | None = None,
    ) -> None:
        """Construct a listener; nothing is sent yet.

        Args:
            saver: whose checkpoints to listen to.
            name: keep the position under this name, in the database, and go on from there after a restart. Of all
                processes that run a listener of this name one is active.
            thread_id: see `MongoDBSaver.watch`, as for the following; what is left out here no callback is told.
            checkpoint_ns: see there.
            kinds: see there.
            metadata: see there.
            resume_from: see there; a position that is kept under `name` goes first.
            start_at: see there; likewise.
            on_gap: see there.
            poll_interval: see there.
            retry_seconds: see there.
            lease_seconds: after a process has died without a word, another takes over within this time.
            standby: whether to wait while another process runs the listener of this name, or to raise `ListenerBusy`.
            on_error: called with the error and the event when a callback has raised, besides the log.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        self._check(saver, name, lease_seconds, on_error)
        self._saver = saver
        planner: Planner = saver._planner  # type: ignore[attr-defined]  # what was checked above has it
        self._settings, self._clock = planner.settings, planner.clock
        self._begin: dict[str, Any] = {"resume_from": resume_from, "start_at": start_at}
        self._arguments: dict[str, Any] = {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "kinds": kinds,
            "metadata": metadata,
            "on_gap": on_gap,
            "poll_interval": poll_interval,
            "retry_seconds": retry_seconds,
        }
        watch_of(self._settings, **self._arguments, **self._begin)
        self._name, self._lease, self._standby, self._on_error = name, lease_seconds, standby, on_error
        self._owner = uuid.uuid4().hex
        self._begin_anew()

    @staticmethod
    def _monotonic() -> float:
        raise NotImplementedError

    def _check(self, saver: object, name: object, lease_seconds: object, on_error: object) -> None:
        if not isinstance(saver, self._saver_type):
            raise InvalidArgument(
                f"saver must be a {self._saver_type.__name__} for a {type(self).__name__}, "
                f"but a {type(saver).__name__} was given"
            )
        if name is not None and not identifier(name, "name"):
            raise InvalidArgument("name must not be empty; None is for a listener whose position is not kept")
        finite = isinstance(lease_seconds, (int, float)) and 1 <= lease_seconds < float("inf")
        if isinstance(lease_seconds, bool) or not finite:
            given = lease_seconds if isinstance(lease_seconds, (int, float)) else f"a {type(lease_seconds).__name__}"
            raise InvalidArgument(f"lease_seconds must be a number of seconds from 1 on, but {given} was given")
        if on_error is not None and not callable(on_error):
            raise InvalidArgument(f"on_error must be a function or None, but a {type(on_error).__name__} was given")

    def _begin_anew(self) -> None:
        self._ledger = Ledger(self._monotonic)
        self._state: State = "new"
        self._failure: BaseException | None = None
        self._stream: StreamT | None = None
        self._last: tuple[CheckpointEvent, float] | None = None
        self._kept: tuple[str | None, float] = (None, 0.0)
        self._news = False
        self._reconnects = 0
        self._dropped = 0
        self._patience = 10.0

    def _mailbox(
        self, kinds: Iterable[str], thread_id: Any, checkpoint_ns: str | None, metadata: Any, size: int, policy: Policy
    ) -> Mailbox:
        wanted = event_filter(
            *kinds,
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            metadata=metadata,
            clear_keys=self._settings.clear_keys,
        )
        return Mailbox(wanted, size, policy)

    def _where_to_begin(self, stored: str | None) -> dict[str, Any]:
        position = self._ledger.position or stored
        return self._begin if position is None else {"resume_from": position}

    def _handed_over(self, event: CheckpointEvent) -> None:
        self._last = (event, lag_of(event, self._clock()))
        self._news = True

    def _position_to_keep(self) -> tuple[bool, str | None]:
        """Whether it is time to keep the position and the lease, and the position if there is a new one.

        Without events there is less to keep: on a quiet stream the position moves on with each such update itself.
        """
        kept, at = self._kept
        position = self._ledger.position
        age = self._monotonic() - at
        due = age >= self._lease / 3 or (age >= _SAVE_SECONDS and self._news and position != kept)
        return due and self._name is not None, position if position != kept else None

    def _was_kept(self, position: str | None) -> None:
        self._kept = (position or self._kept[0], self._monotonic())
        self._news = self._ledger.busy

    def _was_not_kept(self) -> None:
        self._kept = (None, self._monotonic())
        self._news = True

    def _outlasts(self, error: PyMongoError, started: bool) -> bool:
        """Whether a failure is one to wait for; a start that fails is told to who starts."""
        passing = started and self._arguments["retry_seconds"] is None and reaction(error) == "retry"
        if passing:
            logger.warning("Listener %r cannot reach the database (%s); trying again", self._name, type(error).__name__)
        return passing

    def _check_start(self) -> None:
        if self._state == "stopped":
            raise InvalidArgument("a listener is started once; construct another to listen again")

    def _status(self, mailboxes: Iterable[Mailbox], feed: Any) -> ListenerStatus:
        boxes = list(mailboxes)
        state = self._state
        reconnects = self._reconnects + (feed.reconnects if feed else 0)
        if state == "running" and feed is not None and not feed.connected:
            state = "reconnecting"
        as_of = self._ledger.as_of
        return ListenerStatus(
            state=state,
            last_event=self._last[0] if self._last else None,
            lag=self._last[1] if self._last else None,
            reconnects=reconnects,
            dropped=self._dropped + sum(box.dropped for box in boxes),
            pending=sum(len(box.entries) for box in boxes),
            position_age=None if as_of is None else self._monotonic() - as_of,
            error=self._failure,
        )
