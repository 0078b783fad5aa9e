"""Both listeners behind one async face, so that each behaviour is tested once and on both."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langgraph_mongo_saver import AsyncCheckpointListener, CheckpointEvent, CheckpointListener, ListenerStatus
from tests.building import config
from tests.steps import put
from tests.surfaces import Surface

SURFACES = ("sync", "async", "motor")
PATIENCE = 20.0


class Unbounded(AssertionError):
    """Something that should end did not."""


async def in_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    """As `asyncio.to_thread`, but what hangs fails the test and does not keep the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            result, error = function(*args), None
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits for it
            result, error = None, raised
        loop.call_soon_threadsafe(settle, result, error)

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await bounded(future)


async def bounded(awaitable: Any) -> Any:
    try:
        return await asyncio.wait_for(awaitable, PATIENCE)
    except asyncio.TimeoutError:
        raise Unbounded(f"not within {PATIENCE:g} s") from None


async def reach(holds: Callable[[], Any], what: str) -> None:
    """Poll until it holds, and let the loop go on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Ear:
    """A listener and how to call it; `raw` is the listener itself."""

    blocking: bool
    raw: Any

    @property
    def status(self) -> ListenerStatus:
        status: ListenerStatus = self.raw.status()
        return status

    async def start(self) -> None:
        await self._call("start")

    async def stop(self, *args: Any) -> None:
        await self._call("stop", *args)

    async def wait(self) -> None:
        await self._call("wait")

    async def _call(self, method: str, *args: Any) -> None:
        function = getattr(self.raw, method)
        await (in_a_thread(function, *args) if self.blocking else bounded(function(*args)))

    async def within(self, body: Callable[[], Any]) -> None:
        """Await the body in a ``with`` of the listener."""
        if not self.blocking:
            async with self.raw:
                await body()
            return
        loop = asyncio.get_running_loop()

        def enter() -> None:
            with self.raw:
                asyncio.run_coroutine_threadsafe(body(), loop).result(PATIENCE)

        await in_a_thread(enter)

    async def next(self, subscription: Any) -> CheckpointEvent | None:
        """The next event of a subscription; None at its end."""
        if self.blocking:
            return await in_a_thread(next, subscription, None)  # type: ignore[no-any-return]  # it is what next gives
        return await bounded(anext(subscription, None))  # type: ignore[no-any-return]  # as above, it is what it gives

    async def state(self, wanted: str) -> None:
        await reach(lambda: self.status.state == wanted, f"it is {wanted}")


def ear(saver: Surface, **arguments: Any) -> Ear:
    """A listener that fits the saver."""
    blocking = saver.name == "sync"
    kind = CheckpointListener if blocking else AsyncCheckpointListener
    return Ear(blocking, kind(saver.raw, **arguments))  # type: ignore[arg-type]  # each gets the saver that it takes


Listen = Callable[..., Ear]


@asynccontextmanager
async def listeners(saver: Surface) -> AsyncIterator[Listen]:
    """Construct listeners, which are stopped at the end: ``listen(name="n")``, ``listen(another_saver)``."""
    async with AsyncExitStack() as stack:

        def construct(on: Surface = saver, **arguments: Any) -> Ear:
            listener = ear(on, **arguments)
            stack.push_async_callback(listener.stop, 1.0)
            return listener

        yield construct


@dataclass
class Heard:
    """A callback that notes what it is told; it waits at the gate, where that is closed."""

    events: list[CheckpointEvent] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    began: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, event: CheckpointEvent) -> None:
        self.began += 1
        assert self.gate.wait(PATIENCE)
        self.events.append(event)

    @property
    def ids(self) -> list[str | None]:
        return [event.checkpoint_id for event in self.events]

    async def reach(self, ids: list[str]) -> None:
        """Wait for these checkpoints, in this order, with nothing between or before."""
        await reach(lambda: len(self.events) >= len(ids), f"{ids} are told of, but only {self.ids}")
        assert self.ids == ids


def numbers(begin: int, end: int) -> list[str]:
    return [f"{number:06}" for number in range(begin, end)]


async def store(saver: Surface, ids: list[str], thread_id: str = "1", **options: Any) -> None:
    """Store checkpoints with these ids."""
    for id_ in ids:
        await put(saver, config(thread_id), id=id_, **options)
