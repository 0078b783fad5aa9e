"""What is put is what is read."""

from __future__ import annotations

import copy
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage

from langgraph_mongo_saver import CorruptCheckpoint
from tests.building import checkpoint, config
from tests.steps import LARGE, put, values
from tests.surfaces import OpenSurface, Surface

# An embedded value, and one in a blob.
SIZES = {"small": 1, "large": LARGE}
MEMORY = pytest.mark.parametrize("memory", ["warm", "cold"])


async def reader(saver: Surface, open_saver: OpenSurface, memory: str) -> Surface:
    """The same saver, or one that remembers nothing of what was stored."""
    return saver if memory == "warm" else await open_saver()


async def test_a_checkpoint_comes_back_equal(saver: Surface) -> None:
    channel_values = {
        "none": None,
        "false": False,
        "text": "",
        "bytes": b"",
        "array": bytearray(b"\0\1"),
        "list": [],
        "message": HumanMessage("hello", id="m"),
        "a.b": 1,
        "$c|d:e": {"": {1: 2}, "$gt": [1, 2], "x.y": {3}},
        "\0": -(2**63),
        "": "\U0001f642",
        "large": b"x" * LARGE,
    }
    given = checkpoint(channel_values)
    given["versions_seen"] = {"node|a.b": {"$c|d:e": 1}, "": {}}
    given["updated_channels"] = ["a.b"]
    expected = copy.deepcopy(given)
    stored = await saver.put(config(), given, {"source": "input", "step": -1}, given["channel_versions"])
    assert stored == config(checkpoint_id=given["id"])
    loaded = await saver.get_tuple(stored)
    assert loaded is not None
    assert loaded.checkpoint == expected
    assert type(loaded.checkpoint["channel_values"]["array"]) is bytearray
    assert given == expected
    assert loaded.config == stored
    assert loaded.parent_config is None
    assert loaded.pending_writes == []
    assert loaded.metadata["source"] == "input"
    assert loaded.metadata["step"] == -1


async def test_the_parent_is_the_one_that_the_config_names(saver: Surface) -> None:
    first = await put(saver, config())
    second = await put(saver, first)
    other_ns = await put(saver, config(checkpoint_ns="sub:1", checkpoint_id="elsewhere"))
    for stored, parent in (
        (first, None),
        (second, first),
        (other_ns, config(checkpoint_ns="sub:1", checkpoint_id="elsewhere")),
    ):
        loaded = await saver.get_tuple(stored)
        assert loaded is not None
        assert loaded.parent_config == parent


def both(letter: str) -> dict[str, str]:
    """A value of each size."""
    return {channel: letter * size for channel, size in SIZES.items()}


def at(version: int, n: int | None = None) -> dict[str, int]:
    """Versions of these channels, and of the channel n."""
    return {**dict.fromkeys(SIZES, version), **({} if n is None else {"n": n})}


async def test_a_consumed_channel_is_absent_and_none_is_not(saver: Surface) -> None:
    given = {**both("x"), "none": "x", "large none": "x" * LARGE}
    first = await put(saver, config(), given)
    nothing = {"none": None, "large none": None}
    second = await put(saver, first, nothing, {**at(2), "none": 2, "large none": 2, "never": 1})
    assert await values(saver, second) == nothing
    assert await values(saver, first) == given


@MEMORY
async def test_an_unchanged_channel_stays(saver: Surface, open_saver: OpenSurface, memory: str) -> None:
    first = await put(saver, config(), {**both("x"), "n": 0}, at(1, 1))
    saver = await reader(saver, open_saver, memory)
    second = await put(saver, first, {**both("x"), "n": 1}, at(1, 2), new={"n": 2})
    third = await put(saver, second, {**both("x"), "n": 2}, at(1, 3), new={"n": 3})
    assert await values(saver, second) == {**both("x"), "n": 1}
    assert await values(saver, third) == {**both("x"), "n": 2}


@pytest.mark.parametrize("parent", [None, "copied", "unknown"])
async def test_a_put_without_new_versions_stores_all_values(saver: Surface, parent: str | None) -> None:
    before = await put(saver, config(), both("x")) if parent == "copied" else config(checkpoint_id=parent)
    copied = await put(saver, before, both("x"), new={})
    assert await values(saver, copied) == both("x")


