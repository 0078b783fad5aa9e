"""A name keeps a position: nothing is lost over restarts, and one process at a time handles it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pymongo import MongoClient

from langgraph_mongo_saver import ListenerBusy
from langgraph_mongo_saver.settings import LISTENERS
from tests.faults import Proxy
from tests.listening import SURFACES, Ear, Heard, Listen, listeners, numbers, reach, store
from tests.surfaces import OpenSurface, Surface

pytestmark = pytest.mark.needs_replica_set

LONG_AGO = datetime(2000, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(params=SURFACES)
def surface_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def listen(saver: Surface) -> AsyncIterator[Listen]:
    """Construct listeners, which are stopped at the end."""
    async with listeners(saver) as construct:
        yield construct


@pytest.fixture
def kept(mongo: MongoClient[Any], db_name: str) -> Any:
    """The collection of what named listeners keep."""
    return mongo[db_name][LISTENERS]


def hear(listener: Ear, **options: Any) -> Heard:
    heard = Heard()
    listener.raw.on("checkpoint", **options)(heard)
    return heard


def position(kept: Any, name: str = "n") -> str | None:
    return (kept.find_one({"_id": name}) or {}).get("position")


def take_away(kept: Any, owner: str = "another") -> None:
    """Let another process have the lease, as if the listener had not renewed it in time."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    assert kept.update_one({"_id": "n"}, {"$set": {"owner": owner, "until": until}}).matched_count


async def test_it_goes_on_after_a_restart(saver: Surface, listen: Listen) -> None:
    await store(saver, ["before"])
    for turn in range(3):
        listener = listen(name="n")
        heard = hear(listener)
        await listener.start()
        expected = numbers(turn * 10 - 5 if turn else 0, turn * 10 + 5)
        await store(saver, numbers(turn * 10, turn * 10 + 5))
        await heard.reach(expected)
        await listener.stop()
        await store(saver, numbers(turn * 10 + 5, turn * 10 + 10))
        assert heard.ids == expected


async def test_a_position_that_was_kept_goes_before_the_one_that_is_given(saver: Surface, listen: Listen) -> None:
    first = listen(name="n")
    heard = hear(first)
    await first.start()
    await store(saver, numbers(0, 2))
    await heard.reach(numbers(0, 2))
    begin = heard.events[0].position
    await first.stop()
    for name, expected in (("n", numbers(2, 3)), ("new", numbers(1, 3))):
        listener = listen(name=name, resume_from=begin)
        heard = hear(listener)
        await listener.start()
        if name == "n":
            await store(saver, numbers(2, 3))
        await heard.reach(expected)


async def test_names_are_apart_also_hostile_ones(saver: Surface, listen: Listen, kept: Any) -> None:
    names = ["$x", "$$NOW", "$owner", "a.b", "\0", "{'$ne': 1}"]
    found = [listen(name=name, lease_seconds=1) for name in names]
    heard = [hear(listener) for listener in found]
    for listener in found:
        await listener.start()
        assert listener.status.state == "running"
    await store(saver, ["a"])
    for each in heard:
        await each.reach(["a"])
    for listener in found:
        await listener.stop()
    assert sorted(document["_id"] for document in kept.find()) == sorted(names)
    assert all(isinstance(document["position"], str) for document in kept.find())


async def test_the_position_waits_for_the_handler(saver: Surface, listen: Listen, kept: Any) -> None:
    listener = listen(name="n", lease_seconds=1)
    slow, fast = hear(listener), hear(listener)
    await listener.start()
    await reach(lambda: position(kept), "the beginning is kept")
    slow.gate.clear()
    await store(saver, numbers(0, 3))
    await fast.reach(numbers(0, 3))
    await asyncio.sleep(1)
    held = position(kept)
    saved = kept.find_one()["until"]
    await reach(lambda: kept.find_one()["until"] > saved, "the lease is kept meanwhile")
    assert position(kept) == held
    assert listener.status.position_age is not None
    assert listener.status.position_age >= 1
    # Whoever went on there would be told of all three again.
    async with listeners(saver) as another:
        probe = another(resume_from=held)
        again = hear(probe)
        await probe.start()
        await again.reach(numbers(0, 3))
    slow.gate.set()
    await reach(lambda: position(kept) != held, "the position moves on")


