"""AsyncCheckpointListener: callbacks and subscriptions on one stream of events, in tasks.

Its twin is `listener.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.aio import AsyncMongoDBSaver
from langgraph_mongo_saver.delivery import Callback
from langgraph_mongo_saver.errors import ListenerBusy
from langgraph_mongo_saver.events import CheckpointEvent
from langgraph_mongo_saver.listening import Listening
from langgraph_mongo_saver.positions import keep, release, stored_position, take_lease
from langgraph_mongo_saver.streams import AsyncCheckpointStream
from langgraph_mongo_saver.subscriptions import AsyncSubscription

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only

logger = logging.getLogger(__name__)

# How long to wait before a database that cannot be reached is tried again.
_REST = 1.0


class AsyncCheckpointListener(Listening[AsyncMongoDBSaver, AsyncCheckpointStream, AsyncSubscription]):
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
    _subscription_type = AsyncSubscription

    def _prepare(self) -> None:
        super()._prepare()
        self._workers: list[asyncio.Task[None]] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def _monotonic() -> float:
        return time.monotonic()

    @property
    def _started(self) -> bool:
        return self._task is not None

    async def start(self) -> Self:
        """Start, and return when the stream is open, or another process is found to run the listener of this name.

        Raises:
            ListenerBusy: if that is so, and it was not to stand by.
            EventsLost: if the server no longer has the events since the position.
            ChangeStreamsUnavailable: if the server has none.
            pymongo.errors.PyMongoError: if the database cannot be reached.
        """
        self._check_start()
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
        """Stop: what has been received is handled within `timeout` seconds, and the position is kept.

        A callback may call it too; then it does not wait.
        """
        self._patience = timeout
        self._stopping.set()
        if self._stream is not None:
            await self._stream.aclose()
        if self._task is not None and asyncio.current_task() not in self._calls:
            await asyncio.wait([self._task], timeout=timeout + 2)

    async def wait(self) -> None:
        """Wait until it is stopped; what ended it is raised, if it failed."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except asyncio.CancelledError:
            await self.stop()
            raise

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
                try:
                    if self._name is None or await self._lead(self._name):
                        await self._follow()
                except PyMongoError as error:
                    if not self._outlasts(error, self._ready.is_set()):
                        raise
                    await self._rest(_REST)
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
            await self._rest(self._lease / 3)
            if self._stopping.is_set():
                return False
        return True

    async def _rest(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _follow(self) -> None:
        self._state = "starting"
        stored = None if self._name is None else await self._saver._drive(stored_position(self._name))
        async with self._saver.watch(**self._arguments, **self._where_to_begin(stored)) as stream:
            self._stream = stream
            # Kept before anything can be stored that is to be heard of, should this process die at once.
            self._ledger.issue(stream.position, 0)
            held = await self._keep()
            self._state = "running"
            self._ready.set()
            while held and not self._stopping.is_set():
                await stream.step()
                events = stream.take()
                for event in events:
                    held = held and await self._dispatch(event)
                if not events:
                    self._ledger.issue(stream.position, 0)
                held = held and await self._keep()
        self._stream = None
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
        try:
            if await self._saver._drive(keep(self._name, self._owner, self._lease, position)):
                self._was_kept(position)
                return True
            # Nobody may have taken it: the lease has only run out, or the database was dropped.
            held = await self._saver._drive(take_lease(self._name, self._owner, self._lease))
        except PyMongoError as error:
            if not self._outlasts(error, True):
                raise
            held = True
        self._was_not_kept()
        return held

    async def _finish(self) -> None:
        self._end_subscriptions()
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
        # A thread of its own, as in the event loop's few a callback that blocks would keep all others waiting.
        with ThreadPool(1) as thread:
            try:
                async for event in subscription:
                    await self._call(callback, event, thread)
            except Exception:  # noqa: BLE001 - what ended the listener is told to who waits for it
                return

    async def _call(self, callback: Callback, event: CheckpointEvent, thread: Executor) -> None:
        # A task of its own, so that one that is cancelled does not take its worker with it.
        call = asyncio.ensure_future(_called(callback, event, thread))
        self._calls.add(call)
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self._calls.discard(call)
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            return
        logger.error("A callback raised on an event of thread %r", event.thread_id, exc_info=error)
        if self._on_error is not None:
            try:
                self._on_error(error, event)
            except Exception:
                logger.exception("on_error raised too")


class ThreadPool(ThreadPoolExecutor):
    """An executor that nobody waits for at its end: a callback may hang."""

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False)


async def _called(callback: Callback, event: CheckpointEvent, thread: Executor) -> None:
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        await callback(event)
        return
    result = await asyncio.get_running_loop().run_in_executor(thread, callback, event)
    if inspect.isawaitable(result):
        await result
