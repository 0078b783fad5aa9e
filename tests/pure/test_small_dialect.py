"""The small dialect on mongomock, as unit tests of applications use it: what works there, and what cannot.

mongomock is no server. It shows that ``dialect="basic"`` keeps to plain finds, inserts and updates; what it proves of
durability, races or speed is nothing.
"""

from __future__ import annotations

from datetime import timedelta
from operator import add
from typing import Annotated, Any, TypedDict

import mongomock
import mongomock_motor
import pytest
from bson.codec_options import CodecOptions
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver, Removed, pipelines, values
from langgraph_mongo_saver.address import Address
from tests.building import checkpoint, config
from tests.surfaces import Surface

METADATA: Any = {"source": "loop", "step": 1}


class _KnowsFewCodecOptions:
    """mongomock refuses codec options that it does not know, though it would need none of them."""

    def get_database(self, name: str, codec_options: Any = None, **options: Any) -> Any:
        return super().get_database(name, codec_options=CodecOptions(tz_aware=True), **options)  # type: ignore[misc]  # a mixin


class Mongomock(_KnowsFewCodecOptions, mongomock.MongoClient):
    pass


class MongomockMotor(_KnowsFewCodecOptions, mongomock_motor.AsyncMongoMockClient):
    pass


def open_(name: str, client: Any = None, **options: Any) -> Surface:
    options = {"dialect": "basic", **options}
    if name == "sync":
        return Surface(name, MongoDBSaver(client or Mongomock(), "db", **options))
    return Surface(name, AsyncMongoDBSaver(client or MongomockMotor(), "db", **options))


each_surface = pytest.mark.parametrize("name", ["sync", "motor"])


@pytest.fixture(params=["sync", "motor"])
def saver(request: pytest.FixtureRequest) -> Surface:
    return open_(request.param)


# --- what works ----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_comes_back(saver: Surface) -> None:
    written = checkpoint({"a": {"k": [1]}, "none": None, "empty": b""})
    stored = await saver.put(config(), written, {**METADATA, "$odd.key": {"": 1}}, written["channel_versions"])
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.config == stored == config(checkpoint_id=written["id"])
    assert loaded.checkpoint == written
    assert loaded.metadata == {**METADATA, "$odd.key": {"": 1}}
    assert await saver.get_tuple(config("2")) is None


