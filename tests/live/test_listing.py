"""Which checkpoints are listed, and in which order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from langgraph_mongo_saver import InvalidArgument
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.steps import at_once, ids, put
from tests.surfaces import Surface

METADATA = {"source": "loop", "step": 1}


def places(listed: Any) -> list[tuple[str, str, str]]:
    """Thread, namespace and id of checkpoints."""
    return [tuple(loaded.config["configurable"].values()) for loaded in listed]


async def fill(saver: Surface, *where: tuple[str, str, str]) -> None:
    made = [at_once(saver, "put", config(t, ns), checkpoint(id=id), METADATA, {}) for t, ns, id in where]
    await asyncio.gather(*made)


@pytest.fixture
async def filled(saver: Surface) -> Surface:
    """Checkpoints 1 to 4 of thread a, 2 and 5 of a namespace, 3 of thread b."""
    roots = [("a", "", str(number)) for number in range(1, 5)]
    await fill(saver, *roots, ("a", "sub", "2"), ("a", "sub", "5"), ("b", "", "3"))
    return saver


SELECTIONS: list[tuple[Any, Any, str]] = [
    (None, None, "5 4 3 3 2 2 1"),
    (None, {}, "5 4 3 3 2 2 1"),
    (None, {"checkpoint_id": "3"}, "2 2 1"),
    ({"thread_id": "a"}, None, "5 4 3 2 2 1"),
    ({"thread_id": "a", "checkpoint_ns": None}, None, "5 4 3 2 2 1"),
    ({"thread_id": "a", "checkpoint_ns": ""}, None, "4 3 2 1"),
    ({"thread_id": "a", "checkpoint_ns": "sub"}, None, "5 2"),
    ({"thread_id": "a", "checkpoint_ns": "none"}, None, ""),
    ({"thread_id": "c"}, None, ""),
    ({"thread_id": "a", "checkpoint_id": "2"}, None, "2 2"),
    ({"thread_id": "a", "checkpoint_id": None}, None, "5 4 3 2 2 1"),
    ({"thread_id": "a", "checkpoint_ns": "", "checkpoint_id": "2"}, None, "2"),
    ({"thread_id": "a", "checkpoint_ns": "", "checkpoint_id": "5"}, None, ""),
    ({"thread_id": "a", "checkpoint_ns": "", "checkpoint_id": "2"}, {"checkpoint_id": "2"}, ""),
    ({"thread_id": "a", "checkpoint_ns": ""}, {"thread_id": "b", "checkpoint_id": "3"}, "2 1"),
    ({"thread_id": "a", "checkpoint_ns": ""}, {"checkpoint_ns": "sub", "checkpoint_id": "5"}, "4 3 2 1"),
    ({"thread_id": "a", "checkpoint_ns": ""}, {"checkpoint_id": "not in use"}, "4 3 2 1"),
    ({"thread_id": "a", "checkpoint_ns": ""}, {"thread_id": "a"}, "4 3 2 1"),
    ({"thread_id": "a", "checkpoint_ns": ""}, {"checkpoint_id": None}, "4 3 2 1"),
]


async def test_a_config_and_before_select(filled: Surface) -> None:
    for configurable, before, found in SELECTIONS:
        listed = await filled.list(
            configurable and {"configurable": configurable},
            before=None if before is None else {"configurable": before},
        )
        assert ids(listed) == found.split(), (configurable, before)
        assert len(set(places(listed))) == len(listed)


async def test_a_limit_is_a_number_of_checkpoints(filled: Surface) -> None:
    newest_first = ["5", "4", "3", "2", "2", "1"]
    for limit in (None, 0, 1, 4, 5, 6, 99):
        assert ids(await filled.list(config("a", None), limit=limit)) == newest_first[:limit]


async def test_anything_else_is_no_limit(saver: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        for limit in (-1, True, False, 1.0, "1", [1]):
            with pytest.raises(InvalidArgument, match="limit"):
                await saver.list(None, limit=limit)
    assert not seen


async def test_checkpoints_of_one_id_do_not_get_lost_between_pages(saver: Surface) -> None:
    def everything(count: int) -> list[tuple[str, str, str]]:
        return [(t, ns, f"{n:03}") for n in range(count) for t in ("a", "b") for ns in ("", "s", "t|u", "v:1", "w.x")]

    where = everything(28)
    await fill(saver, *where)
    for chosen, expected in ((None, where), (config("b", None), [place for place in where if place[0] == "b"])):
        listed = await saver.list(chosen)
        assert ids(listed) == sorted(ids(listed), reverse=True)
        assert sorted(places(listed)) == sorted(expected)
        for limit in (127, 128, 129, 131):
            assert places(await saver.list(chosen, limit=limit)) == places(listed)[:limit]
    older = await saver.list(None, before=config("a", checkpoint_id="014"))
    assert sorted(places(older)) == sorted(everything(14))


async def test_a_long_namespace_is_listed_whole_and_in_order(saver: Surface) -> None:
    await fill(saver, *(("a", "", f"{n:03}") for n in range(257)))
    await saver.put_writes(config("a", checkpoint_id="000"), [("a", "first")], "t")
    listed = await saver.list(config("a"))
    assert ids(listed) == [f"{n:03}" for n in reversed(range(257))]
    assert [len(loaded.pending_writes) for loaded in listed] == [0] * 256 + [1]


async def test_only_a_page_is_loaded_before_the_first_item(
    saver: Surface, recorder: CommandRecorder, mongo: Any
) -> None:
    await fill(saver, *(("a", "", f"{n:03}") for n in range(140)))
    before = open_cursors(mongo)
    with recorder.recording() as seen:
        async with aclosing(saver.iterate(None)) as listing:
            assert ids([await anext(listing)]) == ["139"]
    assert seen.names == ["find", "find"]
    assert seen.killed_cursors == []
    assert open_cursors(mongo) <= before


def open_cursors(mongo: Any) -> int:
    return int(mongo.admin.command("serverStatus").get("metrics", {}).get("cursor", {}).get("open", {}).get("total", 0))


async def test_checkpoints_may_go_and_come_while_they_are_listed(saver: Surface) -> None:
    await fill(saver, *(("a", "", f"{n:03}") for n in range(140)), ("b", "", "000"))
    found = []
    async with aclosing(saver.iterate(None)) as listing:
        async for loaded in listing:
            if not found:
                await saver.delete_thread("a")
                await put(saver, config("b"), id="999")
            found.append(loaded)
    assert places(found)[0] == ("a", "", "139")
    assert places(found)[-1] == ("b", "", "000")
    assert ids(found) == sorted(ids(found), reverse=True)
    assert places(await saver.list(None)) == [("b", "", "999"), ("b", "", "000")]


async def test_a_listed_checkpoint_is_the_one_that_is_read(saver: Surface) -> None:
    stored = await put(saver, await put(saver, config("a", "s")), {"a": [1], "large": "x" * 300_000})
    await saver.put_writes(stored, [("b", 2)], "t2", "2")
    await saver.put_writes(stored, [("b", 1), ("__interrupt__", "x" * 300_000)], "t1", "1")
    newest = (await saver.list(config("a", "s")))[0]
    assert newest == await saver.get_tuple(stored)
    assert [write[0] for write in newest.pending_writes] == ["t1", "t1", "t2"]
