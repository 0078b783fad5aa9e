"""Histories of thousands of checkpoints: few commands, little memory, and nothing read that is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from langgraph_mongo_saver import MongoDBSaver
from langgraph_mongo_saver.codec import SEGMENT
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.servers import Server

METADATA: Any = {"source": "loop", "step": 1}
Database = Any


class Replies(CommandListener):
    """The documents that a client was sent, by collection."""

    def __init__(self) -> None:
        self.found: dict[str, list[dict[str, Any]]] = {}

    def started(self, event: Any) -> None:
        pass

    def succeeded(self, event: Any) -> None:
        if "cursor" in event.reply:
            collection = event.reply["cursor"]["ns"].partition(".")[2]
            self.found.setdefault(collection, []).extend(event.reply["cursor"]["firstBatch"])

    def failed(self, event: Any) -> None:
        pass


@pytest.fixture
def replies() -> Replies:
    return Replies()


@pytest.fixture
def saver(server: Server, db_name: str, recorder: CommandRecorder, replies: Replies) -> Iterator[MongoDBSaver]:
    with MongoClient[Any](server.uri, event_listeners=[recorder, replies]) as client:
        yield MongoDBSaver(client, db_name)


@pytest.fixture
def stored(mongo: MongoClient[Any], db_name: str) -> Database:
    return mongo[db_name]


def name(number: int) -> str:
    return f"{number:06}"


def put(saver: MongoDBSaver, number: int, values: dict[str, Any] | None = None, parent: int | None = None) -> None:
    parent = number - 1 if parent is None and number else parent
    at = config("1", "", None if parent is None else name(parent))
    made = checkpoint(values, id=name(number))
    saver.put(at, made, METADATA, made["channel_versions"])


def copied(like: dict[str, Any], number: int) -> dict[str, Any]:
    """A checkpoint's document as the saver would have stored it that much later on the same run."""
    document = {**like, "_id": {**like["_id"], "checkpoint_id": name(number)}, "checkpoint_id": name(number)}
    segment, seq = number - number % SEGMENT, number % SEGMENT
    document |= {"parent_checkpoint_id": name(number - 1), "segment": name(segment), "seq": seq}
    if not seq:
        document["grew_from"] = {"segment": name(number - SEGMENT), "seq": SEGMENT - 1}
    return document


SNAPSHOT_AT_THE_ROOT: Sequence[Any] = [{"log": _DeltaSnapshot(["seed"])}]


def grow(
    saver: MongoDBSaver,
    stored: Database,
    to: int,
    values: dict[str, Any] | None = None,
    begin: Sequence[Any] = SNAPSHOT_AT_THE_ROOT,
) -> None:
    """A run of this many checkpoints: some that hold the values given, then others with two tasks' writes on each."""
    first = len(begin)
    for number, held in enumerate([*begin, values]):
        put(saver, number, held)
    for task in ("a", "b"):
        saver.put_writes(config("1", "", name(first)), [("log", task), ("other", "not asked for")], task)
    (like,) = stored["checkpoints"].find({"checkpoint_id": name(first)})
    stored["checkpoints"].insert_many([copied(like, number) for number in range(first + 1, to)])
    for write in list(stored["checkpoint_writes"].find()):
        stored["checkpoint_writes"].insert_many(
            {**write, "_id": {**write["_id"], "checkpoint_id": name(n)}, "checkpoint_id": name(n)}
            for n in range(first + 1, to)
        )


def test_a_run_goes_through_segments_as_long_as_a_hop_takes(saver: MongoDBSaver, stored: Database) -> None:
    for number in range(2 * SEGMENT + 2):
        put(saver, number)
    fields = ("checkpoint_id", "parent_checkpoint_id", "segment", "seq", "grew_from")
    found = [{k: d[k] for k in fields if k in d} for d in stored["checkpoints"].find(sort=[("checkpoint_id", 1)])]
    (like,) = stored["checkpoints"].find({"checkpoint_id": name(1)})
    expected = [{k: v for k, v in copied(like, n).items() if k in fields} for n in range(1, len(found))]
    assert found[1:] == expected

    def place(number: int) -> tuple[Any, ...]:
        found = stored["checkpoints"].find_one({"checkpoint_id": name(number)})
        return found["segment"], found["seq"], found.get("grew_from")

    # A fork has a segment of its own, and what goes on from its end, not the latest by then, stays there; whatever the
    # maker knows: all, what it loads, nothing.
    replaying, knowing_nothing = (MongoDBSaver(saver.client, stored.name) for _ in range(2))
    replaying.get_tuple(config("1", "", name(SEGMENT + 3)))
    for fork, maker in ((9_000, saver), (9_100, replaying), (9_200, knowing_nothing)):
        put(maker, fork, parent=SEGMENT + 3)
        put(maker, fork + 1)
        assert place(fork) == (name(fork), 0, {"segment": name(SEGMENT), "seq": 3})
        assert place(fork + 1) == (name(fork), 1, None)
    for fork in (9_000, 9_100, 9_200):
        maker = MongoDBSaver(saver.client, stored.name)
        maker.get_tuple(config("1", "", name(fork + 1)))
        put(maker, fork + 2)
        assert place(fork + 2) == (name(fork), 2, None)


