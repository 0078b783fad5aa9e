"""Requests as data: what callers give is compared or stored, never obeyed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from inspect import isfunction
from typing import Any, get_args, get_type_hints

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_mongo_saver import event_pipelines, pipelines, thread_pipelines
from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.pipelines import Request

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOSTILE = "$hostile"
ADDRESS = Address(HOSTILE, HOSTILE, HOSTILE)
# What clean-up keeps for other checkpoints alone is neither listed nor the latest.
IN_USE = {"retired": {"$exists": False}}
THERE = {"retired": {"$ne": "going"}}
KEY = {"thread_id": HOSTILE, "blob": HOSTILE, "part": 0}
WRITE = {"idx": 0, "type": HOSTILE, "data": b"$hostile"}
WRITES = {
    "_id": {**ADDRESS.key, "task_id": HOSTILE},
    **ADDRESS.key,
    "task_id": HOSTILE,
    "task_path": HOSTILE,
    "stored_at": NOW,
    "active_at": NOW,
    "idxs": [0],
    "writes": {"%24hostile": [WRITE], "a%2Eb": [{**WRITE, "idx": -1}]},
}


def page(**arguments: Any) -> Request:
    defaults: dict[str, Any] = {"checkpoint_id": None, "before": None, "filter": {}, "after": None, "size": 5}
    thread_id, checkpoint_ns = arguments.pop("thread_id", None), arguments.pop("checkpoint_ns", None)
    return pipelines.checkpoints_page(thread_id, checkpoint_ns, **{**defaults, **arguments})


# What stands for a parameter, by its name or else by its type: everything that a caller can choose is hostile.
BY_NAME: dict[str, Any] = {
    "thread_id": HOSTILE,
    "checkpoint_ns": HOSTILE,
    "checkpoint_id": HOSTILE,
    "before": HOSTILE,
    "after": (HOSTILE, HOSTILE, HOSTILE),
    "filter": {HOSTILE: {HOSTILE: HOSTILE}, "a.b": {"$regex": HOSTILE}},
    "query": {"thread_id": HOSTILE},
    "entries": [{"channel": HOSTILE, "type": HOSTILE, "blob": HOSTILE, "parts": 1, "bytes": 8}],
    "source": HOSTILE,
    "target": HOSTILE,
    "channel": HOSTILE,
    "projection": event_pipelines.projection(),
    "place": (HOSTILE, 5),
    "how": "going",
    "name_of": str,
    "requests": [
        pipelines.writes_to(ADDRESS, [[HOSTILE]], [HOSTILE]),
        pipelines.values_of(ADDRESS, [HOSTILE], [HOSTILE]),
        pipelines.whole("blobs", [KEY]),
    ],
}
BY_TYPE: dict[Any, Any] = {
    Address: ADDRESS,
    Document: WRITES,
    Mapping[str, datetime]: {"active_at": NOW},
    Sequence[Address]: [ADDRESS, ADDRESS._replace(thread_id="$hostile too")],
    Sequence[Document]: [KEY],
    Sequence[str]: [HOSTILE],
    Sequence[Sequence[str]]: [[HOSTILE], [HOSTILE]],
    bool: False,
    datetime: NOW,
    int: 5,
    pipelines.Part: "blobs",
    str: "collection",
}


def _request(build: Any) -> Request:
    names = get_type_hints(build)
    del names["return"]
    request: Request = build(**{name: _hostile(name, type_) for name, type_ in names.items()})
    return request


def _hostile(name: str, type_: Any) -> Any:
    if name in BY_NAME:
        return BY_NAME[name]
    return next(BY_TYPE[kind] for kind in (type_, *get_args(type_)) if kind in BY_TYPE)


REQUESTS = {
    name: _request(build)
    for room in (pipelines, event_pipelines, thread_pipelines)
    for name, build in vars(room).items()
    if not name.startswith("_") and isfunction(build) and get_type_hints(build).get("return") is Request
}
REQUESTS["latest_with_writes"] = pipelines.checkpoint_with_writes(ADDRESS.at(None), "checkpoint_writes")
REQUESTS["page of everything"] = page(after=(HOSTILE, HOSTILE, HOSTILE), filter={"": [{"$gt": HOSTILE}]})

each_request = pytest.mark.parametrize("name", REQUESTS)


def _expressions(value: Any) -> Iterator[str]:
    """The strings that the server takes for operators or paths in a pipeline, an update or a projection."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            # A literal is data, and so is what a match compares with, unless it does so by an expression.
            if key == "$match":
                yield from _conditions(inner)
            elif key != "$literal" and "restrictSearch" not in key:
                yield from _expressions(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _expressions(inner)
    elif isinstance(value, str):
        yield value


def _conditions(query: Any) -> Iterator[str]:
    """Names and operators of a query, and the expressions in it."""
    if isinstance(query, Mapping):
        for key, inner in query.items():
            yield key
            yield from _expressions(inner) if key == "$expr" else _conditions(inner)
    elif isinstance(query, (list, tuple)):
        for inner in query:
            yield from _conditions(inner)


@each_request
def test_what_callers_give_is_never_an_operator_or_a_path(name: str) -> None:
    request = REQUESTS[name]
    obeyed = list(_expressions(request.kwargs.get("projection")))
    for argument in request.args:
        is_pipeline = isinstance(argument, list) and request.method in ("aggregate", "update_one", "update_many")
        obeyed += _expressions(argument) if is_pipeline else _conditions(argument)
    assert [text for text in obeyed if "$hostile" in text or "a.b" in text or text == "$regex"] == []


def test_the_check_finds_what_is_not_protected() -> None:
    for unprotected in ({"$eq": ["$a", HOSTILE]}, [{"$match": {"$expr": [HOSTILE]}}], {"$set": {HOSTILE: 1}}):
        assert HOSTILE in list(_expressions(unprotected))
    assert HOSTILE not in list(_expressions([{"$match": {"a": HOSTILE}}, {"$set": {"a": {"$literal": HOSTILE}}}]))


@each_request
def test_requests_are_bson(name: str) -> None:
    bson.encode({"args": list(REQUESTS[name].args)})


@each_request
def test_cursors_are_read_to_their_end_and_nothing_else_is(name: str) -> None:
    assert REQUESTS[name].rows is (REQUESTS[name].method in ("find", "aggregate"))


def test_the_latest_is_sorted_for_and_a_named_one_is_not() -> None:
    named, latest = (REQUESTS[name].args[0] for name in ("checkpoint_with_writes", "latest_with_writes"))
    assert [list(stage) for stage in named] == [["$match"], ["$lookup"]]
    assert [list(stage) for stage in latest] == [["$match"], ["$sort"], ["$limit"], ["$lookup"]]
    assert latest[0]["$match"] == {"thread_id": HOSTILE, "checkpoint_ns": HOSTILE, **IN_USE}


def test_an_empty_namespace_is_asked_for() -> None:
    assert pipelines.checkpoint(Address("1", "")).args[0] == {"thread_id": "1", "checkpoint_ns": "", **IN_USE}


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ({}, IN_USE),
        ({"thread_id": "1"}, {"thread_id": "1", **IN_USE}),
        ({"checkpoint_ns": ""}, {"checkpoint_ns": "", **IN_USE}),
        ({"checkpoint_id": "5"}, {"checkpoint_id": {"$eq": "5"}, **THERE}),
        ({"before": "5"}, {"checkpoint_id": {"$lt": "5"}, **IN_USE}),
        ({"checkpoint_id": "4", "before": "5"}, {"checkpoint_id": {"$eq": "4", "$lt": "5"}, **THERE}),
        ({"filter": {"step": 1}}, {"metadata.step": {"$eq": 1}, **IN_USE}),
    ],
)
def test_a_page_is_asked_for_by_what_is_given(arguments: dict[str, Any], query: dict[str, Any]) -> None:
    assert page(**arguments).args[0] == query


