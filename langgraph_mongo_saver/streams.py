"""What `watch` returns: streams of events, for threads and for event loops."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.events import CheckpointEvent
from langgraph_mongo_saver.gathering import Deliver, Next, Open, Pause, Seen, Step
from langgraph_mongo_saver.watching import Feed

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only

# How long the server waits for a change before it answers that there is none: within that a closed stream ends.
_AWAIT_MS = 500
# An update tells which writes have changed, by their place, and not what they are.
_OPTIONS = {"max_await_time_ms": _AWAIT_MS, "full_document": "updateLookup"}


class _Stream:
    """What both streams share: the plan and what it has delivered."""

    def __init__(self, saver: Any, feed: Feed) -> None:
        self.feed = feed
        self._saver = saver
        self._steps = feed.steps()
        self._advance: Any = self._steps.send
        self._reply: Any = None
        self._changes: Any = None
        self._events: deque[CheckpointEvent] = deque()

    @property
    def position(self) -> str:
        """Where the stream stands, also when nothing happens: to resume from once all its events are handled."""
        return str(self.feed.position)

    def take(self) -> list[CheckpointEvent]:
        """The events that steps have brought."""
        events = list(self._events)
        self._events.clear()
        return events

    def _following(self) -> Step:
        return self._advance(self._reply)  # type: ignore[no-any-return]  # send or throw of the plan

    def _deliver(self, step: Deliver) -> None:
        self.feed.note(step)
        self._events.extend(step.events)
        self._answer(None)

    def _answer(self, reply: Any) -> None:
        self._advance, self._reply = self._steps.send, reply

    def _fail(self, error: PyMongoError) -> None:
        self._advance, self._reply = self._steps.throw, error


class CheckpointStream(_Stream, Iterator[CheckpointEvent]):
    """A stream of events, open from the moment at which it is made; an iterator and a context manager.

    It waits for the next event for ever. `close`, from any thread, ends it within a second.
    """

    def __init__(self, saver: Any, feed: Feed) -> None:
        super().__init__(saver, feed)
        self._closed = threading.Event()
        self._busy = threading.Lock()
        try:
            while not feed.connected and not self._closed.is_set():
                self.step()
        except BaseException:
            self.close()
            raise

    def __next__(self) -> CheckpointEvent:
        """The next event.

        Raises:
            EventsLost: if the server no longer has the events since the position, and `on_gap` is ``"raise"``.
            ChangeStreamsUnavailable: if the server has none.
        """
        while not self._events:
            if self._closed.is_set():
                self.close()  # whoever closed it may not have waited for the end of the last step
                raise StopIteration
            self.step()
        return self._events.popleft()

    def step(self) -> None:
        """Do one step, of half a second at most while nothing happens; then there may be events. Nothing if closed."""
        try:
            with self._busy:
                if self._closed.is_set():
                    return
                step = self._following()
                if isinstance(step, Deliver):
                    self._deliver(step)
                    return
                try:
                    self._answer(self._do(step))
                except PyMongoError as error:
                    self._fail(error)
        except BaseException:
            self.close()
            raise

    def _do(self, step: Step) -> Any:
        if isinstance(step, Open):
            self._close_changes()
            self._changes = self._saver.db.watch(step.stages, **_OPTIONS, **step.options)
            return self._changes.resume_token
        if isinstance(step, Next):
            change = self._changes.try_next()
            return Seen(change, self._changes.resume_token, self._changes.alive)
        if isinstance(step, Pause):
            return self._closed.wait(step.seconds)
        return self._saver._send(step)

    def close(self) -> None:
        """End the stream and its cursor."""
        self._closed.set()
        if self._busy.acquire(timeout=2 * _AWAIT_MS / 1000):
            try:
                self._close_changes()
            finally:
                self._busy.release()

    def _close_changes(self) -> None:
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncCheckpointStream(_Stream, AsyncIterator[CheckpointEvent]):
    """A stream of events, opened from the moment at which it is made; an async iterator and context manager.

    `async with` waits until it is open, as `ready` does; nothing that is stored after that is missed. A wait for an
    event that is cancelled ends the stream, but within ``async with``: there, `asyncio.wait_for` may give up waiting
    and the stream goes on.
    """

    def __init__(self, saver: Any, feed: Feed) -> None:
        super().__init__(saver, feed)
        self._closed = asyncio.Event()
        self._entered = False
        self._stepping: asyncio.Task[None] | None = None
        self._first: list[Any] = []
        self._making_cursor = False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._opening: asyncio.Task[None] | None = None  # it opens at its first use
        else:
            self._opening = asyncio.create_task(self._open())

    async def ready(self) -> None:
        """Wait until the stream is open: nothing that is stored after that is missed."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if not (self._closed.is_set() and self._opening.cancelled()):
                raise  # the waiting was cancelled; else the stream was closed meanwhile

    async def _open(self) -> None:
        self._saver._home.enter()
        while not self.feed.connected and not self._closed.is_set():
            await self.step()

    async def __anext__(self) -> CheckpointEvent:
        """The next event.

        Raises:
            EventsLost: if the server no longer has the events since the position, and `on_gap` is ``"raise"``.
            ChangeStreamsUnavailable: if the server has none.
        """
        try:
            await self.ready()
            while not self._events:
                if self._closed.is_set():
                    raise StopAsyncIteration
                await self.step()
        except asyncio.CancelledError:
            if not self._entered:
                await asyncio.shield(asyncio.ensure_future(self.aclose()))
            raise
        return self._events.popleft()

    async def step(self) -> None:
        """Do one step, of half a second at most while nothing happens; then there may be events.

        Whoever waits for it may be cancelled: the step goes on, and the next call waits for it.
        """
        if self._closed.is_set():
            return
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._step())
        stepping = self._stepping
        try:
            await asyncio.shield(stepping)
        except asyncio.CancelledError:
            if not (self._closed.is_set() and stepping.cancelled()):
                raise  # the waiting was cancelled; else the stream was closed meanwhile
        finally:
            if stepping.done() and self._stepping is stepping:
                self._stepping = None

    async def _step(self) -> None:
        try:
            step = self._following()
            if isinstance(step, Deliver):
                self._deliver(step)
                return
            try:
                self._answer(await self._do(step))
            except PyMongoError as error:
                self._fail(error)
        except Exception:
            self._closed.set()
            await self._close_changes()
            raise

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Open):
            return await self._watch(step)
        if isinstance(step, Next):
            change = self._first.pop() if self._first else await self._changes.try_next()
            return Seen(change, self._changes.resume_token, self._changes.alive)
        if isinstance(step, Pause):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closed.wait(), step.seconds)
            return None
        return await self._saver._send(step)

    async def _watch(self, step: Open) -> Any:
        await self._close_changes()
        self._first.clear()
        self._making_cursor = True
        try:
            changes = self._saver.db.watch(step.stages, **_OPTIONS, **step.options)
            if inspect.isawaitable(changes):
                self._changes = await changes
            else:  # Motor opens its cursor only when the first change is asked for
                self._changes = changes
                change = await self._changes.try_next()
                self._first += [] if change is None else [change]
        finally:
            self._making_cursor = False
        token = self._changes.resume_token
        if self._closed.is_set():
            await self._close_changes()
        return token

    async def aclose(self) -> None:
        """End the stream and its cursor."""
        self._closed.set()
        if self._opening is not None:
            self._opening.cancel()
        stepping = self._stepping
        if stepping is not None and not stepping.done():
            # A cursor that is being opened would be lost; once it is there, it is closed.
            if not self._making_cursor:
                stepping.cancel()
            await asyncio.wait([stepping], timeout=2 * _AWAIT_MS / 1000)
        await self._close_changes()

    async def _close_changes(self) -> None:
        changes, self._changes = self._changes, None
        if changes is not None:
            await changes.close()

    async def __aenter__(self) -> Self:
        self._entered = True
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
