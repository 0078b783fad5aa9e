"""What a listener cannot use, it refuses at once, and names the argument."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from langgraph_mongo_saver import (
    AsyncCheckpointListener,
    AsyncMongoDBSaver,
    CheckpointListener,
    InvalidArgument,
    MongoDBSaver,
)

NOWHERE = "mongodb://127.0.0.1:1"


@pytest.fixture(params=[CheckpointListener, AsyncCheckpointListener])
async def construct(request: pytest.FixtureRequest) -> Any:
    """Construct a listener on a saver whose client has no server."""
    if request.param is CheckpointListener:
        with MongoClient(NOWHERE, connect=False) as client:
            yield lambda **arguments: CheckpointListener(MongoDBSaver(client), **arguments)
    else:
        async with AsyncMongoClient(NOWHERE, connect=False) as client:
            yield lambda **arguments: AsyncCheckpointListener(AsyncMongoDBSaver(client), **arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("name", value) for value in ("", 5, b"n", ["n"], {"$ne": 1})],
        *[("lease_seconds", value) for value in (0, 0.5, -1, True, "15", None)],
        *[("kinds", value) for value in ("checkpoints", 5, [], ["writes", 5])],
        *[("thread_id", value) for value in (5.0, b"1", ["1", None], {"$ne": 1}, [], set())],
        *[("checkpoint_ns", value) for value in (5, b"", ["a"])],
        *[("metadata", value) for value in (5, [], {5: 1})],
        *[("start_at", "2026"), ("resume_from", "nowhere"), ("resume_from", 5), ("on_gap", "ignore")],
        *[("poll_interval", -1), ("poll_interval", True), ("retry_seconds", "long"), ("retry_seconds", -1)],
    ],
)
def test_an_argument_that_cannot_be_used_is_named(construct: Any, argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{argument}\b"):
        construct(**{argument: value})


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_lease_is_a_number_that_the_server_can_count_with(construct: Any, seconds: float) -> None:
    with pytest.raises(InvalidArgument, match=r"^lease_seconds\b"):
        construct(lease_seconds=seconds)


def test_a_name_is_one_that_the_server_can_store(construct: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^name\b"):
        construct(name="\ud800")


def test_on_error_is_something_to_call(construct: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^on_error\b"):
        construct(on_error="not callable")


@pytest.mark.parametrize("method", ["on", "subscribe"])
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("thread_id", b"1"), ("checkpoint_ns", 5), ("metadata", 5), ("metadata", {5: 1})],
        *[("size", 0), ("size", "5"), ("size", True), ("policy", "drop_newest"), ("policy", ["wait"])],
    ],
)
def test_an_argument_of_a_subscriber_that_cannot_be_used_is_named(
    construct: Any, method: str, argument: str, value: Any
) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{argument}\b"):
        getattr(construct(), method)(**{argument: value})


@pytest.mark.parametrize("method", ["on", "subscribe"])
@pytest.mark.parametrize("kind", ["checkpoints", 5, None, ["checkpoint"], print])
def test_a_kind_that_is_none_is_refused(construct: Any, method: str, kind: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^kinds\b"):
        getattr(construct(), method)(kind)


@pytest.mark.parametrize("wrong", [None, "print", 5])
def test_what_cannot_be_called_is_no_callback(construct: Any, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^callback must be a function"):
        construct().on("checkpoint")(wrong)


@pytest.mark.parametrize("wrong", [None, "saver", 5])
def test_what_is_no_saver_is_refused(wrong: Any) -> None:
    for kind in (CheckpointListener, AsyncCheckpointListener):
        with pytest.raises(InvalidArgument, match=r"^saver\b"):
            kind(wrong)


def test_each_listener_takes_the_saver_of_its_kind_only() -> None:
    blocking = MongoDBSaver(MongoClient(NOWHERE, connect=False))
    native = AsyncMongoDBSaver(AsyncMongoClient(NOWHERE, connect=False))
    for kind, wrong in ((CheckpointListener, native), (AsyncCheckpointListener, blocking)):
        with pytest.raises(InvalidArgument, match=r"^saver must be a \w*MongoDBSaver for a"):
            kind(wrong)
    blocking.client.close()


def test_a_listener_that_was_not_started_is_new(construct: Any) -> None:
    assert construct().status().state == "new"
