"""Which checkpoints may go, and in what order: random forests, judged by walks that take one step after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langgraph_mongo_saver.lineage import Node
from langgraph_mongo_saver.selection import (
    Facts,
    children_first,
    copy_order,
    finished_calls,
    newest,
    removal,
    with_ancestors,
)

CHANNELS = ("d", "e")
NUMBERS = st.integers(0, 30)
Forest = dict[str, Node]


def node(id_: str, parent_id: str | None = None, *channels: str) -> Node:
    return Node(id_, parent_id, {channel: {} for channel in channels})


def nodes_of(*nodes: Node) -> Forest:
    return {each.checkpoint_id: each for each in nodes}


@st.composite
def forests(draw: st.DrawFn, cycles: bool = False) -> Forest:
    """Nodes in an order of ids that parents need not keep to; some parents are not stored."""
    names = draw(st.permutations([f"{n:02}" for n in range(draw(st.integers(1, 14)))]))
    found: Forest = {}
    for number, name in enumerate(names):
        before = names if cycles else names[:number]
        parents = st.sampled_from(before[-3:] or [None]) | st.sampled_from([None, "missing", *before])
        found[name] = node(name, draw(parents), *draw(st.sets(st.sampled_from(CHANNELS), max_size=1)))
    return found


def some(forest: Forest, picks: Collection[int]) -> set[str]:
    names = sorted(forest)
    return {names[pick % len(names)] for pick in picks}


def walked(forest: Forest, id_: str, channel: str) -> set[str]:
    """A checkpoint, and its ancestors back to the nearest that holds the channel's value."""
    seen: set[str] = set()
    current: str | None = id_
    while current in forest and current not in seen:
        seen.add(current)
        current = None if channel in forest[current].values else forest[current].parent_id
    return seen


# --- what stays ----------------------------------------------------------------------------------------------------


@given(forests(cycles=True), st.integers(0, 20))
def test_the_newest_have_the_greatest_ids(forest: Forest, number: int) -> None:
    found = newest(forest, number)
    assert len(found) == min(number, len(forest))
    assert all(other < each for each in found for other in forest.keys() - found)


NEEDS = st.dictionaries(
    NUMBERS,
    st.builds(Facts, delta_channels=st.frozensets(st.sampled_from(CHANNELS)), needs_parent=st.booleans()),
    max_size=5,
)


@pytest.mark.parametrize(
    ("metadata", "uses_delta", "channels"),
    [
        ({}, False, ()),
        ({"counters_since_delta_snapshot": {}}, False, ()),
        ({"counters_since_delta_snapshot": {"log": (1, 1), "never written": (0, 1)}}, True, ("log",)),
        # As LangGraph.js has it.
        ({"delta_writes_versioned": True}, True, ("log", "plain")),
    ],
)
def test_what_a_checkpoint_tells_of_delta_channels(
    metadata: dict[str, object], uses_delta: bool, channels: tuple[str, ...]
) -> None:
    facts = Facts.of({"channel_versions": {"log": 1, "plain": 1}}, metadata)
    assert (facts.uses_delta, facts.delta_channels) == (uses_delta, frozenset(channels))


def needed(forest: Forest, drawn: dict[int, Facts]) -> dict[str, Facts]:
    names = sorted(forest)
    return {names[pick % len(names)]: facts for pick, facts in drawn.items()}


@given(forests(cycles=True), NEEDS)
def test_what_each_chosen_one_needs_stays_and_nothing_else(forest: Forest, drawn: dict[int, Facts]) -> None:
    needs = needed(forest, drawn)
    before = {id_ for each, facts in needs.items() for c in facts.delta_channels for id_ in walked(forest, each, c)}
    parents = {forest[each].parent_id for each, facts in needs.items() if facts.needs_parent} & forest.keys()
    assert with_ancestors(forest, needs) == needs.keys() | before | parents


@given(forests(), st.sets(NUMBERS, max_size=5), st.sampled_from(CHANNELS))
def test_all_that_stays_for_one_channel_keeps_its_value(forest: Forest, picks: set[int], channel: str) -> None:
    kept = with_ancestors(forest, {key: Facts(frozenset([channel])) for key in some(forest, picks)})
    assert all(walked(forest, each, channel) <= kept for each in kept)


