"""CheckpointListener: callbacks and subscriptions on one stream of events, in threads.

Its twin is `alistener.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from langgraph_mongo_saver.delivery import Callback
from langgraph_mongo_saver.errors import ListenerBusy
from langgraph_mongo_saver.events import CheckpointEvent
from langgraph_mongo_saver.listening import Listening
from langgraph_mongo_saver.positions import keep, release, stored_position, take_lease
from langgraph_mongo_saver.saver import MongoDBSaver
from langgraph_mongo_saver.streams import CheckpointStream
from langgraph_mongo_saver.subscriptions import Subscription

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only

logger = logging.getLogger(__name__)

# How long to wait before a database that cannot be reached is tried again.
_REST = 1.0


class CheckpointListener(Listening[MongoDBSaver, CheckpointStream, Subscription]):
    """Callbacks for what happens to checkpoints, in background threads; one stream serves all of them.

    Each callback has a thread of its own and gets events in order, at least once. One that raises is logged, and does
    not stop the others.

    Example:
        >>> listener = CheckpointListener(saver, name="dashboard")  # doctest: +SKIP
        >>> @listener.on("checkpoint")  # doctest: +SKIP
        ... def show(event):
        ...     print(event.thread_id, event.step)
        >>> with listener:  # doctest: +SKIP
        ...     graph.invoke(...)
    """

    _saver_type = MongoDBSaver
    _subscription_type = Subscription

    def _prepare(self) -> None:
        super()._prepare()
        self._workers: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def _monotonic() -> float:
        return time.monotonic()

    @property
    def _started(self) -> bool:
        return self._thread is not None

    def start(self) -> Self:
        """Start, and return when the stream is open, or another process is found to run the listener of this name.

        Raises:
            ListenerBusy: if that is so, and it was not to stand by.
            EventsLost: if the server no longer has the events since the position.
            ChangeStreamsUnavailable: if the server has none.
            pymongo.errors.PyMongoError: if the database cannot be reached.
        """
        self._check_start()
        with self._changing:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"checkpoints {self._name or ''}", daemon=True)
                for callback, subscription in self._callbacks:
                    self._work(callback, subscription)
                self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Stop: what has been received is handled within `timeout` seconds, and the position is kept.

        A callback may call it too; then it does not wait.
        """
        self._patience = timeout
        self._stopping.set()
        if (stream := self._stream) is not None:
            stream.close()
        if self._thread is not None and threading.current_thread() not in self._workers:
            self._thread.join(timeout + 2)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is stopped, at most so many seconds; what ended it is raised, if it failed."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if error is None and self._failure is not None:
            raise self._failure

    # --- the stream's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    if self._name is None or self._lead(self._name):
                        self._follow()
                except PyMongoError as error:
                    if not self._outlasts(error, self._ready.is_set()):
                        raise
                    self._rest(_REST)
            self._state = "stopped"
        except Exception as error:
            self._state, self._failure = "failed", error
            logger.exception("The listener %s has ended", self._name or "(without a name)")
        finally:
            self._finish()
            self._ready.set()

    def _lead(self, name: str) -> bool:
        while not self._saver._drive(take_lease(name, self._owner, self._lease)):
            if not self._standby:
                raise ListenerBusy(f"Another process runs the listener {name!r}, or did {self._lease:g} s ago")
            self._state = "standby"
            self._ready.set()
            self._rest(self._lease / 3)
            if self._stopping.is_set():
                return False
        return True

    def _rest(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _follow(self) -> None:
        self._state = "starting"
        stored = None if self._name is None else self._saver._drive(stored_position(self._name))
        with self._saver.watch(**self._arguments, **self._where_to_begin(stored)) as stream:
            self._stream = stream
            # Kept before anything can be stored that is to be heard of, should this process die at once.
            self._ledger.issue(stream.position, 0)
            held = self._keep()
            self._state = "running"
            self._ready.set()
            while held and not self._stopping.is_set():
                stream.step()
                events = stream.take()
                for event in events:
                    held = held and self._dispatch(event)
                if not events:
                    self._ledger.issue(stream.position, 0)
                held = held and self._keep()
        self._stream = None
        self._reconnects += stream.feed.reconnects
        if not held and not self._stopping.is_set():
            logger.warning("The listener %r was taken over by another process", self._name)
            for subscription in self._subscriptions:
                subscription.forget()
            self._ledger.reset()

    def _dispatch(self, event: CheckpointEvent) -> bool:
        takers = [s for s in self._subscriptions if s.mailbox.wanted.takes(event)]
        number = self._ledger.issue(event.position, len(takers))
        for subscription in takers:
            while not subscription.offer(number, event):
                if self._stopping.is_set() or not self._keep():
                    return False
        self._handed_over(event)
        return True

    def _keep(self) -> bool:
        due, position = self._position_to_keep()
        if not due or self._name is None:
            return True
        try:
            if self._saver._drive(keep(self._name, self._owner, self._lease, position)):
                self._was_kept(position)
                return True
            # Nobody may have taken it: the lease has only run out, or the database was dropped.
            held = self._saver._drive(take_lease(self._name, self._owner, self._lease))
        except PyMongoError as error:
            if not self._outlasts(error, True):
                raise
            held = True
        self._was_not_kept()
        return held

    def _finish(self) -> None:
        self._end_subscriptions()
        deadline = time.monotonic() + self._patience
        for worker in self._workers:
            worker.join(max(deadline - time.monotonic(), 0))
        if self._name is None:
            return
        try:
            self._saver._drive(keep(self._name, self._owner, self._lease, self._ledger.position))
            self._saver._drive(release(self._name, self._owner))
        except PyMongoError as error:  # another takes over when the lease has run out, and handles some events again
            logger.warning("The position of listener %r was not kept at its end (%s)", self._name, type(error).__name__)

    # --- the callbacks' threads ------------------------------------------------------------------------------------

    def _work(self, callback: Callback, subscription: Subscription) -> None:
        worker = threading.Thread(target=self._handle, args=(callback, subscription), daemon=True)
        self._workers.append(worker)
        worker.start()

    def _handle(self, callback: Callback, subscription: Subscription) -> None:
        loop = asyncio.new_event_loop()
        try:
            for event in subscription:
                self._call(callback, event, loop)
        except Exception:  # noqa: BLE001 - what ended the listener is told to who waits for it
            return
        finally:
            loop.close()

    def _call(self, callback: Callback, event: CheckpointEvent, loop: asyncio.AbstractEventLoop) -> None:
        try:
            result = callback(event)
            if inspect.isawaitable(result):
                loop.run_until_complete(_awaited(result))
        except BaseException as error:  # also sys.exit: its worker must go on, or the stream would wait
            logger.exception("A callback raised on an event of thread %r", event.thread_id)
            if self._on_error is not None:
                try:
                    self._on_error(error, event)
                except Exception:
                    logger.exception("on_error raised too")


async def _awaited(result: Any) -> None:
    await result
