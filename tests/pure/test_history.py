"""Delta history and keepset as plans, driven with replies that no server gives on demand."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo.errors import OperationFailure

from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Known
from langgraph_mongo_saver.errors import CorruptCheckpoint
from langgraph_mongo_saver.history import delta_channel_history, delta_channel_keepset
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.recall import Recall
from langgraph_mongo_saver.values import Sealer
from tests.building import checkpoint, config
from tests.pure.driving import Driven, drive, settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
NO_SUCH_STAGE = OperationFailure("Unrecognized pipeline stage name: '$graphLookup'", 40324)
LINEAGE, SCAN = "checkpoints.aggregate", "checkpoints.find"
WRITES, BLOBS, VALUES, MARKS = "writes.find", "blobs.find", "checkpoints.aggregate", "checkpoints.find"
TOGETHER = "writes.aggregate"


def planner(**options: Any) -> Planner:
    return Planner(settings(**options), Sealer(JsonPlusSerializer()), Recall(threading.Lock), lambda: NOW)


def put(id: str, parent: str | None = None, **values: Any) -> Driven:
    made = checkpoint(values, id=id)
    plan = planner().put(config(checkpoint_id=parent), made, {"source": "loop", "step": 1}, made["channel_versions"])
    large = any(len(value) > 300_000 for value in values.values())
    # A parent that is not stored; blobs, if there are any; the checkpoint.
    return drive(plan, *([[]] if parent else []), *([{}] if large else []), {})


def light(id: str, parent: str | None = None, **values: Any) -> dict[str, Any]:
    """A checkpoint's document as a walk fetches it."""
    document = put(id, parent, **values).requests[-1].args[0]
    return {**document, "values": [{k: v for k, v in each.items() if k != "data"} for each in document["values"]]}


def written(checkpoint_id: str, task_id: str, *writes: tuple[str, Any], task_path: str = "") -> dict[str, Any]:
    run = drive(planner().put_writes(config(checkpoint_id=checkpoint_id), list(writes), task_id, task_path), {})
    return run.requests[-1].args[0]


