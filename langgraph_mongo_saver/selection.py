"""Which checkpoints of a thread may go, and in what order they go or are copied: pure, and of use for any store.

LangGraph's `InMemorySaver` gets prune, delete_for_runs and copy_thread from it in tests/pure/test_another_store.py.

A `DeltaChannel`'s value lies in the writes of a checkpoint's ancestors, back to the nearest that holds a value;
whatever stays must keep these ancestors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar

from langgraph_mongo_saver.lineage import Node

PlaceT = TypeVar("PlaceT", bound=Mapping[str, Any])
Nodes = Mapping[str, Node]
"""The checkpoints of one namespace by id."""


@dataclass(frozen=True)
class Facts:
    """What the contents of a checkpoint say about what it needs.

    Attributes:
        delta_channels: channels whose value is made of the ancestors' writes.
        uses_delta: whether the thread uses delta channels at all.
        root: the id of the root graph's checkpoint that this subgraph's call started from.
        needs_parent: whether it reads its pending sends from its parent, as before version 4.
    """

    delta_channels: frozenset[str] = frozenset()
    uses_delta: bool = False
    root: str | None = None
    needs_parent: bool = False

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], *, needs_parent: bool = False) -> Facts:
        """Read them in a checkpoint and its metadata."""
        counted = metadata.get("counters_since_delta_snapshot") or {}
        # LangGraph.js counts nothing, but marks the threads of its DeltaChannel graphs.
        marked = "delta_writes_versioned" in metadata
        # A channel without a version was never written, and a walk for it would not end before the root.
        channels = [c for c in checkpoint.get("channel_versions", {}) if marked or c in counted]
        root = (metadata.get("parents") or {}).get("")
        return cls(frozenset(channels), marked or bool(counted), root, needs_parent)


@dataclass(frozen=True)
class Removal:
    """What goes from a namespace, in the order in which it can be interrupted anywhere.

    Attributes:
        branches: first, checkpoints that nothing that stays comes after; each before its parent.
        cut: then, checkpoints that stay and lose their parent.
        rest: last, the ancestors of what stays; each before its parent.
    """

    branches: Sequence[str] = ()
    cut: Sequence[str] = ()
    rest: Sequence[str] = field(default=())


def newest(nodes: Nodes, number: int) -> set[str]:
    """The newest checkpoints of a namespace, as `get_tuple` understands it: those with the greatest ids."""
    return set(sorted(nodes, reverse=True)[:number])


def with_ancestors(nodes: Nodes, chosen: Mapping[str, Facts]) -> set[str]:
    """Some checkpoints, and the ancestors that they need: for their delta channels, or for their pending sends.

    Args:
        nodes: all checkpoints of the namespace.
        chosen: what is known of those that stay for their own sake.
    """
    parents = {nodes[i].parent_id for i, facts in chosen.items() if facts.needs_parent}
    kept = {*chosen, *(parent for parent in parents if parent is not None and parent in nodes)}
    walked: set[tuple[str, str]] = set()
    for checkpoint_id, facts in chosen.items():
        for channel in facts.delta_channels:
            node = nodes[checkpoint_id]
            while (node.checkpoint_id, channel) not in walked and channel not in node.values:
                walked.add((node.checkpoint_id, channel))
                if node.parent_id is None or node.parent_id not in nodes:
                    break
                node = nodes[node.parent_id]
                kept.add(node.checkpoint_id)
    return kept


def finished_calls(kept: Mapping[str, Collection[str]], heads: Mapping[str, Facts], root_nodes: Nodes) -> set[str]:
    """The namespaces of subgraph calls that go with the root checkpoint that they started from.

    A call's namespace has its task id behind a colon, unlike that of a subgraph with ``checkpointer=True``, whose state
    outlives its calls. Runs save in the background, so that a call can be stored before its root checkpoint is: it
    goes only when that one is stored and not kept (the rule of langgraph-checkpoint-postgres 3.2).
    """
    return {
        namespace
        for namespace, facts in heads.items()
        if ":" in namespace and facts.root in root_nodes and facts.root not in kept.get("", ())
    }


def removal(nodes: Nodes, kept: Collection[str]) -> Removal:
    """What goes, in order, for some checkpoints to stay."""
    kept = set(kept)
    before: set[str] = set()
    for checkpoint_id in kept:
        parent = nodes[checkpoint_id].parent_id
        while parent is not None and parent in nodes and parent not in before:
            before.add(parent)
            parent = nodes[parent].parent_id
    going = [checkpoint_id for checkpoint_id in nodes if checkpoint_id not in kept]
    return Removal(
        branches=children_first(nodes, [i for i in going if i not in before]),
        cut=[i for i in sorted(kept) if nodes[i].parent_id in nodes and nodes[i].parent_id not in kept],
        rest=children_first(nodes, [i for i in going if i in before]),
    )


def copy_order(places: Iterable[PlaceT]) -> list[PlaceT]:
    """The checkpoints of a thread in an order in which a copy can be interrupted anywhere: by id, and the root's last.

    A checkpoint's writes and values are copied before it is.

    Args:
        places: the ``configurable`` of each, or a mapping with the same names.
    """
    roots_last = sorted(places, key=itemgetter("checkpoint_ns"), reverse=True)
    return sorted(roots_last, key=itemgetter("checkpoint_id"))


def children_first(nodes: Nodes, going: Collection[str]) -> list[str]:
    """Checkpoints in an order in which each comes before its parent; what lies on a cycle comes last."""
    waiting = dict.fromkeys(going, 0)
    for checkpoint_id in going:
        parent = nodes[checkpoint_id].parent_id
        if parent in waiting:
            waiting[parent] += 1
    ready = [checkpoint_id for checkpoint_id, children in waiting.items() if not children]
    order: list[str] = []
    while ready:
        checkpoint_id = ready.pop()
        order.append(checkpoint_id)
        parent = nodes[checkpoint_id].parent_id
        if parent in waiting:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return order + sorted(set(going) - set(order), reverse=True)