async def test_large_values_go_to_blobs_and_are_stored_once(saver: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PART_BYTES", 100_000)
    state = {"a": b"a" * 300_000, "b": b"b" * 300_001}
    first = await saver.put(config(), checkpoint({"a": state["a"]}, id="1"), METADATA, {"a": 1})
    # Without a parent nothing is known of "a": its three parts are there already, and the four of "b" are not.
    await saver.put(config(), checkpoint(state, id="2"), METADATA, {"a": 1, "b": 1})
    await saver.put(config(checkpoint_id="2"), checkpoint(state, id="3"), METADATA, {})
    for id, expected in (("1", {"a": state["a"]}), ("2", state), ("3", state)):
        loaded = await saver.get_tuple(config(checkpoint_id=id))
        assert loaded is not None
        assert loaded.checkpoint["channel_values"] == expected
    count = saver.raw._collections["blobs"].count_documents({})
    assert (count if isinstance(count, int) else await count) == 7
    assert first == config(checkpoint_id="1")


async def test_a_checkpoint_stored_again_is_replaced(saver: Surface) -> None:
    for value in (1, 2):
        await saver.put(config(), checkpoint({"a": value}, id="1"), {**METADATA, "step": value}, {"a": value})
    (loaded,) = await saver.list(config())
    assert (loaded.checkpoint["channel_values"], loaded.metadata["step"]) == ({"a": 2}, 2)


async def test_lists_are_filtered_ordered_and_limited(saver: Surface) -> None:
    for step, (thread_id, ns) in enumerate([("1", ""), ("1", ""), ("1", "a|b"), ("2", "")]):
        metadata: Any = {"source": "loop", "step": step, "parents": {"": "x", "a.b": step % 2}, "tags": ["t"]}
        await saver.put(config(thread_id, ns), checkpoint(id=str(step)), metadata, {})

    async def ids(*args: Any, **kwargs: Any) -> str:
        return "".join(loaded.checkpoint["id"] for loaded in await saver.list(*args, **kwargs))

    assert await ids(None) == "3210"
    assert await ids({"configurable": {"thread_id": "1"}}) == "210"
    assert await ids(config()) == "10"
    assert await ids(config(checkpoint_id="0")) == "0"
    assert await ids(None, before=config(checkpoint_id="2")) == "10"
    assert await ids(None, limit=2) == "32"
    assert await ids(None, filter={"step": 1.0}) == "1"
    assert await ids(None, filter={"parents": {"a.b": 0, "": "x"}}) == "20"
    assert await ids(None, filter={"tags": "t"}) == ""
    assert await ids(None, filter={"step": {"$gte": 0}}) == ""


async def test_writes_come_in_langgraphs_order(saver: Surface) -> None:
    stored = await saver.put(config(), checkpoint(id="1"), METADATA, {})
    await saver.put_writes(stored, [("a", 1), ("b", b"x" * 300_000)], "task 1", "path z")
    await saver.put_writes(stored, [("a", 2)], "task 2", "path y")
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    expected = [("task 2", "a", 2), ("task 1", "a", 1), ("task 1", "b", b"x" * 300_000)]
    assert loaded.pending_writes == expected
    assert [listed.pending_writes for listed in await saver.list(config())] == [expected]


async def test_writes_saved_again_merge(saver: Surface) -> None:
    stored = await saver.put(config(), checkpoint(id="1"), METADATA, {})
    await saver.put_writes(stored, [("a", 1), ("__interrupt__", 1)], "t", "p")
    await saver.put_writes(stored, [("a", 2), ("__interrupt__", 2), ("b", 2)], "t", "p")
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.pending_writes == [("t", "__interrupt__", 2), ("t", "a", 1), ("t", "b", 2)]


async def test_a_thread_with_a_delta_channel_is_copied_and_cleaned_up(saver: Surface) -> None:
    place = config()
    for n in range(1, 6):
        held = {"log": _DeltaSnapshot([f"snapshot {n}"])} if n == 3 else {"log": ["plain"]} if n == 1 else {}
        made = checkpoint(held, {"log": n}, id=f"{n}")
        metadata: Any = {
            "source": "loop",
            "step": n,
            "run_id": f"r{n}",
            "counters_since_delta_snapshot": {"log": [n, n]},
        }
        place = await saver.put(place, made, metadata, {"log": n})
        await saver.put_writes(place, [("log", [f"{n}" * 300_000]), ("other", n)], "t")

    async def history(thread_id: str, id: str) -> Any:
        found = await saver.call("get_delta_channel_history", config=config(thread_id, "", id), channels=["log"])
        return found["log"].get("seed"), [value[0][0] for _, _, value in found["log"]["writes"]]

    assert await history("1", "3") == (["plain"], ["1", "2"])
    before = await history("1", "5")
    assert before == (_DeltaSnapshot(["snapshot 3"]), ["3", "4"])
    await saver.call("copy_thread", "1", "copy")
    assert await saver.call("prune", ["1"], grace=timedelta(0)) == Removed(2, 2, 2)
    assert await saver.call("delete_for_runs", ["r4", "r5"], grace=timedelta(0)) == Removed(5, 5, 6)
    assert await history("copy", "3") == (["plain"], ["1", "2"])
    assert [loaded.config for loaded in await saver.list(config("1"))] == []


async def test_a_deleted_thread_leaves_nothing_and_no_other_one_goes(saver: Surface) -> None:
    for thread_id in ("1", "2"):
        stored = await saver.put(config(thread_id), checkpoint({"a": b"x" * 300_000}), METADATA, {"a": 1})
        await saver.put_writes(stored, [("a", 1)], "t", "")
    await saver.delete_thread("1")
    await saver.delete_thread("1")
    assert await saver.get_tuple(config("1")) is None
    assert await saver.get_tuple(config("2")) is not None
    for part in ("checkpoints", "writes", "blobs"):
        found = saver.raw._collections[part].distinct("thread_id")  # type: ignore[index]  # one of the parts
        assert (found if isinstance(found, list) else await found) == ["2"]


@each_surface
async def test_an_encrypting_serializer_leaves_no_plaintext(name: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    saver = open_(name, serde=serde)
    await saver.put(config(), checkpoint({"a": "s3cret"}), {**METADATA, "user": "s3cret"}, {"a": 1})
    found = saver.raw._collections["checkpoints"].find_one({})
    assert "s3cret" not in str(found if isinstance(found, dict) else await found)
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.metadata["user"] == loaded.checkpoint["channel_values"]["a"] == "s3cret"


@each_surface
async def test_threads_can_begin_and_cease_to_expire(name: str) -> None:
    client = Mongomock() if name == "sync" else MongomockMotor()
    for ttl in (100, None, 100):
        saver = open_(name, client, ttl=ttl)
        await saver.setup()
        await saver.setup()
        indexes = saver.raw._collections["blobs"].index_information()
        found = indexes if isinstance(indexes, dict) else await indexes
        assert [index.get("expireAfterSeconds") for index in found.values() if "active_at" in str(index)] == (
            [105] if ttl else []
        )
        await saver.put(config(), checkpoint(), METADATA, {})


class State(TypedDict):
    log: Annotated[list[str], add]


def _ask(state: State) -> Any:
    return {"log": [f"asked, and heard {interrupt('well?')}"]}


@pytest.mark.asks
async def test_a_graph_is_interrupted_and_resumed(saver: Surface) -> None:
    builder = StateGraph(State)
    builder.add_node("begin", lambda _: {"log": ["began"]})
    builder.add_node("ask", _ask)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "ask")
    builder.add_edge("ask", END)
    graph = builder.compile(checkpointer=saver.raw)
    run: Any = {"configurable": {"thread_id": "1", "api_key": "s3cret", "user": "u"}}
    state: Any = {"log": ["given"]}
    for given in (state, Command(resume="yes")):
        result = graph.invoke(given, run) if saver.name == "sync" else await graph.ainvoke(given, run)
    assert result["log"] == ["given", "began", "asked, and heard yes"]
    history = await saver.list(run)
    assert [loaded.metadata["step"] for loaded in history] == [2, 1, 0, -1]
    assert history[0].metadata["user"] == "u"
    for part in ("checkpoints", "writes"):
        cursor = saver.raw._collections[part].find({})  # type: ignore[index]  # one of the parts
        assert b"s3cret" not in str(list(cursor) if saver.name == "sync" else await cursor.to_list(None)).encode()


# --- what cannot work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [mongomock.MongoClient, mongomock_motor.AsyncMongoMockClient])
def test_mongomock_refuses_codec_options_that_it_does_not_know(client: Any) -> None:
    with pytest.raises(NotImplementedError, match="uuid_representation"):
        open_("sync" if client is mongomock.MongoClient else "motor", client())


@each_surface
async def test_the_dialect_of_mongodb_does_not_work_on_mongomock(name: str) -> None:
    saver = open_(name, dialect="mongodb")
    with pytest.raises(NotImplementedError, match="list_collections"):
        await saver.get_tuple(config())


def test_mongomock_cannot_join_with_a_pipeline() -> None:
    request = pipelines.checkpoint_with_writes(Address("1", ""), "checkpoint_writes")
    with pytest.raises(NotImplementedError, match="pipeline"):
        list(Mongomock().db.checkpoints.aggregate(*request.args))


@each_surface
async def test_mongomock_cannot_change_when_threads_expire(name: str) -> None:
    client = Mongomock() if name == "sync" else MongomockMotor()
    await open_(name, client, ttl=100).setup()
    with pytest.raises((TypeError, NotImplementedError)):
        await open_(name, client, ttl=200).setup()
