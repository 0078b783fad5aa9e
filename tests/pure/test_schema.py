"""What a database lacks, and what is done about it where the server refuses."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect, OperationFailure

from langgraph_mongo_saver.errors import UnsuitableCollection
from langgraph_mongo_saver.schema import (
    INDEXES,
    activity,
    check_collations,
    expire_after,
    missing,
    setup,
    throttle,
    ttl_change,
)
from tests.pure.driving import Driven, drive, settings

PARTS = ("checkpoints", "writes", "blobs")
NAMES = {"checkpoint_collection_name": "c", "writes_collection_name": "w", "blobs_collection_name": "b"}
NOT_ALLOWED, REFUSED = OperationFailure("no", 13), OperationFailure("no unique indexes here", 67)


def existing(part: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    ours = [{"name": str(i), "key": dict(index.keys)} for i, index in enumerate(INDEXES) if index.part == part]
    return [{"name": "_id_", "key": {"_id": 1}}, *ours, *more]


def expiring(seconds: int) -> dict[str, Any]:
    return {"name": "active_at_1", "key": {"active_at": 1}, "expireAfterSeconds": seconds}


# --- indexes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_indexes_are_known_by_their_keys(part: Any) -> None:
    assert missing(part, existing(part)) == []
    assert missing(part, []) == [index for index in INDEXES if index.part == part]
    assert len(missing(part, existing(part)[:-1])) == 1


@pytest.mark.parametrize("order", [1.0, -1.0, "hashed", "2dsphere"])
def test_odd_orders_of_other_indexes_are_no_matter(order: Any) -> None:
    found = [{"name": "theirs", "key": {"thread_id": order}}]
    assert len(missing("blobs", found)) == (0 if order == 1.0 else 1)


def test_the_address_index_has_its_order() -> None:
    wrong = [{"name": "theirs", "key": {"checkpoint_ns": 1, "thread_id": 1, "checkpoint_id": -1}}]
    assert INDEXES[0] in missing("checkpoints", wrong)


@pytest.mark.parametrize(
    ("options", "suits"),
    [({}, True), ({"collation": {"locale": "simple"}}, True), ({"collation": {"locale": "en", "strength": 2}}, False)],
)
def test_collections_that_merge_ids_are_refused(options: dict[str, Any], suits: bool) -> None:
    collections = [{"name": "fine"}, {"name": "theirs", "options": options}]
    if suits:
        check_collations(collections)
    else:
        with pytest.raises(UnsuitableCollection, match="'theirs' has the default collation 'en'"):
            check_collations(collections)


# --- expiry --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "ttl", "method", "news"),
    [
        (None, None, None, ""),
        (None, 100, "create_index", "threads now expire 100 s after"),
        (105, 100, None, ""),
        (105, 200, "command", "threads now expire 200 s after"),
        (105, None, "drop_index", "no longer expire"),
        (0, 100, "command", "100 s"),
    ],
)
def test_expiry_is_brought_to_the_ttl(found: int | None, ttl: float | None, method: str | None, news: str) -> None:
    indexes = existing("blobs") if found is None else existing("blobs", expiring(found))
    change = ttl_change("blobs", "b", indexes, ttl)
    assert (change and change[0].method) == method
    if change is not None:
        assert change[1].startswith("b: ")
        assert news in change[1]
        assert ttl_change("blobs", "b", existing("blobs", expiring(expire_after(ttl))), ttl) is None if ttl else True


def test_the_requests_that_change_expiry() -> None:
    create, _ = ttl_change("blobs", "b", [], 100) or (None, "")
    drop, _ = ttl_change("blobs", "b", [{**expiring(1), "name": "x"}], None) or (None, "")
    modify, _ = ttl_change("blobs", "b", [expiring(1)], 100) or (None, "")
    assert create
    assert drop
    assert modify
    assert (create.part, create.args, create.kwargs) == ("blobs", ([("active_at", 1)],), {"expireAfterSeconds": 105})
    assert (drop.part, drop.args) == ("blobs", ("x",))
    assert (modify.part, modify.args) == ("database", ("collMod", "b"))
    assert modify.kwargs == {"index": {"keyPattern": {"active_at": 1}, "expireAfterSeconds": 105}}


TTLS = st.floats(0.01, 2**31 / 1.06)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc))
MILLISECOND = timedelta(milliseconds=1)


@given(st.integers(20, 10**8), MOMENTS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_all_activity_of_one_step_is_noted_as_the_same(ttl: int, moment: datetime, one: float, other: float) -> None:
    start, step = activity(moment, ttl), timedelta(seconds=throttle(ttl))
    assert activity(start + step * one, ttl) == activity(start + step * other, ttl) == start
    assert activity(start + step * (1 + one), ttl) > start
    assert start.tzinfo is timezone.utc


@given(TTLS, MOMENTS)
def test_nothing_expires_before_its_time(ttl: float, moment: datetime) -> None:
    expires = activity(moment, ttl) + timedelta(seconds=expire_after(ttl))
    assert expires >= moment + timedelta(seconds=ttl) - MILLISECOND
    assert expires <= moment + timedelta(seconds=ttl * 1.05 + 1) + MILLISECOND
    assert 0 < expire_after(ttl) < 2**31


# --- setting up ----------------------------------------------------------------------------------------------------


def run(*replies: Any, ttl: float | None = None, dialect: Any = "mongodb") -> Driven:
    return drive(setup(settings(ttl=ttl, dialect=dialect, **NAMES)), *replies)


def test_a_database_that_has_everything_is_only_looked_at() -> None:
    found = run([], *(existing(part) for part in PARTS))
    assert found.calls == ["database.list_collections", *(f"{part}.list_indexes" for part in PARTS)]
    assert found.requests[0].kwargs == {"filter": {"name": {"$in": ["c", "w", "b"]}}}


def test_the_basic_dialect_does_not_list_collections() -> None:
    assert run(*(existing(part) for part in PARTS), dialect="basic").calls[0] == "checkpoints.list_indexes"


def made(found: Driven) -> list[dict[str, Any]]:
    """The indexes asked for, request by request, as the server is told of them."""
    requests = [request for request in found.requests if request.method == "create_indexes"]
    return [model.document for request in requests for model in request.args[0]]


def test_an_empty_database_gets_every_index_and_its_expiry() -> None:
    replies = [reply for _ in PARTS for reply in ([], "made", "made")]
    found = run([], *replies, ttl=100)
    expiry = [request for request in found.requests if request.method == "create_index"]
    assert [(request.args, request.kwargs) for request in expiry] == [
        (([("active_at", 1)],), {"expireAfterSeconds": 105})
    ] * len(PARTS)
    assert [tuple(index["key"].items()) for index in made(found)] == [index.keys for index in INDEXES]
    assert [index.get("unique", False) for index in made(found)] == [index.unique for index in INDEXES]
    assert [index.get("partialFilterExpression") for index in made(found)] == [
        {index.where: {"$exists": True}} if index.where else None for index in INDEXES
    ]


@pytest.mark.parametrize("code", [13, 8000])
def test_a_user_without_rights_works_on_and_it_is_logged(code: int, caplog: pytest.LogCaptureFixture) -> None:
    no = OperationFailure("no", code)
    replies = [[no, no, *[no] * len(missing(part, [])), no] for part in PARTS]  # type: ignore[arg-type]  # one of the parts
    run(no, *(reply for of_part in replies for reply in of_part), ttl=100)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(INDEXES) + len(PARTS)
    assert sum("not allowed to create the index" in text for text in warnings) == len(INDEXES)


@pytest.mark.parametrize("code", [67, 85, 11000])
def test_a_unique_index_that_is_refused_becomes_a_plain_one(code: int, caplog: pytest.LogCaptureFixture) -> None:
    lacking = [index for index in existing("checkpoints") if index["name"] != "0"]
    no = OperationFailure("no", code)
    found = run([], lacking, no, no, "made", existing("writes"), existing("blobs"))
    assert [(tuple(index["key"].items()), index.get("unique", False)) for index in made(found)] == [
        (INDEXES[0].keys, unique) for unique in (True, True, False)
    ]
    assert f"c: no unique index on {dict(INDEXES[0].keys)} (code {code}); using a plain one" in caplog.text


@pytest.mark.parametrize("error", [AutoReconnect("gone"), OperationFailure("an election", 189)])
def test_a_passing_error_does_not_give_up_uniqueness(error: Exception) -> None:
    with pytest.raises(type(error)):
        run([], [], error, "never sent")


def test_errors_that_tell_of_something_else_pass() -> None:
    for replies in ([REFUSED], [[], REFUSED]):
        with pytest.raises(OperationFailure):
            run(*replies)
    with pytest.raises(OperationFailure):
        run([], existing("checkpoints", expiring(1)), REFUSED, ttl=100)
