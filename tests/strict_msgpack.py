"""Runs a graph where LangGraph only deserializes the types that it knows; for a process of its own.

``LANGGRAPH_STRICT_MSGPACK=true python -m tests.strict_msgpack KIND URI DB_NAME`` prints the types that two values of
the state have when a second saver has read them: one whose type is in the annotations, and one whose is not.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from tests.surfaces import open_surface


@dataclass
class Annotated:
    number: int


@dataclass
class Hidden:
    number: int


class State(TypedDict):
    known: Annotated
    unknown: Any


def node(state: State) -> Any:
    return {"known": Annotated(state["known"].number + 1), "unknown": Hidden(1)}


async def main(kind: str, uri: str, db_name: str) -> None:
    builder = StateGraph(State).add_node(node).add_edge(START, "node")
    config: Any = {"configurable": {"thread_id": "1"}}
    async with open_surface(kind, uri, db_name) as first, open_surface(kind, uri, db_name) as second:
        graph, reader = builder.compile(first.raw), builder.compile(second.raw)
        given: Any = {"known": Annotated(1)}
        if kind == "sync":
            graph.invoke(given, config)
            values = reader.get_state(config).values
        else:
            await graph.ainvoke(given, config)
            values = (await reader.aget_state(config)).values
    print(type(values["known"]).__name__, type(values["unknown"]).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
