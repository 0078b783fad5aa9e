"""Ids reach a query as plain strings or not at all."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_mongo_saver.address import (
    Address,
    configurable,
    identifier,
    read_address,
    read_checkpoint_id,
    read_namespace,
    thread_identifier,
)
from langgraph_mongo_saver.errors import InvalidArgument
from tests.building import config
from tests.pure.drawing import Name, Word


class Number(IntEnum):
    SEVEN = 7


IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
NO_IDS = [{"$ne": None}, {}, re.compile("."), ["a"], b"a", 1.5, True, object(), ("a",), "\ud800"]

no_id = pytest.mark.parametrize("value", NO_IDS, ids=lambda value: type(value).__name__)


@given(IDS, st.text(st.characters(codec="utf-8"), max_size=8), IDS | st.none())
def test_an_address_survives_its_config(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> None:
    address = read_address(config(thread_id, checkpoint_ns, checkpoint_id))
    assert address == (thread_id, checkpoint_ns, checkpoint_id)
    if checkpoint_id is not None:
        assert read_address(address.to_config()) == address
        assert set(address.to_config()["configurable"]) == {"thread_id", "checkpoint_ns", "checkpoint_id"}
        assert "".join(address.key.values()) == thread_id + checkpoint_ns + checkpoint_id


@pytest.mark.parametrize("joined", [("a:b", "c", "d"), ("a", "b:c", "d"), ("a", "b", "c:d")])
def test_ids_are_never_joined(joined: tuple[str, str, str]) -> None:
    assert list(Address(*joined).key.values()) == list(joined)


@no_id
@pytest.mark.parametrize("name", ["thread_id", "checkpoint_ns", "checkpoint_id"])
def test_what_is_no_id_is_refused_by_name(value: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"config: {name} ") as caught:
        read_address(config(**{name: value}))
    assert "$ne" not in str(caught.value)


@no_id
@pytest.mark.parametrize("read", [read_checkpoint_id, read_namespace])
def test_readers_name_the_argument_that_they_read(value: Any, read: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^before: checkpoint_"):
        read(config(checkpoint_ns=value, checkpoint_id=value), "before")


@pytest.mark.parametrize("value", [Name("a"), Word.YES])
def test_subclasses_of_str_become_plain(value: str) -> None:
    assert type(identifier(value, "id")) is str
    assert identifier(value, "id") in ("a", "yes")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7, "7"), (-1, "-1"), (2**70, str(2**70)), (UUID(int=5), str(UUID(int=5))), ("7", "7"), (Number.SEVEN, "7")],
)
def test_ints_and_uuids_are_thread_ids(value: Any, expected: str) -> None:
    assert thread_identifier(value) == expected
    assert type(thread_identifier(value)) is str
    assert read_address(config(value)).thread_id == expected


@pytest.mark.parametrize("name", ["checkpoint_ns", "checkpoint_id"])
def test_ints_are_no_other_ids(name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        read_address(config(**{name: 7}))


@pytest.mark.parametrize(
    "value",
    [None, "1", [], {}, {"configurable": None}, {"configurable": "1"}, {"thread_id": "1"}],
)
def test_what_is_no_config_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^before must be a mapping with a 'configurable' mapping"):
        configurable(value, "before")


@pytest.mark.parametrize("part", [{}, {"thread_id": None}, {"checkpoint_id": "1"}])
def test_a_config_without_a_thread_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="'thread_id' is missing"):
        read_address({"configurable": part})


@pytest.mark.parametrize("part", [{}, {"checkpoint_id": None, "checkpoint_ns": None}, {"checkpoint_id": ""}])
def test_what_is_absent_or_none_means_the_latest_of_the_root(part: dict[str, Any]) -> None:
    given: Any = {"configurable": {"thread_id": "1", **part}}
    assert read_address(given) == Address("1", "", None)
    assert read_checkpoint_id(given) is None
    assert read_namespace(given) is None


def test_an_empty_namespace_is_not_an_absent_one() -> None:
    assert read_namespace(config(checkpoint_ns="")) == ""


def test_only_an_address_of_a_checkpoint_has_a_key() -> None:
    with pytest.raises(InvalidArgument, match="'checkpoint_id' is missing"):
        _ = Address("1", "").key
    assert Address("1", "").at("2") == Address("1", "", "2")
    assert Address("1", "", "2").at(None).checkpoint_id is None
