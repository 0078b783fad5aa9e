"""Clean-up beside other clean-up, and compaction of what other releases of a graph have written."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_mongo_saver import MongoDBSaver, Removed
from tests.building import config
from tests.faults import Beside
from tests.graphs import Run
from tests.live.test_cleanup_of_delta_threads import NOW, at, loop
from tests.servers import Server
from tests.steps import COLLECTIONS, LARGE, put
from tests.surfaces import OpenSurface, Surface
from tests.trees import counts, extend


def compact_beside(
    saver: MongoDBSaver, graph: Any, what: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compact, while another process does something just before the new values are added."""
    beside = Beside(saver, what, lambda request: (request.part, request.method) == ("checkpoints", "update_one"))
    monkeypatch.setattr(saver, "_send", beside)
    saver.compact_thread(graph, at("1"), grace=NOW)
    assert beside.done


def test_a_prune_beside_a_compaction_spares_what_that_is_about_to_add(
    server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        MongoDBSaver.from_conn_string(server.uri, db_name) as saver,
        MongoDBSaver.from_conn_string(server.uri, db_name) as other,
    ):
        graph = loop()(saver)
        graph.invoke({"count": 0, "to": 7, "log": ["in"]}, at("1"))
        before = graph.get_state(at("1")).values
        compact_beside(saver, graph, lambda: other.prune(["1"], grace=NOW), monkeypatch)
        assert loop()(other).get_state(at("1")).values == before


@pytest.mark.parametrize("to", [2, 7, 12])
def test_a_channel_that_was_a_delta_channel_when_it_was_written_is_folded_as_well(
    to: int, server: Server, db_name: str, mongo: Any
) -> None:
    class Plain(TypedDict):
        log: Annotated[list[Any], operator.add]

    class Delta(TypedDict):
        log: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=10)]

    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        older, newer = (
            StateGraph(state).add_node("step", lambda _: {"log": ["out"]}).add_edge(START, "step").compile(saver)
            for state in (Delta, Plain)
        )
        for number in range(to):
            older.invoke({"log": [number]}, at("1", f"run {number}"))
        before = older.get_state(at("1")).values
        assert newer.get_state(at("1")).values == before
        saver.compact_thread(newer, at("1"), grace=NOW)
        assert mongo[db_name].checkpoints.count_documents({}) == 1
        for graph in (newer, older):
            assert graph.get_state(at("1")).values == before
        assert newer.invoke({"log": ["in"]}, at("1", "on"))["log"] == [*before["log"], "in", "out"]


def test_a_compaction_that_another_one_overtakes_is_done_again(
    server: Server, db_name: str, mongo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one knows one channel of two: the ancestors go only if the second is folded as well."""
    with (
        MongoDBSaver.from_conn_string(server.uri, db_name) as saver,
        MongoDBSaver.from_conn_string(server.uri, db_name) as other,
    ):
        graph = loop()(saver)
        graph.invoke({"count": 0, "to": 7, "log": ["in"]}, at("1"))
        before = graph.get_state(at("1")).values
        older = SimpleNamespace(channels={"log": graph.channels["log"]})
        compact_beside(saver, graph, lambda: other.compact_thread(older, at("1"), grace=NOW), monkeypatch)
        [left] = mongo[db_name].checkpoints.find({"checkpoint_ns": ""})
        names = [entry["channel"] for entry in left["values"]]
        assert len(names) == len(set(names))
        assert loop()(other).get_state(at("1")).values == before
        assert len(list(other.list(at("1")))) == 2  # of the graph and of its subgraph


async def test_a_compaction_is_activity_of_its_thread(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver, other = await open_saver(ttl=1000), await open_saver(ttl=1000)
    run = Run(saver.name, loop(), [saver.raw])
    await run.call("invoke", {"count": 0, "to": 7, "log": ["in"]}, at("1"))
    for name in COLLECTIONS:  # as of long ago
        mongo[db_name][name].update_many({}, {"$set": {"active_at": datetime.now(timezone.utc) - timedelta(days=1)}})
    await other.call("compact_thread", loop()(other.raw), at("1"), grace=NOW)
    [active_at] = {d["active_at"] for name in COLLECTIONS for d in mongo[db_name][name].find()}
    assert datetime.now(timezone.utc) - active_at < timedelta(seconds=500)


@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
async def test_what_was_kept_for_a_head_that_goes_meanwhile_goes_with_its_values(
    saver: Surface, open_saver: Any, mongo: Any, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await open_saver()
    before = config()
    for n, run in enumerate("aab", 1):
        given = {"log": _DeltaSnapshot(["x" * LARGE])} if n == 1 else {}
        counted = {"counters_since_delta_snapshot": {"log": (n, n)}} if n > 1 else {}
        before = await put(saver, before, given, {"log": n}, metadata={"run_id": run, **counted}, id=str(n))
        await saver.put_writes(before, [("log", [f"{n}" * LARGE])], "t")
    deleted: list[Removed] = []
    retires = Beside(
        saver.raw,
        lambda: deleted.append(other.raw.delete_for_runs(["b"])),
        lambda request: (request.part, request.method) == ("checkpoints", "update_many"),
    )
    monkeypatch.setattr(saver.raw, "_send", retires)
    await saver.call("prune", ["1"], grace=timedelta(hours=1))
    assert deleted == [Removed(1, 1, 1)]
    assert counts(mongo[db_name], "1") == (0, 0, 0)


async def test_channels_that_hold_the_same_share_one_value(saver: Surface, mongo: Any, db_name: str) -> None:
    place, channels = await put(saver, config(), id="1"), ("a", "b", "c")
    for n in ("2", "3"):
        await saver.put_writes(place, [(channel, [n]) for channel in channels], "t")
        place = await put(saver, place, {}, dict.fromkeys(channels, 1), id=n)
    graph = SimpleNamespace(channels={channel: DeltaChannel(extend, list) for channel in channels})
    await saver.call("compact_thread", graph, config(), grace=NOW)
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    held = {channel: value.value for channel, value in loaded.checkpoint["channel_values"].items()}
    assert held == {key: ["2", "3"] for key in channels}
    assert counts(mongo[db_name], "1") == (1, 0, 1)


async def test_what_another_saver_has_written_stays_where_it_is(saver: Surface, mongo: Any, db_name: str) -> None:
    theirs = {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "0", "task_id": "theirs", "idx": 0, "value": b""}
    before = config()
    for n in (1, 2, 3):
        before = await put(saver, before, {"n": n}, id=f"{n}")
        await saver.put_writes(before, [("n", n)], "t")
    mongo[db_name].checkpoint_writes.insert_one(theirs)
    assert await saver.call("prune", ["1"], grace=timedelta(0)) == Removed(2, 2, 0)
    assert mongo[db_name].checkpoint_writes.count_documents({"task_id": "theirs"}) == 1