PLACES = st.tuples(*[st.sampled_from("abc")] * 3)


@given(st.sets(PLACES, min_size=1), st.sampled_from([None, "a"]), st.sampled_from([None, "b"]), st.integers(1, 3))
def test_pages_follow_each_other_without_gap_or_repetition(
    places: set[tuple[str, str, str]], thread_id: str | None, checkpoint_ns: str | None, size: int
) -> None:
    documents = [dict(zip(("checkpoint_id", "thread_id", "checkpoint_ns"), place, strict=True)) for place in places]
    seen: list[dict[str, str]] = []
    after: tuple[str, str, str] | None = None
    while found := _find(documents, page(thread_id=thread_id, checkpoint_ns=checkpoint_ns, after=after, size=size)):
        seen += found
        assert len(seen) <= len(documents)
        after = tuple(seen[-1].values())  # type: ignore[assignment]  # three of them
    wanted = [
        d for d in documents if thread_id in (None, d["thread_id"]) and checkpoint_ns in (None, d["checkpoint_ns"])
    ]
    assert sorted(map(str, seen)) == sorted(map(str, wanted))
    assert [d["checkpoint_id"] for d in seen] == sorted((d["checkpoint_id"] for d in wanted), reverse=True)


def _find(documents: list[dict[str, str]], request: Request) -> list[dict[str, str]]:
    found = [document for document in documents if _matches(document, request.args[0])]
    for name, order in reversed(request.kwargs["sort"]):
        found.sort(key=lambda document: document[name], reverse=order < 0)
    return found[: request.kwargs["limit"]]


