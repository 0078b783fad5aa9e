"""How many commands an operation sends, and that each is answered from an index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import product
from typing import Any

import pytest

from langgraph_mongo_saver import event_pipelines, pipelines
from langgraph_mongo_saver.address import Address
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.steps import LARGE, put
from tests.surfaces import Surface

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
NAMES = {"checkpoints": "checkpoints", "writes": "checkpoint_writes", "blobs": "checkpoint_blobs"}


@pytest.fixture
async def started(saver: Surface) -> Surface:
    """A saver that has set up and connected."""
    await saver.setup()
    return saver


async def test_a_put_is_one_command_and_one_more_for_new_blobs(started: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        first = await put(started, config(), {"a": 1, "b": "x" * 100_000})
        second = await put(started, first, {"a": 2, "b": "x" * 100_000}, {"a": 2, "b": 1}, new={"a": 2})
    assert seen.names == ["insert", "insert", "insert"]
    with recorder.recording() as seen:
        third = await put(started, second, {"c": "x" * LARGE, "d": "y" * LARGE})
    assert seen.names == ["insert", "insert"]
    with recorder.recording() as seen:
        await put(started, third, {"c": "x" * LARGE, "d": "y" * LARGE, "a": 1}, new={"a": 1})
    assert seen.names == ["insert"]


async def test_writes_are_one_command(started: Surface, recorder: CommandRecorder) -> None:
    stored = await put(started, config())
    with recorder.recording() as seen:
        await started.put_writes(stored, [("a", n) for n in range(50)], "t")
        await started.put_writes(stored, [], "t")
    assert seen.names == ["insert"]


async def test_reading_is_one_command_and_one_more_for_blobs(started: Surface, recorder: CommandRecorder) -> None:
    small = await put(started, config("small"), {"a": 1})
    large = await put(started, config("large"), {"a": "x" * LARGE, "b": "y" * LARGE})
    for stored in (small, large):
        await started.put_writes(stored, [("a", "z" * 10)], "t")
    with recorder.recording() as seen:
        assert await started.get_tuple(small)
        assert await started.get_tuple(config("small"))
        assert await started.get_tuple(config("missing")) is None
    assert seen.names == ["aggregate"] * 3
    with recorder.recording() as seen:
        assert await started.get_tuple(config("large"))
    assert seen.names == ["aggregate", "find"]


@pytest.mark.parametrize("size", [1, 10_000], ids=["small", "blobs"])
async def test_a_list_of_a_hundred_is_at_most_three_commands(
    started: Surface, recorder: CommandRecorder, size: int
) -> None:
    before, text = config(), "x" * size
    for n in range(100):
        before = await put(started, before, {"n": n, "a": text}, {"n": n, "a": 1}, new={"n": n})
        await started.put_writes(before, [("n", n)], "t")
    with recorder.recording() as seen:
        listed = await started.list(config())
    assert [loaded.checkpoint["channel_values"]["n"] for loaded in listed] == list(reversed(range(100)))
    assert all(loaded.checkpoint["channel_values"]["a"] == text for loaded in listed)
    assert seen.names == (["find"] * 2 if size == 1 else ["find"] * 3)


async def test_a_refused_or_empty_listing_costs_next_to_nothing(started: Surface, recorder: CommandRecorder) -> None:
    with recorder.recording() as seen:
        assert await started.list(None, limit=0) == []
    assert seen.names == []
    with recorder.recording() as seen:
        assert await started.list(config()) == []
    assert seen.names == ["find"]


def stages(plan: Any) -> Iterator[dict[str, Any]]:
    """Every stage of an explained plan, those that were rejected left out."""
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        for name, part in plan.items():
            if name != "rejectedPlans":
                yield from stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from stages(part)


def pages() -> Iterator[tuple[str, pipelines.Request]]:
    for place, chosen, before, filter, after in product(
        [(None, None), ("2", None), ("2", "")],
        [None, "050"],
        [None, "080"],
        [{}, {"step": 1}],
        [None, ("090", "2", "")],
    ):
        request = pipelines.checkpoints_page(
            *place, checkpoint_id=chosen, before=before, filter=filter, after=after, size=10
        )
        yield f"page of {place}, {chosen=}, {before=}, {filter=}, {after=}", request


def requests() -> Iterator[tuple[str, pipelines.Request]]:
    latest, one = Address("2", ""), Address("2", "", "050")
    for address in (latest, one):
        yield "one or latest", pipelines.checkpoint_with_writes(address, "checkpoint_writes")
        yield "lineage", pipelines.lineage(address, "checkpoints", ["a"], 10)
    yield "latest alone", pipelines.checkpoint(latest)
    yield from (("one alone", pipelines.checkpoint(one)), ("known", pipelines.known_of(one)))
    yield "writes", pipelines.writes_of([one, Address("2", "", "051")])
    yield "writes of many", pipelines.writes_of([one, Address("1", "", "051"), Address("1", "sub", "1")])
    yield "blobs", pipelines.whole("blobs", [{"thread_id": "2", "blob": "x", "part": 0}])
    yield from pages()
    yield from (("older", pipelines.older(one, 10)), ("latest id", pipelines.latest(latest)))
    some, keys = ["050", "051"], [{"thread_id": "2", "blob": "x", "part": 0}]
    yield "writes of a range", pipelines.writes_of([one, Address("2", "", "051"), Address("1", "", "1")], gaps=False)
    yield "writes to", pipelines.writes_to(one, [some], ["a"])
    yield "writes to runs", pipelines.writes_to(one, [some, ["040", "039"]], ["a"])
    yield "writes to many", pipelines.writes_to(one, [some] * 40, ["a"])
    seeds = [pipelines.values_of(one, some, ["a"]), pipelines.whole("blobs", keys)]
    yield "values", seeds[0]
    for build in (pipelines.begun, pipelines.at_place):
        yield build.__name__, build(one, ("000", 50))
    yield "marks", pipelines.marks(one)
    yield "all of a history", pipelines.together([pipelines.writes_to(one, [some], ["a"]), *seeds], NAMES.__getitem__)
    yield "contents", pipelines.contents_of(one, some)
    yield "any write", pipelines.any_write(one, "a")
    yield "hold", pipelines.hold_blobs(keys, {"held_until": NOW})
    yield "cut", pipelines.cut_parents(one, some)
    yield "delete some", pipelines.delete("writes", pipelines.some(one, some))
    yield "delete blobs", pipelines.delete("blobs", pipelines.unless({"_id": {"$in": keys}}, ["a"], NOW))
    yield "nodes", pipelines.nodes_of_thread("2")
    yield "writes of a thread", pipelines.writes_of_thread("2")
    yield "blobs of a thread", pipelines.ids_of_thread("blobs", "2")
    yield "threads present", event_pipelines.threads_present(["1", "2"])
    for after in (None, ("051", "2", "")):
        query = {"thread_id": {"$in": ["2"]}, "stored_at": {"$gte": NOW}}
        yield f"stored since, {after=}", event_pipelines.stored_since(query, NOW, after, event_pipelines.projection())
    yield "runs", pipelines.threads_of_runs(["r"])
    for part in ("checkpoints", "writes", "blobs"):
        yield f"keep {part} alive", pipelines.keep_alive(part, "2", NOW)
        yield f"delete {part}", pipelines.delete(part, {"thread_id": "2"})


def command(collection: str, request: pipelines.Request) -> dict[str, Any]:
    """The request as the command that explain takes."""
    query, *more = request.args
    if request.method == "aggregate":
        return {"aggregate": collection, "pipeline": query, "cursor": {}}
    if request.method == "find":
        sort = dict(request.kwargs.get("sort", ()))
        return {"find": collection, "filter": query, "sort": sort, "limit": request.kwargs.get("limit", 0)}
    if request.method == "update_many":
        return {"update": collection, "updates": [{"q": query, "u": more[0], "multi": True}]}
    return {"delete": collection, "deletes": [{"q": query, "limit": 0}]}


def slow(explained: dict[str, Any]) -> list[str]:
    """What in an explained command is not answered from an index."""
    ran = explained.get("stages", ())
    found = {stage["stage"] for stage in stages(explained)} | {name for stage in ran for name in stage}
    wrong = sorted(found & {"COLLSCAN", "SORT", "$sort"})
    if not found & {"IXSCAN", "IDHACK", "DISTINCT_SCAN"}:
        wrong.append("no index")
    # Of three threads with a hundred checkpoints each, those of one id are joined, and no more.
    joins = [stage for stage in ran if "$lookup" in stage]
    return wrong + [
        "$lookup" for join in joins if join["collectionScans"] or join["totalDocsExamined"] > 3 * join["nReturned"]
    ]


@pytest.mark.needs_mongod
@pytest.mark.parametrize("surface_name", ["sync"], indirect=True)
async def test_every_request_is_answered_from_an_index(saver: Surface, mongo: Any, db_name: str) -> None:
    for n in range(300):
        values = {"a": "x" * (LARGE if n < 3 else 1)}
        await saver.put(config(str(n % 3)), checkpoint(values, id=f"{n // 3:03}"), {"step": n % 2}, {"a": 1})
        await saver.put_writes(config(str(n % 3), "", f"{n // 3:03}"), [("a", 1)], "t")

    def explain(request: pipelines.Request) -> list[str]:
        explained = command(NAMES[request.part], request)
        return slow(mongo[db_name].command("explain", explained, verbosity="executionStats"))

    by_nothing = pipelines.Request("checkpoints", "find", ({"stored_at": NOW},), {"sort": [("stored_at", 1)]})
    assert explain(by_nothing) == ["COLLSCAN", "SORT", "no index"]
    among_others = pipelines.together([pipelines.whole("blobs", []), by_nothing], NAMES.__getitem__)
    assert explain(among_others) == ["COLLSCAN"]
    assert {what: found for what, request in requests() if (found := explain(request))} == {}
