"""Watches behind one async face, which collect what comes and wait for it no longer than a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from langgraph_mongo_saver.events import CheckpointEvent
from tests.surfaces import Surface

SECONDS = 30.0


class Watcher:
    """What a watch has brought; `failure` is what ended it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.events: list[CheckpointEvent] = []
        self.failure: BaseException | None = None
        self.ended = False

    async def take(self, count: int, seconds: float = SECONDS) -> list[CheckpointEvent]:
        """The next events, that many; an AssertionError if they do not come in time."""
        await eventually(lambda: len(self.events) >= count or self.ended, f"{count} events came", seconds)
        if len(self.events) < count and self.failure is not None:
            raise self.failure
        taken, self.events = self.events[:count], self.events[count:]
        return taken

    async def until(self, checkpoint_id: str, seconds: float = SECONDS) -> list[CheckpointEvent]:
        """The next events, up to that of a checkpoint and without it."""
        taken: list[CheckpointEvent] = []
        deadline = time.monotonic() + seconds
        while not taken or taken[-1].checkpoint_id != checkpoint_id:
            taken += await self.take(1, deadline - time.monotonic())
        return taken[:-1]

    async def fail(self, seconds: float = SECONDS) -> BaseException:
        """What ends the watch."""
        await eventually(lambda: self.ended, "the watch ended", seconds)
        assert self.failure is not None
        return self.failure

    def iterate(self) -> None:
        try:
            for event in self.stream:
                self.events.append(event)
        except Exception as error:  # noqa: BLE001 - whatever ends it is for the test to judge
            self.failure = error
        finally:
            self.ended = True

    async def aiterate(self) -> None:
        try:
            async for event in self.stream:
                self.events.append(event)
        except Exception as error:  # noqa: BLE001 - whatever ends it is for the test to judge
            self.failure = error
        finally:
            self.ended = True


async def eventually(holds: Any, what: str, seconds: float = SECONDS) -> None:
    """Poll until it holds; an AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(saver: Surface, **options: Any) -> AsyncIterator[Watcher]:
    """A watch that is open, and collects in a thread or a task of its own."""
    if saver.name == "sync":
        stream = await asyncio.to_thread(saver.raw.watch, **options)
        watcher = Watcher(stream)
        thread = threading.Thread(target=watcher.iterate)
        thread.start()
        try:
            yield watcher
        finally:
            await asyncio.to_thread(stream.close)
            await asyncio.to_thread(thread.join)
        return
    async with saver.raw.watch(**options) as stream:
        watcher = Watcher(stream)
        task = asyncio.create_task(watcher.aiterate())
        try:
            yield watcher
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def places(events: Sequence[CheckpointEvent]) -> list[tuple[str, str, str | None]]:
    """What happened where."""
    return [(event.kind, event.thread_id, event.checkpoint_id) for event in events]
