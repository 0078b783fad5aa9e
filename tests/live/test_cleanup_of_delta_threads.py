"""Graphs with delta channels: their state is the same before and after cleaning up, and their threads go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_mongo_saver import MongoDBSaver, Removed, history
from langgraph_mongo_saver.cleanup import Options
from langgraph_mongo_saver.compaction import compact_thread
from tests.faults import Beside, nth
from tests.graphs import Compile, Run
from tests.servers import Server
from tests.surfaces import OpenSurface, Surface
from tests.trees import counts, extend, unused_and_missing_blobs

NOW = timedelta(0)
how_it_is_stored = pytest.mark.parametrize(
    ("surface_name", "durability"), [("sync", "sync"), ("async", "async"), ("sync", "exit")], indirect=["surface_name"]
)
CHANNELS = {"": ["log", "rare"], "inner": ["seen"]}


class State(TypedDict):
    count: int
    to: int
    log: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=10)]
    rare: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=2)]


class Inner(TypedDict):
    count: int
    seen: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=4)]


def loop() -> Compile:
    """A loop of one node, and a subgraph that remembers all its calls."""
    inner = StateGraph(Inner).add_node("see", lambda state: {"seen": [state["count"]]}).add_edge(START, "see")

    def step(state: State) -> Any:
        count = state["count"] + 1
        return {"count": count, "log": [count], **({"rare": [count]} if count % 4 == 0 else {})}

    def following(state: State) -> str:
        return END if state["count"] >= state["to"] else "inner" if state["count"] % 3 == 0 else "step"

    builder = StateGraph(State).add_node("step", step).add_edge(START, "step")
    builder.add_node("inner", inner.compile(checkpointer=True)).add_edge("inner", "step")
    return builder.add_conditional_edges("step", following, ["step", "inner", END]).compile


def at(thread_id: str, run_id: str = "none") -> Any:
    configurable = {"thread_id": thread_id}
    return {"configurable": configurable, "metadata": {"run_id": run_id}, "recursion_limit": 100}


async def work(run: Run, durability: Any, fork: bool) -> None:
    """Three runs, about 25 supersteps; the last one, or a fork of the first, leads to the head."""
    for number, to in enumerate((7, 14, 19)):
        given = {"to": to, "log": [f"run {number}"]} | ({"count": 0} if not number else {})
        await run.call("invoke", given, at("1", f"run {number}"), durability=durability)
    if fork:
        history = await run.call("get_state_history", at("1"))
        old = next(s for s in history if s.metadata["source"] == "loop" and s.values.get("count", 99) <= 7)
        config = await run.call("update_state", old.config, {"log": ["edited"], "to": 12}, as_node="step")
        config = {**at("1", "run 3"), "configurable": config["configurable"]}
        await run.call("invoke", None, config, durability=durability)


async def heads(run: Run, thread_id: str) -> list[Any]:
    found = []
    for ns in CHANNELS:
        configurable = {"thread_id": thread_id, "checkpoint_ns": ns}
        found.append((await run.call("get_state", {"configurable": configurable})).values)
    return found


async def prune(saver: Surface, graph: Any) -> str:
    assert (await saver.call("prune", ["1"], grace=NOW)).checkpoints > 0
    return "1"


async def prune_to_three(saver: Surface, graph: Any) -> str:
    await saver.call("prune", ["1"], keep_last=3, grace=NOW)
    return "1"


async def delete_the_middle_run(saver: Surface, graph: Any) -> str:
    await saver.call("delete_for_runs", ["run 1"], grace=NOW)
    return "1"


async def copy(saver: Surface, graph: Any) -> str:
    await saver.call("copy_thread", "1", "copy")
    await saver.delete_thread("1")
    return "copy"


async def compact(saver: Surface, graph: Any) -> str:
    for ns in CHANNELS:
        place = {"configurable": {"thread_id": "1", "checkpoint_ns": ns}}
        of_namespace = graph if not ns else dict(graph.get_subgraphs())[ns]
        await saver.call("compact_thread", of_namespace, place, grace=NOW)
        assert len(await saver.list(place)) == 1
    return "1"


async def play(saver: Surface, durability: Any, fork: bool) -> tuple[Run, Run, Any]:
    """The same work with the saver and with one that is never cleaned up; and the graph."""
    graph = loop()(saver.raw)
    run, twin = Run(saver.name, lambda _: graph, [None]), Run("sync", loop(), [InMemorySaver()])
    for each in (run, twin):
        await work(each, durability, fork)
    return run, twin, graph


@pytest.mark.parametrize("clean", [prune, prune_to_three, delete_the_middle_run, copy, compact])
@pytest.mark.parametrize("fork", [False, True], ids=["straight", "forked"])
@how_it_is_stored
async def test_the_state_is_the_same_and_goes_on(
    saver: Surface, mongo: Any, db_name: str, durability: Any, fork: bool, clean: Callable[..., Any]
) -> None:
    run, twin, graph = await play(saver, durability, fork)
    before = await heads(run, "1")
    assert before == await heads(twin, "1")
    assert len(before[0]["log"]) > 10
    thread_id = await clean(saver, graph)
    assert await heads(run, thread_id) == before
    assert unused_and_missing_blobs(mongo[db_name], thread_id) == (0, 0)
    for to in (before[0]["count"] + 2, before[0]["count"] + 14):
        given = {"to": to, "log": ["on"]}
        await run.call("invoke", given, at(thread_id, "on"), durability=durability)
        await twin.call("invoke", given, at("1", "on"), durability=durability)
        assert await heads(run, thread_id) == await heads(twin, "1")


@how_it_is_stored
async def test_without_its_last_run_a_thread_goes_on_as_if_that_had_never_been(saver: Surface, durability: Any) -> None:
    run, twin = Run(saver.name, loop(), [saver.raw]), Run("sync", loop(), [InMemorySaver()])
    for number, to in enumerate((8, 11, 17)):
        given = {"to": to, "log": [f"run {number}"]} | ({"count": 0} if not number else {})
        for each in (run, twin):
            if each is run or number < 2:
                await each.call("invoke", given, at("1", f"run {number}"), durability=durability)
    assert await heads(run, "1") != await heads(twin, "1")
    assert (await saver.call("delete_for_runs", ["run 2"], grace=NOW)).checkpoints > 0
    assert await heads(run, "1") == await heads(twin, "1")
    for number, to in ((3, 15), (4, 29)):
        for each in (run, twin):
            given = {"to": to, "log": [f"run {number}"]}
            await each.call("invoke", given, at("1", f"run {number}"), durability=durability)
        assert await heads(run, "1") == await heads(twin, "1")


@pytest.mark.parametrize("keep_last", range(1, 10))
@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
async def test_each_of_the_newest_keeps_its_state(saver: Surface, keep_last: int) -> None:
    # Some of these are snapshots, whose own metadata no longer tell that older ones need their ancestors.
    run = Run(saver.name, loop(), [saver.raw])
    await run.call("invoke", {"count": 0, "to": 10, "log": [0]}, at("1"))
    before = [(s.config, s.values) for s in (await run.call("get_state_history", at("1")))[:keep_last]]
    await saver.call("prune", ["1"], keep_last=keep_last, grace=NOW)
    assert [(config, (await run.call("get_state", config)).values) for config, _ in before] == before


@pytest.mark.parametrize("to", range(8, 14))
@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
async def test_what_stays_of_a_thread_with_a_run_deleted_keeps_its_state(saver: Surface, to: int) -> None:
    run = Run(saver.name, loop(), [saver.raw])
    for number, (count, end) in enumerate(((0, 2), (0, 2), (0, to))):
        given = {"count": count, "to": end, "log": [number]}
        await run.call("invoke", given, at("1", f"run {number}"))
    history = await run.call("get_state_history", at("1"))
    before = [(s.config, s.values) for s in history if s.metadata["run_id"] != "run 1"]
    await saver.call("delete_for_runs", ["run 1"], grace=NOW)
    assert [(config, (await run.call("get_state", config)).values) for config, _ in before] == before


@pytest.mark.parametrize("surface_name", ["sync", "motor"], indirect=True)
async def test_a_dry_compaction_changes_nothing(saver: Surface, mongo: Any, db_name: str) -> None:
    _, _, graph = await play(saver, "sync", False)
    before = counts(mongo[db_name], "1"), mongo[db_name].checkpoints.find_one(sort=[("checkpoint_id", -1)])
    told = await saver.call("compact_thread", graph, at("1"), grace=NOW, dry_run=True)
    assert (counts(mongo[db_name], "1"), mongo[db_name].checkpoints.find_one(sort=[("checkpoint_id", -1)])) == before
    assert told == await saver.call("compact_thread", graph, at("1"), grace=NOW)
    assert told.checkpoints > 10


@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@pytest.mark.parametrize("requests", range(1, 8))
def test_a_state_that_is_read_beside_a_compaction_is_whole(
    requests: int, near: bool, dialect: Any, server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded before, and its history read after; or some of the history before, and the rest after."""
    if not near:
        monkeypatch.setattr(history, "BEGUN", 0)
    with MongoDBSaver.from_conn_string(server.uri, db_name) as other:
        theirs = loop()(other)
        theirs.invoke({"count": 0, "to": 7, "log": ["in"]}, at("1"))
        before = theirs.get_state(at("1")).values
        assert len(before["log"]) == 8
        with MongoDBSaver.from_conn_string(server.uri, db_name, dialect=dialect) as saver:
            saver.setup()
            when = nth(requests, "checkpoints", "writes", "blobs")
            beside = Beside(saver, lambda: other.compact_thread(theirs, at("1"), grace=NOW), when)
            monkeypatch.setattr(saver, "_send", beside)
            assert loop()(saver).get_state(at("1")).values == before
            assert beside.done or requests > 2
            after = [*before["log"], "more", 8, 9]
            assert loop()(saver).invoke({"to": 9, "log": ["more"]}, at("1", "more"))["log"] == after
        assert theirs.get_state(at("1")).values["log"] == after


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@pytest.mark.parametrize("requests", range(1, 5))
def test_the_history_of_what_goes_on_from_a_checkpoint_that_is_being_compacted_is_whole(
    requests: int, near: bool, server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint itself and its parent stay, and what is before them goes while it is read."""
    if not near:
        monkeypatch.setattr(history, "BEGUN", 0)
    with (
        MongoDBSaver.from_conn_string(server.uri, db_name) as saver,
        MongoDBSaver.from_conn_string(server.uri, db_name) as other,
    ):
        graph = loop()(other)
        graph.invoke({"count": 0, "to": 7, "log": ["in"]}, at("1"))
        compaction = compact_thread(other._planner, graph, at("1"), Options(NOW, False, None))
        request = next(compaction)
        while (request.part, request.method) != ("checkpoints", "update_one"):
            request = compaction.send(other._perform(request))
        head = other.get_tuple(at("1"))
        assert head
        child = {**head.checkpoint, "id": str(uuid6()), "channel_values": {}}
        place = other.put(head.config, child, head.metadata, {})
        expected = {c: extend_all(history) for c, history in read(saver, place).items()}
        assert len(expected["log"]) == 8

        def finish() -> None:
            try:
                reply = other._perform(request)
                while True:
                    reply = other._perform(compaction.send(reply))
            except StopIteration:
                pass

        beside = Beside(saver, finish, nth(requests, "checkpoints", "writes", "blobs"))
        monkeypatch.setattr(saver, "_send", beside)
        assert {c: extend_all(history) for c, history in read(saver, place).items()} == expected
        if not beside.done:
            finish()
        assert {c: extend_all(history) for c, history in read(saver, place).items()} == expected
        assert len(list(other.list({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}))) == 1


def read(saver: MongoDBSaver, place: Any) -> Any:
    return saver.get_delta_channel_history(config=place, channels=CHANNELS[""])


def extend_all(found: Any) -> list[Any]:
    """What a history adds up to."""
    seed = found.get("seed", [])
    return extend(getattr(seed, "value", seed), [value for _, _, value in found["writes"]])


async def test_what_cannot_be_compacted(open_saver: OpenSurface, mongo: Any, db_name: str) -> None:
    saver = await open_saver()
    graph = loop()(saver.raw)
    assert await saver.call("compact_thread", graph, at("not there")) == Removed()
    with pytest.raises(ValueError, match="graph"):
        await saver.call("compact_thread", object(), at("1"))
    with pytest.raises(ValueError, match="checkpoint_id"):
        await saver.call("compact_thread", graph, {"configurable": {"thread_id": "1", "checkpoint_id": "1"}})


@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
def test_a_copy_that_is_made_beside_a_compaction_can_be_read(
    dialect: Any, server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MongoDBSaver.from_conn_string(server.uri, db_name) as other:
        theirs = loop()(other)
        theirs.invoke({"count": 0, "to": 7, "log": ["in"]}, at("1"))
        before = theirs.get_state(at("1")).values
        with MongoDBSaver.from_conn_string(server.uri, db_name, dialect=dialect) as saver:
            # After all but the checkpoints themselves has been copied.
            done: list[int] = []
            beside = Beside(
                saver, lambda: other.compact_thread(theirs, at("1"), grace=NOW), lambda request: done == [1, 2]
            )
            monkeypatch.setattr(saver, "_send", beside)
            saver.copy_thread("1", "copy", progress=lambda number, total: done.append(number))
            assert beside.done
        assert theirs.get_state(at("copy")).values == before


@pytest.mark.parametrize("requests", range(12))
def test_what_is_pruned_while_its_last_run_is_deleted_is_not_half_left(
    requests: int, server: Server, db_name: str, mongo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as after one and then the other: nothing is kept for what is no longer there."""
    with (
        MongoDBSaver.from_conn_string(server.uri, db_name) as saver,
        MongoDBSaver.from_conn_string(server.uri, db_name) as other,
    ):
        graph = loop()(saver)
        for number, to in enumerate((3, 5, 7)):
            given = {"to": to, "log": [f"run {number}"]} | ({"count": 0} if not number else {})
            graph.invoke(given, at("1", f"run {number}"))
        left = iter(range(requests + 1))
        beside = Beside(
            saver, lambda: other.delete_for_runs(["run 2"], grace=NOW), lambda request: next(left, None) == requests
        )
        monkeypatch.setattr(saver, "_send", beside)
        saver.prune(["1"], grace=NOW)
        listed = list(other.list({"configurable": {"thread_id": "1"}}))
        assert bool(listed) == bool(counts(mongo[db_name], "1")[0])
        assert [summary.checkpoints for summary in other.list_threads()] == ([len(listed)] if listed else [])
