"""Plans driven with replies that no server gives on demand: races, refusals, things that vanish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from langgraph_mongo_saver import plans
from langgraph_mongo_saver.blobs import HOLD
from langgraph_mongo_saver.codec import SEGMENT
from langgraph_mongo_saver.copying import copy_thread
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.recall import Recall
from langgraph_mongo_saver.threads import threads_listing, threads_page
from langgraph_mongo_saver.values import Sealer
from tests.building import checkpoint, config
from tests.pure.driving import Driven, Reply, drive, settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
DUPLICATE = DuplicateKeyError("E11000", 11000)
REFUSED = OperationFailure("refused", 8000)
LARGE = {"large": b"x" * 300_000}
PUT, WRITE = "checkpoints.insert_one", "writes.insert_one"


def planner(clock: Any = lambda: NOW, **options: Any) -> Planner:
    return Planner(settings(**options), Sealer(JsonPlusSerializer()), Recall(threading.Lock), clock)


def put(plan: Planner, values: Any = None, id: str = "1", parent: str | None = None, new: Any = None) -> Any:
    written = checkpoint(values, id=id)
    new_versions = written["channel_versions"] if new is None else new
    return plan.put(config(checkpoint_id=parent), written, {"source": "loop", "step": 1}, new_versions)


def writes(plan: Planner, values: Any, task_path: str = "p") -> Any:
    return plan.put_writes(config(checkpoint_id="1"), values, "t", task_path)


def saved(values: Any = None, ids: tuple[str, ...] = ("1",), metadata: Any = None) -> list[dict[str, Any]]:
    """Documents as `checkpoint_with_writes` finds them."""
    found = []
    for id in ids:
        blobs = [{}] if values is LARGE else []
        document = drive(put(planner(), values, id), *blobs, {}).requests[-1].args[0]
        found.append({**document, "writes": [], "metadata": metadata or document["metadata"]})
    return found


def blobs_of(values: Any) -> list[dict[str, Any]]:
    return drive(put(planner(), values), {}, {}).requests[0].args[0]


# --- put -----------------------------------------------------------------------------------------------------------


def test_a_put_is_one_insert() -> None:
    run = drive(put(planner(), {"a": 1}), {})
    assert run.calls == [PUT]
    assert run.result == config(checkpoint_id="1")


@pytest.mark.parametrize(("later", "looks"), [(0, False), (9, False), (10, True), (-1, True), (-3600, True)])
def test_a_value_that_is_taken_over_is_looked_for_unless_it_was_just_seen(later: int, looks: bool) -> None:
    """Also where the clock was set back, since when nobody can tell how long ago that was."""
    before = planner()
    drive(put(before, LARGE), {}, {})
    after = replace(before, clock=lambda: NOW + timedelta(seconds=later))
    there = [{"_id": blob["_id"]} for blob in blobs_of(LARGE)]
    run = drive(put(after, LARGE, id="2", parent="1", new={}), *([there] if looks else []), {})
    assert run.calls == [*(["blobs.find"] if looks else []), PUT]


@pytest.mark.parametrize("method", ["put", "writes"])
@pytest.mark.parametrize("races", [0, 1, 3])
def test_what_is_there_already_is_changed_and_what_vanished_is_inserted_again(method: str, races: int) -> None:
    plan = put(planner(), {"a": 1}) if method == "put" else writes(planner(), [("a", 1)])
    insert, change = (PUT, "checkpoints.replace_one") if method == "put" else (WRITE, "writes.update_one")
    run = drive(plan, *[DUPLICATE, Reply(0)] * races, DUPLICATE, Reply(1))
    assert run.calls == [insert, change] * (races + 1)
    first, *others = (request.args[0] for request in run.requests if request.method == "insert_one")
    assert all(document == first for document in others)


def test_a_race_that_does_not_end_is_given_up() -> None:
    plan = put(planner(), {"a": 1})
    with pytest.raises(DuplicateKeyError):
        drive(plan, *[DUPLICATE, Reply(0)] * 50)


@pytest.mark.parametrize("plan", [lambda p: put(p, {"a": 1}), lambda p: writes(p, [("a", 1)])])
def test_other_errors_pass_and_nothing_is_remembered(plan: Any) -> None:
    subject = planner()
    with pytest.raises(OperationFailure):
        drive(plan(subject), REFUSED)
    assert subject.recall.checkpoints.get(plans.Address("1", "", "1")) is None


@pytest.mark.parametrize("method", ["put", "writes"])
def test_values_go_in_before_the_document_that_names_them(method: str) -> None:
    plan = put(planner(), LARGE) if method == "put" else writes(planner(), list(LARGE.items()))
    run = drive(plan, {}, {})
    assert run.calls == ["blobs.insert_many", PUT if method == "put" else WRITE]
    assert run.requests[0].kwargs == {"ordered": False}


def _bulk(*codes: int) -> BulkWriteError:
    failed = [{"index": i, "code": code, "errmsg": "", "op": {"data": b"state"}} for i, code in enumerate(codes)]
    return BulkWriteError({"writeErrors": failed, "writeConcernErrors": [], "nInserted": 0})


def test_blobs_that_are_there_already_are_held() -> None:
    run = drive(put(planner(), {"a": b"x" * 300_000, "b": b"y" * 300_000}), _bulk(11000), Reply(1), {})
    assert run.calls == ["blobs.insert_many", "blobs.update_many", PUT]
    query, update = run.requests[1].args
    assert query == {"_id": {"$in": [run.requests[0].args[0][0]["_id"]]}}
    assert update == {"$max": {"held_until": NOW + HOLD}}


def test_blobs_that_are_deleted_before_they_can_be_held_are_stored_after_all() -> None:
    run = drive(put(planner(), {"a": b"x" * 300_000, "b": b"y" * 300_000}), _bulk(11000), Reply(0), {}, {})
    assert run.calls == ["blobs.insert_many", "blobs.update_many", "blobs.insert_many", PUT]
    assert run.requests[2].args[0] == run.requests[0].args[0][:1]
    with pytest.raises(BulkWriteError) as caught:
        drive(put(planner(), LARGE), *[_bulk(11000), Reply(0)] * 5)
    assert "state" not in f"{caught.value!r} {caught.value.details}"


def test_blobs_of_a_checkpoint_that_was_loaded_are_held_without_a_try_to_store_them() -> None:
    subject = planner()
    (document,), blobs = saved(LARGE), blobs_of(LARGE)
    drive(subject.get_tuple(config()), [document], blobs)
    run = drive(put(subject, LARGE, id="2", parent="1"), Reply(len(blobs)), {})
    assert run.calls == ["blobs.update_many", PUT]


@pytest.mark.parametrize("error", [_bulk(8000), _bulk(11000, 8000), _bulk(), BulkWriteError({}), REFUSED])
def test_blobs_that_are_refused_stop_the_put_and_the_error_does_not_hold_the_state(error: Any) -> None:
    with pytest.raises(OperationFailure) as caught:
        drive(put(planner(), {"a": b"x" * 300_000, "b": b"y" * 300_000}), error)
    assert "state" not in f"{caught.value!r} {caught.value.details}"


def test_what_a_majority_may_not_have_is_not_taken_to_be_stored_though_it_is_there() -> None:
    failed = [{"index": 0, "code": 11000, "errmsg": ""}]
    error = BulkWriteError({"writeErrors": failed, "writeConcernErrors": [{"code": 64, "errmsg": ""}]})
    with pytest.raises(BulkWriteError):
        drive(put(planner(), LARGE), error)


@pytest.mark.parametrize("error", [_bulk(8000), _bulk(11000, 8000), _bulk()])
def test_what_is_refused_stops_a_copy_and_the_error_does_not_hold_the_state(error: BulkWriteError) -> None:
    plan = copy_thread(planner(dialect="basic"), "1", "2", replace_target=False, progress=None)
    [blob] = blobs_of(LARGE)
    with pytest.raises(BulkWriteError) as caught:
        drive(plan, [], [], [], [{"_id": blob["_id"]}], [blob], error)
    assert "state" not in f"{caught.value!r} {caught.value.details}"


def test_a_page_of_a_copy_is_stored_in_the_order_in_which_it_can_be_interrupted() -> None:
    """A find has them in that of its index: by namespace first."""
    keys = [{"thread_id": "1", "checkpoint_ns": ns, "checkpoint_id": id_} for ns in ("", "sub") for id_ in "132"]
    rows = [{"_id": key, "stored_at": NOW} for key in keys]
    copies = [{**row, "_id": {**row["_id"], "thread_id": "2"}} for row in rows]
    plan = copy_thread(planner(dialect="basic"), "1", "2", replace_target=False, progress=None)
    run = drive(plan, rows, [], [], [], [], [], [], rows, {}, copies, [], [])
    [stored] = [request for request in run.requests if request.method == "insert_many"]
    order = [(document["_id"]["checkpoint_id"], document["_id"]["checkpoint_ns"]) for document in stored.args[0]]
    assert order == [("1", "sub"), ("1", ""), ("2", "sub"), ("2", ""), ("3", "sub"), ("3", "")]


def test_an_empty_batch_of_writes_asks_for_nothing() -> None:
    assert drive(writes(planner(ttl=60), [])).calls == []


def test_arguments_are_checked_and_serialized_before_the_first_request() -> None:
    with pytest.raises(InvalidArgument):
        planner().put(config({"$ne": None}), checkpoint(), {}, {})
    for wrong in ({"task_id": {"$gt": ""}}, {"task_path": 1}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            planner().put_writes(config(checkpoint_id="1"), [], **{"task_id": "t", "task_path": "", **wrong})
    state = {"a": [1]}
    plan = put(planner(), state)
    state["a"].append(2)
    assert drive(plan, {}).requests[0].args == drive(put(planner(), {"a": [1]}), {}).requests[0].args


# --- parents -------------------------------------------------------------------------------------------------------


def test_a_large_value_of_a_remembered_parent_is_not_stored_again() -> None:
    subject = planner()
    drive(put(subject, LARGE), {}, {})
    run = drive(put(subject, LARGE, id="2", parent="1", new={}), {})
    assert run.calls == [PUT]
    drive(subject.delete_thread("1"), {}, {}, {})
    asks, *then = drive(put(subject, LARGE, id="3", parent="1", new={}), [], {}, {}).calls
    assert (asks, then) == ("checkpoints.find", ["blobs.insert_many", PUT])


def test_a_parent_of_another_layout_hands_nothing_on() -> None:
    plan = put(planner(), LARGE, id="2", parent="1", new={})
    official = {"_id": "1", "type": "msgpack", "checkpoint": b""}
    assert drive(plan, [official], {}, {}).calls == ["checkpoints.find", "blobs.insert_many", PUT]


def opened(run: Any) -> tuple[Any, ...]:
    """Where the checkpoint of a put went: its segment, its number in there, and what it grew from."""
    document = run.requests[-1].args[0]
    return document["segment"], document["seq"], document.get("grew_from", {}).get("segment")


def loaded(plan: Planner, id: str, seq: int, latest: bool) -> None:
    """Let it load a checkpoint of segment "0"."""
    (document,) = saved({"a": 1}, (id,))
    document |= {"segment": "0", "seq": seq}
    drive(plan.get_tuple(config(checkpoint_id=None if latest else id)), [document])


def test_who_goes_on_from_the_latest_checkpoint_stays_in_its_segment_and_forks_do_not() -> None:
    plan = planner()
    loaded(plan, "5", 4, latest=True)
    runs = [drive(put(plan, {"a": 2}, id=id, parent=parent), {}) for id, parent in (("6", "5"), ("7", "6"), ("8", "5"))]
    assert [run.calls for run in runs] == [[PUT]] * 3
    assert [opened(run) for run in runs] == [("0", 5, None), ("0", 6, None), ("8", 0, "0")]


@pytest.mark.parametrize(
    ("found", "place"), [([], ("0", 5, None)), ([{"seq": 5}], ("6", 0, "0"))], ids=["nothing follows", "followed"]
)
@pytest.mark.parametrize("before", [True, False], ids=["was the latest before", "was not loaded before"])
def test_whether_a_checkpoint_that_was_named_has_a_child_is_looked_up(found: Any, place: Any, before: bool) -> None:
    plan = planner()
    if before:
        loaded(plan, "5", 4, latest=True)
    loaded(plan, "5", 4, latest=False)
    run = drive(put(plan, {"a": 2}, id="6", parent="5"), found, {})
    assert (run.calls, opened(run)) == (["checkpoints.find", PUT], place)
    query = run.requests[0].args[0]
    assert query == {"thread_id": "1", "checkpoint_ns": "", "segment": "0", "seq": 5}
    assert drive(put(plan, {"a": 3}, id="7", parent="6"), {}).calls == [PUT]
    # Once known it stays so, whoever loads it again.
    loaded(plan, "5", 4, latest=True)
    run = drive(put(plan, {"a": 2}, id="8", parent="5"), {})
    assert (run.calls, opened(run)) == ([PUT], ("8", 0, "0"))


def test_what_opens_a_segment_in_any_case_asks_for_no_place() -> None:
    for seq, value in ((4, _DeltaSnapshot([1])), (SEGMENT - 1, 1)):
        plan = planner()
        loaded(plan, "5", seq, latest=False)
        replies = [{}] * (1 if value == 1 else 2)  # a snapshot is a blob
        run = drive(put(plan, {"a": value}, id="6", parent="5"), *replies)
        assert opened(run) == ("6", 0, "0")
        assert run.calls[-1:] == [PUT]
        assert "checkpoints.find" not in run.calls


# --- get_tuple -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
def test_nothing_found_is_none(dialect: str) -> None:
    run = drive(planner(dialect=dialect).get_tuple(config()), [])
    assert run.result is None
    assert run.calls == ["checkpoints.aggregate" if dialect == "mongodb" else "checkpoints.find"]


def test_the_basic_dialect_asks_twice_and_joins_nothing() -> None:
    run = drive(planner(dialect="basic").get_tuple(config()), saved(), [])
    assert run.calls == ["checkpoints.find", "writes.find"]
    assert run.requests[1].args[0] == {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": {"$in": ["1"]}}


def test_blobs_are_fetched_once_each() -> None:
    run = drive(planner().get_tuple(config()), saved(LARGE), blobs_of(LARGE))
    assert run.calls == ["checkpoints.aggregate", "blobs.find"]
    assert run.result.checkpoint["channel_values"] == LARGE


def test_a_checkpoint_that_vanishes_with_its_values_is_none() -> None:
    assert drive(planner().get_tuple(config()), saved(LARGE), [], [], []).result is None


def test_a_checkpoint_that_stays_without_its_values_is_corrupt() -> None:
    with pytest.raises(CorruptCheckpoint, match=r"is missing from the blobs"):
        drive(planner().get_tuple(config()), saved(LARGE), [], saved(LARGE))


def test_a_head_that_is_replaced_meanwhile_is_read_anew() -> None:
    head = saved({"a": 1}, ids=("2",))
    assert drive(planner().get_tuple(config()), saved(LARGE), [], head, head).result.checkpoint["id"] == "2"


# --- list ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PAGE", 3)


def page(listing: Any, *replies: Any) -> tuple[list[str], Any, Driven]:
    run = drive(planner().page(listing), *replies)
    loads, rest = run.result
    return [load().checkpoint["id"] for load in loads], rest, run


def listing(limit: int | None = None, filter: Any = None, **of: Any) -> Any:
    return planner().listing(config(**of), filter=filter, before=None, limit=limit)


@pytest.mark.parametrize(
    ("limit", "found", "asked", "left"),
    [
        (None, 3, 3, None),
        (None, 2, 3, "end"),
        (None, 0, 3, "end"),
        (2, 2, 2, "end"),
        (3, 3, 3, "end"),
        (5, 3, 3, 2),
        (5, 1, 3, "end"),
    ],
)
def test_a_listing_ends_where_it_should(limit: int | None, found: int, asked: int, left: Any) -> None:
    ids = ("9", "8", "7")[:found]
    loaded, rest, run = page(listing(limit), saved(ids=ids), *[[]] * bool(found))
    assert loaded == list(ids)
    assert run.requests[0].kwargs["limit"] == asked
    assert ("end" if rest is None else rest.left) == left
    if rest:
        assert rest == replace(listing(limit), left=rest.left, after=(ids[-1], "1", ""))


def test_a_limit_of_nothing_asks_for_nothing() -> None:
    assert page(listing(0))[:2] == ([], None)


def test_what_the_filter_only_seemed_to_match_is_left_out_of_the_limit() -> None:
    document = saved(ids=("9", "8", "7"))
    loaded, rest, _ = page(listing(4, {"step": 1}), document, [])
    assert (len(loaded), rest.left) == (3, 1)
    loaded, rest, run = page(listing(4, {"step": 2}), document)
    assert (loaded, rest.left, run.calls) == ([], 4, ["checkpoints.find"])


def test_a_checkpoint_that_vanishes_while_it_is_listed_does_not_count() -> None:
    documents = [*saved(LARGE, ids=("9",)), *saved(ids=("8", "7"))]
    loaded, rest, _ = page(listing(3), documents, [], [], [])
    assert loaded == ["8", "7"]
    assert rest is not None
    assert rest.left == 1


def test_a_thread_that_vanishes_while_threads_are_listed_is_left_out() -> None:
    found = [{"_id": id, "n": 1} for id in ("1", "2")]
    heads = [{"_id": {"thread_id": id, "checkpoint_ns": ""}, "checkpoints": 1, "head": "1"} for id in ("1", "2")]
    sizes = [{"_id": "2", "bytes": 9, "last": NOW}]
    summaries, rest = drive(threads_page(planner(), threads_listing(None, None)), found, heads, sizes, [], []).result
    assert [(summary.thread_id, summary.bytes) for summary in summaries] == [("2", 9)]
    assert rest is None


@pytest.mark.parametrize("limit", [-1, True, 1.5, "1"])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^limit must be"):
        listing(limit)


# --- expiry and deletion -------------------------------------------------------------------------------------------


@pytest.fixture
def ticking() -> Iterator[datetime]:
    """A clock under which every look is a second later."""
    return (NOW + timedelta(seconds=i) for i in range(1000))


def test_activity_is_noted_before_anything_is_stored_and_once_in_a_while() -> None:
    subject = planner(ttl=60)
    noted = [f"{part}.update_many" for part in ("blobs", "writes", "checkpoints")]
    assert drive(put(subject), {}, {}, {}, {}).calls == [*noted, PUT]
    assert drive(put(subject, id="2"), {}).calls == [PUT]
    assert drive(writes(replace(subject, clock=lambda: NOW + timedelta(seconds=3)), [("a", 1)]), {}, {}, {}, {}).calls


def test_everything_that_one_put_stores_expires_together(ticking: Iterator[datetime]) -> None:
    """However slowly it goes: an election may last longer than the steps in which activity is noted."""
    plan = put(planner(lambda: next(ticking), ttl=20), LARGE)
    stored: list[tuple[str, datetime]] = []
    for request in iter(lambda: next(plan, None), None):
        if request.method == "update_many":
            noted = request.args[1]["$set"]["active_at"]
            stored = [(part, max(noted, at) if part == request.part else at) for part, at in stored]
        else:
            documents = request.args[0] if request.method == "insert_many" else request.args
            stored += [(request.part, document["active_at"]) for document in documents]
    assert {part for part, _ in stored} == {"blobs", "checkpoints"}
    assert len({at for _, at in stored}) == 1


def test_a_thread_is_deleted_head_first() -> None:
    run = drive(planner().delete_thread(7), {}, {}, {})  # type: ignore[arg-type]  # an int is taken as well
    assert run.calls == ["checkpoints.delete_many", "writes.delete_many", "blobs.delete_many"]
    assert {request.args[0]["thread_id"] for request in run.requests} == {"7"}
