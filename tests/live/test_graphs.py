"""Whole graphs give the same results and histories as with `InMemorySaver`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from operator import add
from typing import Annotated, Any

import bson
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pymongo import MongoClient
from typing_extensions import TypedDict

from tests.graphs import Compile, Play, Run, assert_same, at, chain, counter
from tests.servers import Server
from tests.surfaces import OpenSurface, Surface

DURABILITIES = ("sync", "async", "exit")


async def test_two_nodes_make_four_checkpoints(play: Play) -> None:
    """The example of LangGraph's documentation."""

    async def scenario(run: Run) -> None:
        await run.invoke({"foo": "", "bar": []})
        await run.state()
        history = await run.history()
        assert [(s.values, s.next) for s in history] == [
            ({"foo": "b", "bar": ["a", "b"]}, ()),
            ({"foo": "a", "bar": ["a"]}, ("b",)),
            ({"foo": "", "bar": []}, ("a",)),
            ({"bar": []}, ("__start__",)),
        ]
        assert [s.parent_config for s in history] == [*(s.config for s in history[1:]), None]
        await run.history(limit=2)
        await run.history(filter={"step": 0})
        await run.history(before=history[1].config)

    await play(lambda: chain("a", "b"), scenario)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_every_durability(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        for _ in range(2):
            assert (await run.invoke({"count": 0, "steps": ["begin"]}, durability=durability))["count"] == 4
        saved = len(await run.history())
        assert saved == (2 if durability == "exit" else 12)

    await play(lambda: counter(4), scenario)


async def test_messages(play: Play) -> None:
    def compile_() -> Compile:
        class State(TypedDict):
            messages: Annotated[list[AnyMessage], add_messages]

        def answer(state: State) -> Any:
            asked = state["messages"][-1]
            if asked.content == "forget":
                return {"messages": [RemoveMessage(id=message.id) for message in state["messages"][:-1]]}
            said = {"tool": {"arguments": "{}", "$n": 1.5}}
            answer = AIMessage(content=f"re: {asked.content}", id=f"re: {asked.id}", additional_kwargs=said)
            return {"messages": [answer]}

        return StateGraph(State).add_sequence([answer]).add_edge(START, "answer").compile

    async def scenario(run: Run) -> None:
        # With ids of their own: the ones that add_messages gives come before or after the write is stored.
        for content in ("hi", "again", "forget", "after"):
            await run.invoke({"messages": [HumanMessage(content, id=content)]})
        latest = await run.state()
        assert [m.content for m in latest.values["messages"]] == ["forget", "after", "re: after"]
        await run.history()

    await play(compile_, scenario)


async def test_nodes_that_succeeded_are_not_run_again(play: Play) -> None:
    calls: list[Counter[str]] = []

    def compile_() -> Compile:
        class State(TypedDict):
            out: Annotated[list[str], add]

        called: Counter[str] = Counter()
        calls.append(called)

        def node(name: str) -> Any:
            def run(_: State) -> Any:
                called[name] += 1
                if name == "fails" and called[name] == 1:
                    time.sleep(0.3)  # the others are done by then
                    raise ValueError("the first time")
                return {"out": [name]}

            return run

        builder = StateGraph(State)
        for name in ("works", "fails", "also works"):
            builder.add_node(name, node(name)).add_edge(START, name).add_edge(name, "after")
        return builder.add_node("after", node("after")).compile

    async def scenario(run: Run) -> None:
        assert str(await run.invoke({"out": []})) == "the first time"
        assert {t.name for t in (await run.state()).tasks if t.error} == {"fails"}
        await run.invoke(None)
        await run.history()

    await play(compile_, scenario)
    for called in calls:
        assert called == {"works": 1, "also works": 1, "fails": 2, "after": 1}


@pytest.mark.asks
async def test_functional_api(play: Play) -> None:
    calls: list[Counter[str]] = []

    def compile_() -> Compile:
        called: Counter[str] = Counter()
        calls.append(called)

        @task
        def draft(topic: str) -> str:
            called["draft"] += 1
            return f"on {topic}"

        def compile_for(saver: Any) -> Any:
            @entrypoint(checkpointer=saver)
            def essay(topic: str, *, previous: Any = None) -> Any:
                text = [draft(f"{topic} {part}").result() for part in range(4)]
                review = interrupt({"review": text})
                return entrypoint.final(value=[previous, *text, review], save=review)

            return essay

        return compile_for

    async def scenario(run: Run) -> None:
        for topic in ("cats", "dogs"):
            await run.invoke(topic)
            await run.state()
            assert (await run.invoke(Command(resume=f"good {topic}")))[-1] == f"good {topic}"
        assert (await run.state()).values[0] == "good cats"
        await run.history()

    await play(compile_, scenario)
    for called in calls:
        assert called == {"draft": 8}


async def test_streaming(play: Play) -> None:
    async def scenario(run: Run) -> None:
        modes = ["values", "updates", "checkpoints", "tasks"]
        parts = await run.see("stream", {"count": 0, "steps": []}, at("1"), stream_mode=modes)
        assert {mode for mode, _ in parts} == set(modes)

    await play(lambda: counter(3), scenario)


async def test_encryption(
    surface_name: str, open_saver: OpenSurface, mongo: MongoClient[dict[str, Any]], db_name: str
) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"foo": "a secret", "bar": ["x" * 300_000 + "a secret"]})
        await run.update("1", {"foo": "a secret again"}, as_node="a")
        await run.invoke(None)
        await run.history()
        await run.history(filter={"source": "update"})

    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    savers = [(await open_saver(serde=serde)).raw for _ in range(2)]
    await assert_same(surface_name, savers, lambda: chain("a", "b"), scenario)
    stored = [bson.encode(d) for name in mongo[db_name].list_collection_names() for d in mongo[db_name][name].find()]
    assert len(stored) > 10
    assert not [document for document in stored if b"secret" in document]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_strict_msgpack(kind: str, server: Server, db_name: str) -> None:
    """The types in a state's annotations come back as themselves, others do not."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.strict_msgpack", kind, server.uri, db_name],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["Annotated", "dict"]), done.stderr[-2000:]


async def test_twenty_threads_at_once(saver: Surface) -> None:
    graph = counter(5)(saver.raw)
    threads = [f"t{number}" for number in range(20)]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(20) as pool:

        async def ask(thread: str) -> Any:
            given = {"count": 0, "steps": [thread]}
            if saver.name in ("sync", "async-from-threads"):
                return await loop.run_in_executor(pool, graph.invoke, given, at(thread))
            return await graph.ainvoke(given, at(thread))

        results = await asyncio.gather(*map(ask, threads))
    assert [r["steps"] for r in results] == [[t, "1", "2", "3", "4", "5"] for t in threads]
    for thread in threads:
        found = await saver.list(at(thread))
        assert [loaded.metadata["step"] for loaded in found] == [5, 4, 3, 2, 1, 0, -1]
        assert found[0].checkpoint["channel_values"]["steps"] == [thread, "1", "2", "3", "4", "5"]
