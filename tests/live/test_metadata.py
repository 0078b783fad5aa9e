"""Metadata comes back as it was, and can be queried as it stands in the database."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage

from langgraph_mongo_saver import TooLarge
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.steps import put
from tests.surfaces import Surface


class Colour(Enum):
    RED = 1


SHAPES: dict[str, Any] = {
    "none": None,
    "bools": [True, False, 0, 1],
    "ints": [0, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)],
    "floats": [0.1, -0.0, 1e300, math.inf],
    "text": ["", "\0", "\U0001f642", "$a.b"],
    "bytes": [b"", b"\0", b"\xff"],
    "times": [
        datetime(2026, 1, 1, 0, 0, 0, 123456),
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
        datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        date(2026, 1, 1),
        time(1, 2, 3, 4),
        timedelta(days=1, microseconds=1),
    ],
    "keys": {"": 1, ".": 1, "a.b": 1, "$": 1, "$set": 1, "a\0": 1, "%": 1, "0": 1},
    "other keys": {1: 1, None: 2},
    "objects": [UUID(int=1), Decimal("1.10"), Colour.RED, {1, 2}, HumanMessage("hi", id="m")],
    "writes": {"node": {"messages": [HumanMessage("hi", id="m")], "a": [{"b": [None]}]}},
    "parents": {"": "id", "a:b|c": "id"},
}


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"d": value} if level % 2 else [value]
    return value


def typed(value: Any) -> Any:
    """The value with the types of all that is in it."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), str(value))


async def test_any_shape_comes_back_with_its_types(saver: Surface) -> None:
    for shape, value in {**SHAPES, "deep": deep(150), "keys of the document": {"_id": 1, "layout": 2}}.items():
        given = {"source": "loop", "step": 1, "value": value}
        stored = await put(saver, config(shape), metadata=given)
        loaded = await saver.get_tuple(stored)
        assert loaded is not None
        assert typed(loaded.metadata) == typed(given), shape
        assert [listed.metadata for listed in await saver.list(config(shape))] == [loaded.metadata]


async def test_it_can_be_queried_in_the_database(saver: Surface, mongo: Any, db_name: str) -> None:
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    metadata = {"user": {"name": "Ann", "tags": ["a", "b"]}, "score": 0.5, "when": when, "a.b": 1, "$c": 2}
    await put(saver, config("1"), metadata=metadata)
    await put(saver, config("2"), metadata={"user": {"name": "Bob"}, "score": 0.1})
    for query in (
        {"metadata.user.name": "Ann"},
        {"metadata.user.tags": "b"},
        {"metadata.score": {"$gt": 0.4}},
        {"metadata.when": {"$gte": when}},
        {"metadata.a%2Eb": 1},
        {"metadata.%24c": 2},
    ):
        found = mongo[db_name].checkpoints.find(query)
        assert [document["thread_id"] for document in found] == ["1"], query
    assert mongo[db_name].checkpoints.count_documents({"metadata.source": "loop", "metadata.step": 1}) == 2


async def test_it_takes_from_the_config_what_is_no_secret(saver: Surface, mongo: Any, db_name: str) -> None:
    secrets = {"openai_api_key": "s3cret", "Authorization": "s3cret", "db_password": "s3cret", "accessToken": "s3cret"}
    given = {
        **config(user_id="ann", retries=3, **secrets),
        "metadata": {"run_id": "r", "tenant": "t"},
    }
    stored = await saver.put(given, checkpoint(), {"source": "loop", "step": 1}, {})
    loaded = await saver.get_tuple(stored)
    assert loaded is not None
    expected = {"source": "loop", "step": 1, "user_id": "ann", "retries": 3, "run_id": "r", "tenant": "t"}
    assert loaded.metadata == expected
    assert mongo[db_name].checkpoints.find_one()["metadata"] == expected
    assert given["configurable"]["openai_api_key"] == "s3cret"


async def test_unknown_keys_and_stubs_are_kept(saver: Surface) -> None:
    for metadata in ({"step": -2}, {"step": 3, "counters_since_delta_snapshot": {"c": (1, 2)}, "mine": [{}]}):
        stored = await saver.put(config(), checkpoint(), metadata, {})
        loaded = await saver.get_tuple(stored)
        assert loaded is not None
        assert loaded.metadata["step"] == metadata["step"]
        assert loaded.metadata.keys() == metadata.keys()


@pytest.mark.parametrize(
    "large",
    ["x" * 5_000_000, ["x" * 1000] * 5000, [None] * 2_100_000, {"." * 10: "." * 17_000_000}],
    ids=["text", "list", "many", "huge"],
)
@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
async def test_what_no_document_can_hold_is_refused_before_anything_is_sent(
    saver: Surface, recorder: CommandRecorder, large: Any
) -> None:
    await saver.setup()
    with recorder.recording() as seen, pytest.raises(TooLarge, match="metadata"):
        await put(saver, config(), metadata={"large": large})
    assert not seen


async def test_versions_that_no_document_can_hold_are_refused(saver: Surface) -> None:
    with pytest.raises(TooLarge, match="versions"):
        await put(saver, config(), {}, {"c" * 9_000_000: 1})
    assert await saver.list(None) == []
