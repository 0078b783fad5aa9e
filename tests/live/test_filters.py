"""A filter of list matches exact metadata values, under literal keys."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from langgraph_mongo_saver import InvalidArgument, Unserializable
from tests.building import config
from tests.faults import CommandRecorder
from tests.steps import ids, put
from tests.surfaces import Surface

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
NEW_YORK = timezone(timedelta(hours=-5))

# What each checkpoint holds as metadata, by checkpoint id.
HELD: dict[str, dict[str, Any]] = {
    "int": {"v": 1},
    "true": {"v": True},
    "text": {"v": "1"},
    "none": {"v": None},
    "list": {"v": [1]},
    "lists": {"v": [[1], 2]},
    "dict": {"v": {"a": 1, "b": {"c": [1, 2], "d": None}}},
    "operator": {"v": {"$ne": None}},
    "dotted": {"a.b": 1, "v": {"a.b": 1}},
    "nested": {"a": {"b": 1}},
    "dollar": {"$gt": 1, "$": 2},
    "empty": {"": 1, "v": ""},
    "percent": {"%": 1, "%2E": 2, "a%2Eb": 3},
    "nul": {"a\0b": 1, "v": ["a\0b"]},
    "bytes": {"v": b"\0\xff"},
    "time": {"v": NOON},
    "micro": {"v": NOON + timedelta(microseconds=1)},
    "half": {"v": 0.5},
    "big": {"v": 2**63 - 1},
    "bigger": {"v": 2**63 - 2},
    "small": {"v": -(2**63)},
    "pattern": {"v": "^.*$"},
}

CASES: list[tuple[dict[str, Any], str]] = [
    ({"v": 1}, "int"),
    ({"v": 1.0}, "int"),
    ({"v": True}, "true"),
    ({"v": "1"}, "text"),
    ({"v": [1]}, "list"),
    ({"v": [[1], 2]}, "lists"),
    ({"v": [2, [1]]}, ""),
    ({"v": []}, ""),
    ({"v": {"b": {"d": None, "c": [1, 2]}, "a": 1}}, "dict"),
    ({"v": {"b": {"d": None, "c": [2, 1]}, "a": 1}}, ""),
    ({"v": {"a": 1}}, ""),
    ({"v": {"$ne": None}}, "operator"),
    ({"v": {"$exists": True}}, ""),
    ({"v": {"$in": [1]}}, ""),
    ({"v": {"$regex": ".*"}}, ""),
    ({"$where": "true"}, ""),
    ({"$or": [{"v": 1}]}, ""),
    ({"a.b": 1}, "dotted"),
    ({"a": {"b": 1}}, "nested"),
    ({"v.a.b": 1}, ""),
    ({"v.0": 1}, ""),
    ({"v": {"a.b": 1}}, "dotted"),
    ({"$gt": 1}, "dollar"),
    ({"$gt": 0}, ""),
    ({"$": 2}, "dollar"),
    ({"": 1}, "empty"),
    ({"v": ""}, "empty"),
    ({"%": 1}, "percent"),
    ({"%2E": 2}, "percent"),
    ({".": 2}, ""),
    ({"a%2Eb": 3}, "percent"),
    ({"a\0b": 1}, "nul"),
    ({"v": ["a\0b"]}, "nul"),
    ({"v": b"\0\xff"}, "bytes"),
    ({"v": NOON}, "time"),
    ({"v": NOON.astimezone(NEW_YORK)}, "time"),
    ({"v": NOON.replace(tzinfo=None)}, ""),
    ({"v": NOON + timedelta(microseconds=1)}, "micro"),
    ({"v": NOON + timedelta(microseconds=2)}, ""),
    ({"v": 0.5}, "half"),
    ({"v": 2**63 - 1}, "big"),
    ({"v": float(2**63)}, ""),
    ({"v": -(2**63)}, "small"),
    ({"v": 2**70}, ""),
    ({"v": "^.*$"}, "pattern"),
    ({"v": "^1"}, ""),
    ({"v": object()}, ""),
    ({"v": None, "a.b": None, "a": None, "$": None, "": None, "%": None, "a\0b": None}, "none"),
    ({"v": 1, "source": "loop", "step": 1}, "int"),
    ({"v": 1, "source": "input"}, ""),
    ({"missing": 0}, ""),
]


@pytest.fixture
async def filled(saver: Surface) -> Surface:
    for checkpoint_id, metadata in HELD.items():
        await put(saver, config(), metadata=metadata, id=checkpoint_id)
    return saver


async def test_a_filter_finds_what_is_equal(filled: Surface) -> None:
    wrong = {}
    for filter, expected in CASES:
        found = ids(await filled.list(config(), filter=filter))
        if found != expected.split():
            wrong[str(filter)] = found, expected
    assert not wrong


async def test_text_with_nul_is_found_as_it_was_given(saver: Surface) -> None:
    await put(saver, config(), metadata={"v": "a\0b"})
    assert len(await saver.list(None, filter={"v": "a\0b"})) == 1


async def test_none_also_stands_for_an_absent_key(filled: Surface) -> None:
    found = ids(await filled.list(None, filter={"v": None}))
    assert sorted(found) == sorted(id for id, held in HELD.items() if held.get("v") is None)
    assert len(await filled.list(None, filter={"missing": None})) == len(HELD)


@pytest.mark.parametrize("filter", [None, {}])
async def test_no_filter_finds_all(filled: Surface, filter: Any) -> None:
    assert len(await filled.list(None, filter=filter)) == len(HELD)


async def test_a_limit_counts_what_matches(saver: Surface) -> None:
    # The database takes [1] for 1, microseconds for nothing, and ids of other kinds come first.
    for number in range(20):
        held = [1, [1], NOON, NOON + timedelta(microseconds=9)][number % 4]
        await put(saver, config(), metadata={"v": held}, id=f"{number:02}")
    assert ids(await saver.list(config(), filter={"v": 1}, limit=3)) == ["16", "12", "08"]
    assert ids(await saver.list(config(), filter={"v": 1}, limit=9)) == ["16", "12", "08", "04", "00"]
    assert ids(await saver.list(None, filter={"v": NOON}, limit=2)) == ["18", "14"]
    assert ids(await saver.list(config(), filter={"v": 1}, limit=1, before=config(checkpoint_id="16"))) == ["12"]


async def test_huge_ints_are_refused_by_name(saver: Surface) -> None:
    with pytest.raises(Unserializable, match="metadata"):
        await put(saver, config(), metadata={"v": 2**70})
    assert await saver.list(None) == []


@pytest.mark.parametrize("filter", [[("v", 1)], "v", {1: 1}, {None: 1}, {("v",): 1}], ids=repr)
@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_what_is_no_filter_is_refused(saver: Surface, recorder: CommandRecorder, filter: Any) -> None:
    with recorder.recording() as seen, pytest.raises(InvalidArgument, match="filter"):
        await saver.list(None, filter=filter)
    assert not seen
