"""Whatever the tree of checkpoints, what cleaning up leaves is read as before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel

from langgraph_mongo_saver import MongoDBSaver, Removed
from tests.servers import Server
from tests.trees import DELTAS, TREES, Node, Tree, counts, extend, state, unused_and_missing_blobs

# Of a server that waits for its disk, no example may be called slow.
bounded = settings(
    max_examples=15,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
NOW = timedelta(0)
THREADS = (f"thread {number}" for number in itertools.count())


@pytest.fixture(params=["mongodb", "basic"])
def trees_saver(request: pytest.FixtureRequest, server: Server, db_name: str) -> Iterator[MongoDBSaver]:
    with MongoDBSaver.from_conn_string(server.uri, db_name, dialect=request.param) as saver:
        yield saver


def states(saver: Any, nodes: list[Node]) -> list[Any]:
    return [state(saver, node.place) for node in nodes]


def ids(saver: Any, thread_id: str) -> set[tuple[str, str]]:
    found = (loaded.config["configurable"] for loaded in saver.list({"configurable": {"thread_id": thread_id}}))
    return {(place["checkpoint_ns"], place["checkpoint_id"]) for place in found}


def places(nodes: list[Node]) -> set[tuple[str, str]]:
    found = (node.place["configurable"] for node in nodes)
    return {(place["checkpoint_ns"], place["checkpoint_id"]) for place in found}


def difference(before: tuple[int, ...], after: tuple[int, ...]) -> Removed:
    return Removed(*(b - a for b, a in zip(before, after, strict=True)))


def assert_parents_are_there(saver: Any, thread_id: str) -> None:
    for loaded in saver.list({"configurable": {"thread_id": thread_id}}):
        if loaded.parent_config:
            assert saver.get_tuple(loaded.parent_config) is not None


def clean(saver: MongoDBSaver, database: Any, thread_id: str, method: str, *args: Any, **options: Any) -> None:
    """Clean up; told and done are the same, nothing is left over, and a second time nothing is to do."""
    before = counts(database, thread_id)
    told = getattr(saver, method)(*args, **options, dry_run=True)
    assert counts(database, thread_id) == before
    assert getattr(saver, method)(*args, **options) == told
    assert difference(before, counts(database, thread_id)) == told
    assert unused_and_missing_blobs(database, thread_id) == (0, 0)
    assert_parents_are_there(saver, thread_id)
    assert getattr(saver, method)(*args, **options) == Removed()


@bounded
@given(drawn=TREES, keep_last=st.integers(1, 4))
def test_prune(trees_saver: MongoDBSaver, mongo: Any, db_name: str, drawn: Any, keep_last: int) -> None:
    tree = Tree(trees_saver, next(THREADS), drawn)
    chosen = [node for nodes in tree.nodes.values() for node in nodes[-keep_last:]]
    before = states(trees_saver, chosen)
    options = {"keep_last": keep_last, "grace": NOW}
    clean(trees_saver, mongo[db_name], tree.thread_id, "prune", [tree.thread_id], **options)
    assert states(trees_saver, chosen) == before
    assert ids(trees_saver, tree.thread_id) == places(chosen)


@bounded
@given(drawn=TREES, runs=st.sets(st.sampled_from(["r0", "r1", "r2"]), min_size=1))
def test_delete_for_runs(trees_saver: MongoDBSaver, mongo: Any, db_name: str, drawn: Any, runs: set[str]) -> None:
    tree = Tree(trees_saver, next(THREADS), drawn)
    staying = [node for node in tree.all() if node.run not in runs]
    before = states(trees_saver, staying)
    query = {"thread_id": {"$ne": tree.thread_id}}
    for collection in ("checkpoints", "checkpoint_writes", "checkpoint_blobs"):
        mongo[db_name][collection].delete_many(query)  # its runs have checkpoints in other examples, too
    clean(trees_saver, mongo[db_name], tree.thread_id, "delete_for_runs", sorted(runs), grace=NOW)
    assert states(trees_saver, staying) == before
    assert ids(trees_saver, tree.thread_id) == places(staying)


@bounded
@given(drawn=TREES, keep_last=st.integers(1, 4), runs=st.sets(st.sampled_from(["r0", "r1", "r2"]), min_size=1))
def test_prune_and_then_delete_for_runs(
    trees_saver: MongoDBSaver, mongo: Any, db_name: str, drawn: Any, keep_last: int, runs: set[str]
) -> None:
    """What pruning kept for others alone never comes to stand for a state of its own."""
    tree = Tree(trees_saver, next(THREADS), drawn)
    chosen = [node for nodes in tree.nodes.values() for node in nodes[-keep_last:]]
    staying = [node for node in chosen if node.run not in runs]
    before = states(trees_saver, staying)
    trees_saver.prune([tree.thread_id], keep_last=keep_last, grace=NOW)
    trees_saver.delete_for_runs(sorted(runs), grace=NOW)
    assert states(trees_saver, staying) == before
    assert ids(trees_saver, tree.thread_id) == places(staying)
    if not staying:
        assert counts(mongo[db_name], tree.thread_id) == (0, 0, 0)


def live(saver: Any, node: Node) -> dict[str, list[Any]]:
    """What a graph sees in the channels of a checkpoint, however that is stored."""
    loaded = saver.get_tuple(node.place)
    held = loaded.checkpoint["channel_values"]
    absent = [c for c in DELTAS if c in loaded.checkpoint["channel_versions"] and c not in held]
    found = {c: {"seed": held[c], "writes": []} for c in DELTAS if c in held}
    found |= saver.get_delta_channel_history(config=node.place, channels=absent)
    values = {}
    for channel, history in found.items():
        made = DeltaChannel(extend, list).from_checkpoint(history.get("seed"))
        made.replay_writes(history["writes"])
        values[channel] = made.get()
    return values


@bounded
@given(drawn=TREES)
def test_compact_thread(trees_saver: MongoDBSaver, mongo: Any, db_name: str, drawn: Any) -> None:
    tree = Tree(trees_saver, next(THREADS), drawn)
    graph = SimpleNamespace(channels={channel: DeltaChannel(extend, list) for channel in DELTAS})
    heads = [nodes[-1] for nodes in tree.nodes.values()]
    before = [live(trees_saver, head) for head in heads]
    for ns in tree.nodes:
        place = {"configurable": {"thread_id": tree.thread_id, "checkpoint_ns": ns}}
        told = trees_saver.compact_thread(graph, place, grace=NOW, dry_run=True)
        assert trees_saver.compact_thread(graph, place, grace=NOW) == told
    assert [live(trees_saver, head) for head in heads] == before
    assert ids(trees_saver, tree.thread_id) == places(heads)
    assert counts(mongo[db_name], tree.thread_id)[0] == len(heads)
    assert unused_and_missing_blobs(mongo[db_name], tree.thread_id) == (0, 0)
    # And the thread goes on.
    for ns, old in zip(tree.nodes, before, strict=True):
        tree.grow(ns, {"after": 0, "run": 0, "large": False, "actions": dict.fromkeys(DELTAS, "write")})
        new = live(trees_saver, tree.nodes[ns][-1])
        assert {channel: values[:-1] for channel, values in new.items()} == {c: old.get(c, []) for c in DELTAS}


@bounded
@given(drawn=TREES, keep_last=st.integers(1, 3))
def test_copy_thread(trees_saver: MongoDBSaver, mongo: Any, db_name: str, drawn: Any, keep_last: int) -> None:
    tree, copy = Tree(trees_saver, next(THREADS), drawn), next(THREADS)
    before = states(trees_saver, tree.all())
    trees_saver.copy_thread(tree.thread_id, copy)
    assert counts(mongo[db_name], copy) == counts(mongo[db_name], tree.thread_id)
    trees_saver.delete_thread(tree.thread_id)
    for node in tree.all():
        node.place["configurable"]["thread_id"] = copy
    assert states(trees_saver, tree.all()) == before
    chosen = [node for nodes in tree.nodes.values() for node in nodes[-keep_last:]]
    before = states(trees_saver, chosen)
    clean(trees_saver, mongo[db_name], copy, "prune", [copy], keep_last=keep_last, grace=NOW)
    assert states(trees_saver, chosen) == before
