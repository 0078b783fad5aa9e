"""What `selection` decides serves any store: here LangGraph's `InMemorySaver`, which gets a prune from it.

The sketch of LangGraph's DeltaChannel guide ("Future work"), with the order in which it can be interrupted anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_mongo_saver.lineage import Node
from langgraph_mongo_saver.selection import Facts, finished_calls, newest, removal, with_ancestors
from tests.trees import extend

NAMESPACES = ("", "remembers")


class PrunedMemory(InMemorySaver):
    """`InMemorySaver`, and steps that leave the latest checkpoint of each namespace and what it needs."""

    def pruning(self, thread_id: str) -> Iterator[None]:
        nodes: dict[str, dict[str, Node]] = {}
        facts: dict[str, dict[str, Facts]] = {}
        for loaded in self.list({"configurable": {"thread_id": thread_id}}):
            place, parent = loaded.config["configurable"], (loaded.parent_config or {}).get("configurable", {})
            ns, id_ = place["checkpoint_ns"], place["checkpoint_id"]
            held = dict.fromkeys(loaded.checkpoint["channel_values"])
            nodes.setdefault(ns, {})[id_] = Node(id_, parent.get("checkpoint_id"), held)
            facts.setdefault(ns, {})[id_] = Facts.of(loaded.checkpoint, loaded.metadata)
        heads = {ns: newest(each, 1) for ns, each in nodes.items()}
        calls = finished_calls(heads, {ns: facts[ns][id_] for ns, (id_,) in heads.items()}, nodes[""])
        for ns in sorted(nodes, reverse=True):  # the root's last
            chosen = {} if ns in calls else {id_: facts[ns][id_] for id_ in heads[ns]}
            steps = removal(nodes[ns], with_ancestors(nodes[ns], chosen))
            for id_ in steps.branches:
                yield self._remove(thread_id, ns, id_)
            for id_ in steps.cut:
                yield self._cut(thread_id, ns, id_)
            for id_ in steps.rest:
                yield self._remove(thread_id, ns, id_)

    def _remove(self, thread_id: str, ns: str, id_: str) -> None:
        del self.storage[thread_id][ns][id_]
        self.writes.pop((thread_id, ns, id_), None)

    def _cut(self, thread_id: str, ns: str, id_: str) -> None:
        checkpoint, metadata, _ = self.storage[thread_id][ns][id_]
        self.storage[thread_id][ns][id_] = (checkpoint, metadata, None)


class State(TypedDict):
    count: int
    log: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=10)]


class Inner(TypedDict):
    count: int
    seen: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=4)]


def compiled(saver: InMemorySaver) -> Any:
    """A loop with a subgraph that remembers its calls, and one that does not."""
    inner = StateGraph(Inner).add_node("see", lambda state: {"seen": [state["count"]]}).add_edge(START, "see")
    builder = StateGraph(State).add_node("step", lambda state: {"count": state["count"] + 1, "log": [state["count"]]})
    builder.add_node("remembers", inner.compile(checkpointer=True)).add_node("forgets", inner.compile())
    builder.add_edge(START, "step").add_edge("step", "remembers").add_edge("remembers", "forgets")
    builder.add_conditional_edges("forgets", lambda state: END if state["count"] % 8 == 0 else "step")
    return builder.compile(saver)


def config(ns: str = "") -> Any:
    return {"configurable": {"thread_id": "1", "checkpoint_ns": ns}, "recursion_limit": 100}


def states(graph: Any) -> list[Any]:
    return [graph.get_state(config(ns)).values for ns in NAMESPACES]


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("forked", [False, True], ids=["straight", "forked"])
def test_a_prune_of_another_saver_never_cuts_a_chain(durability: Any, forked: bool) -> None:
    saver = PrunedMemory()
    graph = compiled(saver)
    graph.invoke({"count": 0, "log": ["in"]}, config(), durability=durability)
    if forked:
        old = list(graph.get_state_history(config()))[-1]
        edited = graph.update_state(old.config, {"count": 1, "log": ["edited"]}, as_node="step")
        graph.invoke(None, {**config(), **edited}, durability=durability)
    before, stored = states(graph), len(list(saver.list({"configurable": {"thread_id": "1"}})))
    assert len(before[0]["log"]) >= 8
    assert before[1]["seen"]
    for _ in saver.pruning("1"):
        assert states(graph) == before  # wherever it is interrupted
    assert list(saver.pruning("1")) == []
    assert len(list(saver.list({"configurable": {"thread_id": "1"}}))) < stored
    graph.invoke({"log": ["on"]}, config(), durability=durability)
    assert states(graph)[0]["log"][: len(before[0]["log"]) + 1] == [*before[0]["log"], "on"]
    assert states(graph)[1]["seen"][: len(before[1]["seen"])] == before[1]["seen"]