def seeds(id: str, **values: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = put(id, **values).requests[-1].args[0]["values"]
    return found


def history(replies: list[Any], plan: Planner | None = None, *channels: str) -> Driven:
    asked = delta_channel_history(plan or planner(dialect="basic"), config(checkpoint_id="3"), channels or ["log"])
    return drive(asked, *replies)


# The checkpoint itself, still there when its ancestors' writes have been read.
THERE: list[dict[str, Any]] = [{"checkpoint_id": "3"}]
PATH = [light("3", "2"), light("2", "1", log=["seed"]), light("1")]


def test_an_embedded_seed_is_fetched_with_its_checkpoint_alone() -> None:
    rows = [{"checkpoint_id": "2", "values": seeds("2", log=["seed"])}]
    run = history([PATH, [written("2", "t", ("log", 1))], rows, THERE])
    assert run.calls == [SCAN, WRITES, VALUES, MARKS]
    assert run.requests[2].args[0][0]["$match"]["checkpoint_id"] == {"$in": ["2"]}
    assert run.result == {"log": {"writes": [("t", "log", 1)], "seed": ["seed"]}}


def test_a_large_seed_is_fetched_by_its_name() -> None:
    seed = "x" * 300_001
    blobs = [each for r in put("2", log=seed).requests if r.part == "blobs" for each in r.args[0]]
    run = history([[PATH[0], light("2", "1", log=seed)], [], blobs, THERE])
    assert run.calls == [SCAN, WRITES, BLOBS, MARKS]
    assert run.result == {"log": {"writes": [], "seed": seed}}


def test_without_a_seed_there_is_nothing_more_to_fetch() -> None:
    run = history([[PATH[0], light("2", "1"), PATH[2]], [], THERE])
    assert run.calls == [SCAN, WRITES, MARKS]
    assert run.result == {"log": {"writes": []}}


def test_the_root_has_no_history() -> None:
    run = history([[light("3")]])
    assert run.calls == [SCAN]
    assert run.result == {"log": {"writes": []}}


def test_writes_come_by_checkpoint_and_then_by_task_in_whatever_order_they_are_found() -> None:
    found = [
        written("2", "b", ("log", "2b"), task_path="p"),
        written("1", "c", ("log", "1c0"), ("rare", 0), ("log", "1c2"), task_path="q"),
        written("2", "a", ("log", "2a"), task_path="p"),
        written("2", "z", ("log", "2z"), task_path="o"),
        written("1", "a", ("log", "1a"), task_path="r"),
    ]
    run = history([[PATH[0], light("2", "1"), PATH[2]], found, THERE])
    assert [value for _, _, value in run.result["log"]["writes"]] == ["1c0", "1c2", "1a", "2z", "2a", "2b"]


def test_a_seed_that_is_deleted_meanwhile_is_not_left_out() -> None:
    with pytest.raises(CorruptCheckpoint, match="Thread '1': the value of channel 'log' was deleted with checkpoint 2"):
        history([PATH, [], [], THERE] * 3)


def test_a_large_seed_that_is_deleted_meanwhile_is_not_left_out() -> None:
    with pytest.raises(CorruptCheckpoint, match="missing from the blobs"):
        history([[PATH[0], light("2", "1", log="x" * 300_001)], [], [], THERE] * 3)


COMPACTED = {**light("3", log=["all"]), "compacted": True}
OF_COMPACTED = {"checkpoint_id": "3", "values": seeds("3", log=["all"])}


@pytest.mark.parametrize(
    "marks",
    [
        [],
        [{"checkpoint_id": "3", "retired": "going"}],
        [{"checkpoint_id": "3", "compacted": True, "values": [{"channel": "log"}]}],
        [*THERE, {"checkpoint_id": "2", "compacted": True, "values": [{"channel": "rare"}, {"channel": "log"}]}],
    ],
    ids=["gone", "going", "compacted", "an ancestor compacted"],
)
def test_where_the_ancestors_may_have_gone_meanwhile_the_history_is_read_again(marks: Any) -> None:
    before = [PATH[0], light("2", "1"), PATH[2]]
    run = history([before, [], marks, [COMPACTED], [OF_COMPACTED], [COMPACTED]])
    assert run.calls == [SCAN, WRITES, MARKS, SCAN, VALUES, MARKS]
    assert run.result == {"log": {"writes": [], "seed": ["all"]}}


def test_what_was_compacted_right_after_the_end_is_minded() -> None:
    before = [PATH[0], light("2", "1"), light("1", "0", log=["seed"])]
    marks = [*THERE, {"checkpoint_id": "2", "compacted": True, "values": [{"channel": "log"}]}]
    seed = [{"checkpoint_id": "1", "values": seeds("1", log=["seed"])}]
    run = history([before, [], seed, marks, [COMPACTED], [OF_COMPACTED], [COMPACTED]])
    assert run.result == {"log": {"writes": [], "seed": ["all"]}}


@pytest.mark.parametrize(
    ("id", "channel"), [("2", "rare"), ("1", "log"), ("0", "log")], ids=["another channel", "the end", "elsewhere"]
)
def test_what_was_compacted_where_it_does_not_matter_is_not_minded(id: str, channel: str) -> None:
    before = [PATH[0], light("2", "1"), light("1", "0", log=["seed"])]
    marks = [*THERE, {"checkpoint_id": id, "compacted": True, "values": [{"channel": channel}]}]
    run = history([before, [], [{"checkpoint_id": "1", "values": seeds("1", log=["seed"])}], marks])
    assert run.result == {"log": {"writes": [], "seed": ["seed"]}}


def test_what_goes_again_and_again_is_told() -> None:
    with pytest.raises(CorruptCheckpoint, match="deleted 3 times"):
        history([[PATH[0], light("2", "1"), PATH[2]], [], []] * 3)


def test_where_a_seed_has_gone_meanwhile_the_history_is_read_again() -> None:
    large = [PATH[0], light("2", "1", log="x" * 300_001)]
    for before in ([PATH, [], [], THERE], [large, [], [], THERE]):
        run = history([*before, [COMPACTED], [OF_COMPACTED], [COMPACTED]])
        assert run.result == {"log": {"writes": [], "seed": ["all"]}}


def test_the_writes_on_a_long_path_are_read_before_what_tells_whether_they_were_all_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("langgraph_mongo_saver.history.SEGMENT", 1)
    run = history([[PATH[0], light("2", "1"), PATH[2]], [written("2", "t", ("log", 1))], THERE])
    assert run.calls == [SCAN, WRITES, MARKS]
    assert [request.args[0].keys() for request in run.requests[2:]] == [{"$or"}]
    assert run.result == {"log": {"writes": [("t", "log", 1)]}}


def test_a_value_that_a_checkpoint_was_stored_with_is_not_its_history() -> None:
    rows = [{"checkpoint_id": "2", "values": seeds("2", log=["seed"])}]
    run = history([[light("3", "2", log=["own"]), PATH[1]], [], rows, THERE])
    assert run.result == {"log": {"writes": [], "seed": ["seed"]}}


def placed(id: str, parent: str | None, segment: str, **values: Any) -> dict[str, Any]:
    return {**light(id, parent, **values), "segment": segment}


def remembering(checkpoint_id: str, place: tuple[str, int]) -> Planner:
    plan = planner()
    plan.recall.checkpoints.put(Address("1", "", checkpoint_id), Known({}, {}, place))
    return plan


def test_a_segment_that_has_just_begun_is_read_with_its_writes_and_then_the_seeds_together() -> None:
    large = "x" * 300_001
    blobs = [each for r in put("2", big=large).requests if r.part == "blobs" for each in r.args[0]]
    nodes = [placed("2", "1", "2", log=["seed"], big=large), placed("3", "2", "2")]
    rows = [written("2", "t", ("log", 1), ("big", 2)), *({**node, "of": 1} for node in nodes)]
    found = [{"checkpoint_id": "2", "values": seeds("2", log=["seed"])}, *({**blob, "of": 1} for blob in blobs)]
    run = history([rows, found], remembering("3", ("2", 1)), "log", "big")
    assert run.calls == [TOGETHER, "checkpoints.aggregate"]
    match, *_, union = (stage for stage in run.requests[0].args[0])
    bounds = [{"checkpoint_id": bound} for bound in ({"$gte": "2"}, {"$lte": "3"}, {"$ne": "3"})]
    assert match["$match"]["$and"] == bounds
    # What is united is read last: the ancestors that are there then have lost no writes.
    assert union["$unionWith"]["coll"] == "checkpoints"
    assert union["$unionWith"]["pipeline"][0]["$match"]["segment"] == "2"
    assert run.result == {
        "log": {"writes": [("t", "log", 1)], "seed": ["seed"]},
        "big": {"writes": [("t", "big", 2)], "seed": large},
    }


def test_where_nothing_is_remembered_writes_and_seeds_are_one_command() -> None:
    known = [placed("3", "2", "2"), placed("2", None, "2", log=["seed"])]
    columns = {"ids": ["2", "3"], "parents": [None, "2"], "populated": ['"log"\n', ""]}
    values = {"checkpoint_id": "2", "values": seeds("2", log=["seed"]), "of": 1}
    marks = [{**each, "of": 2} for each in THERE]
    rows = [{"known": known, "segment": "2", "nodes": [columns]}]
    run = history([rows, [written("2", "t", ("log", 1)), values, *marks]], planner())
    assert run.calls == [LINEAGE, TOGETHER]
    assert run.result == {"log": {"writes": [("t", "log", 1)], "seed": ["seed"]}}


def test_a_server_that_cannot_unite_is_found_out_once(caplog: pytest.LogCaptureFixture) -> None:
    plan, nodes = remembering("3", ("2", 1)), [placed("2", "1", "2", log=["seed"]), placed("3", "2", "2")]
    values = {"checkpoint_id": "2", "values": seeds("2", log=["seed"])}
    with caplog.at_level(logging.WARNING):
        run = history([NO_SUCH_STAGE, [written("2", "t", ("log", 1))], nodes, [values]], plan)
    assert run.calls == [TOGETHER, WRITES, "checkpoints.find", VALUES]
    assert run.result == {"log": {"writes": [("t", "log", 1)], "seed": ["seed"]}}
    assert plan.recall.scans
    assert "$unionWith (code 40324)" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    "nodes",
    [
        [placed("3", "2", "3")],
        [placed("3", "25", "2"), placed("25", "4", "2"), placed("4", None, "2")],
        [],
        [placed("4", None, "2")],
    ],
    ids=["it goes on in another segment", "an id out of time", "nothing", "another"],
)
def test_a_history_that_does_not_end_where_it_was_looked_for_is_read_in_full(nodes: Any) -> None:
    known = [placed("3", "2", "2"), placed("2", None, "2")]
    columns = {"ids": ["2", "3"], "parents": [None, "2"], "populated": ["", ""]}
    rows = [{"known": known, "segment": "2", "nodes": [columns]}]
    looked = [written("2", "t", ("log", 0)), *({**node, "of": 1} for node in nodes)]
    found = [written("2", "t", ("log", 1)), *({**each, "of": 1} for each in THERE)]
    run = history([looked, rows, found], remembering("3", ("2", 1)))
    assert run.calls == [TOGETHER, LINEAGE, TOGETHER]
    assert run.result == {"log": {"writes": [("t", "log", 1)]}}


