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
WRITES, BLOBS, VALUES = "writes.find", "blobs.find", "checkpoints.find"
BEGUN, TOGETHER = "checkpoints.find", "writes.aggregate"


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


# The newest of the ancestors, still there when their writes have been read.
THERE: dict[str, Any] = {"checkpoint_id": "2", "values": []}
PATH = [light("3", "2"), light("2", "1", log=["seed"]), light("1")]


def test_an_embedded_seed_is_fetched_with_its_checkpoint_alone() -> None:
    rows = [{"checkpoint_id": "2", "values": seeds("2", log=["seed"])}]
    run = history([PATH, [written("2", "t", ("log", 1))], rows])
    assert run.calls == [SCAN, WRITES, VALUES]
    assert run.requests[-1].args[0]["checkpoint_id"] == {"$in": ["2"]}
    assert run.result == {"log": {"writes": [("t", "log", 1)], "seed": ["seed"]}}


def test_a_large_seed_is_fetched_by_its_name() -> None:
    seed = "x" * 300_001
    blobs = [each for r in put("2", log=seed).requests if r.part == "blobs" for each in r.args[0]]
    run = history([[PATH[0], light("2", "1", log=seed)], [], [THERE], blobs])
    assert run.calls == [SCAN, WRITES, VALUES, BLOBS]
    assert run.result == {"log": {"writes": [], "seed": seed}}


def test_without_a_seed_there_is_nothing_more_to_fetch() -> None:
    run = history([[PATH[0], light("2", "1"), PATH[2]], [], [THERE]])
    assert run.calls == [SCAN, WRITES, VALUES]
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
    run = history([[PATH[0], light("2", "1"), PATH[2]], found])
    assert [value for _, _, value in run.result["log"]["writes"]] == ["1c0", "1c2", "1a", "2z", "2a", "2b"]


def test_a_seed_that_is_deleted_meanwhile_is_not_left_out() -> None:
    with pytest.raises(CorruptCheckpoint, match="Thread '1': the value of channel 'log' was deleted with checkpoint 2"):
        history([PATH, [], [THERE]])


def test_a_large_seed_that_is_deleted_meanwhile_is_not_left_out() -> None:
    with pytest.raises(CorruptCheckpoint):
        history([[PATH[0], light("2", "1", log="x" * 300_001)], [], [THERE], []])


def test_where_the_ancestors_go_meanwhile_the_history_is_read_again() -> None:
    compacted = {**light("3", log=["all"]), "compacted": True}
    values = {"checkpoint_id": "3", "values": seeds("3", log=["all"])}
    run = history([PATH, [], [], [compacted], [values]])
    assert run.calls == [SCAN, WRITES, VALUES, SCAN, VALUES]
    assert run.result == {"log": {"writes": [], "seed": ["all"]}}


def test_the_writes_of_the_newest_ancestor_tell_that_it_is_there() -> None:
    run = history([[PATH[0], light("2", "1"), PATH[2]], [written("2", "t", ("other", 1))]])
    assert run.calls == [SCAN, WRITES]
    assert run.result == {"log": {"writes": []}}


def test_what_goes_again_and_again_is_told() -> None:
    with pytest.raises(CorruptCheckpoint, match="deleted 3 times"):
        history([PATH, [], []] * 3)


def test_a_value_that_a_checkpoint_was_stored_with_is_not_its_history() -> None:
    run = history([[light("3", "2", log=["own"]), PATH[1]], [], [{**THERE, "values": seeds("2", log=["seed"])}]])
    assert run.result == {"log": {"writes": [], "seed": ["seed"]}}


def placed(id: str, parent: str | None, segment: str, **values: Any) -> dict[str, Any]:
    return {**light(id, parent, **values), "segment": segment}


def remembering(checkpoint_id: str, place: tuple[str, int]) -> Planner:
    plan = planner()
    plan.recall.checkpoints.put(Address("1", "", checkpoint_id), Known({}, {}, place))
    return plan


def test_where_servers_join_writes_and_seeds_are_one_command() -> None:
    large = "x" * 300_001
    blobs = [each for r in put("2", big=large).requests if r.part == "blobs" for each in r.args[0]]
    own = placed("3", "2", "2")
    nodes = [placed("2", "1", "2", log=["seed"], big=large), own]
    values = {"checkpoint_id": "2", "values": seeds("2", log=["seed"])}
    rows = [written("2", "t", ("log", 1), ("big", 2)), {**values, "of": 1}, *({**blob, "of": 2} for blob in blobs)]
    run = history([nodes, rows], remembering("3", ("2", 1)), "log", "big")
    assert run.calls == [BEGUN, TOGETHER]
    assert [stage["$unionWith"]["coll"] for stage in run.requests[1].args[0] if "$unionWith" in stage] == [
        "checkpoints",
        "checkpoint_blobs",
    ]
    assert run.result == {
        "log": {"writes": [("t", "log", 1)], "seed": ["seed"]},
        "big": {"writes": [("t", "big", 2)], "seed": large},
    }


