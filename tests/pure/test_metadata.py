"""Metadata in its native form: whatever is equal in Python matches in the database, and everything can be stored."""

from __future__ import annotations

import sys
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import bson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_mongo_saver.errors import FilterNotQueryable, InvalidArgument
from langgraph_mongo_saver.metadata import (
    QUERYABLE_WHEN_ENCRYPTED,
    check_filter,
    field,
    filter_query,
    key_of,
    matches,
    native,
    of_checkpoint,
    queryable,
)
from tests.pure.drawing import (
    EQUALS,
    TEXT,
    UTC,
    VALUES,
    Colour,
    Level,
    Name,
    Word,
    equal_in_mongodb,
    nested,
    reread,
    stored,
)

# --- equal in Python, equal in the database ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EQUALS)
@given(data=st.data())
def test_what_is_equal_in_python_is_equal_in_the_database(kind: str, data: st.DataObject) -> None:
    a, b = data.draw(EQUALS[kind])
    assume(a == b)
    assert equal_in_mongodb(stored(native(a)), stored(native(b)))
    around = {"list": [a, {"": a}]}, {"list": [b, {"": b}]}
    assert equal_in_mongodb(*(stored(native(value)) for value in around))


@pytest.mark.parametrize(
    "value",
    [{"a": (1, 2)}, "lone \ud800 surrogate", {"a": "\udfff"}, memoryview(b"ab"), OrderedDict(b=1, a=2), {Word.YES: 1}],
)
def test_a_filter_of_what_is_read_back_selects_it(value: Any) -> None:
    assert equal_in_mongodb(stored(native(value)), stored(native(reread(value))))


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), ([0], [False]), ("a", b"a"), (None, ""), ({}, []), (1, "1"), (2**60, 2**60 + 1), (0, None)]
)
def test_the_native_form_tells_plain_values_apart(a: Any, b: Any) -> None:
    assert not equal_in_mongodb(stored(native(a)), stored(native(b)))


# --- everything can be stored --------------------------------------------------------------------------------------

HOSTILE = [
    "\ud800",
    "\0",
    "$where",
    2**63,
    -(2**63) - 1,
    10**400,
    -(10**400),
    float("nan"),
    float("-inf"),
    Decimal("sNaN"),
    Decimal("-Infinity"),
    Decimal("1e9999"),
    Fraction(1, 3),
    nested(100),
    nested(100, {"$ne": None}),
    {"": {"": ""}, "$set": {"a.b": 1}, "\0": "\0", "\ud800": "\udfff"},
    {1: {2: 3}, None: 4},
    {"a"},
    datetime.min,
    datetime.max,
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),
    datetime(2, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59))),
    datetime(9998, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    date.max,
    time(1, tzinfo=UTC),
    Colour.RED,
    Level.HIGH,
    Word.YES,
    Name("$x"),
    UUID(int=0),
    PurePosixPath("/a"),
    AIMessage("hi", id="1"),
    [HumanMessage([{"type": "text", "text": "\0"}])],
    object(),
    lambda: None,
    sys,
    bytearray(b"\0"),
    memoryview(b"\0"),
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: f"{type(value).__name__} {str(value)[:10]!a}")
def test_bson_holds_the_native_form_of_anything(value: Any) -> None:
    document = queryable({"key": value, "list": [value], "$k.e\0y": {"$in": value}}, None)
    assert list(bson.decode(bson.encode(document))) == ["key", "list", "%24k%2Ee%00y"]


def test_mongodbs_limit_of_nesting_is_kept() -> None:
    depth, found = 0, native(nested(170))
    while isinstance(found, (dict, list)):
        depth, found = depth + 1, found["k"] if isinstance(found, dict) else found[0]
    assert 10 < depth < 100
    assert "nested too deeply" in found


def test_bson_holds_numpys_values() -> None:
    numpy = pytest.importorskip("numpy")
    odd = [numpy.int64(3), numpy.float64(0.5), numpy.float32(0.5), numpy.bool_(True), numpy.array([1])]
    assert stored(native(odd[:2])) == [3, 0.5]
    bson.encode({"value": native(odd)})


@given(VALUES)
def test_bson_holds_the_native_form_of_what_the_serializer_holds(value: Any) -> None:
    assert isinstance(bson.encode(queryable({"key": value}, None)), bytes)