@pytest.mark.parametrize(
    ("namespace", "root", "goes"),
    [
        ("sub:1", "old", True),
        ("sub:1|inner:2", "old", True),
        ("sub:1", "kept", False),
        ("sub:1", "not stored yet", False),
        ("sub:1", None, False),
        ("sub", "old", False),
        ("", "old", False),
    ],
)
def test_a_call_goes_with_the_root_that_it_started_from(namespace: str, root: str | None, goes: bool) -> None:
    root_nodes = nodes_of(node("old"), node("kept", "old"))
    found = finished_calls({"": {"kept"}}, {namespace: Facts(root=root)}, root_nodes)
    assert found == ({namespace} if goes else set())


def test_every_call_goes_where_no_root_stays() -> None:
    assert finished_calls({}, {"sub:1": Facts(root="old")}, nodes_of(node("old"))) == {"sub:1"}


# --- in what order -------------------------------------------------------------------------------------------------


@given(forests(cycles=True), st.sets(NUMBERS))
def test_children_come_before_their_parents(forest: Forest, picks: set[int]) -> None:
    going = some(forest, picks)
    order = children_first(forest, going)
    assert sorted(order) == sorted(going)
    for each in order:
        parent = forest[each].parent_id
        if parent in going and not on_a_cycle(forest, each):
            assert order.index(each) < order.index(parent)


def on_a_cycle(forest: Forest, id_: str) -> bool:
    seen: set[str] = set()
    current = forest[id_].parent_id
    while current in forest and current not in seen:
        if current == id_:
            return True
        seen.add(current)
        current = forest[current].parent_id
    return False


@given(forests(cycles=True), st.sets(NUMBERS))
def test_exactly_what_does_not_stay_goes_once(forest: Forest, picks: set[int]) -> None:
    kept = some(forest, picks)
    found = removal(forest, kept)
    assert sorted([*found.branches, *found.rest, *kept]) == sorted(forest)
    assert set(found.cut) == {each for each in kept if forest[each].parent_id in forest.keys() - kept}


def test_one_that_goes_from_between_two_that_stay_goes_when_its_child_has_no_parent_any_more() -> None:
    forest = nodes_of(node("1"), node("2", "1"), node("3", "2"), node("4", "2"))
    found = removal(forest, {"1", "3"})
    assert (found.branches, found.cut, found.rest) == (["4"], ["3"], ["2"])


def dangling(parents: Mapping[str, str | None]) -> set[str]:
    return {id_ for id_, parent in parents.items() if parent is not None and parent not in parents}


@given(forests(), NEEDS)
def test_wherever_a_removal_is_cut_short_no_parent_is_missing(forest: Forest, drawn: dict[int, Facts]) -> None:
    kept = with_ancestors(forest, needed(forest, drawn))
    found = removal(forest, kept)
    left = {id_: each.parent_id for id_, each in forest.items()}
    before = dangling(left)
    for id_ in found.branches:
        del left[id_]
        assert dangling(left) <= before, f"{id_} went before its child"
    for id_ in found.cut:
        left[id_] = None
    for id_ in found.rest:
        del left[id_]
        assert dangling(left) <= before, f"{id_} went before its child"
    assert left.keys() == kept


@settings(max_examples=20)
@given(forests(), st.sets(NUMBERS, min_size=1, max_size=5))
@example(nodes_of(node("1"), node("2", "1"), node("3", "2")), {0, 2})
def test_a_removal_that_was_cut_short_goes_on_to_the_same_end(forest: Forest, picks: set[int]) -> None:
    kept = some(forest, picks)
    whole = parents_after(forest, kept, None)
    for limit in range(len(forest)):
        assert parents_after(forest, kept, limit) == whole


def parents_after(forest: Forest, kept: Collection[str], limit: int | None) -> dict[str, str | None]:
    left = dict(forest)
    perform(left, kept, limit)
    perform(left, kept, None)
    return {id_: each.parent_id for id_, each in left.items()}


def perform(left: Forest, kept: Collection[str], limit: int | None) -> None:
    found = removal(left, kept)
    steps = [*(("go", i) for i in found.branches), *(("cut", i) for i in found.cut), *(("go", i) for i in found.rest)]
    for kind, id_ in steps[:limit]:
        if kind == "go":
            del left[id_]
        else:
            left[id_] = node(id_, None, *left[id_].values)


def test_a_copy_goes_by_id_and_ends_with_the_root() -> None:
    places = [("", "2"), ("", "1"), ("sub", "2"), ("sub:1", "1"), ("sub:1", "3")]
    order = copy_order([{"checkpoint_ns": ns, "checkpoint_id": id_} for ns, id_ in places])
    assert [tuple(place.values()) for place in order] == [
        ("sub:1", "1"),
        ("", "1"),
        ("sub", "2"),
        ("", "2"),
        ("sub:1", "3"),
    ]
