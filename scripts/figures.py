"""Ratios of this saver to the least raw driver calls and to the official saver, measured in one run.

All work on one server with the same write concern (majority), in turn, round by round, so that a machine that
gets slower does so for all. Needs ``pip install langgraph-checkpoint-mongodb==0.5.1`` beside the test extra;
``scripts/figures`` does that.

The floor of a chat is the same state serialized once and three `insert_one` a superstep.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.mongodb import MongoDBSaver as OfficialSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo import MongoClient, WriteConcern

from langgraph_mongo_saver import MongoDBSaver
from langgraph_mongo_saver.embedded import embedded_server

Saver = BaseCheckpointSaver[Any]
Figure = tuple[str, str, float, float]

SUPERSTEPS = 60
STEPS_WITH_BIG_CHANNEL = 40
LISTED = 100


def checkpoint(values: dict[str, Any], step: int) -> Any:
    versions = dict.fromkeys(values, f"{step + 1:032}.0")
    if "document" in versions:
        versions["document"] = f"{1:032}.0"
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"agent": {"messages": f"{step:032}.0"}, "tools": {"branch:to:tools": f"{step:032}.0"}},
        "updated_channels": ["messages"],
    }


def message(step: int) -> Any:
    kind = HumanMessage if step % 2 == 0 else AIMessage
    return kind(content=f"message {step} " + "lorem ipsum dolor sit amet " * 8, id=str(uuid.uuid4()))


def thread() -> Any:
    return {"configurable": {"thread_id": uuid.uuid4().hex, "checkpoint_ns": ""}}


def superstep(
    saver: Saver, config: Any, step: int, values: dict[str, Any], changed: list[str], written: Any = None
) -> Any:
    new = checkpoint(values, step)
    config = saver.put(
        config,
        new,
        {"source": "loop", "step": step},
        {channel: new["channel_versions"][channel] for channel in changed},
    )
    for task in ("agent", "tools"):
        writes = [("messages", written or message(step)), ("branch:to:agent", None)]
        saver.put_writes(config, writes, f"{task}-{step}", f"~__pregel_pull, {task}")
    return config


def chat(saver: Saver, supersteps: int = SUPERSTEPS) -> Any:
    config, messages = thread(), []
    for step in range(supersteps):
        messages.append(message(step))
        config = superstep(saver, config, step, {"messages": list(messages), "summary": "short"}, ["messages"])
    return config


def counter(saver: Saver, supersteps: int = LISTED) -> Any:
    config = thread()
    for step in range(supersteps):
        config = superstep(saver, config, step, {"count": step, "last": "agent"}, ["count", "last"], written="a step")
    return config


def big_channel(saver: Saver) -> None:
    config, document = thread(), os.urandom(2**20)
    for step in range(STEPS_WITH_BIG_CHANNEL):
        values = {"messages": [message(step)], "document": document}
        config = superstep(saver, config, step, values, ["messages", "document"] if step == 0 else ["messages"])


def floor_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    serde, messages, name = JsonPlusSerializer(), [], uuid.uuid4().hex
    for step in range(SUPERSTEPS):
        messages.append(message(step))
        new = checkpoint({"messages": list(messages), "summary": "short"}, step)
        address = {"thread_id": name, "checkpoint_ns": "", "checkpoint_id": new["id"]}
        type_, data = serde.dumps_typed(new)
        metadata = {"source": "loop", "step": step}
        yield "checkpoints", {**address, "type": type_, "checkpoint": data, "metadata": metadata}
        for task in ("agent", "tools"):
            _, data = serde.dumps_typed([("messages", message(step)), ("branch:to:agent", None)])
            yield "checkpoint_writes", {**address, "task_id": f"{task}-{step}", "idx": 0, "value": data}


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(rounds: int, **contenders: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            times[name].append(timed(work))
    return {name: statistics.median(measured) for name, measured in times.items()}


def figures(client: MongoClient[dict[str, Any]], rounds: int) -> Iterator[Figure]:
    ours: Saver = MongoDBSaver(client, "figures_ours")
    official: Saver = OfficialSaver(client, "figures_official")
    raw = client.get_database("figures_official", write_concern=WriteConcern("majority"))

    def floor() -> None:
        for collection, document in floor_documents():
            raw[collection].insert_one(document)

    for saver in (ours, official):  # connections, indexes, and files of the server
        chat(saver, 5)

    took = compare(rounds, ours=lambda: chat(ours), official=lambda: chat(official), floor=floor)
    print(f"a chat of {SUPERSTEPS} supersteps: " + milliseconds(took))
    yield "chat / floor", "at most", took["ours"] / took["floor"], 1.25
    yield "chat / official", "below", took["ours"] / took["official"], 1.0
    yield "(official / floor)", "", took["official"] / took["floor"], float("inf")

    took = compare(rounds, ours=lambda: big_channel(ours), official=lambda: big_channel(official))
    print(f"a channel of 1 MB that never changes, {STEPS_WITH_BIG_CHANNEL} supersteps: " + milliseconds(took))
    yield "1 MB channel / official", "at most", took["ours"] / took["official"], 0.45

    chats = {name: (saver, chat(saver, LISTED)) for name, saver in (("ours", ours), ("official", official))}
    small = {name: (saver, counter(saver)) for name, saver in (("ours", ours), ("official", official))}
    took = compare(rounds * 3, **calls(list_all, small))
    print(f"listing {LISTED} checkpoints of a small state, with two writes of a word each: " + milliseconds(took))
    yield "listing / official", "at most", took["ours"] / took["official"], 0.2
    took = compare(rounds, **calls(list_all, chats))
    print(f"listing {LISTED} checkpoints of a chat, mostly deserializing messages: " + milliseconds(took))
    yield "(listing a chat / official)", "", took["ours"] / took["official"], float("inf")
    for state, stored in (("small state", small), ("chat", chats)):
        took = compare(rounds * 60, **calls(lambda saver, config: saver.get_tuple(config), stored))
        print(f"latest checkpoint of a {state}: " + milliseconds(took))
        yield f"latest, {state} / official", "at most", took["ours"] / took["official"], 1.0


def calls(work: Callable[[Saver, Any], Any], stored: dict[str, tuple[Saver, Any]]) -> dict[str, Callable[[], Any]]:
    return {name: partial(work, saver, name_of(config)) for name, (saver, config) in stored.items()}


def name_of(config: Any) -> Any:
    return {"configurable": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": ""}}


def list_all(saver: Saver, config: Any) -> None:
    listed = sum(1 for _ in saver.list(config))
    if listed != LISTED:
        raise RuntimeError(f"{listed} checkpoints were listed, and {LISTED} were stored")


def milliseconds(took: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds * 1000:.2f} ms" for name, seconds in took.items())


@contextmanager
def server() -> Iterator[str]:
    if uri := os.environ.get("MONGODB_URI"):
        yield uri
    else:
        with embedded_server(server="mongod") as uri:
            yield uri


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with server() as uri, MongoClient[dict[str, Any]](uri) as client:
        print(f"MongoDB {client.server_info()['version']}, medians of {rounds} rounds")
        missed = 0
        try:
            for name, word, ratio, bound in list(figures(client, rounds)):
                reached = ratio <= bound
                missed += not reached
                goal = f"{word} {bound:.2f}: {'reached' if reached else 'MISSED'}" if word else ""
                print(f"  {name:<30}{ratio:6.2f}   {goal}")
        finally:
            for database in ("figures_ours", "figures_official"):
                client.drop_database(database)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
