"""Callbacks and subscriptions of a listener: all get what they ask for, and nobody stops the others."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from langgraph_mongo_saver import CheckpointEvent
from tests.building import config
from tests.faults import CommandRecorder
from tests.listening import PATIENCE, SURFACES, Heard, Listen, in_a_thread, listeners, numbers, reach, store
from tests.steps import put
from tests.surfaces import Surface

pytestmark = pytest.mark.needs_replica_set


@pytest.fixture(params=SURFACES)
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def listen(saver: Surface) -> AsyncIterator[Listen]:
    """Construct listeners, which are stopped at the end."""
    async with listeners(saver) as construct:
        yield construct


# --- callbacks -----------------------------------------------------------------------------------------------------


async def test_functions_and_coroutine_functions_are_told_in_order(saver: Surface, listen: Listen) -> None:
    listener, heard, awaited, returned = listen(), Heard(), Heard(), Heard()
    assert listener.raw.on("checkpoint")(heard) is heard

    @listener.raw.on("checkpoint")
    async def in_a_loop(event: CheckpointEvent) -> None:
        await asyncio.sleep(0)
        awaited(event)

    @listener.raw.on("checkpoint")
    def gives_an_awaitable(event: CheckpointEvent) -> Any:
        async def later() -> None:
            returned(event)

        return later()

    await listener.start()
    await store(saver, numbers(0, 20))
    for each in (heard, awaited, returned):
        await each.reach(numbers(0, 20))


async def test_each_callback_gets_what_it_asks_for(saver: Surface, listen: Listen) -> None:
    listener = listen()
    everything, one, two, inner, tagged, writes, gone = (Heard() for _ in range(7))
    listener.raw.on()(everything)
    listener.raw.on("checkpoint", thread_id="1")(one)
    listener.raw.on("checkpoint", thread_id=["1", "2"])(two)
    listener.raw.on("checkpoint", checkpoint_ns="inner")(inner)
    listener.raw.on(metadata={"tag": "a"})(tagged)
    listener.raw.on("writes", "interrupt")(writes)
    listener.raw.on("thread_deleted")(gone)
    await listener.start()
    await store(saver, ["a"], "1", metadata={"tag": "a"})
    await store(saver, ["b"], "2", metadata={"tag": "b"})
    await store(saver, ["c"], "3")
    await put(saver, config("3", "inner"), id="d")
    await saver.put_writes(config("1", "", "a"), [("c", 1)], "t")
    await saver.delete_thread("3")
    await reach(lambda: gone.events, "the deletion is told of")
    for heard, ids in ((one, ["a"]), (two, ["a", "b"]), (inner, ["d"]), (tagged, ["a"]), (writes, ["a"])):
        await heard.reach(ids)
    assert gone.events[0].thread_id == "3"
    assert [event.kind for event in everything.events] == [*["checkpoint"] * 4, "writes", "thread_deleted"]


async def test_what_the_listener_leaves_out_no_callback_is_told(saver: Surface, listen: Listen) -> None:
    listener, heard, other = listen(thread_id="1", kinds="checkpoint"), Heard(), Heard()
    listener.raw.on()(heard)
    listener.raw.on(thread_id="2")(other)
    await listener.start()
    await store(saver, ["a"], "2")
    await saver.put_writes(config("2", "", "a"), [("c", 1)], "t")
    await store(saver, ["b"], "1")
    await heard.reach(["b"])
    assert other.events == []


async def test_one_stream_serves_all(saver: Surface, listen: Listen, recorder: CommandRecorder) -> None:
    listener, heard = listen(), [Heard() for _ in range(5)]
    with recorder.recording() as seen:
        for each in heard[:4]:
            listener.raw.on("checkpoint")(each)
        await listener.start()
        listener.raw.on("checkpoint")(heard[4])
        subscriptions = [listener.raw.subscribe("checkpoint") for _ in range(5)]
        await store(saver, numbers(0, 3))
        for each in heard:
            await each.reach(numbers(0, 3))
        for subscription in subscriptions:
            assert [(await listener.next(subscription)).checkpoint_id for _ in range(3)] == numbers(0, 3)
    opened = [c for c in seen if c.name == "aggregate" and "$changeStream" in c.body["pipeline"][0]]
    assert len(opened) == 1


async def test_a_callback_that_raises_is_logged_and_stops_nobody(
    saver: Surface, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[BaseException, str | None]] = []
    listener = listen(on_error=lambda error, event: told.append((error, event.checkpoint_id)))
    heard, error = Heard(), ZeroDivisionError("once")

    @listener.raw.on("checkpoint")
    def fails(event: CheckpointEvent) -> None:
        raise error

    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, numbers(0, 3))
    await heard.reach(numbers(0, 3))
    await reach(lambda: len(told) == 3, "on_error is told of each")
    assert told == [(error, id_) for id_ in numbers(0, 3)]
    assert listener.status.state == "running"
    records = [record for record in caplog.records if record.exc_info and record.exc_info[1] is error]
    assert len(records) == 3


async def test_an_on_error_that_raises_is_logged_too(
    saver: Surface, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    def on_error(error: BaseException, event: CheckpointEvent) -> None:
        raise KeyError("on_error")

    listener, calls = listen(on_error=on_error), []

    @listener.raw.on("checkpoint")
    async def fails(event: CheckpointEvent) -> None:
        calls.append(event.checkpoint_id)
        raise ValueError("callback")

    await listener.start()
    await store(saver, numbers(0, 2))
    await reach(lambda: calls == numbers(0, 2), "the callback goes on")
    await listener.stop()
    raised = {record.exc_info[0] for record in caplog.records if record.exc_info}
    assert {KeyError, ValueError} <= raised


async def test_a_callback_whose_task_was_cancelled_goes_on(saver: Surface, listen: Listen) -> None:
    listener, calls, heard = listen(), [], Heard()

    @listener.raw.on("checkpoint", size=1)
    async def waits_for_what_is_cancelled(event: CheckpointEvent) -> None:
        calls.append(event.checkpoint_id)
        task = asyncio.create_task(asyncio.sleep(PATIENCE))
        task.cancel()
        await task

    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, numbers(0, 5))
    await reach(lambda: calls == numbers(0, 5), "it is called each time")
    await heard.reach(numbers(0, 5))


async def test_a_callback_that_exits_its_thread_goes_on(saver: Surface, listen: Listen) -> None:
    listener, calls, heard = listen(), [], Heard()
    if not listener.blocking:
        pytest.skip("an event loop ends at SystemExit, by asyncio's own rule")

    @listener.raw.on("checkpoint", size=1)
    def exits(event: CheckpointEvent) -> None:
        calls.append(event.checkpoint_id)
        sys.exit(1)

    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, numbers(0, 5))
    await reach(lambda: calls == numbers(0, 5), "it is called each time")
    await heard.reach(numbers(0, 5))


async def test_a_callback_may_stop_its_listener(saver: Surface, listen: Listen) -> None:
    listener, stopped = listen(), threading.Event()

    @listener.raw.on("checkpoint")
    async def stops(event: CheckpointEvent) -> None:
        result = listener.raw.stop(PATIENCE)
        if result is not None:
            await result
        stopped.set()

    await listener.start()
    await store(saver, ["a"])
    await in_a_thread(stopped.wait, PATIENCE / 2)
    assert stopped.is_set()
    await listener.state("stopped")


async def test_callbacks_that_block_keep_neither_others_nor_the_loop_waiting(saver: Surface, listen: Listen) -> None:
    listener, blocked, last = listen(), [Heard() for _ in range(33)], Heard()
    for each in (*blocked, last):
        listener.raw.on("checkpoint")(each)
    for each in blocked:
        each.gate.clear()
    await listener.start()
    await store(saver, numbers(0, 3))
    try:
        await last.reach(numbers(0, 3))
        # The async driver looks hosts up in the loop's own threads.
        await asyncio.wait_for(asyncio.to_thread(lambda: None), PATIENCE)
    finally:
        for each in blocked:
            each.gate.set()


# --- subscriptions -------------------------------------------------------------------------------------------------


async def test_a_subscription_is_an_iterator_that_ends_with_the_listener(saver: Surface, listen: Listen) -> None:
    listener = listen()
    await listener.start()
    subscription = listener.raw.subscribe("checkpoint", thread_id="1")
    await store(saver, ["other"], "2")
    await store(saver, numbers(0, 3))
    first = await listener.next(subscription)
    assert first is not None
    assert (first.thread_id, first.checkpoint_id) == ("1", "000000")
    await reach(lambda: listener.status.pending == 2, "the others wait")
    await listener.stop()
    assert [(await listener.next(subscription)).checkpoint_id for _ in range(2)] == numbers(1, 3)
    assert await listener.next(subscription) is None
    assert await listener.next(subscription) is None


async def test_closing_ends_a_subscription_also_while_it_is_waited_for(saver: Surface, listen: Listen) -> None:
    listener = listen()
    await listener.start()
    subscription = listener.raw.subscribe()
    waiting = asyncio.create_task(listener.next(subscription))
    await asyncio.sleep(0.1)
    subscription.close()
    assert await waiting is None
    subscription.close()
    await store(saver, ["a"])
    assert await listener.next(subscription) is None


async def test_leaving_its_with_closes_a_subscription(saver: Surface, listen: Listen) -> None:
    listener = listen()
    await listener.start()
    subscription = listener.raw.subscribe()
    if listener.blocking:
        with subscription as same:
            pass
    else:
        async with subscription as same:
            pass
    assert same is subscription
    assert await listener.next(subscription) is None


def workers() -> int:
    """The threads of callbacks; drivers and servers start others as they like."""
    return len([thread for thread in threading.enumerate() if "_handle" in thread.name])


async def test_a_thousand_subscriptions_leave_nothing_behind(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(), Heard()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    threads = workers()
    for number in range(1000):
        subscription = listener.raw.subscribe("checkpoint")
        if number % 100 == 0:
            await store(saver, [f"{number:06}"])
        subscription.close()
    kind = type(subscription)
    del subscription
    await heard.reach([f"{number:06}" for number in range(0, 1000, 100)])
    gc.collect()
    mine = [each for each in gc.get_objects() if type(each) is kind and each._closed.__self__ is listener.raw]
    assert len(mine) == 1  # the callback's
    assert workers() == threads
    assert listener.status.pending == 0
    await reach(lambda: not listener.raw._ledger.busy, "nothing is open")


@pytest.mark.parametrize("ended", ["stopped", "failed"])
async def test_a_subscription_to_a_listener_that_has_ended_ends(
    listen: Listen, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen()
    if ended == "failed":
        monkeypatch.setattr(type(listener.raw), "_follow", None)
        with pytest.raises(TypeError):
            await listener.start()
    else:
        await listener.start()
        await listener.stop()
    assert listener.status.state == ended
    monkeypatch.setattr("tests.listening.PATIENCE", 3.0)
    subscription = listener.raw.subscribe()
    if ended == "failed":
        with pytest.raises(TypeError):
            await listener.next(subscription)
    else:
        assert await listener.next(subscription) is None


# --- full mailboxes ------------------------------------------------------------------------------------------------


async def test_drop_oldest_drops_counts_and_stops_nobody(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(), Heard()
    slow = listener.raw.subscribe("checkpoint", size=3, policy="drop_oldest")
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, numbers(0, 10))
    await heard.reach(numbers(0, 10))
    await reach(lambda: slow.dropped == 7, "the oldest are dropped")
    assert listener.status.dropped == 7
    assert [(await listener.next(slow)).checkpoint_id for _ in range(3)] == numbers(7, 10)
    slow.close()
    assert listener.status.dropped == 7


async def test_a_slow_subscriber_makes_the_stream_wait_and_loses_nothing(saver: Surface, listen: Listen) -> None:
    listener, most, ids = listen(), 0, []

    @listener.raw.on("checkpoint", size=5)
    async def slow(event: CheckpointEvent) -> None:
        nonlocal most
        most = max(most, listener.status.pending)
        await asyncio.sleep(0.02)
        ids.append(event.checkpoint_id)

    await listener.start()
    await store(saver, numbers(0, 100))
    await reach(lambda: len(ids) >= 100, "all arrive")
    assert ids == numbers(0, 100)
    assert most <= 5
    assert listener.status.dropped == 0
    assert len(listener.raw._ledger._open) <= 1


async def test_while_one_waits_no_more_is_taken_in(saver: Surface, listen: Listen) -> None:
    listener, slow, fast = listen(), Heard(), Heard()
    slow.gate.clear()
    listener.raw.on("checkpoint", size=2)(slow)
    listener.raw.on("checkpoint")(fast)
    await listener.start()
    await store(saver, numbers(0, 30))
    await reach(lambda: slow.began == 1 and listener.status.pending == 2, "the mailbox is full")
    assert len(fast.events) <= 4
    slow.gate.set()
    await slow.reach(numbers(0, 30))
    await fast.reach(numbers(0, 30))
