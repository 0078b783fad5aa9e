"""Graphs that stop and are resumed behave as with `InMemorySaver`."""

from __future__ import annotations

from collections import Counter
from operator import add
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from tests.graphs import Compile, Play, Run

DURABILITIES = ("sync", "async", "exit")


class State(TypedDict):
    out: Annotated[list[Any], add]


def asking(*questions: str) -> Any:
    """A node that asks one question after the other."""
    return lambda _: {"out": [interrupt({"question": question}) for question in questions]}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.asks
async def test_one_question_after_the_other(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        result = await run.invoke({"out": ["begin"]}, durability=durability)
        for answer in ("a", "", {"$c": [1.5, None]}):
            assert len(result["__interrupt__"]) == 1
            assert (await run.state()).tasks[0].interrupts == tuple(result["__interrupt__"])
            result = await run.invoke(Command(resume=answer), durability=durability)
        assert result == {"out": ["begin", "a", "", {"$c": [1.5, None]}]}
        await run.history()

    def compile_() -> Compile:
        return StateGraph(State).add_node("ask", asking("1", "2", "3")).add_edge(START, "ask").compile

    await play(compile_, scenario)


@pytest.mark.parametrize("at_once", [True, False], ids=["all answers at once", "one by one"])
@pytest.mark.asks
async def test_several_questions_at_once(play: Play, at_once: bool) -> None:
    async def scenario(run: Run) -> None:
        asked = (await run.invoke({"out": []}))["__interrupt__"]
        assert len(asked) == 4
        await run.state()
        answers = [{i.id: f"answer to {i.value['question']}"} for i in asked]
        if at_once:
            answers = [{id_: answer for part in answers for id_, answer in part.items()}]
        for part in answers:
            result = await run.invoke(Command(resume=part))
            await run.state()
        assert result == {"out": [f"answer to {name}" for name in "abcd"]}
        await run.history()

    def compile_() -> Compile:
        builder = StateGraph(State)
        for name in "dbca":
            builder.add_node(name, asking(name)).add_edge(START, name)
        return builder.compile

    await play(compile_, scenario)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.asks
async def test_sends_with_a_question_in_the_middle(play: Play, durability: Any) -> None:
    calls: list[Counter[int]] = []

    def compile_() -> Compile:
        called: Counter[int] = Counter()
        calls.append(called)

        def work(item: int) -> Any:
            called[item] += 1
            return {"out": [interrupt(item) if item in (2, 11) else item]}

        # Twelve, so that an order by text (1, 10, 11, 2) would show.
        builder = StateGraph(State).add_node("work", work)
        builder.add_node("before", lambda _: {"out": ["before"]}).add_edge(START, "before")
        builder.add_conditional_edges("before", lambda _: [Send("work", item) for item in range(12)], ["work"])
        return builder.add_node("after", lambda state: {"out": [len(state["out"])]}).add_edge("work", "after").compile

    async def scenario(run: Run) -> None:
        asked = (await run.invoke({"out": []}, durability=durability))["__interrupt__"]
        await run.state()
        eleven = next(question for question in asked if question.value == 11)
        await run.invoke(Command(resume={eleven.id: "eleven"}), durability=durability)
        await run.state()
        result = await run.invoke(Command(resume="two"), durability=durability)
        assert result == {"out": ["before", 0, 1, "two", *range(3, 11), "eleven", 13]}
        await run.history()

    await play(compile_, scenario)
    for called in calls:
        assert called == dict.fromkeys(range(12), 1) | {2: 3, 11: 2}


async def test_stops_before_and_after_nodes(play: Play) -> None:
    def compile_() -> Compile:
        builder = StateGraph(State).add_sequence([("a", lambda _: {"out": ["a"]}), ("b", lambda _: {"out": ["b"]})])
        builder.add_edge(START, "a")
        return lambda saver: builder.compile(saver, interrupt_before=["a"], interrupt_after=["b"])

    async def scenario(run: Run) -> None:
        for expected in (("a",), (), ()):
            await run.invoke({"out": ["in"]} if expected else None)
            assert (await run.state()).next == expected
        await run.update("1", {"out": ["edited"]})
        await run.history()

    await play(compile_, scenario)


@pytest.mark.asks
async def test_an_answer_together_with_an_update_and_a_goto(play: Play) -> None:
    def compile_() -> Compile:
        builder = StateGraph(State).add_node("ask", asking("?")).add_edge(START, "ask")
        return builder.add_node("extra", lambda _: {"out": ["extra"]}).compile

    async def scenario(run: Run) -> None:
        await run.invoke({"out": []})
        await run.invoke(Command(resume="yes", update={"out": ["edited"]}, goto="extra"))
        assert sorted((await run.state()).values["out"]) == ["edited", "extra", "yes"]
        await run.history()

    await play(compile_, scenario)
