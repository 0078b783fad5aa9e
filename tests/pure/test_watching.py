"""A watch as a plan, driven with failures and changes that no server gives on demand."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from langgraph_mongo_saver.errors import ChangeStreamsUnavailable, EventsLost
from langgraph_mongo_saver.events import KINDS, Position, event_filter
from langgraph_mongo_saver.gathering import Deliver, Next, Open, Pause, Seen, Watch
from langgraph_mongo_saver.pipelines import Request
from langgraph_mongo_saver.watching import Feed
from tests.pure.test_changes import change, stored, written
from tests.pure.test_history import NOW, planner

LOST = OperationFailure("Resume of change stream was not possible", 286)
NOTHING = Seen(None, {"_data": "idle"})
OTHER_KINDS = tuple(sorted(KINDS - {"thread_deleted"}))


def token(name: str) -> dict[str, Any]:
    return {"_data": name}


def seen(name: str, operation: str = "insert", document: Any = None, coll: str = "checkpoints") -> Seen:
    document = document or stored(id=name)
    made = {**change(operation, document, coll), "_id": token(name)}
    if operation == "delete":
        del made["fullDocument"]
    return Seen(made, token(name))


def deleted(name: str, thread_id: str = "1") -> Seen:
    return seen(name, "delete", {"_id": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": name}})


class Shell:
    """Takes the steps of a feed; what it was told is in `steps`, and in `events` what was delivered."""

    def __init__(self, *kinds: str, opened: bool = True, **watch: Any) -> None:
        self.now = 0.0
        options: dict[str, Any] = {"wanted": event_filter(*kinds), "start": Position(), **watch}
        self.feed = Feed(planner(), Watch(**options), lambda: self.now)
        self._plan = self.feed.steps()
        self.steps: list[Any] = []
        self.pauses: list[float] = []
        self.events: list[Any] = []
        self.waiting: Any = None
        self._advance(None)
        if opened:
            self.reply(token("opened"))

    def reply(self, *replies: Any) -> Any:
        """Answer what it waits for, each with one reply; errors are thrown. Returns what it waits for then."""
        for reply in replies:
            self._advance(reply)
        return self.waiting

    def _advance(self, reply: Any) -> None:
        while True:
            step = self._plan.throw(reply) if isinstance(reply, PyMongoError) else self._plan.send(reply)
            self.steps.append(step)
            if isinstance(step, Deliver):
                self.feed.note(step)
                self.events += step.events
            elif isinstance(step, Pause):
                self.now += step.seconds
                self.pauses.append(step.seconds)
            else:
                self.waiting = step
                return
            reply = None

    @property
    def told(self) -> list[str]:
        return [event.checkpoint_id or f"gone {event.thread_id}" for event in self.events]

    @property
    def token(self) -> Any:
        return self.feed.position.token


# --- going on ------------------------------------------------------------------------------------------------------


def test_it_is_open_when_the_stream_is_and_stands_where_it_was_opened() -> None:
    shell = Shell(opened=False)
    assert isinstance(shell.waiting, Open)
    assert (shell.waiting.options, shell.feed.connected) == ({}, False)
    assert shell.reply(token("opened")) == Next()
    assert (shell.token, shell.feed.connected, shell.feed.reconnects) == (token("opened"), True, 0)


def test_after_a_failure_it_goes_on_behind_what_was_delivered() -> None:
    shell = Shell()
    shell.reply(seen("a"), seen("b"), AutoReconnect("cut"))
    assert isinstance(shell.waiting, Open)
    assert shell.waiting.options == {"start_after": token("b")}
    assert (shell.feed.connected, shell.feed.reconnects, len(shell.pauses)) == (False, 1, 1)
    shell.reply(token("b"), seen("c"))
    assert (shell.told, shell.feed.connected) == (["a", "b", "c"], True)


def test_after_a_failure_in_silence_it_goes_on_where_the_server_was() -> None:
    shell = Shell()
    shell.reply(seen("a"), NOTHING, AutoReconnect("cut"))
    assert shell.waiting.options == {"start_after": token("idle")}


def test_without_a_token_it_stays_where_it_is() -> None:
    shell = Shell()
    shell.reply(seen("a"), Seen(None, None), AutoReconnect("cut"))
    assert shell.waiting.options == {"start_after": token("a")}


def test_a_failure_before_values_were_fetched_lets_the_change_come_again() -> None:
    document, blobs = written(("__interrupt__", "x" * 300_000))
    waits = seen("w", document=document, coll="checkpoint_writes")
    shell = Shell()
    fetching = shell.reply(seen("a"), waits)
    assert (fetching.part, fetching.method) == ("blobs", "find")
    assert shell.reply(AutoReconnect("cut")).options == {"start_after": token("a")}
    shell.reply(token("a"), waits, blobs)
    assert shell.events[-1].interrupts == ("x" * 300_000,)
    assert shell.token == token("w")


def test_it_begins_where_it_is_told() -> None:
    for start, options in (
        (Position(token("x"), NOW), {"start_after": token("x")}),
        (Position(at=NOW), Position(at=NOW).options()),
    ):
        shell = Shell(opened=False, start=start)
        assert shell.waiting.options == options
        shell.reply(token("opened"))
        assert shell.feed.position == start


# --- pauses --------------------------------------------------------------------------------------------------------


def test_pauses_grow_and_end_after_retry_seconds() -> None:
    shell = Shell(retry_seconds=20.0)
    with pytest.raises(AutoReconnect, match="cut"):
        shell.reply(*[AutoReconnect("cut")] * 1000)
    assert max(shell.pauses[:2]) < 0.2 < 1 <= max(shell.pauses) <= 2
    assert 19 < sum(shell.pauses) <= 20.001
    assert shell.feed.reconnects == len(shell.pauses)


def test_before_it_was_open_it_tries_as_long_as_any_other_operation() -> None:
    shell = Shell(opened=False)  # retry_seconds of the saver: 30
    with pytest.raises(AutoReconnect, match="cut"):
        shell.reply(*[AutoReconnect("cut")] * 1000)
    assert 29 < sum(shell.pauses) <= 30.001


def test_once_open_it_tries_for_ever_unless_told_otherwise() -> None:
    shell = Shell()
    shell.reply(*[AutoReconnect("cut")] * 500)
    assert sum(shell.pauses) > 500
    assert shell.reply(token("opened"), seen("a")) == Next()
    assert shell.told == ["a"]


def test_pauses_begin_anew_once_something_is_delivered() -> None:
    shell = Shell(retry_seconds=20.0)
    for _ in range(10):  # of 2.6 s at least, however they are jittered
        shell.reply(*[AutoReconnect("cut")] * 7, token("again"), seen("a"))
    assert len(shell.pauses) == 70
    assert sum(shell.pauses) > 20
    assert all(pause <= 0.05 for pause in shell.pauses[::7])


def test_a_stream_that_opens_and_breaks_at_once_is_not_tried_without_end() -> None:
    shell = Shell(retry_seconds=20.0)
    with pytest.raises(AutoReconnect, match="cut"):
        shell.reply(*[AutoReconnect("cut"), token("again")] * 1000)
    assert sum(shell.pauses) <= 20.001


def test_what_does_not_pass_is_raised_at_once() -> None:
    shell = Shell()
    with pytest.raises(OperationFailure) as caught:
        shell.reply(OperationFailure("not allowed", 13))
    assert (caught.value.code, shell.pauses) == (13, [])


def test_a_server_without_change_streams_is_told_of_with_what_helps() -> None:
    shell = Shell(opened=False)
    with pytest.raises(ChangeStreamsUnavailable, match=r"replica set.*poll_interval") as caught:
        shell.reply(OperationFailure("The $changeStream stage is only supported on replica sets", 40573))
    assert isinstance(caught.value.__cause__, OperationFailure)


# --- gaps ----------------------------------------------------------------------------------------------------------


def test_a_gap_is_told_of_with_its_bounds() -> None:
    since = NOW - timedelta(days=1)
    shell = Shell(opened=False, start=Position(token("old"), since))
    with pytest.raises(EventsLost, match=r"resume_from.*on_gap='catch_up'") as caught:
        shell.reply(LOST)
    assert (caught.value.since, caught.value.until) == (since, NOW)


def test_the_bounds_of_a_gap_begin_with_what_was_delivered_last() -> None:
    shell = Shell()
    with pytest.raises(EventsLost) as caught:
        shell.reply(seen("a"), LOST)
    assert (caught.value.since, caught.value.until) == (datetime(2026, 1, 1, tzinfo=timezone.utc), NOW)


def test_a_catch_up_opens_the_stream_before_it_reads_and_delivers_each_checkpoint_once() -> None:
    since = NOW - timedelta(days=1)
    shell = Shell(opened=False, start=Position(token("old"), since), on_gap="catch_up")
    opening = shell.reply(LOST)
    assert isinstance(opening, Open)
    assert (opening.options, shell.pauses) == ({}, [])
    reading = shell.reply(token("now"))
    assert (reading.part, reading.method, shell.feed.connected) == ("checkpoints", "find", False)
    shell.reply([stored(id="a"), stored(id="b")])
    assert (shell.waiting, shell.token) == (Next(), token("now"))
    shell.reply(seen("b"), seen("c"), seen("a"))
    assert shell.told == ["a", "b", "c"]


def test_a_catch_up_reads_page_after_page_and_begins_again_if_it_is_interrupted() -> None:
    since = NOW - timedelta(days=1)
    shell = Shell(opened=False, start=Position(token("old"), since), on_gap="catch_up")
    page = [stored(id=f"{n:03}") for n in range(128)]
    shell.reply(LOST, token("now"), page, AutoReconnect("cut"))
    assert (len(shell.told), shell.feed.position) == (128, Position(at=since))
    shell.reply(token("later"), page, [stored(id="128")])
    assert (shell.told, shell.token) == ([f"{n:03}" for n in range(129)], token("later"))


def test_a_catch_up_without_checkpoints_reads_nothing() -> None:
    shell = Shell("writes", opened=False, start=Position(token("old"), NOW), on_gap="catch_up")
    assert shell.reply(LOST, token("now")) == Next()
    assert not any(isinstance(step, Request) for step in shell.steps)


# --- deletions -----------------------------------------------------------------------------------------------------


def asked(shell: Shell) -> list[set[str]]:
    """The threads that the server was asked about, question by question."""
    questions = [step for step in shell.steps if isinstance(step, Request) and step.method == "aggregate"]
    return [set(question.args[0][0]["$match"]["thread_id"]["$in"]) for question in questions]


def test_many_deletions_are_asked_about_once() -> None:
    shell = Shell()
    shell.reply(*[deleted(f"{n}", f"{n % 3}") for n in range(30)], NOTHING, [{"_id": "1"}])
    assert asked(shell) == [{"0", "1", "2"}]
    assert sorted(shell.told) == ["gone 0", "gone 2"]
    assert shell.token == token("idle")
    shell.reply(NOTHING, NOTHING)
    assert len(asked(shell)) == 1


def test_the_position_stays_before_deletions_until_it_is_known_what_they_mean() -> None:
    shell = Shell()
    shell.reply(seen("a"), deleted("b"), deleted("c"))
    assert shell.token == token("a")
    shell.reply(AutoReconnect("cut"))
    assert shell.waiting.options == {"start_after": token("a")}
    shell.reply(token("a"), deleted("b"), deleted("c"), NOTHING, AutoReconnect("cut while it asked"))
    assert shell.waiting.options == {"start_after": token("a")}
    shell.reply(token("a"), deleted("b"), deleted("c"), NOTHING, [])
    assert shell.told == ["a", "gone 1"]


def test_a_deletion_comes_before_what_follows_it_and_has_its_own_position() -> None:
    shell = Shell()
    shell.reply(deleted("b"), seen("x", document=stored(id="x", thread_id="2")), [])
    assert shell.told == ["gone 1", "x"]
    assert shell.events[0].position == str(Position(token("b"), shell.events[0].created_at))
    assert shell.token == token("x")


def test_a_thread_that_begins_anew_at_once_was_deleted() -> None:
    shell = Shell()
    shell.reply(deleted("b"), seen("x", document=stored(id="x", parent=None)), [{"_id": "1"}])
    assert shell.told == ["gone 1", "x"]


def test_a_thread_that_begins_anew_after_changes_of_others_was_deleted() -> None:
    # A listener that is behind: by the time it asks, the thread is there again.
    shell = Shell()
    others = seen("x", document=stored(id="x", thread_id="2"))
    shell.reply(deleted("b"), others, [{"_id": "1"}], seen("y", document=stored(id="y", parent=None)))
    assert set(shell.told) == {"gone 1", "x", "y"}


def test_a_thread_that_only_loses_checkpoints_is_not_gone() -> None:
    shell = Shell()
    shell.reply(deleted("b"), seen("x"), [{"_id": "1"}], deleted("c"), NOTHING, [{"_id": "1"}])
    assert shell.told == ["x"]


def test_a_deletion_between_changes_of_other_threads_is_told_of_once() -> None:
    # A listener that is behind: the thread is gone by now, and its deletions come between the changes of others.
    shell = Shell()
    for n in range(3):
        shell.reply(deleted(f"{n}"), seen(f"x{n}", document=stored(id=f"x{n}", thread_id="2")), [])
    shell.reply(NOTHING)
    assert sorted(shell.told) == ["gone 1", "x0", "x1", "x2"]


@pytest.mark.parametrize("key", ["official", {"thread_id": None}, {}], ids=str)
def test_deletions_that_name_no_thread_mean_nothing(key: Any) -> None:
    shell = Shell()
    shell.reply(seen("b", "delete", {"_id": key}), NOTHING)
    assert (shell.told, asked(shell)) == ([], [])
    assert shell.token == token("idle")


# --- the end of a database -----------------------------------------------------------------------------------------


def test_after_a_dropped_database_it_opens_behind_that(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell()
    invalidate = {"_id": token("invalid"), "operationType": "invalidate", "clusterTime": None}
    with caplog.at_level(logging.WARNING):
        shell.reply(seen("a"), Seen(invalidate, token("invalid"), alive=False))
    assert isinstance(shell.waiting, Open)
    assert shell.waiting.options == {"start_after": token("invalid")}
    assert (shell.pauses, shell.feed.connected) == ([], True)
    assert "The database was dropped" in caplog.text
    shell.reply(token("invalid"), seen("b"))
    assert shell.told == ["a", "b"]


def test_deletions_before_the_end_of_the_database_are_told_of() -> None:
    shell = Shell()
    invalidate = {"_id": token("invalid"), "operationType": "invalidate", "clusterTime": None}
    shell.reply(deleted("b"), Seen(invalidate, token("invalid"), alive=False), [])
    assert (shell.told, shell.token) == (["gone 1"], token("invalid"))


# --- once, and unknown ---------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_stored_twice_comes_twice_only_if_it_was_put_again() -> None:
    again = {**stored(id="a"), "stored_at": NOW + timedelta(seconds=1)}
    shell = Shell()
    shell.reply(seen("a"), seen("a2", "replace", stored(id="a")), seen("a3", "replace", again))
    assert shell.told == ["a", "a"]
    assert shell.token == token("a3")


def test_unknown_documents_are_skipped_with_one_warning_a_shape(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell()
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            shell.reply(seen(f"a{n}", document={"_id": n, "thread_id": "1", "checkpoint_ns": ""}))
            shell.reply(seen(f"b{n}", document={**stored(), "layout": 2}))
        shell.reply(seen("c"))
    assert (shell.told, shell.token) == (["c"], token("c"))
    assert [record.getMessage().split("(")[-1] for record in caplog.records] == [
        "checkpoints: layout None)",
        "checkpoints: layout 2)",
    ]


def test_kinds_that_were_not_asked_for_are_left_out() -> None:
    shell = Shell("interrupt")
    document, _ = written(("a", 1))
    shell.reply(seen("a"), seen("w", document=document, coll="checkpoint_writes"), NOTHING)
    assert shell.events == []
    shell = Shell(*OTHER_KINDS)
    shell.reply(deleted("a"), NOTHING, [])
    assert shell.events == []