def test_a_second_child_has_a_segment_of_its_own_where_an_index_of_a_database_wants_it_so(
    saver: MongoDBSaver, stored: Database
) -> None:
    """Both processes found their parent as the latest. Here places are unique, as they were once."""
    put(saver, 0)
    keys = [(key, 1) for key in ("thread_id", "checkpoint_ns", "segment", "seq")]
    stored["checkpoints"].create_index(keys, unique=True)
    other = MongoDBSaver(saver.client, stored.name)
    for each in (saver, other):
        each.get_tuple(config("1"))
    put(saver, 1, parent=0)
    put(other, 2, parent=0)
    found = {d["checkpoint_id"]: (d["segment"], d["seq"]) for d in stored["checkpoints"].find()}
    assert found == {name(0): (name(0), 0), name(1): (name(0), 1), name(2): (name(2), 0)}


@pytest.mark.needs_mongod
def test_checkpoints_of_very_many_channels_are_scanned_past(
    saver: MongoDBSaver, stored: Database, recorder: CommandRecorder
) -> None:
    grow(saver, stored, 1_001)
    stored["checkpoints"].update_one({"checkpoint_id": name(500)}, {"$unset": {"populated": 1}})
    with recorder.recording() as seen:
        found = saver.get_delta_channel_history(config=config("1", "", name(1_000)), channels=["log"])["log"]
    assert (len(found["writes"]), found["seed"]) == (2 * 999, _DeltaSnapshot(["seed"]))
    # The lineage as far as there, 256 from there, the rest; and all that they hold.
    assert seen.names == ["aggregate", "find", "aggregate", "aggregate"]


# Where a segment begins, or within one, where its name alone comes with the lineage.
SEEDS = {
    "snapshot": SNAPSHOT_AT_THE_ROOT,
    "plain": [{}, {"log": ["seed"]}],
    "large": [{}, {"log": "x" * 300_001}],
    "none": [{}],
}


@pytest.mark.needs_mongod
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ancestors", "commands"), [(1_000, 3), (5_000, 4)])
def test_a_long_history_takes_few_commands(
    saver: MongoDBSaver, stored: Database, recorder: CommandRecorder, ancestors: int, commands: int, seed: str
) -> None:
    begin = SEEDS[seed]
    grow(saver, stored, ancestors + 1, begin=begin)
    at = config("1", "", name(ancestors))
    with recorder.recording() as seen:
        found = saver.get_delta_channel_history(config=at, channels=["log"])["log"]
    assert {"log": found["seed"]} == begin[-1] if begin[-1] else "seed" not in found
    assert found["writes"] == [("a", "log", "a"), ("b", "log", "b")] * (ancestors - len(begin))
    assert len(seen) <= commands, seen.names
    with recorder.recording() as seen:
        kept = saver.get_delta_channel_keepset(config=at, channels=["log"])
    assert kept == {name(number) for number in range(len(begin) - 1, ancestors + 1)}
    assert len(seen) <= commands - 2, seen.names


@pytest.mark.parametrize(
    ("seed", "read"), [(_DeltaSnapshot(["seed"]), "find"), (["seed"], "aggregate")], ids=["a blob", "a value"]
)
def test_the_history_since_a_snapshot_is_two_commands(
    saver: MongoDBSaver, stored: Database, recorder: CommandRecorder, seed: Any, read: str
) -> None:
    """As a run that goes on asks for it: it has just loaded the checkpoint."""
    put(saver, 0)
    put(saver, 1, {"log": seed})
    for number in range(2, 20):
        put(saver, number)
        saver.put_writes(config("1", "", name(number)), [("log", number)], "t")
    fresh = MongoDBSaver(saver.client, stored.name)
    fresh.get_tuple(config("1"))
    with recorder.recording() as seen:
        found = fresh.get_delta_channel_history(config=config("1", "", name(19)), channels=["log"])["log"]
    assert found == {"seed": seed, "writes": [("t", "log", number) for number in range(2, 19)]}
    assert seen.names == ["aggregate", read]


