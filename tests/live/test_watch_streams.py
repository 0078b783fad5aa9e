"""Where a watch begins and goes on, how it ends, and what it leaves."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.building import config
from tests.servers import until
from tests.steps import put
from tests.surfaces import Surface
from tests.watchers import places, watching

pytestmark = pytest.mark.needs_replica_set
INTERRUPT, ERROR, RESUME = "__interrupt__", "__error__", "__resume__"
AWHILE = 2.0


@pytest.fixture(params=["sync", "async", "motor"])
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


only_async = pytest.mark.parametrize("surface_name", ["async", "motor"], indirect=True)
only_sync = pytest.mark.parametrize("surface_name", ["sync"], indirect=True)


async def every_kind(saver: Surface, thread_id: str = "1") -> None:
    """Two checkpoints, three kinds of writes, and a thread that is deleted: seven events."""
    stored = await put(saver, await put(saver, config(thread_id)))
    for task_id, write in (("t", ("a", 1)), ("u", (INTERRUPT, ["asked"])), ("v", (ERROR, "no"))):
        await saver.put_writes(stored, [write], task_id)
    await put(saver, config(f"{thread_id} gone"))
    await saver.delete_thread(f"{thread_id} gone")


# --- where it begins -----------------------------------------------------------------------------------------------


async def test_nothing_that_is_stored_after_it_is_open_is_missed(saver: Surface) -> None:
    for n in range(15):
        async with watching(saver) as watcher:
            await put(saver, config(), id=f"{n:02}")
            assert places(await watcher.take(1)) == [("checkpoint", "1", f"{n:02}")]


async def test_from_any_position_exactly_the_rest_follows(saver: Surface) -> None:
    async with watching(saver) as watcher:
        await every_kind(saver)
        events = await watcher.take(7)
        await eventually_idle(watcher)
        idle = watcher.stream.position
    await put(saver, config("last"), id="last")
    for n, event in enumerate(events):
        async with watching(saver, resume_from=event.position) as watcher:
            assert watcher.stream.position == event.position or watcher.events
            following = await watcher.take(7 - n)
        assert following[:-1] == events[n + 1 :]
        assert following[-1].checkpoint_id == "last"
    async with watching(saver, resume_from=idle) as watcher:
        assert places(await watcher.take(1)) == [("checkpoint", "last", "last")]


async def eventually_idle(watcher: Any) -> None:
    """Wait until the stream tells of a later position than its last event's, without an event."""
    before = watcher.stream.position
    deadline = time.monotonic() + 30
    while watcher.stream.position == before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_start_at_is_a_time_from_which_everything_follows(saver: Surface) -> None:
    await put(saver, config(), id="before")
    await asyncio.sleep(1.1)
    at = datetime.now(timezone.utc)
    await put(saver, config(), id="after")
    async with watching(saver, start_at=at.astimezone(timezone(timedelta(hours=9)))) as watcher:
        assert places(await watcher.take(1)) == [("checkpoint", "1", "after")]
        await put(saver, config(), id="now")
        assert places(await watcher.take(1)) == [("checkpoint", "1", "now")]


# --- what ends and goes on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["drop", "rename", "drop database"])
async def test_it_goes_on_when_collections_go(saver: Surface, mongo: Any, db_name: str, what: str) -> None:
    async with watching(saver) as watcher:
        for n in range(2):
            stored = await put(saver, config(), id=f"{n}")
            await saver.put_writes(stored, [("a", 1)], "t")
            assert places(await watcher.take(2)) == [("checkpoint", "1", f"{n}"), ("writes", "1", f"{n}")]
            for name in ("checkpoints", "checkpoint_writes"):
                if what == "drop":
                    mongo[db_name][name].drop()
                elif what == "rename":
                    mongo[db_name][name].rename(f"{name}_{n}")
            if what == "drop database":
                mongo.drop_database(db_name)
        await put(saver, config(), id="last")
        assert places(await watcher.take(1)) == [("checkpoint", "1", "last")]
    assert watcher.failure is None


@only_sync
async def test_close_from_another_thread_ends_a_wait(saver: Surface) -> None:
    stream = saver.raw.watch()
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(list(stream)))
    waiting.start()
    await asyncio.sleep(0.2)
    await asyncio.to_thread(stream.close)
    waiting.join(AWHILE)
    assert ended == [[]]
    assert next(stream, None) is None
    stream.close()


@only_async
async def test_a_wait_that_is_cancelled_ends_and_with_it_the_stream(saver: Surface) -> None:
    stream = saver.raw.watch()
    await stream.ready()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.2)
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=AWHILE)
    assert done == {waiting}
    assert waiting.cancelled()
    assert [event async for event in stream] == []


@only_async
async def test_aclose_ends_a_wait_of_another_task(saver: Surface) -> None:
    stream = saver.raw.watch()
    await stream.ready()

    async def collect() -> list[Any]:
        return [event async for event in stream]

    waiting = asyncio.create_task(collect())
    await asyncio.sleep(0.2)
    await asyncio.wait_for(stream.aclose(), AWHILE)
    done, _ = await asyncio.wait([waiting], timeout=AWHILE)
    assert done == {waiting}
    assert waiting.result() == []
    await stream.aclose()


