"""AsyncCheckpointListener: callbacks and subscriptions on one stream of events, in tasks.

Its twin is `listener.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.aio import AsyncMongoDBSaver
from langgraph_mongo_saver.delivery import Callback, Ledger, ListenerStatus, Mailbox, Policy
from langgraph_mongo_saver.errors import ListenerBusy
from langgraph_mongo_saver.events import CheckpointEvent
from langgraph_mongo_saver.listening import Listening
from langgraph_mongo_saver.positions import keep, release, stored_position, take_lease
from langgraph_mongo_saver.streams import AsyncCheckpointStream

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only

logger = logging.getLogger(__name__)

CallbackT = TypeVar("CallbackT", bound=Callback)

# How long a full mailbox is waited for, before the lease is looked after.
_WAIT = 0.2


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


class AsyncCheckpointListener(Listening[AsyncMongoDBSaver, AsyncCheckpointStream]):
    """Callbacks for what happens to checkpoints, in background tasks; one stream serves all of them.

    Each callback has a task of its own and gets events in order, at least once. One that raises is logged, and does
    not stop the others.

    Example:
        >>> listener = AsyncCheckpointListener(saver, name="dashboard")  # doctest: +SKIP
        >>> @listener.on("checkpoint")  # doctest: +SKIP
        ... async def show(event):
        ...     print(event.thread_id, event.step)
        >>> async with listener:  # doctest: +SKIP
        ...     await graph.ainvoke(...)
    """

    _saver_type = AsyncMongoDBSaver

    def __init__(self, saver: AsyncMongoDBSaver, **arguments: Any) -> None:
        super().__init__(saver, **arguments)
        self._subscriptions: list[AsyncSubscription] = []
        self._workers: list[asyncio.Task[None]] = []
        self._callbacks: list[tuple[Callback, AsyncSubscription]] = []
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def _monotonic() -> float:
        return time.monotonic()

    def on(
        self,
        *kinds: str,
        thread_id: Any = None,
        checkpoint_ns: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        size: int = 1000,
        policy: Policy = "wait",
    ) -> Callable[[CallbackT], CallbackT]:
        """Register a callback, a coroutine function or a function for a worker thread: ``@listener.on("checkpoint")``.

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
            subscription = self._add(mailbox)
            self._callbacks.append((callback, subscription))
            if self._task is not None:
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
    ) -> AsyncSubscription:
        """Events to iterate over, from now on; see `on` for the arguments. Close it, or leave its ``async with``."""
        return self._add(self._mailbox(kinds, thread_id, checkpoint_ns, metadata, size, policy))

    def _add(self, mailbox: Mailbox) -> AsyncSubscription:
        subscription = AsyncSubscription(mailbox, self._ledger, self._remove)
        # A new list each time: the stream's task goes through the one that it has.
        self._subscriptions = [*self._subscriptions, subscription]
        return subscription

    def _remove(self, subscription: AsyncSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions = [other for other in self._subscriptions if other is not subscription]
            self._dropped += subscription.dropped

    def status(self) -> ListenerStatus:
        """How it is doing."""
        return self._status([s.mailbox for s in self._subscriptions], self._stream and self._stream.feed)

    async def start(self) -> Self:
        """Start, and return when the stream is open, or another process is found to run the listener of this name.

        Raises:
            ListenerBusy: if that is so, and it was not to stand by.
            EventsLost: if the server no longer has the events since the position.
            ChangeStreamsUnavailable: if the server has none.
            pymongo.errors.PyMongoError: if the database cannot be reached.
        """
        if self._task is None:
            self._saver._home.enter()
            self._task = asyncio.create_task(self._run(), name=f"checkpoints {self._name or ''}")
            for callback, subscription in self._callbacks:
                self._work(callback, subscription)
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    async def stop(self, timeout: float = 10.0) -> None:
        """Stop: what has been received is handled within `timeout` seconds, and the position is kept."""
        self._stopping.set()
        self._patience = timeout
        if self._stream is not None:
            await self._stream.aclose()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout + 2)

    async def wait(self) -> None:
        """Wait until it is stopped; what ended it is raised, if it failed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
        if error is None and self._failure is not None:
            raise self._failure

    # --- the stream's task -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._name is None or await self._lead(self._name):
                    await self._follow()
            self._state = "stopped"
        except Exception as error:
            self._state, self._failure = "failed", error
            logger.exception("The listener %s has ended", self._name or "(without a name)")
        finally:
            await self._finish()
            self._ready.set()

    async def _lead(self, name: str) -> bool:
        while not await self._saver._drive(take_lease(name, self._owner, self._lease)):
            if not self._standby:
                raise ListenerBusy(f"Another process runs the listener {name!r}, or did {self._lease:g} s ago")
            self._state = "standby"
            self._ready.set()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._lease / 3)
                return False
        return True

    async def _follow(self) -> None:
        self._state = "starting"
        stored = None if self._name is None else await self._saver._drive(stored_position(self._name))
        async with self._saver.watch(**self._arguments, **self._where_to_begin(stored)) as stream:
            self._stream, self._state = stream, "running"
            self._ready.set()
            held = True
            while held and not self._stopping.is_set():
                await stream.step()
                events = stream.take()
                for event in events:
                    held = held and await self._dispatch(event)
                if not events:
                    self._ledger.issue(stream.position, 0)
                held = held and await self._keep()
        self._reconnects += stream.feed.reconnects
        if not held and not self._stopping.is_set():
            logger.warning("The listener %r was taken over by another process", self._name)
            for subscription in self._subscriptions:
                subscription.forget()
            self._ledger.reset()

    async def _dispatch(self, event: CheckpointEvent) -> bool:
        takers = [s for s in self._subscriptions if s.mailbox.wanted.takes(event)]
        number = self._ledger.issue(event.position, len(takers))
        for subscription in takers:
            while not await subscription.offer(number, event):
                if self._stopping.is_set() or not await self._keep():
                    return False
        self._handed_over(event)
        return True

    async def _keep(self) -> bool:
        due, position = self._position_to_keep()
        if not due or self._name is None:
            return True
        held = await self._saver._drive(keep(self._name, self._owner, self._lease, position))
        self._was_kept(position)
        return held

    async def _finish(self) -> None:
        for subscription in self._subscriptions:
            subscription.end(self._failure)
        if self._workers:
            await asyncio.wait(self._workers, timeout=self._patience)
        if self._name is None:
            return
        try:
            await self._saver._drive(keep(self._name, self._owner, self._lease, self._ledger.position))
            await self._saver._drive(release(self._name, self._owner))
        except PyMongoError as error:  # another takes over when the lease has run out, and handles some events again
            logger.warning("The position of listener %r was not kept at its end (%s)", self._name, type(error).__name__)

    # --- the callbacks' tasks --------------------------------------------------------------------------------------

    def _work(self, callback: Callback, subscription: AsyncSubscription) -> None:
        self._workers.append(asyncio.create_task(self._handle(callback, subscription)))

    async def _handle(self, callback: Callback, subscription: AsyncSubscription) -> None:
        try:
            async for event in subscription:
                await self._call(callback, event)
        except Exception:  # noqa: BLE001 - what ended the listener is told to who waits for it
            return

    async def _call(self, callback: Callback, event: CheckpointEvent) -> None:
        try:
            asynchronous = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)
            result = callback(event) if asynchronous else await asyncio.to_thread(callback, event)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            logger.exception("A callback raised on an event of thread %r", event.thread_id)
            if self._on_error is not None:
                try:
                    self._on_error(error, event)
                except Exception:
                    logger.exception("on_error raised too")