def _matches(document: dict[str, str], query: Mapping[str, Any]) -> bool:
    compare = {"$lt": str.__lt__, "$lte": str.__le__, "$gt": str.__gt__, "$eq": str.__eq__}
    for name, wanted in query.items():
        if name == "$or":
            fits = any(_matches(document, alternative) for alternative in wanted)
        elif name == "retired":
            fits = wanted == {"$exists": name in document}
        elif isinstance(wanted, dict):
            fits = all(compare[operator](document[name], value) for operator, value in wanted.items())
        else:
            fits = document[name] == wanted
        if not fits:
            return False
    return True


def between(low: str, high: str) -> dict[str, Any]:
    return {"$and": [{"checkpoint_id": {"$gte": low}}, {"checkpoint_id": {"$lte": high}}]}


def test_the_writes_of_one_namespace_are_one_range_where_nothing_lies_between() -> None:
    two = [Address("1", "", "b"), Address("1", "", "a")]
    namespace = {"thread_id": "1", "checkpoint_ns": ""}
    assert pipelines.writes_of(two).args[0] == {**namespace, "checkpoint_id": {"$in": ["b", "a"]}}
    assert pipelines.writes_of(two, gaps=False).args[0] == {**namespace, **between("a", "b")}
    for gaps in (True, False):
        many = pipelines.writes_of([*two, Address("2", "", "a")], gaps=gaps).args[0]["$or"]
        assert [query["thread_id"] for query in many] == ["1", "2"]


def test_the_writes_to_channels_are_a_range_a_run_unless_there_are_very_many() -> None:
    address = Address("1", "")
    namespace = {"thread_id": "1", "checkpoint_ns": ""}
    runs = [["46", "45", "44"], ["23", "22"]]
    ranges = [{**namespace, **between(*bounds)} for bounds in (("44", "46"), ("22", "23"))]
    assert pipelines.writes_to(address, runs[:1], ["a"]).args[0] == ranges[0]
    assert pipelines.writes_to(address, runs, ["a"]).args[0] == {"$or": ranges}
    own = {"checkpoint_id": {"$ne": "45"}}  # a checkpoint's own writes are not its history
    assert pipelines.writes_to(address.at("45"), runs[:1], ["a"]).args[0]["$and"] == [*ranges[0]["$and"], own]
    many = [f"{number:02}" for number in range(33)]
    query = pipelines.writes_to(address, [[id_] for id_ in many], ["a"]).args[0]
    assert query == {**namespace, "checkpoint_id": {"$in": many}}


def test_a_replacement_keeps_the_id_that_is_there() -> None:
    query, document = pipelines.replace_checkpoint({"_id": 1, **ADDRESS.key, "a": 1}).args
    assert query == ADDRESS.key
    assert document == {**ADDRESS.key, "a": 1}


def test_merging_keeps_activity_where_threads_expire_only() -> None:
    never = {key: value for key, value in WRITES.items() if key != "active_at"}
    updates = [pipelines.merge_writes(document).args[1][0]["$set"] for document in (WRITES, never)]
    changed = {"stored_at", "idxs", *(f"writes.{name}" for name in WRITES["writes"])}
    assert [set(update) for update in updates] == [{"active_at", *changed}, changed]
