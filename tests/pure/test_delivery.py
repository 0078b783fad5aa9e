"""Mailboxes keep to their size, and the ledger never says that something was handled which was not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_mongo_saver import InvalidArgument, Subscription
from langgraph_mongo_saver.delivery import Ledger, ListenerStatus, Mailbox, lag_of
from langgraph_mongo_saver.events import CheckpointEvent, EventFilter

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
EVENT = CheckpointEvent("checkpoint", "1", NOW, "p")


def ticking() -> Callable[[], float]:
    ticks: Iterator[int] = count(1)
    return lambda: float(next(ticks))


# --- mailboxes -----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["put", "take"]), max_size=40), st.integers(1, 5))
def test_a_mailbox_that_drops_keeps_the_newest_and_counts(calls: list[str], size: int) -> None:
    mailbox = Mailbox(EventFilter(), size, "drop_oldest")
    model: list[int] = []
    dropped: list[int | None] = []
    for number, call in enumerate(calls):
        assert not mailbox.must_wait
        if call == "put":
            model.append(number)
            dropped.append(mailbox.put(number, EVENT))
            assert dropped[-1] == (model[-size - 1] if len(model) > size else None)
            model = model[-size:]
        elif model:
            assert mailbox.entries.popleft() == (model.pop(0), EVENT)
    assert [number for number, _ in mailbox.entries] == model
    assert mailbox.dropped == len([number for number in dropped if number is not None])


@given(st.integers(1, 20))
def test_a_mailbox_that_waits_is_full_at_its_size(size: int) -> None:
    mailbox = Mailbox(EventFilter(), size, "wait")
    for number in range(size):
        assert not mailbox.must_wait
        assert mailbox.put(number, EVENT) is None
    assert mailbox.must_wait
    mailbox.entries.popleft()
    assert not mailbox.must_wait
    assert mailbox.dropped == 0


@pytest.mark.parametrize("size", [0, -1, True, 1.0, "5", None, [5]])
def test_a_size_that_cannot_be_used_is_refused(size: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^size must be"):
        Mailbox(EventFilter(), size, "wait")


@pytest.mark.parametrize("policy", ["drop_newest", "", None, True, ["wait"], {"wait"}, b"wait"])
def test_a_policy_that_is_none_is_refused(policy: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^policy must be"):
        Mailbox(EventFilter(), 1, policy)


def test_errors_do_not_tell_what_was_given() -> None:
    for arguments in (("secret", "wait"), (1, "secret")):
        with pytest.raises(InvalidArgument) as caught:
            Mailbox(EventFilter(), *arguments)
        assert "secret" not in str(caught.value)


# --- the ledger ----------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Events for so many subscribers, and handling of some that are open, in any order."""
    steps: list[tuple[str, int]] = []
    left: list[int] = []  # by event
    for _ in range(draw(st.integers(0, 40))):
        waiting = [event for event, subscribers in enumerate(left) if subscribers]
        if waiting and draw(st.booleans()):
            event = draw(st.sampled_from(waiting))
            left[event] -= 1
            steps.append(("handled", event))
        else:
            left.append(draw(st.integers(0, 3)))
            steps.append(("issue", left[-1]))
    return steps


@given(histories())
def test_the_position_is_that_of_the_last_event_before_which_all_is_handled(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(ticking())
    left: list[int] = []
    numbers: list[int] = []
    for step, value in steps:
        if step == "issue":
            left.append(value)
            numbers.append(ledger.issue(f"p{len(left) - 1}", value))
        else:
            left[value] -= 1
            ledger.handled(numbers[value])
        done = next((event for event, subscribers in enumerate(left) if subscribers), len(left))
        assert ledger.position == (f"p{done - 1}" if done else None)
        assert (ledger.as_of is None) == (done == 0)
        assert ledger.busy == (done < len(left))


@given(st.integers(1, 100))
def test_positions_of_a_quiet_stream_are_one_entry(quiet: int) -> None:
    ledger = Ledger(ticking())
    number = ledger.issue("slow", 1)
    for place in range(quiet):
        ledger.issue(f"q{place}", 0)
    assert len(ledger._open) == 2
    assert ledger.position is None
    ledger.handled(number)
    assert ledger.position == f"q{quiet - 1}"
    assert not ledger.busy


def test_a_quiet_position_does_not_pass_what_comes_after_it() -> None:
    ledger = Ledger(ticking())
    first = ledger.issue("a", 1)
    ledger.issue("quiet", 0)
    second = ledger.issue("b", 1)
    ledger.issue("later", 0)
    ledger.handled(first)
    assert ledger.position == "quiet"
    ledger.handled(second)
    assert ledger.position == "later"


def test_each_step_of_the_position_is_timed() -> None:
    ledger = Ledger(ticking())
    ledger.issue("a", 0)
    assert ledger.as_of == 1.0
    number = ledger.issue("b", 1)
    assert ledger.as_of == 1.0
    ledger.handled(number)
    assert ledger.as_of == 2.0


def test_after_a_reset_nothing_is_known_and_late_news_change_nothing() -> None:
    ledger = Ledger(ticking())
    ledger.issue("a", 0)
    late = ledger.issue("b", 1)
    ledger.reset()
    assert (ledger.position, ledger.as_of, ledger.busy) == (None, None, False)
    number = ledger.issue("c", 1)
    ledger.handled(late)
    assert ledger.position is None
    ledger.handled(number)
    assert ledger.position == "c"


@given(st.integers(-3, 1000))
def test_a_number_that_was_never_given_changes_nothing(number: int) -> None:
    ledger = Ledger(ticking())
    given_out = ledger.issue("a", 1)
    if number != given_out:
        ledger.handled(number)
    assert ledger.position is None
    assert ledger.busy


# --- subscriptions -------------------------------------------------------------------------------------------------


def test_what_arrives_while_a_subscription_closes_does_not_hold_the_position_back() -> None:
    ledger = Ledger(ticking())
    subscription = Subscription(Mailbox(EventFilter(), 5, "wait"), ledger, lambda _: None)
    number = ledger.issue("p", 1)
    stream = threading.Thread(target=subscription.offer, args=(number, EVENT))
    end = subscription.end

    def end_later(failure: BaseException | None = None) -> None:
        # The stream's thread comes between the steps of closing, unless it has to wait for a lock.
        stream.start()
        stream.join(1)
        end(failure)

    subscription.end = end_later
    subscription.close()
    if not stream.ident:
        stream.start()
    stream.join()
    assert ledger.position == "p"
    assert not subscription.mailbox.entries


# --- what is told --------------------------------------------------------------------------------------------------


def test_a_status_says_nothing_that_is_not_known() -> None:
    status = ListenerStatus("new")
    assert (status.last_event, status.lag, status.position_age, status.error) == (None, None, None, None)
    assert (status.reconnects, status.dropped, status.pending) == (0, 0, 0)


@given(st.timedeltas(timedelta(-1), timedelta(1)))
def test_the_lag_is_in_seconds_and_may_be_negative(lag: timedelta) -> None:
    assert lag_of(replace(EVENT, created_at=NOW), NOW + lag) == lag.total_seconds()
