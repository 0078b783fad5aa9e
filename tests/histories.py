"""What random histories are made of: ids, values, metadata, steps; and how two savers' checkpoints are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from tests.building import config

THREADS = st.sampled_from(["1", "a", "a:b"])
NAMESPACES = st.sampled_from(["", "b", "node:1|inner:2"])
# A channel without `checkpoint()` value, whose snapshots belong to all later checkpoints with the same version.
DELTA = "delta"
CHANNELS = st.sampled_from(["messages", "a.b", "$x", "", "branch:to:node|a", DELTA, DELTA])
PICK = st.integers(0, 1000)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["a", "a.b", "$x", "", "ü", "a\0b"])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5
    )


# Without booleans: in a filter True is 1 to InMemorySaver.
LEAVES = (
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 2)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(
        [
            Decimal("1.50"),
            UUID(int=7),
            date(2026, 1, 1),
            datetime(2026, 1, 1, 12, 0, 0, 123456),
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=9))),
            (1, "two"),
            {3},
        ]
    )
)
VALUES = nested(LEAVES | st.booleans() | st.binary(max_size=3).map(bytearray)) | st.builds(
    lambda size, fill: bytes([fill]) * size, st.sampled_from([5_000, 300_000]), st.integers(0, 2)
)
# Not equal in Python, but some of them are to a database.
LOOKALIKES = [
    *(2**64 - 1, 2**64 - 2, float(2**64), "2", 2, 2.5),
    *(datetime(2026, 1, 1, 12, 0, 0, 123456), datetime(2026, 1, 1, 12, 0, 0, 123999)),
    *(UUID(int=7), str(UUID(int=7)), {3}, {4}, "<set>", [{3}], [{4}]),
]
ABSENT = object()
CHANGES = st.dictionaries(CHANNELS, VALUES | st.just(ABSENT), max_size=4)

METADATA = st.builds(
    lambda usual, odd: {**usual, **odd},
    st.fixed_dictionaries(
        {"source": st.sampled_from(["input", "loop", "update", "fork"]), "step": st.integers(-2, 3)},
        optional={
            "like": st.sampled_from(LOOKALIKES),
            "parents": st.just({"": "000001", "node:1": "000002"}),
            "flag": st.booleans() | st.none(),
        },
    ),
    st.dictionaries(
        st.sampled_from(["run_id", "a.b", "$x", "", "ü", "%2E", "a%2Eb", "x\0"]), nested(LEAVES), max_size=2
    ),
)
CONFIGURABLES = st.dictionaries(
    st.sampled_from(["user", "__pregel_task", "langgraph_node", "a.b"]), LEAVES | st.booleans(), max_size=2
)

WRITTEN = st.lists(
    st.tuples(CHANNELS | st.sampled_from(["__error__", "__interrupt__", "__resume__", "__scheduled__"]), VALUES),
    max_size=4,
)
TASKS = st.tuples(
    WRITTEN,
    st.sampled_from(["t1", "t2", "t3"]),
    st.sampled_from(["", "~__pregel_pull, b", "~__pregel_pull, a", "~__pregel_push, 0000000001"]),
)

STEPS = st.fixed_dictionaries(
    {"changes": CHANGES, "later": st.integers(-2, 3), "metadata": METADATA},
    optional={
        "configurable": CONFIGURABLES,
        "config_metadata": CONFIGURABLES,
        # In async durability a task can be faster than its checkpoint.
        "early": st.lists(TASKS, max_size=2),
        # What `update_state(..., as_node="__copy__")` does to it: all values, nothing new.
        "copied": st.just(True),
    },
)


@dataclass(frozen=True)
class Stored:
    """A checkpoint, and what a run goes on with from there."""

    thread_id: str
    namespace: str
    checkpoint: Checkpoint
    parent_id: str | None

    @property
    def config(self) -> Any:
        return config(self.thread_id, self.namespace, self.checkpoint["id"])


def exact(value: Any) -> Any:
    """A value in a form that is equal only to that of an equal value of the same types, whatever the order of keys."""
    if isinstance(value, dict):
        return sorted((repr(key), exact(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(item) for item in value]
    if isinstance(value, _DeltaSnapshot):
        return "snapshot", exact(value.value)
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def newest_first(found: Iterable[CheckpointTuple]) -> list[CheckpointTuple]:
    def places(loaded: CheckpointTuple) -> tuple[str, str]:
        return loaded.config["configurable"]["thread_id"], loaded.config["configurable"]["checkpoint_ns"]

    return sorted(sorted(found, key=places), key=lambda loaded: loaded.checkpoint["id"], reverse=True)