async def test_the_beginning_is_kept_before_anything_can_be_stored(listen: Listen, kept: Any) -> None:
    # Else a process that is killed now loses what is stored before the next one starts.
    listener = listen(name="n")
    await listener.start()
    assert position(kept) is not None


async def test_on_a_quiet_stream_the_position_moves_on(saver: Surface, listen: Listen, kept: Any) -> None:
    listener = listen(name="n", thread_id="none", lease_seconds=1)
    await listener.start()
    await reach(lambda: position(kept), "the beginning is kept")
    for _ in range(3):
        before = position(kept)
        await store(saver, ["other"], "another thread")
        await reach(lambda before=before: position(kept) != before, "it moves on")
    assert listener.status.position_age is not None
    assert listener.status.position_age < 5


async def test_one_is_active_and_another_takes_over_after_its_stop(saver: Surface, listen: Listen) -> None:
    first, second = listen(name="n", lease_seconds=3600), listen(name="n", lease_seconds=1)
    heard, later = hear(first), hear(second)
    await first.start()
    await second.start()
    assert (first.status.state, second.status.state) == ("running", "standby")
    await store(saver, numbers(0, 3))
    await heard.reach(numbers(0, 3))
    await first.stop()
    await store(saver, numbers(3, 6))
    await second.state("running")
    await later.reach(numbers(3, 6))
    assert heard.ids == numbers(0, 3)


async def test_another_takes_over_from_a_process_that_died(saver: Surface, listen: Listen, kept: Any) -> None:
    first = listen(name="n")
    heard = hear(first)
    await first.start()
    await store(saver, ["a"])
    await heard.reach(["a"])
    await first.stop()
    take_away(kept, "a dead process")
    second = listen(name="n", lease_seconds=1)
    later = hear(second)
    await second.start()
    assert second.status.state == "standby"
    await store(saver, ["b"])
    assert later.events == []
    kept.update_one({"_id": "n"}, {"$set": {"until": datetime.now(timezone.utc) + timedelta(seconds=1)}})
    await later.reach(["b"])
    assert second.status.state == "running"


async def test_without_standby_a_busy_name_is_an_error(saver: Surface, listen: Listen) -> None:
    first, second = listen(name="n"), listen(name="n", standby=False)
    await first.start()
    with pytest.raises(ListenerBusy):
        await second.start()
    assert second.status.state == "failed"
    assert isinstance(second.status.error, ListenerBusy)
    assert first.status.state == "running"
    await first.stop()
    third = listen(name="n", standby=False)
    await third.start()
    assert third.status.state == "running"


async def test_a_standby_can_be_stopped(listen: Listen, kept: Any) -> None:
    first, second = listen(name="n"), listen(name="n")
    await first.start()
    await second.start()
    owner = kept.find_one()["owner"]
    await second.stop()
    assert second.status.state == "stopped"
    assert kept.find_one()["owner"] == owner
    assert kept.find_one()["until"] > LONG_AGO


async def test_whoever_lost_the_lease_stops_handling_and_stands_by(saver: Surface, listen: Listen, kept: Any) -> None:
    listener = listen(name="n", lease_seconds=1)
    heard = hear(listener, size=5)
    await listener.start()
    await store(saver, ["a"])
    await heard.reach(["a"])
    for _ in range(2):  # the first one may have begun before it was handled
        before = position(kept)
        await reach(lambda before=before: position(kept) != before, "it is kept that it was handled")
    heard.gate.clear()
    await store(saver, numbers(0, 20))
    await reach(lambda: heard.began == 2 and listener.status.pending == 5, "the mailbox is full")
    take_away(kept)
    await listener.state("standby")
    held = position(kept)
    assert listener.status.pending == 0
    heard.gate.set()
    await reach(lambda: len(heard.events) == 2, "what was being handled ends")
    await store(saver, ["b"])
    await asyncio.sleep(1)
    assert heard.ids == ["a", "000000"]
    assert position(kept) == held
    kept.update_one({"_id": "n"}, {"$set": {"until": LONG_AGO}})
    await reach(lambda: len(heard.events) >= 23, "it leads again and goes on where it was")
    assert heard.ids == ["a", "000000", *numbers(0, 20), "b"]


