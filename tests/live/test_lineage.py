"""Random trees of checkpoints: delta history and keepset against a walk that reads one ancestor after another.

The trees hold what stores can come to hold: forks of forks, children stored before their parents, ids that do not
follow time, parents that are gone, documents without a segment, and, edited by hand, even cycles.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import MongoClient
from pymongo.collection import Collection as Stored

from langgraph_mongo_saver import MongoDBSaver, codec, lineage
from tests.building import checkpoint, config
from tests.histories import exact
from tests.servers import Server
from tests.steps import LARGE

CHANNELS = ("d", "e", "f.$x")
NUMBERS = st.integers(0, 30)
SEEDS = st.sampled_from([None, False, [], 0, "", ["plain"], _DeltaSnapshot(["snapshot"]), _DeltaSnapshot([])])
VALUES = SEEDS | SEEDS | SEEDS | st.just("x" * LARGE)
# What becomes of a channel: it gets a value, a version without one, or stays as it is.
CHANGES = st.tuples(st.just("value"), VALUES) | st.sampled_from([("bumped", None), *[("same", None)] * 5])
WRITES = st.tuples(
    st.lists(st.tuples(st.sampled_from([*CHANNELS, "other"]), st.integers(0, 9)), min_size=1, max_size=3),
    st.sampled_from(["t1", "t2", "t3"]),
    st.sampled_from(["", "~__pregel_pull, b", "~__pregel_push, 0000000001"]),
)
NODES = st.fixed_dictionaries(
    {
        # Mostly a run that goes on; now and then a fork or another root.
        "back": st.just(0) | st.just(0) | st.just(0) | st.integers(0, 20) | st.none(),
        "early": st.booleans(),
        "clock": st.just(50) | st.integers(0, 99),
        "changes": st.fixed_dictionaries(dict.fromkeys(CHANNELS, CHANGES)),
        "tasks": st.lists(WRITES, max_size=2),
    }
)
EDITS = st.tuples(
    st.sampled_from(["unset", "ungrown", "unnamed", "again", "elsewhere", "gone", "linked"]), NUMBERS, NUMBERS
)


@dataclass
class Node:
    """A checkpoint to store."""

    id: str
    parent_id: str | None
    drawn: dict[str, Any]
    versions: dict[str, int]

    def store(self, saver: MongoDBSaver, thread_id: str) -> None:
        values = {c: value for c, (change, value) in self.drawn["changes"].items() if change == "value"}
        made = checkpoint(values, self.versions, self.id)
        changed = {c: self.versions[c] for c, (change, _) in self.drawn["changes"].items() if change != "same"}
        saver.put(config(thread_id, "", self.parent_id), made, {"source": "loop", "step": 1}, changed)
        for task in self.drawn["tasks"]:
            saver.put_writes(config(thread_id, "", self.id), *task)


def grown(drawn: Sequence[dict[str, Any]]) -> list[Node]:
    nodes: list[Node] = []
    for number, each in enumerate(drawn, 1):
        parent = nodes[-1 - each["back"] % len(nodes)] if nodes and each["back"] is not None else None
        versions = dict(parent.versions) if parent else dict.fromkeys(CHANNELS, 0)
        versions |= {c: number for c, (change, _) in each["changes"].items() if change != "same"}
        nodes.append(Node(f"{each['clock']:02}-{number:02}", parent and parent.id, each, versions))
    return nodes


def store(nodes: Sequence[Node], savers: Sequence[MongoDBSaver], thread_id: str, at_once: int) -> None:
    """Store the nodes by turns, several at once; those marked come before all others, and so before their parents."""
    ordered = sorted(nodes, key=lambda node: not node.drawn["early"])
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(Node.store, ordered, itertools.cycle(savers), itertools.repeat(thread_id)))


def edit(found: Stored[Any], saver: MongoDBSaver, nodes: Sequence[Node], thread_id: str, change: Any) -> None:
    kind, node, other = change[0], nodes[change[1] % len(nodes)], nodes[change[2] % len(nodes)]
    query = {"thread_id": thread_id, "checkpoint_id": node.id}
    if kind == "unset":
        found.update_one(query, {"$unset": {"segment": 1, "seq": 1, "grew_from": 1}})
    elif kind == "ungrown":
        found.update_one(query, {"$unset": {"grew_from": 1}})
    elif kind == "unnamed":
        found.update_one(query, {"$unset": {"populated": 1}})
    elif kind == "again":
        node.store(saver, thread_id)
    elif kind == "elsewhere":
        Node(node.id, other.id, node.drawn, node.versions).store(saver, thread_id)
    elif kind == "gone":
        found.delete_one(query)
    else:
        found.update_one(query, {"$set": {"parent_checkpoint_id": other.id}})


class OneByOne:
    """What the base class's walk asks of a saver; a checkpoint that it comes to again is not there."""

    def __init__(self, loaded: dict[str, CheckpointTuple]) -> None:
        self.left = dict(loaded)

    def get_tuple(self, at: Any) -> CheckpointTuple | None:
        return self.left.pop(at["configurable"].get("checkpoint_id"), None)


