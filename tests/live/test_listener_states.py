"""How a listener starts, ends and fails, and what it tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from langgraph_mongo_saver import ChangeStreamsUnavailable, CheckpointEvent, EventsLost
from tests.faults import Proxy
from tests.listening import SURFACES, Heard, Listen, listeners, numbers, reach, store
from tests.servers import Server
from tests.surfaces import OpenSurface, Surface

pytestmark = pytest.mark.needs_replica_set


@pytest.fixture(params=SURFACES)
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def listen(saver: Surface) -> AsyncIterator[Listen]:
    """Construct listeners, which are stopped at the end."""
    async with listeners(saver) as construct:
        yield construct


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    host, port = server.uri.split("/")[2].split(":")
    with Proxy(host, int(port)) as proxy:
        yield proxy


async def test_it_tells_how_it_is_doing(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(), Heard()
    assert listener.status.state == "new"
    heard.gate.clear()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    assert listener.status.state == "running"
    assert listener.status.last_event is None
    assert listener.status.lag is None
    await store(saver, numbers(0, 3))
    await reach(lambda: heard.began == 1 and listener.status.pending == 2, "two wait")
    status = listener.status
    assert status.last_event is not None
    assert status.last_event.checkpoint_id == "000002"
    assert status.lag is not None
    assert abs(timedelta(seconds=status.lag)) < timedelta(minutes=1)
    heard.gate.set()
    await reach(lambda: len(heard.events) == 3 and not listener.status.pending, "they are handled")
    await listener.stop()
    assert (listener.status.state, listener.status.error, listener.status.dropped) == ("stopped", None, 0)


async def test_stopping_handles_what_was_received(saver: Surface, listen: Listen) -> None:
    listener, ids = listen(), []

    @listener.raw.on("checkpoint")
    async def slow(event: CheckpointEvent) -> None:
        await asyncio.sleep(0.05)
        ids.append(event.checkpoint_id)

    await listener.start()
    await store(saver, numbers(0, 20))
    await reach(lambda: listener.status.last_event and listener.status.last_event.checkpoint_id == "000019", "received")
    await listener.stop()
    assert ids == numbers(0, 20)
    assert listener.status.pending == 0
    await store(saver, ["later"])
    assert ids == numbers(0, 20)


async def test_stopping_waits_no_longer_than_it_may(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(), Heard()
    heard.gate.clear()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, ["a"])
    await reach(lambda: heard.began, "it is being handled")
    await listener.stop(0.1)
    await listener.state("stopped")
    assert heard.events == []
    heard.gate.set()
    await reach(lambda: heard.events, "it ends by itself")


async def test_stopping_twice_or_before_the_start_does_nothing(listen: Listen) -> None:
    listener = listen()
    await listener.stop()
    other = listen()
    await other.start()
    await other.stop()
    await other.stop()
    assert other.status.state == "stopped"


async def test_waiting_ends_with_the_listener(listen: Listen) -> None:
    listener = listen()
    await listener.start()
    waiting = asyncio.create_task(listener.wait())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await listener.stop()
    await waiting
    assert listener.status.state == "stopped"


async def test_a_with_starts_and_stops(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(), Heard()
    listener.raw.on("checkpoint")(heard)

    async def body() -> None:
        assert listener.status.state == "running"
        await store(saver, ["a"])
        await heard.reach(["a"])

    await listener.within(body)
    assert listener.status.state == "stopped"


async def test_what_a_with_raises_is_raised(listen: Listen) -> None:
    listener = listen()

    async def body() -> None:
        raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        await listener.within(body)
    assert listener.status.state == "stopped"


class Broken(Exception):
    """Something that does not pass by itself."""


@pytest.fixture
def break_it(monkeypatch: pytest.MonkeyPatch, listen: Listen) -> Any:
    """Let the stream of a running listener fail at its next step."""

    def break_(listener: Any) -> None:
        def step() -> Any:
            raise Broken("the stream")

        monkeypatch.setattr(listener.raw._stream, "step", step)

    return break_


async def test_a_with_whose_listener_failed_raises_that(listen: Listen, break_it: Any) -> None:
    listener = listen()

    async def body() -> None:
        break_it(listener)
        await listener.state("failed")

    with pytest.raises(Broken):
        await listener.within(body)


async def test_the_failure_is_told_to_all_who_wait(saver: Surface, listen: Listen, break_it: Any) -> None:
    listener, heard = listen(), Heard()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    subscription = listener.raw.subscribe("checkpoint")
    await store(saver, ["a"])
    await heard.reach(["a"])
    await reach(lambda: listener.status.pending, "it waits in the subscription")
    waiting = asyncio.create_task(listener.wait())
    break_it(listener)
    with pytest.raises(Broken):
        await waiting
    assert listener.status.state == "failed"
    assert isinstance(listener.status.error, Broken)
    assert (await listener.next(subscription)).checkpoint_id == "a"
    with pytest.raises(Broken):
        await listener.next(subscription)
    with pytest.raises(Broken):
        await listener.start()


async def test_a_server_without_change_streams_is_told_at_the_start(
    saver: Surface, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What a standalone mongod answers.
        raise OperationFailure("The $changeStream stage is only supported on replica sets", 40573)

    monkeypatch.setattr(type(saver.raw.db), "watch", watch)
    listener = listen()
    with pytest.raises(ChangeStreamsUnavailable):
        await listener.start()
    assert listener.status.state == "failed"
    assert isinstance(listener.status.error, ChangeStreamsUnavailable)


async def test_events_that_the_server_no_longer_has_end_it(
    saver: Surface, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, heard = listen(), Heard()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, ["a"])
    await heard.reach(["a"])
    await listener.stop()

    def watch(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise OperationFailure("the resume point may no longer be in the oplog", 286)

    monkeypatch.setattr(type(saver.raw.db), "watch", watch)
    late = listen(resume_from=heard.events[0].position)
    with pytest.raises(EventsLost):
        await late.start()
    assert isinstance(late.status.error, EventsLost)


async def test_a_server_that_does_not_answer_is_told_at_the_start(open_saver: OpenSurface) -> None:
    gone = await open_saver(
        uri="mongodb://127.0.0.1:1/?directConnection=true", retry_seconds=0.2, client_serverSelectionTimeoutMS=100
    )
    async with listeners(gone) as listen:
        for arguments in ({}, {"name": "n"}):
            listener = listen(**arguments)
            with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
                await listener.start()
            assert listener.status.state == "failed"


async def test_a_cut_connection_is_counted_once_and_loses_nothing(open_saver: OpenSurface, proxy: Proxy) -> None:
    through, near = await open_saver(uri=proxy.uri, client_serverSelectionTimeoutMS=500), await open_saver()
    async with listeners(through) as listen:
        listener, heard = listen(), Heard()
        listener.raw.on("checkpoint")(heard)
        await listener.start()
        await store(near, ["a"])
        await heard.reach(["a"])
        proxy.refuse()
        await listener.state("reconnecting")
        await store(near, ["b"])
        proxy.accept()
        await heard.reach(["a", "b"])
        await listener.state("running")
        reconnects = listener.status.reconnects
        assert reconnects >= 1
        await listener.stop()
        assert listener.status.reconnects == reconnects


async def test_a_listener_may_ask_again_and_again_instead(saver: Surface, listen: Listen) -> None:
    listener, heard = listen(poll_interval=0.05), Heard()
    listener.raw.on("checkpoint")(heard)
    await listener.start()
    await store(saver, numbers(0, 3))
    await heard.reach(numbers(0, 3))
