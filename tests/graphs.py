"""Real graphs, run in the same way with `InMemorySaver` and with the saver under test."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from operator import add
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import PregelTask, StateSnapshot
from typing_extensions import TypedDict

Compile = Callable[[Any], Any]
"""Gives a graph for a saver."""

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")


class Run:
    """A graph, run through one surface; what was seen of it is kept in `seen`.

    Several savers take turns from call to call, as processes behind a load balancer do.
    """

    def __init__(self, surface: str, compile_: Compile, savers: Sequence[Any]) -> None:
        self._surface = surface
        self._graphs = itertools.cycle([compile_(saver) for saver in savers])
        self.seen: list[Any] = []

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the graph, named without its ``a``."""
        graph = next(self._graphs)
        if self._surface in ("sync", "async-from-threads"):
            function = getattr(graph, method)
            if method in ("stream", "get_state_history"):
                function = _all(function)
            if self._surface == "sync":
                return function(*args, **kwargs)
            return await asyncio.to_thread(function, *args, **kwargs)
        if method in ("stream", "get_state_history"):
            name = "astream" if method == "stream" else "aget_state_history"
            return [item async for item in getattr(graph, name)(*args, **kwargs)]
        return await getattr(graph, {"get_state": "aget_state"}.get(method, f"a{method}"))(*args, **kwargs)

    async def see(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method, and keep what it returns or raises."""
        try:
            result = await self.call(method, *args, **kwargs)
        except ValueError as error:
            result = error
        if isinstance(result, dict) and "__interrupt__" in result:
            result["__interrupt__"].sort(key=lambda question: str(question.value))  # parallel nodes ask as they come
        self.seen.append(result)
        return result

    async def invoke(self, input_: Any, thread: Any = "1", **kwargs: Any) -> Any:
        return await self.see("invoke", input_, at(thread), **kwargs)

    async def state(self, thread: Any = "1", **kwargs: Any) -> StateSnapshot:
        return await self.see("get_state", at(thread), **kwargs)

    async def history(self, thread: Any = "1", **kwargs: Any) -> list[StateSnapshot]:
        return await self.see("get_state_history", at(thread), **kwargs)

    async def update(self, thread: Any, values: Any, **kwargs: Any) -> Any:
        return await self.see("update_state", at(thread), values, **kwargs)


def _all(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *args, **kwargs: list(function(*args, **kwargs))


def at(thread: Any) -> Any:
    """The config of a thread, given its id; a config stays what it is."""
    return thread if isinstance(thread, dict) else {"configurable": {"thread_id": thread}, "recursion_limit": 100}


def plain(seen: Any) -> Any:
    """What was seen without ids and times: every id becomes the number of its first appearance."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"#{len(numbers)}")

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return _TIMES.sub("T", _IDS.sub(number, value))
        if isinstance(value, (StateSnapshot, PregelTask)):
            return {"type": type(value).__name__, **walk(value._asdict())}
        if isinstance(value, Mapping):
            # InMemorySaver gives back the config that it was given, with what the runtime keeps in it.
            return {walk(key): walk(item) for key, item in value.items() if not str(key).startswith("__pregel_")}
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *(walk(item) for item in value)]
        return value if value is None or isinstance(value, (int, float, bytes)) else walk(repr(value))

    return walk(seen)


def differences(ours: Any, theirs: Any, path: str = "seen") -> Iterator[str]:
    """Where two plain values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key in ours:
            yield from differences(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} and not {theirs!r}"


Scenario = Callable[[Run], Awaitable[None]]
Play = Callable[[Callable[[], Compile], Scenario], Awaitable[Run]]


async def assert_same(surface: str, savers: Sequence[Any], compile_: Callable[[], Compile], scenario: Scenario) -> Run:
    """Play a scenario with `InMemorySaver`, then with these savers; all that is seen must be the same.

    Args:
        surface: how the graph is called.
        savers: savers of the same collections.
        compile_: makes what compiles the graph, anew for each of the two, since nodes may count their calls.
        scenario: what is done with the graph.

    Returns:
        The run with the savers.
    """
    expected = Run(surface, compile_(), [InMemorySaver()])
    await scenario(expected)
    run = Run(surface, compile_(), savers)
    await scenario(run)
    assert list(differences(plain(run.seen), plain(expected.seen))) == []
    return run


class Chained(TypedDict):
    foo: str
    bar: Annotated[list[str], add]


def chain(*names: str) -> Compile:
    """Nodes one after the other, each of which leaves its name."""
    builder = StateGraph(Chained).add_edge(START, names[0])
    for name, following in zip(names, (*names[1:], END), strict=True):
        builder.add_node(name, lambda _, name=name: {"foo": name, "bar": [name]}).add_edge(name, following)
    return builder.compile


class Counted(TypedDict):
    count: int
    steps: Annotated[list[str], add]


def counter(to: int) -> Compile:
    """A node that runs in a loop until it has counted to a number."""

    def step(state: Counted) -> Any:
        count = state["count"] + 1
        return {"count": count, "steps": [str(count)]}

    builder = StateGraph(Counted).add_node("step", step).add_edge(START, "step")
    return builder.add_conditional_edges("step", lambda state: "step" if state["count"] < to else END).compile