async def test_it_stands_an_outage_longer_than_the_savers_patience(open_saver: OpenSurface, server: Any) -> None:
    host, port = server.uri.split("/")[2].split(":")
    with Proxy(host, int(port)) as proxy:
        options = {"serverSelectionTimeoutMS": 200, "connectTimeoutMS": 200}
        through = await open_saver(
            uri=proxy.uri, retry_seconds=0.3, **{f"client_{key}": value for key, value in options.items()}
        )
        near = await open_saver()
        async with listeners(through) as listen:
            listener = listen(name="n", lease_seconds=1)
            heard = hear(listener)
            await listener.start()
            await store(near, ["a"])
            await heard.reach(["a"])
            proxy.refuse()
            await asyncio.sleep(3)
            await store(near, ["b"])
            assert listener.status.state == "reconnecting"
            proxy.accept()
            await heard.reach(["a", "b"])


async def test_it_goes_on_in_a_new_database_after_a_drop(
    saver: Surface, listen: Listen, kept: Any, mongo: MongoClient[Any], db_name: str
) -> None:
    listener = listen(name="n", lease_seconds=1)
    heard = hear(listener, size=5)
    await listener.start()
    await store(saver, ["a"])
    await heard.reach(["a"])
    heard.gate.clear()
    mongo.drop_database(db_name)
    await store(saver, numbers(0, 20))
    await reach(kept.find_one, "it keeps a lease again")
    heard.gate.set()
    await store(saver, ["b"])
    await reach(lambda: "b" in heard.ids, "it goes on")
    # Some may come twice.
    assert list(dict.fromkeys(heard.ids)) == ["a", *numbers(0, 20), "b"]


async def test_what_did_not_fit_into_a_mailbox_before_the_stop_comes_after_a_restart(
    saver: Surface, listen: Listen
) -> None:
    first, heard = listen(name="n"), Heard()
    first.raw.on("checkpoint", size=2)(heard)
    await first.start()
    heard.gate.clear()
    await store(saver, numbers(0, 20))
    await reach(lambda: heard.began == 1 and first.status.pending == 2, "the mailbox is full")
    await first.stop(0.2)
    heard.gate.set()
    second = listen(name="n")
    rest = hear(second)
    await second.start()
    await reach(lambda: len(rest.events) >= 20, "what was not handled in time comes again")
    assert rest.ids == numbers(0, 20)


async def test_what_a_subscriber_has_not_come_back_from_comes_again(saver: Surface, listen: Listen) -> None:
    first = listen(name="n")
    subscription = first.raw.subscribe("checkpoint")
    await first.start()
    await store(saver, numbers(0, 3))
    for _ in range(2):
        await first.next(subscription)
    await first.stop()
    second = listen(name="n")
    rest = hear(second)
    await second.start()
    await rest.reach(numbers(1, 3))


async def test_several_callbacks_that_hang_do_not_keep_the_lease(saver: Surface, listen: Listen, kept: Any) -> None:
    listener = listen(name="n", lease_seconds=3600)
    heard = [hear(listener) for _ in range(4)]
    for each in heard:
        each.gate.clear()
    await listener.start()
    await store(saver, ["a"])
    await reach(lambda: all(each.began for each in heard), "all of them hang")
    await listener.stop(1.0)
    until = kept.find_one()["until"]
    for each in heard:
        each.gate.set()
    assert until == LONG_AGO
