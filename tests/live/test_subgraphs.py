"""Subgraphs behave as with `InMemorySaver`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import add
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateSnapshot, interrupt
from typing_extensions import TypedDict

from tests.graphs import Compile, Play, Run


class State(TypedDict):
    out: Annotated[list[str], add]


class Inner(TypedDict):
    out: Annotated[list[str], add]
    private: str


def ask(name: str) -> Callable[[Any], Any]:
    return lambda _: {"out": [f"{name}: {interrupt(name)}"]}


def child(name: str, **options: Any) -> Any:
    """A graph that asks in its second node."""
    builder = StateGraph(Inner).add_node("begin", lambda state: {"private": f"{len(state['out'])} seen"})
    return builder.add_node("ask", ask(name)).add_edge(START, "begin").add_edge("begin", "ask").compile(**options)


def calling(graph: Any) -> Callable[[Any], Any]:
    """A node that hands a subgraph nothing but its own question."""
    return lambda state: {"out": [f"of {len(state['out'])}", *graph.invoke({"out": []})["out"]]}


def one_child() -> Compile:
    builder = StateGraph(State).add_node("first", lambda _: {"out": ["first"]}).add_edge(START, "first")
    return builder.add_node("child", child("child")).add_edge("first", "child").compile


def nested() -> Compile:
    middle = StateGraph(State).add_node("before", ask("middle")).add_node("inner", child("inner"))
    middle.add_edge(START, "before").add_edge("before", "inner")
    return StateGraph(State).add_node("middle.$a", middle.compile()).add_edge(START, "middle.$a").compile


def called_in_a_node() -> Compile:
    return StateGraph(State).add_node("calls", calling(child("called"))).add_edge(START, "calls").compile


def side_by_side() -> Compile:
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, child(name)).add_edge(START, name)
    return builder.compile


def with_memory() -> Compile:
    builder = StateGraph(State).add_node("child", child("remembers", checkpointer=True))
    return builder.add_edge(START, "child").compile


BUILDERS = [one_child, nested, called_in_a_node, side_by_side, with_memory]


def inside(state: StateSnapshot) -> Iterator[StateSnapshot]:
    """The states of subgraphs at any depth, innermost first."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from inside(task.state)
            yield task.state


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("compile_", BUILDERS, ids=lambda builder: builder.__name__)
@pytest.mark.asks
async def test_questions_in_subgraphs(play: Play, compile_: Callable[[], Compile], durability: Any) -> None:
    async def scenario(run: Run) -> None:
        for turn in range(2):
            result = await run.invoke({"out": [f"turn {turn}"]}, durability=durability)
            assert result["__interrupt__"]
            while questions := result.get("__interrupt__"):
                for inner in inside(await run.state(subgraphs=True)):
                    await run.history(inner.config)
                answers = {question.id: f"yes to {question.value}" for question in questions}
                result = await run.invoke(Command(resume=answers), durability=durability)
            assert (await run.state(subgraphs=True)).next == ()
        await run.history()

    await play(compile_, scenario)


@pytest.mark.parametrize("compile_", BUILDERS, ids=lambda builder: builder.__name__)
@pytest.mark.asks
async def test_replays_and_edits_in_subgraphs(play: Play, compile_: Callable[[], Compile]) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"out": ["begin"]})
        asked = await run.state(subgraphs=True)
        inner = next(inside(asked))
        edited = await run.update(inner.config, {"out": ["edited"]})
        assert edited["configurable"]["checkpoint_ns"] == inner.config["configurable"]["checkpoint_ns"]
        await run.state(edited)
        await run.history(inner.config)
        for _ in range(2):
            result = await run.see("invoke", None, asked.config)
            while questions := result.get("__interrupt__"):
                result = await run.invoke(Command(resume={q.id: "again" for q in questions}))
        await run.history()

    await play(compile_, scenario)
