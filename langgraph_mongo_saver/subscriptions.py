"""What a listener hands out: events for one subscriber, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from langgraph_mongo_saver.delivery import Ledger, Mailbox
from langgraph_mongo_saver.events import CheckpointEvent

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only

# How long a full mailbox is waited for, before the lease is looked after.
_WAIT = 0.2


class Subscription(Iterator[CheckpointEvent]):
    """Events for one subscriber, as an iterator. An event counts as handled when the next one is asked for."""

    def __init__(self, mailbox: Mailbox, ledger: Ledger, closed: Callable[[Subscription], None]) -> None:
        self.mailbox = mailbox
        self._ledger = ledger
        self._closed = closed
        self._changed = threading.Condition()
        self._handling: int | None = None
        self._ended = False
        self._failure: BaseException | None = None

    @property
    def dropped(self) -> int:
        """How many events were dropped because this subscriber was too slow."""
        return self.mailbox.dropped

    def offer(self, number: int, event: CheckpointEvent) -> bool:
        """Hand an event over, if there is room for it within a moment."""
        with self._changed:
            if self.mailbox.must_wait and not self._ended:
                self._changed.wait(_WAIT)
            if self._ended:
                self._ledger.handled(number)
            elif self.mailbox.must_wait:
                return False
            elif (dropped := self.mailbox.put(number, event)) is not None:
                self._ledger.handled(dropped)
            self._changed.notify_all()
            return True

    def __next__(self) -> CheckpointEvent:
        """The next event; what ended the listener is raised, if it failed."""
        with self._changed:
            self._done()
            while not self.mailbox.entries:
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    raise StopIteration
                self._changed.wait()
            self._handling, event = self.mailbox.entries.popleft()
            self._changed.notify_all()
            return event

    def _done(self) -> None:
        if self._handling is not None:
            self._ledger.handled(self._handling)
            self._handling = None

    def end(self, failure: BaseException | None = None) -> None:
        """Let it end once what is in it has been taken."""
        with self._changed:
            self._ended, self._failure = True, failure
            self._changed.notify_all()

    def forget(self) -> None:
        """Empty it, without a word to the ledger: somebody else will handle these events."""
        with self._changed:
            self.mailbox.entries.clear()
            self._handling = None
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more events."""
        with self._changed:
            self._done()
            for number, _ in self.mailbox.entries:
                self._ledger.handled(number)
            self.mailbox.entries.clear()
            self.end()  # before another event can come in
        self._closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncSubscription(AsyncIterator[CheckpointEvent]):
    """Events for one subscriber, as an async iterator. An event counts as handled when the next one is asked for."""

    def __init__(self, mailbox: Mailbox, ledger: Ledger, closed: Callable[[AsyncSubscription], None]) -> None:
        self.mailbox = mailbox
        self._ledger = ledger
        self._closed = closed
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._handling: int | None = None
        self._ended = False
        self._failure: BaseException | None = None

    @property
    def dropped(self) -> int:
        """How many events were dropped because this subscriber was too slow."""
        return self.mailbox.dropped

    async def offer(self, number: int, event: CheckpointEvent) -> bool:
        """Hand an event over, if there is room for it within a moment."""
        if self.mailbox.must_wait and not self._ended:
            self._room.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._room.wait(), _WAIT)
        if self._ended:
            self._ledger.handled(number)
        elif self.mailbox.must_wait:
            return False
        elif (dropped := self.mailbox.put(number, event)) is not None:
            self._ledger.handled(dropped)
        self._arrived.set()
        return True

    async def __anext__(self) -> CheckpointEvent:
        """The next event; what ended the listener is raised, if it failed."""
        self._done()
        while not self.mailbox.entries:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._handling, event = self.mailbox.entries.popleft()
        self._room.set()
        return event

    def _done(self) -> None:
        if self._handling is not None:
            self._ledger.handled(self._handling)
            self._handling = None

    def end(self, failure: BaseException | None = None) -> None:
        """Let it end once what is in it has been taken."""
        self._ended, self._failure = True, failure
        self._arrived.set()
        self._room.set()

    def forget(self) -> None:
        """Empty it, without a word to the ledger: somebody else will handle these events."""
        self.mailbox.entries.clear()
        self._handling = None
        self._room.set()

    def close(self) -> None:
        """Take no more events."""
        self._done()
        for number, _ in self.mailbox.entries:
            self._ledger.handled(number)
        self.mailbox.entries.clear()
        self.end()
        self._closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
