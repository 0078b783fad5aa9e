"""What `get_delta_channel_history` and `get_delta_channel_keepset` promise, one promise a test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import ERROR, _DeltaSnapshot
from langgraph.types import Overwrite
from pymongo import MongoClient

from langgraph_mongo_saver import InvalidArgument
from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import LARGE, put, writes
from tests.surfaces import OpenSurface, Surface

SNAPSHOT = _DeltaSnapshot(["before"])


ONE = pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
DIALECTS = pytest.mark.parametrize("dialect", ["mongodb", "basic"])


class Thread:
    """A run that goes on from its last checkpoint, or from an older one."""

    def __init__(self, saver: Surface, place: Any = None) -> None:
        self.saver, self.place, self.number = saver, place or config(), 0

    async def step(self, *written: Any, id: str | None = None, **values: Any) -> Any:
        """The next checkpoint, with these values; writes to ``log`` are made on it."""
        self.number += 1
        versions = {**dict.fromkeys(("log", "rare"), -self.number), **dict.fromkeys(values, self.number)}
        self.place = await put(self.saver, self.place, values, versions, id=id)
        await self.saver.put_writes(self.place, [("log", write) for write in written], f"task-{self.number}", "p")
        return self.place


async def history(saver: Surface, at: Any, *channels: str) -> Any:
    return await saver.call("get_delta_channel_history", config=at, channels=list(channels or ["log"]))


async def keepset(saver: Surface, at: Any, *channels: str) -> Any:
    return await saver.call("get_delta_channel_keepset", config=at, channels=list(channels))


async def log(saver: Surface, at: Any) -> list[Any]:
    return [value for _, _, value in (await history(saver, at))["log"]["writes"]]


def ids(*places: Any) -> set[str]:
    return {place["configurable"]["checkpoint_id"] for place in places}


# --- history -------------------------------------------------------------------------------------------------------


async def test_writes_come_oldest_first_and_the_targets_own_are_not_its_value(saver: Surface) -> None:
    thread = Thread(saver)
    root, _, target = await thread.step("a", "b"), await thread.step("c"), await thread.step("own")
    writes = [("task-1", "log", "a"), ("task-1", "log", "b"), ("task-2", "log", "c")]
    assert await history(saver, target) == {"log": {"writes": writes}}
    assert await history(saver, root) == {"log": {"writes": []}}


SEEDS = {
    "snapshot": SNAPSHOT,
    "empty snapshot": _DeltaSnapshot([]),
    "large snapshot": _DeltaSnapshot(["x" * LARGE]),
    "plain": ["plain"],
    "large": "x" * LARGE,
    "None": None,
    "False": False,
    "empty list": [],
    "0": 0,
    "empty string": "",
}


@ONE
async def test_the_nearest_value_is_the_seed_and_the_writes_made_on_it_count(saver: Surface) -> None:
    for name, seed in SEEDS.items():
        thread = Thread(saver, config(name))
        await thread.step("lost", log=["older"])
        await thread.step("lost")
        await thread.step("with the seed", log=seed)
        await thread.step("after")
        found = (await history(saver, await thread.step(log="the target's own")))["log"]
        assert [value for _, _, value in found["writes"]] == ["with the seed", "after"]
        assert type(found["seed"]) is type(seed)
        assert found["seed"] == seed


@ONE
async def test_a_snapshot_counts_for_as_long_as_its_version_stays(saver: Surface) -> None:
    first = await put(saver, config(), {"log": SNAPSHOT}, {"log": 1})
    await saver.put_writes(first, [("log", "lost")], "t")
    second = await put(saver, first, {}, {"log": 1}, new={})
    third = await put(saver, second, {}, {"log": 1}, new={})
    assert await history(saver, third) == {"log": {"seed": SNAPSHOT, "writes": []}}
    assert await keepset(saver, third, "log") == ids(third)


@ONE
async def test_within_a_checkpoint_writes_come_by_task_path_task_id_and_index(saver: Surface) -> None:
    thread = Thread(saver)
    root = await thread.step()
    paths = {"~__pregel_pull, b": "t1", "~__pregel_pull, a": "t3", "~__pregel_push, 0000000002": "t0", "": "t9"}
    for path, task_id in paths.items():
        await saver.put_writes(root, [("other", 0), ("log", f"{task_id}.1"), ("log", f"{task_id}.2")], task_id, path)
    await saver.put_writes(root, [("log", "t2.0")], "t2", "~__pregel_pull, a")
    expected = ["t9.1", "t9.2", "t2.0", "t3.1", "t3.2", "t1.1", "t1.2", "t0.1", "t0.2"]
    assert await log(saver, await thread.step()) == expected


@ONE
async def test_what_is_added_to_the_writes_of_a_task_has_its_place_among_them(saver: Surface) -> None:
    thread = Thread(saver)
    root = await thread.step()
    await saver.put_writes(root, [("log", "0"), (ERROR, "no number of its own"), ("log", "2")], "t", "p")
    await saver.put_writes(root, [("log", "taken"), ("log", "1"), ("log", "taken")], "t", "p")
    await saver.put_writes(root, [("other", 0)] * 3 + [("log", "first")], "t", "a")
    expected = ["first", "0", "1", "2"]
    assert [value for _, channel, value in await writes(saver, root) if channel == "log"] == expected
    assert await log(saver, await thread.step()) == expected


@ONE
async def test_a_task_that_wrote_under_two_paths_comes_twice(saver: Surface) -> None:
    thread = Thread(saver)
    root = await thread.step()
    await saver.put_writes(root, [(ERROR, "no number of its own"), ("log", "last")], "t", "p2")
    await saver.put_writes(root, [("log", "first")], "t", "p1")
    await saver.put_writes(root, [("log", "between")], "u", "p15")
    assert await log(saver, await thread.step()) == ["first", "between", "last"]


@ONE
async def test_a_write_whose_place_is_taken_adds_nothing(saver: Surface) -> None:
    thread = Thread(saver)
    root = await thread.step()
    await saver.put_writes(root, [("other", 0)], "t")
    await saver.put_writes(root, [("log", "taken")], "t")
    assert await history(saver, await thread.step()) == {"log": {"writes": []}}


@ONE
async def test_a_channel_may_have_any_name(saver: Surface) -> None:
    names = ["a.b", "$x", "", "%", "0", "a$", "\ud800"]
    thread = Thread(saver)
    root = await thread.step()
    await saver.put_writes(root, [(name, number) for number, name in enumerate(names)], "t")
    found = await history(saver, await thread.step(), *names)
    assert found == {name: {"writes": [("t", name, number)]} for number, name in enumerate(names)}


@ONE
async def test_channels_end_independently(saver: Surface) -> None:
    thread = Thread(saver)
    places = [await thread.step(rare=["rare"]), await thread.step(log=["log"]), await thread.step()]
    for number, place in enumerate(places):
        await saver.put_writes(place, [("log", number), ("rare", number), ("unset", number)], "all")
    found = await history(saver, await thread.step(), "log", "rare", "unset", "nothing")
    assert {c: (f.get("seed"), [w[2] for w in f["writes"]]) for c, f in found.items()} == {
        "log": (["log"], [1, 2]),
        "rare": (["rare"], [0, 1, 2]),
        "unset": (None, [0, 1, 2]),
        "nothing": (None, []),
    }
    assert "seed" not in found["unset"]


@ONE
async def test_forks_of_forks_see_their_own_path_only(saver: Surface) -> None:
    root = await Thread(saver).step("root")
    left, right = Thread(saver, root), Thread(saver, root)
    middle = await left.step("left")
    await right.step("right")
    again = Thread(saver, middle)
    await left.step("on")
    await again.step("again")
    assert await log(saver, await left.step()) == ["root", "left", "on"]
    assert await log(saver, await right.step()) == ["root", "right"]
    assert await log(saver, await again.step()) == ["root", "left", "again"]


@ONE
async def test_other_threads_and_namespaces_with_the_same_ids_stay_out(saver: Surface) -> None:
    for place in (config(), config("2"), config("1", "sub:1")):
        thread = Thread(saver, place)
        await thread.step(repr(place), id="1")
        assert await log(saver, await thread.step(id="2")) == [repr(place)]
        assert await keepset(saver, thread.place, "log") == {"1", "2"}


@ONE
async def test_without_an_id_it_is_the_latest(saver: Surface) -> None:
    thread = Thread(saver)
    first, second = await thread.step("a"), await thread.step("b")
    assert await log(saver, config()) == ["a"]
    assert await keepset(saver, config(), "log") == ids(first, second)


# --- keepset -------------------------------------------------------------------------------------------------------


async def test_the_keepset_reaches_to_the_farthest_boundary_and_includes_it(saver: Surface) -> None:
    thread = Thread(saver)
    root = await thread.step()
    rare, between = await thread.step(rare=["rare"]), await thread.step()
    seeded, after, target = await thread.step(log=None), await thread.step(), await thread.step(own=1)
    assert await keepset(saver, target) == ids(target)
    assert await keepset(saver, target, "own") == ids(target)
    assert await keepset(saver, target, "log", "own") == ids(target, after, seeded)
    assert await keepset(saver, target, "log", "rare") == ids(target, after, seeded, between, rare)
    assert await keepset(saver, target, "nothing") == ids(target, after, seeded, between, rare, root)


@ONE
async def test_a_keepset_holds_all_that_the_history_needs(
    saver: Surface, mongo: MongoClient[Any], db_name: str
) -> None:
    thread = Thread(saver)
    for number in range(12):
        await thread.step(number, **({"log": [f"seed {number}"]} if number % 5 == 3 else {}))
    before = await history(saver, thread.place)
    kept = await keepset(saver, thread.place, "log")
    assert len(kept) == 4
    for name in ("checkpoints", "checkpoint_writes"):
        mongo[db_name][name].delete_many({"checkpoint_id": {"$nin": list(kept)}})
    assert await history(saver, thread.place) == before


# --- what is not there ---------------------------------------------------------------------------------------------


@ONE
@DIALECTS
async def test_a_target_that_is_not_stored_has_no_history(open_saver: OpenSurface, dialect: str) -> None:
    saver = await open_saver(dialect=dialect)
    thread = Thread(saver)
    await thread.step("a", id="1", rare=1)
    await thread.step("b", id="2")
    for at in (config("unknown"), config("1", "unknown"), config("1", "", "9"), config("1", "", "15")):
        assert await history(saver, at, "log", "rare") == {"log": {"writes": []}, "rare": {"writes": []}}
        assert await keepset(saver, at, "log") == set()
        assert await keepset(saver, at) == set()


async def test_no_channels_no_history_and_no_command(saver: Surface, recorder: CommandRecorder) -> None:
    place = await Thread(saver).step("a")
    with recorder.recording() as seen:
        assert await saver.call("get_delta_channel_history", config=place, channels=[]) == {}
    assert seen.names == []


async def test_what_is_no_address_or_no_channel_name_is_refused(saver: Surface) -> None:
    for method in ("get_delta_channel_history", "get_delta_channel_keepset"):
        for channels in ("log", b"log", [1], ["log", None], None, 1):
            with pytest.raises(InvalidArgument, match="channels"):
                await saver.call(method, config=config(), channels=channels)
        for at in ({}, config(None), config("1", 2), config("1", "", 3)):
            with pytest.raises(InvalidArgument):
                await saver.call(method, config=at, channels=["log"])


@ONE
async def test_channel_names_may_come_in_any_collection_and_more_than_once(saver: Surface) -> None:
    thread = Thread(saver)
    root, target = await thread.step("a"), await thread.step()
    expected = {"log": {"writes": [("task-1", "log", "a")]}}
    for channels in (["log", "log"], ("log",), {"log"}, {"log": 1}.keys()):
        assert await saver.call("get_delta_channel_history", config=target, channels=channels) == expected
    # One that can be read only once must not be taken for an empty one: what the keepset lacks gets deleted.
    once = (channel for channel in ["log"])
    assert await saver.call("get_delta_channel_keepset", config=target, channels=once) == ids(root, target)


@ONE
@DIALECTS
async def test_a_parent_that_is_gone_is_told_of_once(
    open_saver: OpenSurface, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    saver = await open_saver(dialect=dialect)
    thread = Thread(saver, config(checkpoint_id="gone"))
    first, second, third = await thread.step("a"), await thread.step("b", rare=[]), await thread.step("c")
    with caplog.at_level(logging.WARNING):
        assert await keepset(saver, third, "rare") == ids(second, third)
        assert [r.getMessage() for r in caplog.records if "not stored" in r.getMessage()] == []
        for place, expected in ((third, ["a", "b"]), (second, ["a"]), (third, ["a", "b"])):
            assert await log(saver, place) == expected
        assert await keepset(saver, third, "log") == ids(first, second, third)
    (told,) = [r.getMessage() for r in caplog.records if "not stored" in r.getMessage()]
    assert told.startswith("Thread '1', namespace '': checkpoint gone is referred to as a parent and not stored")


# --- reconstruction ------------------------------------------------------------------------------------------------


def extend(state: list[Any], writes: Sequence[Sequence[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


def rebuilt(found: Mapping[str, Any]) -> list[Any]:
    channel = DeltaChannel(extend, list).from_checkpoint(found.get("seed"))
    channel.replay_writes(found["writes"])
    return channel.get()


@DIALECTS
async def test_a_delta_channel_is_rebuilt_at_every_checkpoint(open_saver: OpenSurface, dialect: str) -> None:
    """Through an era of plain values, snapshots small and large, and an `Overwrite`."""
    saver = await open_saver(dialect=dialect)
    thread, value = Thread(saver), []
    expected: list[tuple[Any, list[Any]]] = []
    for number in range(24):
        kept: Any = value if number < 4 else _DeltaSnapshot(value) if number in (9, 17) else None
        if number == 20:
            write, following = Overwrite(["anew"]), ["anew"]
        else:
            write = [f"{number}" * (LARGE if number == 12 else 1)]
            following = [*value, *write]
        await thread.step(write, id=str(uuid6()), **({} if kept is None else {"log": kept}))
        expected.append((thread.place, value))
        value = following
    for place, then in expected:
        stored = await saver.get_tuple(place)
        assert stored
        own = stored.checkpoint["channel_values"]
        assert (
            rebuilt({"seed": own["log"], "writes": []} if "log" in own else (await history(saver, place))["log"])
            == then
        )
