"""Pending writes: which of them count, and in which order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver

from tests.building import checkpoint, config
from tests.steps import LARGE, at_once, put, writes
from tests.surfaces import Surface

HERE = config(checkpoint_id="1")


async def after(saver: Surface, *calls: Any) -> list[Any]:
    """The pending writes of a checkpoint after these calls of put_writes."""
    await put(saver, config(), id="1")
    for call in calls:
        await saver.put_writes(HERE, *call)
    return await writes(saver, HERE)


async def test_they_come_by_path_then_task_then_index(saver: Surface) -> None:
    found = await after(
        saver,
        ([("c", 1), ("c", 2)], "task-a", "~__pregel_pull, 2"),
        ([("c", 3), ("__interrupt__", 4)], "task-c", "~__pregel_pull, 1"),
        ([("c", 5)], "task-b", "~__pregel_pull, 1"),
        ([("c", 6)], "task-d"),
    )
    assert found == [
        ("task-d", "c", 6),
        ("task-b", "c", 5),
        ("task-c", "__interrupt__", 4),
        ("task-c", "c", 3),
        ("task-a", "c", 1),
        ("task-a", "c", 2),
    ]


async def test_the_last_special_and_the_first_ordinary_write_count(saver: Surface) -> None:
    found = await after(
        saver,
        ([("a", "first"), ("__interrupt__", "first")], "t"),
        ([("a", "second"), ("__interrupt__", "second"), ("b", "second")], "t"),
        ([("__error__", "third"), ("c", "third"), ("d", "third"), ("e", "third")], "t"),
    )
    assert found == [
        ("t", "__interrupt__", "second"),
        ("t", "__error__", "third"),
        ("t", "a", "first"),
        ("t", "c", "third"),
        ("t", "b", "second"),
        ("t", "e", "third"),
    ]


async def test_a_special_channel_twice_in_one_batch_counts_once(saver: Surface) -> None:
    found = await after(saver, ([("__resume__", 1), ("a", 2), ("__resume__", 3)], "t"))
    assert found == [("t", "__resume__", 3), ("t", "a", 2)]


@pytest.mark.parametrize("second", ["", "other"])
async def test_the_path_is_no_part_of_what_a_write_is(saver: Surface, second: str) -> None:
    found = await after(saver, ([("a", 1), ("__interrupt__", 1)], "t", "path"), ([("__interrupt__", 2)], "t", second))
    assert sorted(found) == [("t", "__interrupt__", 2), ("t", "a", 1)]


async def test_an_empty_batch_is_nothing(saver: Surface, mongo: Any, db_name: str) -> None:
    assert await after(saver, ([], "t")) == []
    assert mongo[db_name].checkpoint_writes.count_documents({}) == 0


async def test_they_may_be_there_before_their_checkpoint(saver: Surface) -> None:
    await saver.put_writes(HERE, [("a", 1), ("b", "x" * LARGE)], "t")
    assert await saver.get_tuple(HERE) is None
    assert await saver.list(None) == []
    await put(saver, config(), id="1")
    assert await writes(saver, config()) == [("t", "a", 1), ("t", "b", "x" * LARGE)]


async def test_they_belong_to_their_checkpoint_alone(saver: Surface) -> None:
    places = [config("1", "", "1"), config("1", "", "2"), config("1", "sub", "1"), config("2", "", "1")]
    for number, place in enumerate(places):
        await put(saver, place, id=place["configurable"]["checkpoint_id"])
        await saver.put_writes(place, [("n", number)], "t")
    for number, place in enumerate(places):
        assert await writes(saver, place) == [("t", "n", number)]
    assert sorted(loaded.pending_writes[0][2] for loaded in await saver.list(None)) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
async def test_any_calls_leave_what_they_leave_in_memory(saver: Surface, seed: int) -> None:
    choose = random.Random(seed)
    channels = ["a", "b.$c", "", "%", "\ud800", "0", *WRITES_IDX_MAP]
    model, stored = InMemorySaver(), checkpoint(id="1")
    await put(saver, config(), id="1")
    model.put(config(), stored, {}, {})
    for number in range(25):
        batch = [(choose.choice(channels), [number, i]) for i in range(choose.randrange(5))]
        task, path = choose.choice("xyz"), choose.choice(["", "p", "q"])
        await saver.put_writes(HERE, batch, task, path)
        model.put_writes(HERE, batch, task, path)
    expected = model.get_tuple(HERE)
    assert expected is not None
    assert await writes(saver, HERE) == expected.pending_writes


async def test_racing_writes_of_one_task_neither_fail_nor_get_lost(saver: Surface) -> None:
    await put(saver, config(), id="1")
    specials = list(WRITES_IDX_MAP)
    batches = [[(specials[n % len(specials)], n), *(("a", [n, i]) for i in range(n % 4))] for n in range(24)]
    await asyncio.gather(*(at_once(saver, "put_writes", HERE, batch, "t") for batch in batches))
    found = await writes(saver, HERE)
    assert {channel for _, channel, _ in found} == {"a", *specials}
    assert len(found) == len(specials) + 3
    for _, channel, value in found:
        assert (channel, value) in batches[value[0] if channel == "a" else value]


async def test_racing_writes_of_many_tasks_all_arrive(saver: Surface) -> None:
    calls = [at_once(saver, "put_writes", HERE, [("a", n), ("b", n)], f"t{n:02}") for n in range(30)]
    await asyncio.gather(*calls, at_once(saver, "put", config(), checkpoint(id="1"), {"step": 1}, {}))
    assert await writes(saver, HERE) == [(f"t{n:02}", channel, n) for n in range(30) for channel in "ab"]


@pytest.mark.parametrize("writes_of_task", [50, 1000])
async def test_a_task_may_write_much(saver: Surface, writes_of_task: int) -> None:
    given = [("a", f"{n}" * (5_000_000 // writes_of_task)) for n in range(writes_of_task)]
    expected = [("t", channel, value) for channel, value in given]
    assert await after(saver, (given, "t")) == expected
    assert await after(saver, (given, "t")) == expected
    more = [("b", "taken"), *given[1:], ("a", "more"), ("b", "more")]
    assert await after(saver, (more, "t")) == [*expected, ("t", "a", "more"), ("t", "b", "more")]
