"""Random trees of checkpoints with delta channels, as runs with forks make them, and what is read of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver import MongoDBSaver
from langgraph_mongo_saver.codec import entries
from langgraph_mongo_saver.values import part_keys
from tests.building import checkpoint, config
from tests.histories import exact
from tests.steps import COLLECTIONS, LARGE

DELTAS = ("d", "e", "f.$x")


def extend(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


ACTIONS = st.sampled_from(["", "", "write", "write", "write", "snapshot", "plain"])
STEPS = st.fixed_dictionaries(
    {
        "after": st.just(0) | st.just(0) | st.integers(0, 20),
        "run": st.integers(0, 3),
        "actions": st.fixed_dictionaries(dict.fromkeys(DELTAS, ACTIONS)),
        "large": st.sampled_from([False, False, False, True]),
    }
)
TREES = st.fixed_dictionaries(
    {
        "namespaces": st.lists(st.sampled_from(["", "sub", "call:1"]), min_size=1, max_size=2, unique=True),
        "steps": st.lists(STEPS, min_size=1, max_size=14),
        # LangGraph.js marks its threads instead of counting.
        "marked": st.booleans(),
    }
)


@dataclass
class Node:
    """A stored checkpoint, and what the next one goes on with."""

    place: Any
    run: str
    versions: dict[str, int] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.place["configurable"]["checkpoint_id"])


class Tree:
    """A thread, stored step by step."""

    def __init__(self, saver: MongoDBSaver, thread_id: str, drawn: dict[str, Any]) -> None:
        self.saver, self.thread_id, self.marked = saver, thread_id, drawn["marked"]
        self.numbers = itertools.count(1)
        self.nodes: dict[str, list[Node]] = {}
        for ns in drawn["namespaces"]:
            # A stub root, as exit durability has it.
            place = saver.put(config(thread_id, ns), checkpoint(id="000000"), {"step": -2, "run_id": "r0"}, {})
            self.nodes[ns] = [Node(place, "r0")]
            for step in drawn["steps"]:
                self.grow(ns, step)

    def grow(self, ns: str, step: dict[str, Any]) -> None:
        nodes, number = self.nodes[ns], next(self.numbers)
        parent = nodes[-1 - step["after"] % len(nodes)]
        content: Any = [f"{number:06}" * (LARGE // 6)] if step["large"] else [number]
        written = [(c, content) for c, action in step["actions"].items() if action in ("write", "snapshot")]
        self.saver.put_writes(parent.place, written, f"task-{number}")
        node = Node({}, f"r{step['run']}", dict(parent.versions), dict(parent.plain))
        values: dict[str, Any] = {}
        for channel, action in step["actions"].items():
            updates, supersteps = parent.counters.get(channel, (0, 0))
            node.counters[channel] = (updates + (action == "write"), supersteps + 1)
            if action:
                node.versions[channel] = number
                node.plain.pop(channel, None)
            if action == "snapshot":
                values[channel] = _DeltaSnapshot(["snapshot", *content])
            elif action == "plain":
                node.plain[channel] = ["plain", *content]
            if action == "snapshot" or channel in node.plain:
                del node.counters[channel]
        new = {c: node.versions[c] for c, action in step["actions"].items() if action}
        metadata: dict[str, Any] = {"step": number, "run_id": node.run}
        metadata |= {"delta_writes_versioned": True} if self.marked else {}
        if node.counters and not self.marked:
            metadata["counters_since_delta_snapshot"] = dict(node.counters)
        made = checkpoint({**node.plain, **values}, node.versions, f"{number:06}")
        node.place = self.saver.put(parent.place, made, metadata, new)  # type: ignore[arg-type] # not only known keys
        nodes.append(node)

    def all(self) -> list[Node]:
        return [node for nodes in self.nodes.values() for node in nodes]


def state(saver: Any, place: Any, channels: Iterable[str] = DELTAS) -> dict[str, Any]:
    """All channel values of a checkpoint as LangGraph makes them up, and the history that it reads for that."""
    loaded = saver.get_tuple(place)
    assert loaded is not None, place
    found = {channel: ("stored", value) for channel, value in loaded.checkpoint["channel_values"].items()}
    absent = [c for c in channels if c in loaded.checkpoint["channel_versions"] and c not in found]
    for channel, history in saver.get_delta_channel_history(config=place, channels=absent).items():
        live = DeltaChannel(extend, list).from_checkpoint(history.get("seed"))
        live.replay_writes(history["writes"])
        found[channel] = ("made up", (live.get(), exact(history)))
    return {channel: (kind, exact(value)) for channel, (kind, value) in found.items()}


def unused_and_missing_blobs(database: Any, thread_id: str) -> tuple[int, int]:
    """How many blob parts nothing refers to, and how many are referred to and not there."""
    query = {"thread_id": thread_id}
    used = {key for d in database.checkpoints.find(query) for key in part_keys(thread_id, d["values"])}
    for document in database.checkpoint_writes.find(query):
        used.update(part_keys(thread_id, (write for _, write in entries(document))))
    present = {tuple(document["_id"].values()) for document in database.checkpoint_blobs.find(query, {"_id": 1})}
    return len(present - {tuple(key) for key in used}), len({tuple(key) for key in used} - present)


def counts(database: Any, thread_id: str) -> tuple[int, ...]:
    """How many documents a thread has, by collection."""
    return tuple(database[name].count_documents({"thread_id": thread_id}) for name in COLLECTIONS)
