"""What `selection` decides serves any store: here LangGraph's `InMemorySaver`, which gets its clean-up from it.

The sketch of LangGraph's DeltaChannel guide ("Future work"): prune, delete_for_runs and copy_thread, each in steps and
interrupted after any of them.
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
from langgraph_mongo_saver.selection import Facts, copy_order, finished_calls, newest, removal, with_ancestors
from tests.trees import extend

NAMESPACES = ("", "remembers")


Nodes = dict[str, dict[str, Node]]
Chosen = dict[str, dict[str, Facts]]


class CleanedMemory(InMemorySaver):
    """`InMemorySaver`, with clean-up."""

    def pruning(self, thread_id: str) -> Iterator[None]:
        """Steps that leave the latest checkpoint of each namespace and what it needs."""
        nodes, facts, _ = self._load(thread_id)
        heads = {ns: newest(each, 1) for ns, each in nodes.items()}
        calls = finished_calls(heads, {ns: facts[ns][id_] for ns, (id_,) in heads.items()}, nodes[""])
        chosen = {ns: {id_: facts[ns][id_] for id_ in ids if ns not in calls} for ns, ids in heads.items()}
        yield from self._removing(thread_id, nodes, chosen)

    def deleting(self, thread_id: str, run_id: str) -> Iterator[None]:
        """Steps that leave what other runs have made and what it needs."""
        nodes, facts, runs = self._load(thread_id)
        chosen = {ns: {id_: of for id_, of in each.items() if runs[ns, id_] != run_id} for ns, each in facts.items()}
        yield from self._removing(thread_id, nodes, chosen)

    def copying(self, source: str, target: str) -> Iterator[None]:
        """Steps that copy a thread."""
        for (thread_id, ns, channel, version), value in list(self.blobs.items()):
            if thread_id == source:
                self.blobs[target, ns, channel, version] = value
        for place in copy_order(each.config["configurable"] for each in self.list(thread(source))):
            ns, id_ = place["checkpoint_ns"], place["checkpoint_id"]
            if (source, ns, id_) in self.writes:
                self.writes[target, ns, id_] = dict(self.writes[source, ns, id_])
            self.storage[target][ns][id_] = self.storage[source][ns][id_]
            yield

    def _load(self, thread_id: str) -> tuple[Nodes, Chosen, dict[tuple[str, str], Any]]:
        nodes: Nodes = {}
        facts: Chosen = {}
        runs = {}
        for loaded in self.list(thread(thread_id)):
            place, parent = loaded.config["configurable"], (loaded.parent_config or {}).get("configurable", {})
            ns, id_ = place["checkpoint_ns"], place["checkpoint_id"]
            held = dict.fromkeys(loaded.checkpoint["channel_values"])
            nodes.setdefault(ns, {})[id_] = Node(id_, parent.get("checkpoint_id"), held)
            facts.setdefault(ns, {})[id_] = Facts.of(loaded.checkpoint, loaded.metadata)
            runs[ns, id_] = loaded.metadata.get("run_id")
        return nodes, facts, runs

    def _removing(self, thread_id: str, nodes: Nodes, chosen: Chosen) -> Iterator[None]:
        for ns in sorted(nodes, reverse=True):  # the root's last
            steps = removal(nodes[ns], with_ancestors(nodes[ns], chosen[ns]))
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


def config(ns: str = "", thread_id: str = "1") -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}, "recursion_limit": 100}


def thread(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def states(graph: Any) -> list[Any]:
    return [graph.get_state(config(ns)).values for ns in NAMESPACES]


def every_state(graph: Any, thread_id: str = "1") -> list[Any]:
    return [state for ns in NAMESPACES for state in graph.get_state_history(config(ns, thread_id))]


def read(found: list[Any]) -> list[Any]:
    return [(state.config["configurable"]["checkpoint_id"], state.values, state.next) for state in found]


def made_by(graph: Any, run_id: str) -> list[Any]:
    return read([state for state in every_state(graph) if state.metadata["run_id"] == run_id])


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("forked", [False, True], ids=["straight", "forked"])
def test_a_prune_of_another_saver_never_cuts_a_chain(durability: Any, forked: bool) -> None:
    saver = CleanedMemory()
    graph = compiled(saver)
    graph.invoke({"count": 0, "log": ["in"]}, config(), durability=durability)
    if forked:
        old = list(graph.get_state_history(config()))[-1]
        edited = graph.update_state(old.config, {"count": 1, "log": ["edited"]}, as_node="step")
        graph.invoke(None, {**config(), **edited}, durability=durability)
    before, stored = states(graph), len(list(saver.list(thread("1"))))
    assert len(before[0]["log"]) >= 8
    assert before[1]["seen"]
    for _ in saver.pruning("1"):
        assert states(graph) == before  # wherever it is interrupted
    assert list(saver.pruning("1")) == []
    assert len(list(saver.list(thread("1")))) < stored
    graph.invoke({"log": ["on"]}, config(), durability=durability)
    assert states(graph)[0]["log"][: len(before[0]["log"]) + 1] == [*before[0]["log"], "on"]
    assert states(graph)[1]["seen"][: len(before[1]["seen"])] == before[1]["seen"]


def two_runs(graph: Any) -> None:
    for run_id in ("first", "second"):
        graph.invoke({"count": 0, "log": [run_id]}, {**config(), "metadata": {"run_id": run_id}})


def test_runs_are_deleted_from_another_saver_and_no_chain_is_cut() -> None:
    saver = CleanedMemory()
    graph = compiled(saver)
    two_runs(graph)
    before, stored = made_by(graph, "second"), len(list(saver.list(thread("1"))))
    assert len(before) > 8
    for _ in saver.deleting("1", "first"):
        assert made_by(graph, "second") == before
    assert list(saver.deleting("1", "first")) == []
    assert len(list(saver.list(thread("1")))) < stored


def test_a_copy_in_another_saver_can_be_read_wherever_it_is_interrupted() -> None:
    saver = CleanedMemory()
    graph = compiled(saver)
    two_runs(graph)
    before = read(every_state(graph))
    for _ in saver.copying("1", "2"):
        assert all(state in before for state in read(every_state(graph, "2")))
    assert read(every_state(graph)) == read(every_state(graph, "2")) == before
    saver.delete_thread("1")
    assert read(every_state(graph, "2")) == before