def test_a_server_that_cannot_unite_is_found_out_once(caplog: pytest.LogCaptureFixture) -> None:
    plan, nodes = remembering("3", ("2", 1)), [placed("2", "1", "2", log=["seed"]), placed("3", "2", "2")]
    values = {"checkpoint_id": "2", "values": seeds("2", log=["seed"])}
    with caplog.at_level(logging.WARNING):
        run = history([nodes, NO_SUCH_STAGE, [written("2", "t", ("log", 1))], [values]], plan)
    assert run.calls == [BEGUN, TOGETHER, WRITES, VALUES]
    assert run.result == {"log": {"writes": [("t", "log", 1)], "seed": ["seed"]}}
    assert plan.recall.scans
    assert "$unionWith (code 40324)" in caplog.records[0].getMessage()


def test_a_segment_that_has_just_begun_is_read_alone() -> None:
    run = history([[placed("3", "2", "2"), placed("2", None, "2")], [], [THERE]], remembering("3", ("2", 1)))
    assert run.calls == [BEGUN, WRITES, VALUES]
    assert run.requests[0].args[0]["segment"] == "2"
    assert run.requests[0].args[0]["seq"] == {"$lte": 1}


def test_a_history_that_goes_on_before_its_segment_hops_from_there() -> None:
    rest = {
        "known": [placed("2", "1", "1"), placed("1", None, "1")],
        "segment": "1",
        "nodes": [{"ids": ["1"], "parents": [None], "populated": [""]}],
    }
    run = history([[placed("3", "2", "3")], [rest], [], [THERE]], remembering("3", ("3", 0)))
    assert run.calls == [BEGUN, LINEAGE, WRITES, VALUES]
    assert run.requests[1].args[0][0]["$match"]["checkpoint_id"] == "2"


@pytest.mark.parametrize("found", [[], [placed("4", None, "2")]], ids=["nothing", "another"])
def test_what_is_remembered_of_a_deleted_checkpoint_is_not_believed(found: list[Any]) -> None:
    run = history([found, []], remembering("3", ("2", 1)))
    assert (run.calls, run.result) == ([BEGUN, LINEAGE], {"log": {"writes": []}})


def test_a_segment_that_has_grown_long_is_hopped_over() -> None:
    assert history([[]], remembering("3", ("2", 128))).calls == [LINEAGE]


def test_a_server_that_cannot_hop_is_found_out_once(caplog: pytest.LogCaptureFixture) -> None:
    plan = planner()
    with caplog.at_level(logging.WARNING):
        first = history([NO_SUCH_STAGE, [light("3", "2"), light("2")], [], [THERE]], plan)
        second = drive(delta_channel_keepset(plan, config(checkpoint_id="3"), ["log"]), [light("3", "2"), light("2")])
    assert (first.calls, second.calls) == ([LINEAGE, SCAN, WRITES, VALUES], [SCAN])
    assert second.result == {"2", "3"}
    (record,) = caplog.records
    assert "$graphLookup (code 40324)" in record.getMessage()


def test_what_is_too_heavy_to_hop_over_is_scanned_this_time() -> None:
    plan, too_heavy = planner(), OperationFailure("$graphLookup reached maximum memory consumption", 40099)
    run = history([too_heavy, [light("3", "2"), light("2")], [], [THERE]], plan)
    assert run.calls == [LINEAGE, SCAN, WRITES, VALUES]
    assert not plan.recall.scans


def test_a_server_that_cannot_hop_on_is_scanned_from_the_start() -> None:
    """Where the first request was answered, and a later one is not."""
    rows = [{"known": [placed("3", "2", "3")], "segment": "3", "nodes": []}]
    run = history([rows, NO_SUCH_STAGE, [light("3", "2"), light("2")], [], [THERE]], planner())
    assert run.calls == [LINEAGE, LINEAGE, SCAN, WRITES, VALUES]
    assert run.result == {"log": {"writes": []}}


def test_other_errors_are_not_taken_for_a_server_that_cannot_hop() -> None:
    plan = planner()
    with pytest.raises(OperationFailure, match="not authorized"):
        history([OperationFailure("not authorized", 13)], plan)
    assert not plan.recall.scans
