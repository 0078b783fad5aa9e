"""Change documents, made by hand, as events; and what the server is asked for."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.types import Interrupt
from pymongo import errors

from langgraph_mongo_saver.changes import deleted_thread, deletion, draft_of, draft_of_change, position_of, reaction
from langgraph_mongo_saver.event_pipelines import change_pipeline, projection, stored_query
from langgraph_mongo_saver.events import Position, event_filter, start_of
from langgraph_mongo_saver.values import Sealer, blob_parts
from tests.building import checkpoint, config
from tests.pure.driving import drive, settings
from tests.pure.test_history import planner

STORED = datetime(2026, 1, 1, tzinfo=timezone.utc)
SEALER = Sealer(JsonPlusSerializer())


def change(operation: str, document: Any, coll: str = "checkpoints", **more: Any) -> dict[str, Any]:
    return {
        "_id": {"_data": "8263"},
        "operationType": operation,
        "clusterTime": Timestamp(1_767_225_600, 1),
        "ns": {"db": "db", "coll": coll},
        "documentKey": {"_id": document["_id"]},
        "fullDocument": document,
        **more,
    }


def stored(metadata: Any = None, id: str = "c", parent: str | None = "p", thread_id: Any = "1") -> dict[str, Any]:
    """A checkpoint's document."""
    made = checkpoint({}, id=id)
    given: Any = {"source": "loop", "step": 1, **(metadata or {})}
    plan = planner().put(config(thread_id, checkpoint_id=parent), made, given, {})
    return drive(plan, *([[]] if parent else []), {}).requests[-1].args[0]