@MEMORY
async def test_a_channel_left_out_at_an_unchanged_version_takes_over_the_parents_value(
    saver: Surface, open_saver: OpenSurface, memory: str
) -> None:
    first = await put(saver, config(), {**both("x"), "n": 0}, at(7, 1))
    saver = await reader(saver, open_saver, memory)
    second = await put(saver, first, {"n": 1}, {**at(7, 2), "unset": 7}, new={"n": 2})
    third = await put(saver, second, {"n": 2}, at(7, 3), new={"n": 3})
    fourth = await put(saver, third, {"n": 2}, at(8, 3), new=at(8))
    assert await values(saver, second) == {**both("x"), "n": 1}
    assert await values(saver, third) == {**both("x"), "n": 2}
    assert await values(saver, fourth) == {"n": 2}


async def test_a_put_of_the_same_id_replaces_the_whole_checkpoint(saver: Surface) -> None:
    first = await put(saver, config(), {**both("x"), "b": 1}, metadata={"old": True}, id="same")
    parent = config(checkpoint_id="parent")
    assert await put(saver, parent, both("y"), at(2), metadata={"new": True}, id="same") == first
    loaded = await saver.get_tuple(first)
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == both("y")
    assert loaded.checkpoint["channel_versions"] == at(2)
    assert loaded.metadata == {"source": "loop", "step": 1, "new": True}
    assert loaded.parent_config == parent
    assert len(await saver.list(None)) == 1


async def test_a_value_at_the_version_of_a_replaced_parent_is_the_one_given(
    saver: Surface, open_saver: OpenSurface
) -> None:
    first = await put(saver, config(), {"a": "x" * LARGE}, id="1")
    await put(await open_saver(), config(), {"a": "y" * LARGE}, id="1")
    second = await put(saver, first, {"a": "x" * LARGE}, new={}, id="2")
    assert await values(saver, second) == {"a": "x" * LARGE}


async def test_a_thread_that_the_saver_deletes_under_a_run_is_whole_again_with_the_next_checkpoint(
    saver: Surface,
) -> None:
    kept = {"kept": "x" * LARGE}
    first = await put(saver, config(), kept, {"kept": 1})
    await saver.delete_thread("1")
    second = await put(saver, first, kept, {"kept": 1}, new={})
    assert await values(saver, second) == kept


async def test_a_thread_that_another_process_deletes_under_a_run_is_never_read_with_values_missing(
    saver: Surface, open_saver: OpenSurface
) -> None:
    kept = {"kept": "x" * LARGE}
    first = await put(saver, config(), kept, {"kept": 1})
    await (await open_saver()).delete_thread("1")
    second = await put(saver, first, kept, {"kept": 1}, new={})
    with pytest.raises(CorruptCheckpoint, match="was deleted while"):
        await saver.get_tuple(second)
    await saver.delete_thread("1")
    assert await saver.get_tuple(second) is None


async def test_thread_ids_become_strings(saver: Surface) -> None:
    for given, stored in ((42, "42"), (UUID(int=1), str(UUID(int=1))), ("ü:$.\0|", "ü:$.\0|"), ("", "")):
        placed = await put(saver, config(given), {"a": 1})
        assert placed["configurable"]["thread_id"] == stored
        await saver.put_writes(config(given, "", placed["configurable"]["checkpoint_id"]), [("a", 1)], "t")
        for thread_id in (given, stored):
            loaded = await saver.get_tuple(config(thread_id))
            assert loaded is not None
            assert loaded.config == placed
            assert loaded.pending_writes == [("t", "a", 1)]
            assert len(await saver.list(config(thread_id))) == 1
        await saver.delete_thread(given)
        assert await saver.get_tuple(config(stored)) is None


async def test_ids_that_join_alike_stay_apart(saver: Surface) -> None:
    places = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("A", "b"), ("a", ""), ("a ", "b")]
    for place in places:
        await put(saver, config(*place), {"place": list(place)}, id="same")
    for place in places:
        assert await values(saver, config(*place)) == {"place": list(place)}
    await saver.delete_thread("a")
    left = [tuple(loaded.checkpoint["channel_values"]["place"]) for loaded in await saver.list(None)]
    assert sorted(left) == sorted(place for place in places if place[0] != "a")
