"""Graphs with a `DeltaChannel`, whose value lies in the writes of many checkpoints, read as with `InMemorySaver`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict

from tests.graphs import Compile, Play, Run, at

DURABILITIES = ("sync", "async", "exit")


def extend(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    count: int
    log: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=10)]
    rare: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=3)]
    plain: Annotated[list[Any], add]


def long_loop(to: int) -> Compile:
    """A loop that logs each step, from three tasks each time, and now and then to a second channel."""

    def step(state: State) -> Any:
        count = state["count"] + 1
        rare = {"rare": [count]} if count % 4 == 0 else {}
        return {"count": count, "log": [count], "plain": [count], **rare}

    def fan_out(state: State) -> Any:
        return [Send("part", {"part": f"{state['count']}{part}"}) for part in "ba"]

    builder = StateGraph(State).add_node("step", step).add_edge(START, "step")
    builder.add_node("part", lambda part: {"log": [part["part"]]}).add_conditional_edges("step", fan_out, ["part"])
    builder.add_node("again", lambda _: {})
    builder.add_edge("part", "again")
    return builder.add_conditional_edges("again", lambda state: "step" if state["count"] < to else END).compile


def expected_log(to: int) -> list[Any]:
    return [entry for count in range(1, to + 1) for entry in (count, f"{count}b", f"{count}a")]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_long_run_and_every_old_checkpoint_of_it(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        result = await run.invoke({"count": 0, "log": [0], "rare": [], "plain": []}, durability=durability)
        assert result["log"] == [0, *expected_log(9)]
        history = await run.history()
        assert len(history) == (1 if durability == "exit" else 29)
        for snapshot in history[::4]:
            assert (await run.state(snapshot.config)).values == snapshot.values
        result = await run.invoke({"count": 7, "log": ["on"]}, durability=durability)
        assert result["log"] == [0, *expected_log(9), "on", *expected_log(9)[21:]]
        assert result["rare"] == [4, 8, 8]
        await run.history(limit=5)

    await play(lambda: long_loop(9), scenario)


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_forks_do_not_see_each_other(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"count": 0, "log": [], "rare": [], "plain": []})
        old = next(s for s in await run.history() if s.values.get("count") == 2 and s.next == ("step",))
        for name in ("left", "right"):
            fork = await run.update(old.config, {"log": [name]}, as_node="again")
            result = await run.see("invoke", None, {**at("1"), **fork}, durability=durability)
            assert result["log"] == [*expected_log(2), name, *expected_log(4)[6:]]
        await run.see("invoke", None, {**at("1"), **old.config}, durability=durability)
        await run.history()

    await play(lambda: long_loop(4), scenario)


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_overwrites_copies_and_edits(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        await run.update("1", {"count": 2, "log": ["first"], "rare": ["first"]}, as_node="again")
        await run.invoke(None, durability=durability)
        await run.update("1", {"log": Overwrite(["over"])}, as_node="again")
        assert (await run.state()).values["log"] == ["over"]
        await run.invoke({"count": 2, "log": ["in"]}, durability=durability)
        for snapshot in (await run.history())[::3]:
            copy = await run.update(snapshot.config, None, as_node="__copy__")
            assert (await run.state(copy)).values == snapshot.values
        await run.invoke({"count": 3, "log": ["after the copies"]}, durability=durability)
        await run.history(limit=9)

    await play(lambda: long_loop(4), scenario)


@pytest.mark.parametrize("surface_name", ["sync", "async"], indirect=True)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.asks
async def test_questions_while_it_grows(play: Play, durability: Any) -> None:
    def compile_() -> Compile:
        def ask(state: State) -> Any:
            count = state["count"] + 1
            return {"count": count, "log": [interrupt(count)]}

        def beside(state: State) -> Any:
            return {"log": [f"beside {state['count']}"]}

        builder = StateGraph(State).add_node("ask", ask).add_node("beside", beside)
        builder.add_edge(START, "ask").add_edge(START, "beside")
        for name in ("ask", "beside"):
            builder.add_conditional_edges(name, lambda state: ["ask", "beside"] if state["count"] < 6 else END)
        return builder.compile

    async def scenario(run: Run) -> None:
        result = await run.invoke({"count": 0, "log": []}, durability=durability)
        while "__interrupt__" in result:
            await run.state()
            answer = f"answer {result['__interrupt__'][0].value}"
            result = await run.invoke(Command(resume=answer), durability=durability)
        assert [entry for entry in result["log"] if "answer" in entry] == [f"answer {n}" for n in range(1, 8)]
        await run.history()

    await play(compile_, scenario)