def written(*writes: tuple[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A task's document of writes, and the blobs that were stored before."""
    large = any(len(str(value)) > 256 * 1024 for _, value in writes)
    run = drive(planner().put_writes(config(checkpoint_id="c"), list(writes), "t", ""), *([{}] if large else []), {})
    blobs = [each for request in run.requests if request.part == "blobs" for each in request.args[0]]
    return run.requests[-1].args[0], blobs


# --- drafts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["insert", "replace"])
def test_a_stored_checkpoint_is_an_event(operation: str) -> None:
    metadata = {"source": "input", "step": -1, "run_id": "r", "a.b": {"$where": "x"}, "": 1}
    document = stored(metadata)
    draft = draft_of_change(change(operation, document))
    assert draft is not None
    event = draft.finish(SEALER, {})
    assert (event.kind, event.thread_id, event.checkpoint_ns, event.checkpoint_id) == ("checkpoint", "1", "", "c")
    assert (event.parent_checkpoint_id, event.step, event.source, event.run_id) == ("p", -1, "input", "r")
    assert event.metadata == metadata
    assert event.created_at == STORED
    assert start_of(event.position, None) == Position({"_data": "8263"}, STORED)
    assert (draft.keys, event.task_id, event.channels) == ((), None, ())


def test_a_time_without_a_timezone_is_utc() -> None:
    document = {**stored(), "stored_at": STORED.replace(tzinfo=None)}
    assert draft_of(document, Position()).event.created_at == STORED


def test_metadata_of_other_types_do_not_end_up_in_fields_of_one() -> None:
    event = draft_of({**stored(), "metadata": {"step": "one", "run_id": 5}}, Position()).event
    assert (event.step, event.run_id, event.source) == (None, "5", None)


@pytest.mark.parametrize(
    ("channels", "kind"),
    [
        (("a", "b", "a"), "writes"),
        ((INTERRUPT,), "interrupt"),
        (("a", ERROR), "error"),
        ((ERROR, INTERRUPT), "error"),
    ],
)
def test_writes_are_of_the_kind_that_their_channels_tell(channels: tuple[str, ...], kind: str) -> None:
    document, _ = written(*[(channel, "v") for channel in channels])
    draft = draft_of_change(change("insert", document, "checkpoint_writes"))
    assert draft is not None
    assert draft.event.kind == kind
    assert set(draft.event.channels) == set(channels)
    assert len(draft.event.channels) == len(set(channels))
    assert (draft.event.task_id, draft.event.checkpoint_id, draft.event.metadata) == ("t", "c", {})


@pytest.mark.parametrize(
    ("changed", "channels"),
    [
        (["stored_at", "writes.a%2Eb.0"], ("a.b",)),
        (["writes.0.1"], ("0",)),
        (["writes.%.0.data", "writes.%.0.idx"], ("",)),
        (["writes.0", "writes.%"], ("0", "")),
        (["writes"], ("0", "a.b", "")),
        (["writes", "writes.0.1"], ("0", "a.b", "")),
    ],
    ids=str,
)
def test_an_update_tells_of_the_writes_that_are_new(changed: list[str], channels: tuple[str, ...]) -> None:
    document, _ = written(("0", 1), ("a.b", 2), ("", 3), ("0", 4))
    draft = draft_of_change(change("update", document, "checkpoint_writes", changed=changed))
    assert draft is not None
    assert draft.event.channels == channels


def test_an_old_interrupt_is_not_told_of_with_new_writes() -> None:
    document, _ = written((INTERRUPT, "asked"), ("a", 1))
    draft = draft_of_change(change("update", document, "checkpoint_writes", changed=["writes.a"]))
    assert draft is not None
    assert (draft.event.kind, draft.finish(SEALER, {}).interrupts) == ("writes", ())


@pytest.mark.parametrize("changed", [["active_at"], ["stored_at"], ["writes_of"], [], None], ids=str)
def test_an_update_of_anything_else_is_no_event(changed: Any) -> None:
    document, _ = written(("a", 1))
    assert draft_of_change(change("update", document, "checkpoint_writes", changed=changed)) is None


@pytest.mark.parametrize("gone", [None, {}, {"writes": None}], ids=str)
def test_an_update_of_what_is_gone_by_now_is_no_event(gone: Any) -> None:
    document, _ = written(("a", 1))
    left = {**change("update", document, "checkpoint_writes", changed=["writes"]), "fullDocument": gone}
    assert draft_of_change(left) is None


@pytest.mark.parametrize("layout", [None, 2, "1"], ids=str)
def test_an_unknown_layout_is_refused(layout: Any) -> None:
    with pytest.raises(ValueError, match=f"layout {layout!r}"):
        draft_of_change(change("insert", {**stored(), "layout": layout}))


@pytest.mark.parametrize("name", ["checkpoint_ns", "checkpoint_id", "stored_at", "metadata"])
def test_checkpoints_that_lack_a_field_are_refused(name: str) -> None:
    document = stored()
    del document[name]
    with pytest.raises(ValueError, match=f"KeyError: '{name}'"):
        draft_of_change(change("insert", document))


@pytest.mark.parametrize("value", [None, 5, "x", ["x"]], ids=str)
@pytest.mark.parametrize("name", ["stored_at", "metadata"])
def test_checkpoints_with_fields_of_other_types_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="AttributeError"):
        draft_of_change(change("insert", {**stored(), name: value}))


@pytest.mark.parametrize(
    "writes", [None, 5, "ab", [5], {"a": 5}, {"a": [5]}, {"a": [{}]}, {"a": [{"type": "x"}]}], ids=str
)
def test_writes_of_an_unknown_shape_are_refused(writes: Any) -> None:
    document, _ = written(("a", 1))
    with pytest.raises(ValueError, match=r"KeyError|TypeError|AttributeError"):
        draft_of_change(change("insert", {**document, "writes": writes}))


def test_a_blob_of_an_unknown_shape_is_refused() -> None:
    document, _ = written((INTERRUPT, "x" * 300_000))
    document["writes"][INTERRUPT][0]["parts"] = "many"
    with pytest.raises(ValueError, match="TypeError"):
        draft_of(document, Position())


# --- values --------------------------------------------------------------------------------------------------------


def finished(*writes: tuple[str, Any]) -> Any:
    document, blobs = written(*writes)
    draft = draft_of(document, Position())
    assert len(draft.keys) == len(blobs)
    return draft.finish(SEALER, blob_parts(blobs))


def test_interrupts_come_with_their_values() -> None:
    asked = (Interrupt(value={"ask": 1}, id="i"), Interrupt(value=None, id="j"))
    assert finished((INTERRUPT, asked)).interrupts == asked
    assert finished((INTERRUPT, asked[0]), ("a", "not told")).interrupts == asked[:1]
    assert finished((INTERRUPT, [])).interrupts == ()


def test_an_interrupt_that_is_in_blobs_comes_as_well() -> None:
    assert finished((INTERRUPT, ["x" * 300_000])).interrupts == ("x" * 300_000,)


def test_an_error_comes_as_what_it_says() -> None:
    assert finished((ERROR, "ValueError('no')")).error == "ValueError('no')"
    assert finished((ERROR, {"type": "x"})).error == "{'type': 'x'}"


def test_a_value_that_cannot_be_read_leaves_the_event(caplog: pytest.LogCaptureFixture) -> None:
    document, _ = written((INTERRUPT, "asked"))
    document["writes"][INTERRUPT][0].update(type="msgpack", data=b"\xc1")
    with caplog.at_level(logging.WARNING):
        event = draft_of(document, Position()).finish(SEALER, {})
    assert (event.kind, event.interrupts, event.channels) == ("interrupt", (), (INTERRUPT,))
    (record,) = caplog.records
    assert record.getMessage().startswith("Thread '1', checkpoint 'c': the values of an event of kind interrupt")


def test_a_value_whose_blob_is_gone_leaves_the_event(caplog: pytest.LogCaptureFixture) -> None:
    document, _ = written((INTERRUPT, "x" * 300_000))
    event = draft_of(document, Position()).finish(SEALER, {})
    assert (event.kind, event.interrupts) == ("interrupt", ())
    assert "CorruptCheckpoint" in caplog.text


# --- deletions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "thread"),
    [({"thread_id": "1", "checkpoint_ns": ""}, "1"), (bson.ObjectId(), None), ("1", None), ({}, None)],
    ids=["ours", "official", "text", "empty"],
)
def test_a_delete_tells_its_thread_if_the_document_was_ours(key: Any, thread: str | None) -> None:
    assert deleted_thread({"documentKey": {"_id": key}}) == thread