@only_async
async def test_giving_up_a_wait_within_async_with_loses_nothing(saver: Surface) -> None:
    expected = [f"{n:02}" for n in range(30)]

    async def store() -> None:
        for id in expected:
            await put(saver, config(), id=id)
            await asyncio.sleep(0.01)

    found: list[str | None] = []
    async with saver.raw.watch(kinds="checkpoint") as stream:
        storing = asyncio.create_task(store())
        deadline, given_up = time.monotonic() + 30, 0
        while len(found) < len(expected):
            assert time.monotonic() < deadline, found
            try:
                found.append((await asyncio.wait_for(anext(stream), 0.004)).checkpoint_id)
            except asyncio.TimeoutError:
                given_up += 1
        await storing
    assert found == expected
    assert given_up > 0


# --- what is left --------------------------------------------------------------------------------------------------


def open_cursors(mongo: Any) -> int:
    return int(mongo.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"])


@pytest.mark.needs_mongod
@only_async
@pytest.mark.parametrize("ready", [True, False], ids=["when open", "at any time"])
async def test_cancelled_watches_leave_no_cursor(saver: Surface, mongo: Any, ready: bool) -> None:
    async def cancelled(n: int) -> None:
        stream = saver.raw.watch()
        if ready:
            await stream.ready()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(n % 10 / 1000)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=10)
        assert waiting.cancelled()

    await saver.setup()
    before = open_cursors(mongo)
    for _ in range(5):
        await asyncio.gather(*map(cancelled, range(20)))
    await asyncio.to_thread(until, lambda: open_cursors(mongo) <= before, "all cursors are closed")


@pytest.mark.needs_mongod
@only_sync
async def test_closed_watches_leave_no_cursor(saver: Surface, mongo: Any) -> None:
    def closed(n: int) -> None:
        stream = saver.raw.watch()
        waiting = threading.Thread(target=list, args=(stream,))
        waiting.start()
        time.sleep(n % 10 / 1000)
        stream.close()
        waiting.join(10)
        assert not waiting.is_alive()

    await saver.setup()
    before = open_cursors(mongo)
    with ThreadPoolExecutor(10) as callers:
        assert len(list(callers.map(closed, range(50)))) == 50
    until(lambda: open_cursors(mongo) <= before, "all cursors are closed")


# --- polling -------------------------------------------------------------------------------------------------------


async def test_polling_tells_the_same_kinds(saver: Surface) -> None:
    async with watching(saver) as watcher, watching(saver, poll_interval=0.02) as polling:
        stored = await put(saver, config())
        for task_id, write in (("t", ("a", 1)), ("u", (INTERRUPT, ["asked"])), ("v", (ERROR, "no"))):
            await saver.put_writes(stored, [write], task_id)
        streamed, polled = await watcher.take(4), await polling.take(4)
        await saver.delete_thread("1")
        streamed += await watcher.take(1)
        polled += await polling.take(1)
    assert {event.kind for event in polled} == {"checkpoint", "writes", "interrupt", "error", "thread_deleted"}
    key = {(event.kind, event.thread_id, event.task_id, event.interrupts, event.error) for event in streamed}
    assert {(event.kind, event.thread_id, event.task_id, event.interrupts, event.error) for event in polled} == key


async def test_polling_tells_each_interrupt_once(saver: Surface) -> None:
    """Their task stores more in the same document: the answer, another question, what it writes in the end."""
    kinds = ["interrupt", "error"]
    async with watching(saver, poll_interval=0.02, kinds=kinds) as watcher:
        stored = await put(saver, config())
        told = []
        for write in ((INTERRUPT, ["one"]), (RESUME, 1), (INTERRUPT, ["two"]), ("a", 1), (ERROR, "no"), ("a", 2)):
            await saver.put_writes(stored, [write], "t")
            told += await watcher.take(1) if write[0] in (INTERRUPT, ERROR) else []
            await asyncio.sleep(0.1)
        await saver.put_writes(stored, [(INTERRUPT, ["last"])], "u")
        told += await watcher.take(1)
    assert [(event.interrupts, event.error) for event in told] == [
        (("one",), None),
        (("two",), None),
        ((), "no"),
        (("last",), None),
    ]


async def test_polling_begins_with_what_is_new_and_filters(saver: Surface) -> None:
    await put(saver, config(), metadata={"n": 1})
    async with watching(saver, poll_interval=0.02, metadata={"n": 1}, thread_id=["1", "2"]) as watcher:
        for thread_id, n in (("1", 2), ("3", 1), ("2", 1)):
            await put(saver, config(thread_id), metadata={"n": n})
        (event,) = await watcher.take(1)
    assert event.thread_id == "2"
    async with watching(saver, poll_interval=0.02, resume_from=event.position) as watcher:
        await put(saver, config("3"), id="last")
        assert {each.kind for each in await watcher.until("last")} <= {"checkpoint"}
