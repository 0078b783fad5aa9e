"""What is no id is refused before anything is sent, by a message that names the argument and the type."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from bson import Code, ObjectId, Regex

from langgraph_mongo_saver import InvalidArgument
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.surfaces import Surface

NO_IDS: list[Any] = [
    {"$ne": None},
    {"$gt": ""},
    ["1"],
    re.compile("1"),
    Regex("1"),
    b"1",
    1.0,
    True,
    ("1",),
    ObjectId(),
    "\ud800",
    type("Text", (), {})(),
]

Call = Callable[[Surface, Any], Any]


def put(saver: Surface, config: Any, id: Any = "1") -> Any:
    return saver.put(config, {**checkpoint(), "id": id}, {"step": 1}, {})


CALLS: dict[str, Call] = {
    "get_tuple: thread_id": lambda saver, bad: saver.get_tuple(config(bad)),
    "get_tuple: checkpoint_ns": lambda saver, bad: saver.get_tuple(config("1", bad)),
    "get_tuple: checkpoint_id": lambda saver, bad: saver.get_tuple(config("1", "", bad)),
    "list: thread_id": lambda saver, bad: saver.list(config(bad)),
    "list: checkpoint_ns": lambda saver, bad: saver.list(config("1", bad)),
    "list: checkpoint_id": lambda saver, bad: saver.list(config("1", "", bad)),
    "list: before: checkpoint_id": lambda saver, bad: saver.list(None, before=config("1", "", bad)),
    "put: thread_id": lambda saver, bad: put(saver, config(bad)),
    "put: checkpoint_ns": lambda saver, bad: put(saver, config("1", bad)),
    "put: config: checkpoint_id": lambda saver, bad: put(saver, config("1", "", bad)),
    "put: checkpoint: id": lambda saver, bad: put(saver, config(), bad),
    "put_writes: thread_id": lambda saver, bad: saver.put_writes(config(bad, "", "1"), [("a", 1)], "t"),
    "put_writes: checkpoint_ns": lambda saver, bad: saver.put_writes(config("1", bad, "1"), [("a", 1)], "t"),
    "put_writes: checkpoint_id": lambda saver, bad: saver.put_writes(config("1", "", bad), [("a", 1)], "t"),
    "put_writes: task_id": lambda saver, bad: saver.put_writes(config("1", "", "1"), [("a", 1)], bad),
    "put_writes: task_path": lambda saver, bad: saver.put_writes(config("1", "", "1"), [("a", 1)], "t", bad),
    "delete_thread: thread_id": lambda saver, bad: saver.delete_thread(bad),
}


@pytest.mark.parametrize("method", ["get_tuple", "list", "put", "put_writes", "delete_thread"])
async def test_what_is_no_id_is_refused(saver: Surface, recorder: CommandRecorder, method: str) -> None:
    with recorder.recording() as seen:
        for where, bad in product(CALLS, NO_IDS):
            called, argument = where.split(": ", 1)
            described = "surrogate" if isinstance(bad, str) else re.escape(type(bad).__name__)
            if called == method:
                with pytest.raises(InvalidArgument, match=f"{argument}.*{described}"):
                    await CALLS[where](saver, bad)
    assert not seen


async def test_a_config_without_a_thread_is_refused(saver: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        for bad in ({}, {"configurable": {}}, {"configurable": None}, {"configurable": []}, [], "1", 1):
            for call in (saver.get_tuple, saver.list, partial(put, saver)):
                with pytest.raises(InvalidArgument, match="config"):
                    await call(bad)
            with pytest.raises(InvalidArgument, match="config"):
                await saver.put_writes(bad, [("a", 1)], "t")
            if bad != {"configurable": {}}:
                with pytest.raises(InvalidArgument, match="before"):
                    await saver.list(None, before=bad)
    assert not seen


async def test_writes_need_a_checkpoint_id(saver: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen, pytest.raises(InvalidArgument, match="checkpoint_id"):
        await saver.put_writes(config(), [("a", 1)], "t")
    assert not seen


async def test_none_as_an_id_is_refused_where_one_is_needed(saver: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        for where in CALLS:
            if where.endswith(("thread_id", "task_id", "task_path", "checkpoint: id")):
                with pytest.raises(InvalidArgument):
                    await CALLS[where](saver, None)
    assert not seen


async def test_a_str_of_another_class_is_taken_for_what_it_holds(saver: Surface, mongo: Any, db_name: str) -> None:
    class Sly(str):
        def __str__(self) -> str:
            return "other"

    for thread_id in (Sly("mine"), Code("mine", {"scope": 1})):
        await put(saver, config(thread_id))
        [loaded] = await saver.list(None)
        assert loaded.config["configurable"]["thread_id"] == "mine"
        assert type(loaded.config["configurable"]["thread_id"]) is str
        assert type(mongo[db_name].checkpoints.find_one()["thread_id"]) is str