def test_a_deletion_has_a_thread_and_a_time_alone() -> None:
    event = deletion("1", Position(at=STORED), STORED)
    assert (event.kind, event.thread_id, event.created_at, event.checkpoint_id) == ("thread_deleted", "1", STORED, None)
    assert start_of(event.position, None) == Position(at=STORED)


def test_the_time_of_a_change_is_the_clusters() -> None:
    assert position_of(change("insert", stored())) == Position({"_data": "8263"}, STORED)


# --- failures ------------------------------------------------------------------------------------------------------

RESUMABLE = {"errorLabels": ["ResumableChangeStreamError"]}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((errors.OperationFailure("x", code), "lost") for code in (280, 286)),
        *((errors.OperationFailure("x", code), "unavailable") for code in (40573, 40324, 59)),
        *((errors.OperationFailure("x", code), "retry") for code in (43, 63, 133, 150, 234, 262, 13388, 10107, 91)),
        (errors.CursorNotFound("x", 43), "retry"),
        (errors.NotPrimaryError("x"), "retry"),
        (errors.AutoReconnect("x"), "retry"),
        (errors.NetworkTimeout("x"), "retry"),
        (errors.ConnectionFailure("x"), "retry"),
        (errors.ServerSelectionTimeoutError("x"), "retry"),
        (errors.OperationFailure("x", 8, RESUMABLE), "retry"),
        (errors.OperationFailure("x", 286, RESUMABLE), "lost"),
        (errors.OperationFailure("x", 13), "raise"),
        (errors.OperationFailure("x", 10334), "raise"),
        (errors.OperationFailure("x"), "raise"),
        (errors.ConfigurationError("x"), "raise"),
        (errors.InvalidOperation("x"), "raise"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__} {getattr(value, 'code', '')}",
)
def test_the_reaction_to_an_error(error: errors.PyMongoError, expected: str) -> None:
    assert reaction(error) == expected


# --- what the server is asked for ----------------------------------------------------------------------------------

HOSTILE = {"a.b": {"$where": "1"}, "$where": "$$ROOT", "": "$x", "n": [{"$ne": 1}]}


def test_hostile_values_are_compared_and_never_interpreted() -> None:
    wanted = event_filter(thread_id=["$x", "a.b"], checkpoint_ns="$ns", metadata=HOSTILE)
    stages = change_pipeline(settings(), wanted)
    places = [case for case in stages[0]["$match"]["$or"] if "documentKey._id.thread_id" in case]
    assert all(case["documentKey._id.thread_id"] == {"$in": ["$x", "a.b"]} for case in places)
    (of_checkpoints,) = [case for case in places if "$expr" in case]
    assert of_checkpoints["documentKey._id.checkpoint_ns"] == "$ns"
    compared = [test["$eq"] for test in of_checkpoints["$expr"]["$and"]]
    paths = [left["$ifNull"][0] for left, _ in compared]
    assert [path.removeprefix("$fullDocument.metadata.") for path in paths] == ["a%2Eb", "%24where", "%", "n"]
    assert all(right.keys() == {"$literal"} for _, right in compared)
    assert bson.encode({"stages": stages})
    assert stored_query(wanted) == {"thread_id": {"$in": ["$x", "a.b"]}, "checkpoint_ns": "$ns"}


def test_of_states_only_what_events_tell_is_sent() -> None:
    shown = change_pipeline(settings(), event_filter())[1]["$project"]
    names = {name.removeprefix("fullDocument.") for name in shown if name.startswith("fullDocument.")}
    assert names == projection().keys()
    assert not names & {"values", "exact_metadata", "skeleton"}


def test_only_the_kinds_asked_for_are_selected() -> None:
    def collections(*kinds: str) -> list[Any]:
        cases = change_pipeline(settings(), event_filter(*kinds))[0]["$match"]["$or"]
        assert cases[0] == {"operationType": "invalidate"}
        return [(case["ns.coll"], case["operationType"]) for case in cases[1:]]

    assert collections("writes") == [("checkpoint_writes", {"$in": ["insert", "update"]})]
    assert ("checkpoints", "delete") in collections("thread_deleted")
    assert collections("checkpoint") == [("checkpoints", {"$in": ["insert", "replace"]})]