def history(loaded: dict[str, CheckpointTuple], at: Any, channels: Sequence[str]) -> Any:
    walk: Any = OneByOne(loaded)
    return BaseCheckpointSaver.get_delta_channel_history(walk, config=at, channels=channels)


def keepset(loaded: dict[str, CheckpointTuple], id_: str, channels: Collection[str]) -> set[str]:
    kept: set[str] = set()
    left = set(channels)
    current: str | None = id_
    while current in loaded and current not in kept:
        kept.add(current)
        left -= loaded[current].checkpoint["channel_values"].keys()
        parent = loaded[current].parent_config
        current = parent["configurable"]["checkpoint_id"] if parent and left else None
    return kept


@pytest.fixture
def client(server: Server) -> Iterator[MongoClient[Any]]:
    with MongoClient[Any](server.uri) as client:
        yield client


@pytest.mark.parametrize("small", [True, False], ids=["small segments and pages", "as released"])
def test_a_random_tree_reads_as_one_by_one(
    small: bool, client: MongoClient[Any], db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        for room in (codec, lineage):
            monkeypatch.setattr(room, "SEGMENT", 3)
        for name, size in (("_FIRST_HOPS", 0), ("_LATER_HOPS", 1), ("_SCANNED", 3)):
            monkeypatch.setattr(lineage, name, size)
    savers = [MongoDBSaver(client, db_name) for _ in range(2)]
    # Those that stored the tree remember some of its places; the others do not.
    readers = [*savers, MongoDBSaver(client, db_name), MongoDBSaver(client, db_name, dialect="basic")]
    threads = itertools.count()

    @settings(max_examples=35 if small else 10, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(
        drawn=st.lists(NODES, min_size=1, max_size=20),
        at_once=st.sampled_from([1, 1, 3]),
        edits=st.lists(EDITS, max_size=3),
        targets=st.lists(NUMBERS, min_size=1, max_size=4),
        channels=st.lists(st.sampled_from([*CHANNELS, "never"]), max_size=3),
    )
    def check(drawn: Any, at_once: int, edits: Any, targets: list[int], channels: list[str]) -> None:
        thread_id, nodes = str(next(threads)), grown(drawn)
        store(nodes, savers, thread_id, at_once)
        for change in edits:
            edit(client[db_name]["checkpoints"], savers[0], nodes, thread_id, change)
        loaded = {t.checkpoint["id"]: t for t in savers[0].list(config(thread_id))}
        for id_ in {nodes[-1].id, *(nodes[target % len(nodes)].id for target in targets)}:
            at = config(thread_id, "", id_)
            expected, kept = exact(history(loaded, at, channels)), keepset(loaded, id_, channels)
            for reader in readers:
                assert exact(reader.get_delta_channel_history(config=at, channels=channels)) == expected
                assert reader.get_delta_channel_keepset(config=at, channels=channels) == kept
        latest = config(thread_id, "", max(loaded, default=None))
        for reader in readers:
            found = reader.get_delta_channel_history(config=config(thread_id), channels=channels)
            assert exact(found) == exact(history(loaded, latest, channels))

    check()


def test_a_random_tree_without_edits_reads_as_with_the_base_class(client: MongoClient[Any], db_name: str) -> None:
    saver, threads = MongoDBSaver(client, db_name), itertools.count()

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(drawn=st.lists(NODES, min_size=1, max_size=15))
    def check(drawn: Any) -> None:
        thread_id, nodes = str(next(threads)), grown(drawn)
        store(nodes, [saver], thread_id, 1)
        for node in nodes[::3]:
            at = config(thread_id, "", node.id)
            expected = BaseCheckpointSaver.get_delta_channel_history(saver, config=at, channels=CHANNELS)
            assert exact(saver.get_delta_channel_history(config=at, channels=CHANNELS)) == exact(expected)

    check()
