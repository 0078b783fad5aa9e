"""Values that LangGraph's serializer can hold, for properties; and MongoDB's equality, to judge them by."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import bson
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

SERDE = JsonPlusSerializer()


class Colour(Enum):
    RED = "red"


class Name(str):
    __slots__ = ()


Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 2**40


class Word(str, Enum):
    YES = "yes"


class Id(UUID):
    pass


UTC = timezone.utc


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
INTS = st.integers(-(2**63), 2**64 - 1)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=6),
    st.datetimes(min_value=datetime(2, 1, 2), max_value=datetime(9998, 12, 30)),
    st.datetimes(min_value=datetime(2, 1, 2), max_value=datetime(9998, 12, 30), timezones=ZONES),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.just(Colour.RED),
    st.frozensets(st.integers(0, 3)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def reread(value: Any) -> Any:
    """What comes back of a value that LangGraph's serializer has stored."""
    return SERDE.loads_typed(SERDE.dumps_typed(value))


def stored(value: Any) -> Any:
    """A value as BSON holds it."""
    return bson.decode(bson.encode({"value": value}))["value"]


def nested(depth: int, leaf: Any = 1) -> Any:
    for i in range(depth):
        leaf = {"k": leaf} if i % 2 else [leaf]
    return leaf


def equal_in_mongodb(a: Any, b: Any) -> bool:
    """MongoDB's equality of two values in BSON.

    Types are compared first, all numbers being one; then numbers by value, with NaN equal to itself, and documents
    field by field in their order.
    """
    if _kind(a) != _kind(b):
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(k == m and equal_in_mongodb(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal_in_mongodb, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)


def _kind(value: Any) -> Any:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def _in_zones(moment: datetime, zone: timezone) -> tuple[datetime, datetime]:
    try:
        return moment, moment.astimezone(zone)
    except OverflowError:
        return moment, moment


def _times(minute: int, offset: int) -> tuple[time, time]:
    there = minute + offset
    return (
        time(minute // 60, minute % 60, tzinfo=UTC),
        time(there // 60, there % 60, tzinfo=timezone(timedelta(minutes=offset))),
    )


# By kind, two values that are equal in Python.
EQUALS: dict[str, st.SearchStrategy[tuple[Any, Any]]] = {
    "anything and what is read back": VALUES.map(lambda v: (v, reread(v))),
    "int and float": INTS.map(lambda n: (n, float(n))),
    "int and Decimal": INTS.map(lambda n: (n, Decimal(n))),
    "float and Decimal": st.floats(allow_nan=False).map(lambda n: (n, Decimal(n))),
    "int and IntEnum": st.just((2**40, Level.HIGH)),
    "zeros": st.just((-0.0, 0)),
    "str and its subclasses": TEXT.map(lambda s: (s, Name(s))) | st.just(("yes", Word.YES)),
    "bytes and bytearray": st.binary(max_size=4).map(lambda b: (b, bytearray(b))),
    "bytes and memoryview": st.binary(max_size=4).map(lambda b: (b, memoryview(b))),
    "datetimes in two zones": st.builds(
        _in_zones, st.datetimes(datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.just(UTC)), ZONES
    ),
    "datetimes in two zones about year 1": st.builds(
        _in_zones, st.datetimes(datetime(1, 1, 1), datetime(2, 1, 3), timezones=st.just(UTC)), ZONES
    ),
    "datetimes in two zones about year 9999": st.builds(
        _in_zones, st.datetimes(datetime(9998, 12, 29), datetime.max, timezones=st.just(UTC)), ZONES
    ),
    "times in two zones": st.builds(_times, st.integers(300, 1000), st.integers(-300, 400)),
    "sets": st.sets(st.integers(0, 5)).map(lambda s: (s, frozenset(s))),
    "UUID and its subclasses": st.uuids().map(lambda u: (u, Id(u.hex))),
    "tuples": st.lists(VALUES, min_size=2, max_size=2).map(lambda v: (tuple(v), Point(*v))),
    "mappings in another order": st.dictionaries(TEXT, VALUES, max_size=4).map(
        lambda d: (d, OrderedDict(reversed(d.items())))
    ),
    "mappings with other keys": st.dictionaries(st.integers() | TEXT, VALUES, max_size=4).map(
        lambda d: (d, dict(reversed(d.items())))
    ),
    "deep ones": st.integers(25, 40).map(lambda depth: (nested(depth, 1), nested(depth, 1.0))),
}