def test_only_what_was_asked_for_is_sent(saver: MongoDBSaver, stored: Database, replies: Replies) -> None:
    put(saver, 0, {"log": ["too old"], "other": 1})
    saver.put_writes(config("1", "", name(0)), [("log", "too old"), ("other", "x")], "t")
    for number in range(1, 5):
        put(saver, number, {"other": ["x"] * 1000, **({"log": ["seed"]} if number == 2 else {})})
        saver.put_writes(config("1", "", name(number)), [("other", "x"), ("log", number), ("more", "x")], "t")
    put(saver, 99, parent=3)
    saver.put_writes(config("1", "", name(99)), [("log", "of a fork")], "t")
    saver.put_writes(config("1", "", name(4)), [("log", "of the target")], "t")
    # One who remembers where the segment begins reads from there, at once.
    for reader, read in ((MongoDBSaver(saver.client, stored.name), (2, 3)), (saver, (0, 1, 2, 3))):
        replies.found.clear()
        found = reader.get_delta_channel_history(config=config("1", "", name(4)), channels=["log"])
        assert found == {"log": {"seed": ["seed"], "writes": [("t", "log", 2), ("t", "log", 3)]}}
        rows = [row for rows in replies.found.values() for row in rows]
        values = [value for row in rows for value in row.get("values", ())]
        assert [value["channel"] for value in values if "data" in value] == ["log"]
        sent = [row for row in rows if "writes" in row]
        assert {channel for document in sent for channel in document["writes"]} == {"log"}
        assert sorted(document["checkpoint_id"] for document in sent) == [name(number) for number in read]


@pytest.mark.needs_mongod
def test_a_history_that_ends_nearby_leaves_the_rest_of_the_thread_alone(
    saver: MongoDBSaver, stored: Database, replies: Replies
) -> None:
    grow(saver, stored, 5_000)
    put(saver, 5_000, {"log": _DeltaSnapshot([])})
    put(saver, 5_001, {})
    replies.found.clear()
    MongoDBSaver(saver.client, stored.name).get_delta_channel_history(
        config=config("1", "", name(5_001)), channels=["log"]
    )
    sent = sum(len(columns["ids"]) for row in replies.found["checkpoints"] for columns in row.get("nodes", ()))
    assert sent <= 5 * SEGMENT
    replies.found.clear()
    saver.get_delta_channel_history(config=config("1", "", name(5_001)), channels=["log"])
    assert len(replies.found["checkpoint_writes"]) == 2  # both checkpoints of its segment


@pytest.mark.needs_mongod
def test_heavy_checkpoints_weigh_nothing(saver: MongoDBSaver, stored: Database, recorder: CommandRecorder) -> None:
    grow(saver, stored, 2_000, {"heavy": "x" * 60_000})
    assert len(stored["checkpoints"].find_one({"checkpoint_id": name(1_000)})["values"][0]["data"]) > 60_000
    with recorder.recording() as seen:
        found = saver.get_delta_channel_history(config=config("1", "", name(1_999)), channels=["log"])["log"]
    assert len(found["writes"]) == 2 * 1_998
    assert len(seen) <= 4, seen.names


def examined(explained: dict[str, Any]) -> dict[str, int]:
    """What the stages after the first one had to look at."""
    (lookup,) = (stage for stage in explained["stages"] if "$lookup" in stage)
    return {kind: int(lookup[kind]) for kind in ("totalDocsExamined", "totalKeysExamined", "collectionScans")}


@pytest.mark.needs_mongod
@pytest.mark.needs_version(5, 0)
def test_nothing_is_examined_but_the_segments_on_the_way(
    saver: MongoDBSaver, stored: Database, recorder: CommandRecorder
) -> None:
    grow(saver, stored, 600)
    for fork in range(30):
        put(saver, 1_000 + 2 * fork, parent=300)
        put(saver, 1_001 + 2 * fork)
    for thread in range(2, 5):
        for ns in ("", "sub"):
            found = stored["checkpoints"].find({"thread_id": "1"})
            moved = {"thread_id": str(thread), "checkpoint_ns": ns}
            stored["checkpoints"].insert_many([{**d, **moved, "_id": {**d["_id"], **moved}} for d in found])
    with recorder.recording() as seen:
        saver.get_delta_channel_keepset(config=config("1", "", name(1_001)), channels=["never"])
    (command,) = (dict(each.body) for each in seen if each.name == "aggregate")
    plain = {key: command[key] for key in ("aggregate", "pipeline", "cursor")}
    explained = stored.command("explain", plain, verbosity="executionStats")
    looked = examined(explained)
    # The fork's own two, the root's segment, and that which the fork grew from.
    needed = 1_001 - 1_000 + 1 + 2 * SEGMENT
    assert looked["collectionScans"] == 0
    assert looked["totalDocsExamined"] == 0, "the index has all that is asked of them"
    assert looked["totalKeysExamined"] <= needed
