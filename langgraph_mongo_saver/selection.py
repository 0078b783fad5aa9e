"""Which checkpoints of a thread may go, and in what order: pure, and of use for any store.

A `DeltaChannel`'s value lies in the writes of a checkpoint's ancestors, back to the nearest that holds a value;
whatever stays must keep these ancestors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from langgraph_mongo_saver.lineage import Node

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


@dataclass(frozen=True)
class Removal:
    """What goes from a namespace, in the order in which it can be interrupted anywhere.

    Attributes:
        branches: first, checkpoints that come after ones that stay; each before its parent.
        cut: then, checkpoints that stay and lose their parent.
        rest: last, what lies before these; each before its parent.
    """

    branches: Sequence[str] = ()
    cut: Sequence[str] = ()
    rest: Sequence[str] = field(default=())


def newest(nodes: Nodes, number: int) -> set[str]:
    """The newest checkpoints of a namespace, as `get_tuple` understands it: those with the greatest ids."""
    return set(sorted(nodes, reverse=True)[:number])


def tips(nodes: Nodes, chosen: Collection[str]) -> set[str]:
    """Of some checkpoints, those that no other of them comes directly after."""
    parents = {nodes[checkpoint_id].parent_id for checkpoint_id in chosen}
    return {checkpoint_id for checkpoint_id in chosen if checkpoint_id not in parents}


def with_ancestors(nodes: Nodes, chosen: Iterable[str], channels: Collection[str]) -> set[str]:
    """Some checkpoints, and the ancestors that their delta channels need.

    Args:
        nodes: all checkpoints of the namespace.
        chosen: those that stay for their own sake.
        channels: the delta channels.
    """
    own = tuple(chosen)
    kept = set(own)
    for channel in channels:
        seen: set[str] = set()
        for checkpoint_id in own:
            node = nodes[checkpoint_id]
            while node.checkpoint_id not in seen and channel not in node.values:
                seen.add(node.checkpoint_id)
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
    cut = [i for i in sorted(kept) if nodes[i].parent_id in nodes and nodes[i].parent_id not in kept]
    after = _descendants(nodes, kept)
    going = [checkpoint_id for checkpoint_id in nodes if checkpoint_id not in kept]
    return Removal(
        branches=children_first(nodes, [i for i in going if i in after]),
        cut=cut,
        rest=children_first(nodes, [i for i in going if i not in after]),
    )


def _descendants(nodes: Nodes, roots: Collection[str]) -> set[str]:
    children: dict[str, list[str]] = {}
    for node in nodes.values():
        if node.parent_id is not None:
            children.setdefault(node.parent_id, []).append(node.checkpoint_id)
    found: set[str] = set()
    left = list(roots)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found:
                found.add(child)
                left.append(child)
    return found


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