def test_what_is_remembered_of_a_deleted_checkpoint_is_not_believed() -> None:
    run = history([[], []], remembering("3", ("2", 1)))
    assert (run.calls, run.result) == ([TOGETHER, LINEAGE], {"log": {"writes": []}})


def test_what_is_remembered_of_a_checkpoint_that_is_about_to_go_is_not_believed() -> None:
    nodes = [placed("2", None, "2"), {**placed("3", "2", "2"), "retired": "going"}]
    looked = [written("2", "t", ("log", 0)), *({**node, "of": 1} for node in nodes)]
    run = history([looked, []], remembering("3", ("2", 1)))
    assert (run.calls, run.result) == ([TOGETHER, LINEAGE], {"log": {"writes": []}})


def test_a_segment_that_has_grown_long_is_hopped_over() -> None:
    assert history([[]], remembering("3", ("2", 128))).calls == [LINEAGE]


def test_a_server_that_cannot_hop_is_found_out_once(caplog: pytest.LogCaptureFixture) -> None:
    plan = planner()
    with caplog.at_level(logging.WARNING):
        first = history([NO_SUCH_STAGE, [light("3", "2"), light("2")], [], THERE], plan)
        second = drive(delta_channel_keepset(plan, config(checkpoint_id="3"), ["log"]), [light("3", "2"), light("2")])
    assert (first.calls, second.calls) == ([LINEAGE, SCAN, WRITES, MARKS], [SCAN])
    assert second.result == {"2", "3"}
    (record,) = caplog.records
    assert "$graphLookup (code 40324)" in record.getMessage()


def test_what_is_too_heavy_to_hop_over_is_scanned_this_time() -> None:
    plan, too_heavy = planner(), OperationFailure("$graphLookup reached maximum memory consumption", 40099)
    run = history([too_heavy, [light("3", "2"), light("2")], [{**each, "of": 1} for each in THERE]], plan)
    assert run.calls == [LINEAGE, SCAN, TOGETHER]
    assert not plan.recall.scans


def test_a_server_that_cannot_hop_on_is_scanned_from_the_start() -> None:
    """Where the first request was answered, and a later one is not."""
    rows = [{"known": [placed("3", "2", "3")], "segment": "3", "nodes": []}]
    run = history([rows, NO_SUCH_STAGE, [light("3", "2"), light("2")], [], THERE], planner())
    assert run.calls == [LINEAGE, LINEAGE, SCAN, WRITES, MARKS]
    assert run.result == {"log": {"writes": []}}


def test_other_errors_are_not_taken_for_a_server_that_cannot_hop() -> None:
    plan = planner()
    with pytest.raises(OperationFailure, match="not authorized"):
        history([OperationFailure("not authorized", 13)], plan)
    assert not plan.recall.scans
