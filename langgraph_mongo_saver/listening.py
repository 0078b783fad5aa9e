"""What the two listeners share: their arguments, their subscribers, and how they are doing. Nothing in it waits."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.address import identifier
from langgraph_mongo_saver.changes import reaction
from langgraph_mongo_saver.delivery import Callback, Ledger, ListenerStatus, Mailbox, OnError, Policy, State, lag_of
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.events import CheckpointEvent, OnGap, event_filter
from langgraph_mongo_saver.gathering import watch_of
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.watching import Feed

logger = logging.getLogger(__name__)


class _Stream(Protocol):
    @property
    def feed(self) -> Feed: ...


class _Subscription(Protocol):
    mailbox: Mailbox

    @property
    def dropped(self) -> int: ...

    def end(self, failure: BaseException | None = None) -> None: ...


SaverT = TypeVar("SaverT")
StreamT = TypeVar("StreamT", bound=_Stream)
SubscriptionT = TypeVar("SubscriptionT", bound=_Subscription)
CallbackT = TypeVar("CallbackT", bound=Callback)

_SAVE_SECONDS = 1.0


class Listening(Generic[SaverT, StreamT, SubscriptionT]):
    """A listener, but for how it waits."""

    _saver_type: ClassVar[type]
    _subscription_type: ClassVar[type]

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
        self._prepare()

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

    def _prepare(self) -> None:
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
        # Whoever holds it does not wait: it is for threads, and does no harm on an event loop.
        self._changing = threading.RLock()
        self._ended = False
        self._subscriptions: list[SubscriptionT] = []
        self._callbacks: list[tuple[Callback, SubscriptionT]] = []

    # --- subscribers -----------------------------------------------------------------------------------------------

    def on(
        self,
        *kinds: str,
        thread_id: Any = None,
        checkpoint_ns: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        size: int = 1000,
        policy: Policy = "wait",
    ) -> Callable[[CallbackT], CallbackT]:
        """Register a callback, a function or a coroutine function: ``@listener.on("checkpoint")``.

        A function is called in a thread of its own, a coroutine function on the event loop of an async listener.

        Args:
            *kinds: of these kinds; none for all.
            thread_id: of this thread, or of several.
            checkpoint_ns: of this namespace.
            metadata: checkpoints with these values.
            size: events that may wait for it.
            policy: what becomes of an event when so many wait: ``"wait"`` lets the stream wait, and with it all others;
                ``"drop_oldest"`` drops the one that waits for longest, and counts it.

        Returns:
            The decorator, which gives the callback back.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        mailbox = self._mailbox(kinds, thread_id, checkpoint_ns, metadata, size, policy)

        def register(callback: CallbackT) -> CallbackT:
            if not callable(callback):
                given = type(callback).__name__
                raise InvalidArgument(f"callback must be a function or a coroutine function, but a {given} was given")
            with self._changing:
                subscription = self._add(mailbox)
                self._callbacks.append((callback, subscription))
                if self._started:
                    self._work(callback, subscription)
            return callback

        return register

    def subscribe(
        self,
        *kinds: str,
        thread_id: Any = None,
        checkpoint_ns: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        size: int = 1000,
        policy: Policy = "wait",
    ) -> SubscriptionT:
        """Events to iterate over, from now on; see `on` for the arguments.

        Close it, or leave its ``with`` (``async with`` of an async listener).
        """
        return self._add(self._mailbox(kinds, thread_id, checkpoint_ns, metadata, size, policy))

    @property
    def _started(self) -> bool:
        raise NotImplementedError

    def _work(self, callback: Callback, subscription: SubscriptionT) -> None:
        """Begin to call a callback."""
        raise NotImplementedError

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

    def _add(self, mailbox: Mailbox) -> SubscriptionT:
        subscription: SubscriptionT = self._subscription_type(mailbox, self._ledger, self._remove)
        with self._changing:
            # A new list each time: the stream's thread goes through the one that it has.
            self._subscriptions = [*self._subscriptions, subscription]
            if self._ended:
                subscription.end(self._failure)
        return subscription

    def _remove(self, subscription: SubscriptionT) -> None:
        with self._changing:
            if subscription in self._subscriptions:
                self._subscriptions = [other for other in self._subscriptions if other is not subscription]
                self._dropped += subscription.dropped

    def _end_subscriptions(self) -> None:
        with self._changing:
            self._ended = True
            for subscription in self._subscriptions:
                subscription.end(self._failure)

    # --- the stream and its position -------------------------------------------------------------------------------

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

    def status(self) -> ListenerStatus:
        """How it is doing."""
        feed = None if self._stream is None else self._stream.feed
        boxes = [subscription.mailbox for subscription in self._subscriptions]
        state = self._state
        if state == "running" and feed is not None and not feed.connected:
            state = "reconnecting"
        as_of = self._ledger.as_of
        return ListenerStatus(
            state=state,
            last_event=self._last[0] if self._last else None,
            lag=self._last[1] if self._last else None,
            reconnects=self._reconnects + (feed.reconnects if feed else 0),
            dropped=self._dropped + sum(box.dropped for box in boxes),
            pending=sum(len(box.entries) for box in boxes),
            position_age=None if as_of is None else self._monotonic() - as_of,
            error=self._failure,
        )