@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_no_key_of_the_native_form_is_an_operator_or_a_path(metadata: dict[str, Any]) -> None:
    def keys(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [*value, *(key for inner in value.values() for key in keys(inner))]
        return [key for inner in value for key in keys(inner)] if isinstance(value, list) else []

    assert [key for key in keys(queryable(metadata, None)) if not key or key[0] == "$" or set(key) & {".", "\0"}] == []


# --- names of fields -----------------------------------------------------------------------------------------------

KEYS = st.sets(st.text(st.sampled_from("a.$%\0\\24E05ud8"), max_size=4), min_size=2)


@given(KEYS)
@example({"", "%"})
@example({"$a", "%24a", "%2524a"})
@example({"a.b", "a%2Eb"})
@example({"\ud800", "\\ud800"})
def test_field_names_are_distinct_and_literal(keys: set[str]) -> None:
    names = [field(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert {key_of(name) for name in names} == keys
    for name in names:
        assert name
        assert name[0] != "$"
        assert not set(name) & {".", "\0"}


def test_keys_that_need_nothing_stay_readable() -> None:
    assert [field(key) for key in ("step", "run_id", "Größe", "a b")] == ["step", "run_id", "Größe", "a b"]


# --- what is stored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["api_key", "OPENAI_API_KEY", "accessToken", "client_secret", "Password", "x-auth"])
def test_secrets_of_the_config_are_left_out(key: str) -> None:
    config: Any = {"configurable": {"thread_id": "1", key: "s3cret", "user_id": "u"}, "metadata": {"tag": "t"}}
    found = of_checkpoint(config, {"source": "loop", "step": 1})
    assert found == {"source": "loop", "step": 1, "user_id": "u", "tag": "t"}
    assert config["configurable"][key] == "s3cret"


@pytest.mark.parametrize(
    ("keys", "kept"), [(None, {"source", "user"}), (QUERYABLE_WHEN_ENCRYPTED, {"source"}), (frozenset(), set())]
)
def test_only_the_keys_in_clear_are_queryable(keys: frozenset[str] | None, kept: set[str]) -> None:
    assert set(queryable({"source": "loop", "user": 1, 2: 3}, keys)) == kept


# --- filters -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_a_filter_is_literal_at_any_depth(filter: dict[str, Any]) -> None:
    query = filter_query({**filter, "$where": {"$ne": None}})
    assert query["metadata.%24where"] == {"$eq": {"%24ne": None}}
    assert all(path.startswith("metadata.") and list(condition) == ["$eq"] for path, condition in query.items())
    bson.encode(query)


@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_metadata_as_read_back_is_selected_and_matches(metadata: dict[str, Any]) -> None:
    document = stored(queryable(metadata, None))
    back = reread(metadata)
    for path, condition in stored(filter_query(back)).items():
        assert equal_in_mongodb(document[path.removeprefix("metadata.")], condition["$eq"])
    assert matches(back, back)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, True),
        ({"step": 1}, True),
        ({"step": 1.0}, True),
        ({"step": 2}, False),
        ({"step": 1, "tags": ["a", "b"]}, True),
        ({"tags": "a"}, False),
        ({"tags": ["b", "a"]}, False),
        ({"parents": {"y": 2, "": 1}}, True),
        ({"absent": None}, True),
        ({"absent": 1}, False),
    ],
)
def test_matches_decides_on_exact_values(filter: dict[str, Any], expected: bool) -> None:
    assert matches(filter, {"step": 1, "tags": ["a", "b"], "parents": {"": 1, "y": 2}}) is expected


@pytest.mark.parametrize("kind", ["signalling NaN", "array"])
def test_values_that_cannot_be_compared_do_not_match(kind: str) -> None:
    value = Decimal("sNaN") if kind == "signalling NaN" else pytest.importorskip("numpy").array([1, 2])
    assert matches({"key": value}, {"key": value}) in (True, False)


@pytest.mark.parametrize("filter", ["step", ["step"], 5, {1: 2}, {None: 1}])
def test_filters_that_are_none_are_refused(filter: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^filter"):
        check_filter(filter, None)


def test_a_key_that_is_stored_encrypted_cannot_be_asked_for() -> None:
    assert check_filter({"source": "loop"}, QUERYABLE_WHEN_ENCRYPTED) == {"source": "loop"}
    with pytest.raises(FilterNotQueryable, match=r"'user'.*queryable_metadata"):
        check_filter({"user": "s3cret"}, QUERYABLE_WHEN_ENCRYPTED)
    assert check_filter(None, frozenset()) == {}
