"""Events as callers keep them, positions as callers hand them back, and which events are asked for."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import bson
import pytest
from bson.timestamp import Timestamp
from langgraph.types import Interrupt

from langgraph_mongo_saver.errors import FilterNotQueryable, InvalidArgument
from langgraph_mongo_saver.events import (
    KINDS,
    CheckpointEvent,
    EventFilter,
    Position,
    event_filter,
    kinds_of,
    start_of,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)


def event(kind: Any = "checkpoint", thread_id: str = "1", **changed: Any) -> CheckpointEvent:
    return CheckpointEvent(kind, thread_id, NOW, "here", **changed)


# --- events --------------------------------------------------------------------------------------------------------


def test_an_event_becomes_jsons_types() -> None:
    made = event(
        "interrupt",
        checkpoint_id="c",
        task_id="t",
        channels=("__interrupt__", "a"),
        interrupts=(Interrupt(value={"ask": {1, 2}, "at": NOW}, id="i"), frozenset([3]), b"\xff", UUID(int=1), None),
        metadata={"when": NOW, "id": UUID(int=2)},
    )
    plain = made.to_dict()
    assert plain["interrupts"] == [
        {"value": {"ask": [1, 2], "at": NOW.isoformat()}, "id": "i"},
        [3],
        str(b"\xff"),
        str(UUID(int=1)),
        None,
    ]
    assert plain["metadata"] == {"when": NOW.isoformat(), "id": str(UUID(int=2))}
    assert plain["created_at"] == NOW.isoformat()
    assert plain["channels"] == ["__interrupt__", "a"]
    assert plain.keys() == CheckpointEvent.__dataclass_fields__.keys()


def test_json_is_one_line_that_reads_back_as_the_dict() -> None:
    made = event(metadata={"text": "Ä\n\u2028x", "nested": [{"a": (1, {2})}]}, error="line\nbreak")
    assert json.loads(made.to_json()) == made.to_dict()
    assert len(made.to_json().split("\n")) == 1
    assert "Ä" in made.to_json()


@dataclass(frozen=True)
class Odd:
    text: str

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Odd("odd"), "odd"),
        ({Odd("key"): 1, "b": 2}, {"b": 2}),
        ({1: "one", None: "none", 2.5: "half"}, {"1": "one", "null": "none", "2.5": "half"}),
        (bson.ObjectId("0" * 24), "0" * 24),
        (1j, "1j"),
        (range(2), "range(0, 2)"),
        (type("Mapped", (dict,), {})(a={1}), {"a": [1]}),
    ],
    ids=str,
)
def test_what_json_does_not_know_becomes_text(value: Any, expected: Any) -> None:
    assert event("interrupt", interrupts=(value,)).to_dict()["interrupts"] == [expected]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_numbers_that_json_does_not_have_leave_it_valid(number: float) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    made = event(metadata={"score": number})
    assert json.loads(made.to_json(), parse_constant=refuse)["kind"] == "checkpoint"


def test_the_config_leads_to_the_checkpoint_or_to_the_deleted_thread() -> None:
    place = {"thread_id": "1", "checkpoint_ns": "a:b", "checkpoint_id": "c"}
    assert event(checkpoint_ns="a:b", checkpoint_id="c").config == {"configurable": place}
    assert event("thread_deleted").config == {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


# --- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position",
    [
        Position(),
        Position({"_data": "8263"}),
        Position({"_data": "8263", "_typeBits": b"\x82"}, NOW),
        Position(at=NOW),
    ],
    ids=["none", "token", "both", "time"],
)
def test_a_position_comes_back_as_it_was(position: Position) -> None:
    text = str(position)
    assert text.replace("-", "").replace("_", "").isalnum()
    assert start_of(text, None) == position
    assert start_of(type("Text", (str,), {})(text), None) == position


def test_a_position_opens_a_stream_at_its_token_and_otherwise_at_its_time() -> None:
    assert Position().options() == {}
    assert Position({"_data": "1"}, NOW).options() == {"start_after": {"_data": "1"}}
    assert Position(at=NOW).options() == {"start_at_operation_time": Timestamp(int(NOW.timestamp()), 0)}


def test_start_at_is_taken_in_any_timezone() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=5)))
    assert start_of(None, local) == Position(at=NOW)
    assert start_of(None, None) == Position()


@pytest.mark.parametrize("given", [NOW.replace(tzinfo=None), "2026-01-01", 5, NOW.date()], ids=str)
def test_start_at_needs_a_datetime_with_a_timezone(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="start_at must be a datetime with a timezone"):
        start_of(None, given)


def encoded(document: Any) -> str:
    return base64.urlsafe_b64encode(bson.encode(document)).decode()


@pytest.mark.parametrize(
    "given",
    [
        *(5, b"abc", {"_data": "8263"}, ["x"], NOW, True),
        *("", " ", "garbage", "ä", "a" * 77, "\0", "=" * 8, str(Position(at=NOW))[:-3]),
        *(encoded({}), encoded({"token": None}), encoded({"token": None, "at": "today"})),
        *(encoded({"token": 5, "at": None}), encoded({"token": "x", "at": NOW}), encoded({"token": [1], "at": None})),
    ],
    ids=lambda given: ascii(given)[:30],
)
def test_what_is_no_position_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"position of an event, but another {type(given).__name__} was given"):
        start_of(given, None)


def test_only_one_of_both_tells_where_to_begin() -> None:
    with pytest.raises(InvalidArgument, match="resume_from and start_at were both given"):
        start_of(str(Position(at=NOW)), NOW)


# --- filters -------------------------------------------------------------------------------------------------------


def test_nothing_said_is_everything() -> None:
    assert event_filter() == EventFilter(KINDS, None, None, {})
    assert all(event_filter().takes(event(kind)) for kind in KINDS)


def test_kinds_may_be_one_or_several() -> None:
    assert kinds_of(None) == ()
    assert kinds_of("error") == ("error",)
    assert sorted(kinds_of({"error", "writes"})) == ["error", "writes"]
    assert kinds_of(name for name in ["error"]) == ("error",)


@pytest.mark.parametrize("given", [5, b"error", {"error": 1}, [], (), True], ids=str)
def test_kinds_of_other_types_and_none_at_all_are_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="kinds must be"):
        kinds_of(given)


@pytest.mark.parametrize("given", ["", "Error", ["error", "other"], [None], ["error", 5]], ids=str)
def test_unknown_kinds_are_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"kinds must be among \['checkpoint', 'error'"):
        event_filter(*kinds_of(given))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"thread_id": 1.5}, "thread_id"),
        ({"thread_id": b"1"}, "thread_id"),
        ({"thread_id": {"1": 2}}, "thread_id"),
        ({"thread_id": ["1", None]}, "thread_id: an id"),
        ({"thread_id": []}, "thread_id must be one or several threads"),
        ({"checkpoint_ns": 5}, "checkpoint_ns"),
        ({"metadata": ["a"]}, "metadata must be a mapping"),
        ({"metadata": {1: 2}}, "metadata: keys"),
    ],
    ids=str,
)
def test_a_filter_names_the_argument_that_cannot_be_used(arguments: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        event_filter(**arguments)


def test_metadata_that_are_encrypted_cannot_be_asked_for() -> None:
    assert event_filter(metadata={"step": 1}, clear_keys={"step"}).metadata == {"step": 1}
    with pytest.raises(FilterNotQueryable, match="metadata: metadata key 'user'"):
        event_filter(metadata={"user": "ann"}, clear_keys={"step"})


def test_thread_ids_are_compared_as_they_are_stored() -> None:
    assert event_filter(thread_id=5).thread_ids == {"5"}
    assert event_filter(thread_id=[5, "6"]).thread_ids == {"5", "6"}


@pytest.mark.parametrize(
    ("arguments", "taken", "refused"),
    [
        ({"thread_id": ["1", "2"]}, event(), event(thread_id="3")),
        ({"checkpoint_ns": ""}, event(), event(checkpoint_ns="a")),
        ({"checkpoint_ns": "a"}, event("writes", checkpoint_ns="a"), event("writes")),
        ({"checkpoint_ns": "a"}, event("thread_deleted"), event()),
        ({"checkpoint_ns": "a", "thread_id": "2"}, event("thread_deleted", "2"), event("thread_deleted")),
        ({"metadata": {"n": 1}}, event(metadata={"n": 1}), event(metadata={"n": True})),
        ({"metadata": {"n": True}}, event(metadata={"n": True}), event(metadata={"n": 1})),
        ({"metadata": {"n": 1}}, event(metadata={"n": 1.0}), event(metadata={"n": [1]})),
        ({"metadata": {"n": 1}}, None, event("writes", metadata={"n": 1})),
        ({"metadata": {"n": 1}}, None, event("thread_deleted")),
        ({"metadata": {"a.b": 1, "$c": 2}}, event(metadata={"a.b": 1, "$c": 2}), event(metadata={"a.b": 1})),
        ({"metadata": {"n": None}}, event(), event(metadata={"n": 0})),
        ({"metadata": {"n": {"b": 1, "a": 2}}}, event(metadata={"n": {"a": 2, "b": 1}}), event(metadata={"n": {}})),
    ],
    ids=str,
)
def test_a_filter_takes_what_it_says(arguments: Any, taken: CheckpointEvent | None, refused: CheckpointEvent) -> None:
    wanted = event_filter(**arguments)
    assert taken is None or wanted.takes(taken)
    assert not wanted.takes(refused)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_filter_of_one_kind_takes_no_other(kind: str) -> None:
    assert {other for other in KINDS if event_filter(kind).takes(event(other))} == {kind}


@pytest.mark.parametrize(
    ("asked", "stored", "same"),
    [
        ([True], [1], False),
        ({"a": 1}, {"a": True}, False),
        ([1], [1.0], True),
        ({"a": [0]}, {"a": [0.0]}, True),
    ],
    ids=str,
)
def test_metadata_are_compared_as_the_database_does_also_inside(asked: Any, stored: Any, same: bool) -> None:
    assert event_filter(metadata={"n": asked}).takes(event(metadata={"n": stored})) is same
