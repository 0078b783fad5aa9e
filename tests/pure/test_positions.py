"""Names are values in every request: none of them is a field, a variable or an operator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import DuplicateKeyError, OperationFailure

from langgraph_mongo_saver.pipelines import Request
from langgraph_mongo_saver.positions import keep, release, stored_position, take_lease

HOSTILE = ("$x", "$$NOW", "$$ROOT", "$owner", "a.b", "", "{}", "\0", "é", '{"$ne": null}')
texts = st.sampled_from(HOSTILE) | st.text()


def first(plan: Any) -> Request:
    request = next(plan)
    assert isinstance(request, Request)
    assert request.part == "listeners"
    return request


def end(plan: Any, reply: Any) -> Any:
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.send(reply)
    return done.value.value


def expressions(stages: Any) -> list[str]:
    """What the server would evaluate: every text of a pipeline that is not inside a $literal."""
    if isinstance(stages, dict):
        return [text for key, inner in stages.items() if key != "$literal" for text in expressions(inner)]
    if isinstance(stages, (list, tuple)):
        return [text for inner in stages for text in expressions(inner)]
    return [stages] if isinstance(stages, str) else []


@given(texts, texts)
def test_a_lease_is_taken_with_values_only(name: str, owner: str) -> None:
    request = first(take_lease(name, owner, 1.5))
    wanted, stages = request.args
    assert wanted == {"_id": name}
    assert set(expressions(stages)) <= {"$owner", "$until", "$$NOW"}
    assert {"$literal": owner} in stages[0]["$set"]["owner"]["$cond"]
    assert request.kwargs["upsert"] is True


@given(texts, texts, texts)
def test_a_position_is_kept_as_a_value_and_only_by_its_owner(name: str, owner: str, position: str) -> None:
    wanted, stages = first(keep(name, owner, 1.5, position)).args
    assert wanted == {"_id": name, "owner": owner}
    assert stages[0]["$set"]["position"] == {"$literal": position}
    assert set(expressions(stages)) == {"$$NOW"}
    _, stages = first(keep(name, owner, 1.5, None)).args
    assert stages[0]["$set"].keys() == {"until"}


@given(texts, texts)
def test_reading_and_releasing_take_names_as_values(name: str, owner: str) -> None:
    assert first(stored_position(name)).args == ({"_id": name},)
    wanted, change = first(release(name, owner)).args
    assert wanted == {"_id": name, "owner": owner}
    assert change["$set"].keys() == {"until"}


@pytest.mark.parametrize("seconds", [1, 1.0, 1.5, 15.0])
def test_a_lease_is_whole_milliseconds_of_the_servers_time(seconds: float) -> None:
    _, stages = first(keep("n", "o", seconds, None)).args
    assert stages == [{"$set": {"until": {"$add": ["$$NOW", int(seconds * 1000)]}}}]


def test_plans_tell_what_the_server_replied() -> None:
    assert end(take_lease("n", "me", 1), {"owner": "me"}) is True
    assert end(take_lease("n", "me", 1), {"owner": "another"}) is False
    assert end(stored_position("n"), []) is None
    assert end(stored_position("n"), [{"_id": "n"}]) is None
    assert end(stored_position("n"), [{"_id": "n", "position": "p"}]) == "p"
    assert end(keep("n", "me", 1, "p"), SimpleNamespace(matched_count=1)) is True
    assert end(keep("n", "me", 1, "p"), SimpleNamespace(matched_count=0)) is False


def test_whoever_makes_the_document_first_has_the_lease() -> None:
    plan = take_lease("n", "me", 1)
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.throw(DuplicateKeyError("another was first"))
    assert done.value.value is False
    plan = take_lease("n", "me", 1)
    next(plan)
    with pytest.raises(OperationFailure, match="something else"):
        plan.throw(OperationFailure("something else"))
