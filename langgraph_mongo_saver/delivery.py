"""From one stream to many subscribers: bounded mailboxes, and what of it all has been handled."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.events import CheckpointEvent, EventFilter

Callback = Callable[[CheckpointEvent], Any]
OnError = Callable[[BaseException, CheckpointEvent], Any]

Policy = Literal["wait", "drop_oldest"]
"""What becomes of an event for a full mailbox: the stream waits, for all; or the oldest one in it goes."""

State = Literal["new", "standby", "starting", "running", "reconnecting", "stopped", "failed"]


@dataclass(frozen=True)
class ListenerStatus:
    """How a listener is doing.

    Attributes:
        state: ``"standby"``: another process runs the listener of this name; ``"reconnecting"``: the stream broke.
        last_event: the last event that was handed to subscribers.
        lag: seconds that it took from being stored to being handed over, by the writer's clock and this machine's.
        reconnects: how often the stream had to be opened again.
        dropped: how many events were dropped from full mailboxes.
        pending: how many events wait in mailboxes.
        position_age: seconds since the position was last known to be up to date, everything before it handled; None
            before that.
        error: what ended it, if it failed.
    """

    state: State
    last_event: CheckpointEvent | None = None
    lag: float | None = None
    reconnects: int = 0
    dropped: int = 0
    pending: int = 0
    position_age: float | None = None
    error: BaseException | None = None


class Mailbox:
    """Events that wait for one subscriber. Not safe for threads by itself."""

    def __init__(self, wanted: EventFilter, size: int, policy: Policy) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            given = size if isinstance(size, int) else f"a {type(size).__name__}"
            raise InvalidArgument(f"size must be a number of events from 1 on, but {given} was given")
        if policy not in ("wait", "drop_oldest"):
            raise InvalidArgument(
                f"policy must be 'wait' or 'drop_oldest', but another {type(policy).__name__} was given"
            )
        self.wanted = wanted
        self.dropped = 0
        self.entries: deque[tuple[int, CheckpointEvent]] = deque()
        self._size = size
        self._policy = policy

    @property
    def must_wait(self) -> bool:
        """Whether it is full and nothing may be dropped from it."""
        return self._policy == "wait" and len(self.entries) >= self._size

    def put(self, number: int, event: CheckpointEvent) -> int | None:
        """Add an event; the number of the one that was dropped for it, if one was."""
        dropped = None
        if len(self.entries) >= self._size:
            dropped, _ = self.entries.popleft()
            self.dropped += 1
        self.entries.append((number, event))
        return dropped


class Ledger:
    """What was handed out, and up to where all of it has been handled. Safe for threads.

    Attributes:
        position: everything up to here has been handled; None before anything was.
        as_of: when that was last found to be so, in the clock's seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.position: str | None = None
        self.as_of: float | None = None
        self._clock = clock
        self._open: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._last = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether something that was handed out has not been handled."""
        return bool(self._open)

    def issue(self, position: str, subscribers: int) -> int:
        """Note that the event before this position goes to so many subscribers; its number."""
        with self._lock:
            # Where nothing happens while somebody is slow, the last of such positions is enough.
            if subscribers or not self._open or self._open[self._last][1]:
                self._last += 1
            self._open[self._last] = (position, subscribers)
            self._settle()
            return self._last

    def handled(self, number: int) -> None:
        """Note that one subscriber has handled an event, or will never get it."""
        with self._lock:
            if number in self._open:
                position, left = self._open[number]
                self._open[number] = (position, left - 1)
                self._settle()

    def reset(self) -> None:
        """Forget all of it: somebody else goes on from what was kept."""
        with self._lock:
            self._open.clear()
            self.position = self.as_of = None

    def _settle(self) -> None:
        while self._open and next(iter(self._open.values()))[1] <= 0:
            _, (self.position, _) = self._open.popitem(last=False)
            self.as_of = self._clock()


def lag_of(event: CheckpointEvent, now: datetime) -> float:
    """Seconds from an event to now."""
    return (now - event.created_at).total_seconds()
