"""The walk along the ancestors, fed by hand: whatever is fetched with them, the parents' ids alone decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_mongo_saver import lineage
from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import SEGMENT, populated
from langgraph_mongo_saver.lineage import Fetch, Lineage, Node, by_scan, by_segments, walk
from langgraph_mongo_saver.pipelines import Request
from tests.pure.driving import drive

CHANNELS = ("d", "e", "f.$x")
Forest = dict[str, dict[str, Any]]


def document(id_: str, parent: str | None = None, *channels: str, **fields: Any) -> dict[str, Any]:
    # That a channel has an entry is what counts, not what is in it.
    return {
        "checkpoint_id": id_,
        "parent_checkpoint_id": parent,
        "values": [{"channel": channel, "type": "null"} for channel in channels],
        **fields,
    }


def nodes_of(*documents: dict[str, Any]) -> list[Node]:
    return [Node.of(each) for each in documents]


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Checkpoints of one namespace: forks, cycles, parents that are not stored, ids in any order."""
    names = draw(st.permutations([f"{n:02}" for n in range(draw(st.integers(1, 16)))]))
    found: Forest = {}
    for number, name in enumerate(names):
        before = names[:number][-1:] or [None]
        parent = draw(st.sampled_from([*before * 6, None, "missing", *names]))
        found[name] = document(
            name, parent, *draw(st.sets(st.sampled_from(CHANNELS), max_size=draw(st.integers(0, 1))))
        )
    return found


def expected(forest: Forest, id_: str, channels: Sequence[str], from_target: bool) -> dict[str, Any]:
    """The same walk, one checkpoint after another."""
    holds = {name: {value["channel"] for value in each["values"]} for name, each in forest.items()}
    left = [channel for channel in channels if not (from_target and channel in holds[id_])]
    path: list[str] = []
    ends: dict[str, int] = {}
    following = forest[id_]["parent_checkpoint_id"]
    while set(left) - ends.keys() and following in forest and following not in (id_, *path):
        ends |= {channel: len(path) for channel in left if channel in holds[following] and channel not in ends}
        path.append(following)
        following = forest[following]["parent_checkpoint_id"]
    lost = bool(set(left) - ends.keys()) and following is not None and following not in forest
    return {"path": path, "ends": ends, "missing": following if lost else None}


def found(result: Lineage) -> dict[str, Any]:
    return {"path": [node.checkpoint_id for node in result.path], "ends": result.ends, "missing": result.missing}


def fetching(forest: Forest, more: Sequence[set[str]], asked: list[str]) -> Fetch:
    """Fetches what is asked for, and with it each time whatever `more` says."""
    guesses = iter(more)

    def fetch(address: Address, first: bool) -> Generator[Request, Any, list[Node]]:
        yield from ()
        assert first == (not asked)
        asked.append(address.key["checkpoint_id"])
        own = forest.get(asked[-1])
        others = [forest[name] for name in sorted(next(guesses, ())) if name in forest and name != asked[-1]]
        return [Node.of(each) for each in (own, *others)] if own else []

    return fetch


TARGETS = st.integers(0, 15)


@given(
    forests(),
    TARGETS,
    st.lists(st.sampled_from([*CHANNELS, "never"]), max_size=4),
    st.booleans(),
    st.lists(st.sets(st.sampled_from([f"{n:02}" for n in range(16)])), max_size=6),
)
def test_the_walk_ends_where_one_step_after_another_ends(
    forest: Forest, pick: int, channels: list[str], from_target: bool, more: list[set[str]]
) -> None:
    id_ = sorted(forest)[pick % len(forest)]
    asked: list[str] = []
    fetch = fetching(forest, more, asked)
    result = drive(walk(Address("1", "", id_), channels, fetch, from_target=from_target)).result
    assert result.target == Node.of(forest[id_])
    assert found(result) == expected(forest, id_, channels, from_target)
    assert Counter(asked).most_common(1)[0][1] == 1
    assert set(asked) - {id_, result.missing} <= set(found(result)["path"])


def test_no_such_checkpoint_is_no_walk() -> None:
    assert drive(walk(Address("1", "", "9"), ["d"], fetching({}, [], []))).result is None


def test_without_channels_nothing_but_the_target_is_asked_for() -> None:
    asked: list[str] = []
    result = drive(walk(Address("1", "", "2"), [], fetching({"2": document("2", "1")}, [], asked))).result
    assert (result.path, result.missing, asked) == ([], None, ["2"])


def test_a_channel_at_the_target_ends_the_walk_only_where_it_counts() -> None:
    forest = {"1": document("1", None, "d"), "2": document("2", "1", "d")}
    address = Address("1", "", "2")
    beyond = drive(walk(address, ["d"], fetching(forest, [], []))).result
    here = drive(walk(address, ["d"], fetching(forest, [], []), from_target=True)).result
    assert (found(beyond)["path"], beyond.ends) == (["1"], {"d": 0})
    assert (here.path, here.channels, here.ends) == ([], [], {})


def test_advance_goes_on_from_where_it_stopped() -> None:
    begun = Lineage(Node.of(document("4", "3")), ["d", "e"])
    assert begun.advance(nodes_of(document("9", None, "e"))) == "3"
    assert begun.path == []
    assert begun.advance(nodes_of(document("3", "2", "d"))) == "2"
    assert begun.ends == {"d": 0}
    # The nearest value counts, also where an older one is fetched later.
    assert begun.advance(nodes_of(document("2", "1"), document("1", "0", "d", "e"))) is None
    assert begun.ends == {"d": 0, "e": 2}
    assert found(begun)["path"] == ["3", "2", "1"]
    assert begun.advance([]) is None


@pytest.mark.parametrize("parents", [{"1": "1"}, {"1": "2", "2": "1"}, {"1": "2", "2": "3", "3": "2"}])
def test_a_cycle_ends_the_walk_like_a_root(parents: dict[str, str]) -> None:
    nodes = nodes_of(*(document(id_, parent) for id_, parent in parents.items()))
    begun = Lineage(nodes[0], ["d"])
    assert begun.advance(nodes) is None
    assert found(begun) == {"path": sorted(parents.keys() - {"1"}), "ends": {}, "missing": None}


def test_runs_are_the_segments_of_the_path() -> None:
    """What lies between two checkpoints of a segment is read with them; where nothing is known, each is alone."""
    segments = {"8": "8", "7": "5", "6": "5", "5": "5", "4": None, "3": None, "2": "1"}
    path = [Node.of(document(id_, segment=segment)) for id_, segment in segments.items()]
    runs = list(Lineage(path[0], ["d"], path).runs())
    assert runs == [["8"], ["7", "6", "5"], ["4"], ["3"], ["2"]]
    assert list(Lineage(path[0], ["d"]).runs()) == []


def test_full_segments_are_one_run_with_what_follows_them() -> None:
    """A segment that is passed in full was left because it was full; one that is not, at a fork or a snapshot."""
    sizes = {"e": 3, "d": SEGMENT, "c": SEGMENT, "b": SEGMENT - 1, "a": SEGMENT}
    path = [Node.of(document(f"{name}{n}", segment=name)) for name, size in sizes.items() for n in range(size)]
    runs = list(Lineage(path[0], ["d"], path).runs())
    assert [len(run) for run in runs] == [3 + 2 * SEGMENT, 2 * SEGMENT - 1]
    assert [id_ for run in runs for id_ in run] == [node.checkpoint_id for node in path]


# --- how it is fetched ---------------------------------------------------------------------------------------------


def columns(*documents: dict[str, Any]) -> dict[str, Any]:
    names = {"ids": "checkpoint_id", "parents": "parent_checkpoint_id"}
    found = {column: [each[name] for each in documents] for column, name in names.items()}
    return {**found, "populated": [populated(value["channel"] for value in each["values"]) for each in documents]}


def named(each: dict[str, Any], *channels: str) -> Node:
    """A node of which only the names of the channels were fetched."""
    return Node.of(each)._replace(values=dict.fromkeys(channels))


def test_rows_of_segments_are_the_checkpoint_and_all_their_nodes() -> None:
    own, fetch = document("4", "3", segment="3"), by_segments("c", ["d", "e"])
    a, b, c = (document("3", "2", "d", "f", segment="3"), document("1", segment="1"), document("2", "1", segment="1"))
    known = [own, a, document("1", None, "e", segment="1")]
    rows = [
        {"known": known, "segment": "3", "nodes": [columns(a)]},
        {"known": known, "segment": "1", "nodes": [columns(b, c)]},
    ]
    expected = [Node.of(own), named(a, "d"), named(b), named(c), *map(Node.of, known[1:])]
    assert drive(fetch(Address("1", "", "4"), True), rows).result == expected
    rows = [{"known": [own], "segment": "3", "nodes": []}]
    assert drive(fetch(Address("1", "", "4"), True), rows).result == [Node.of(own)]
    assert drive(fetch(Address("1", "", "4"), True), []).result == []


def test_what_a_segment_begins_with_tells_more_than_the_names() -> None:
    """The entry of a snapshot comes with it, so that it can be read at once."""
    own, opener = document("2", "1", segment="1"), document("1", None, "d", segment="1")
    rows = [{"known": [own, opener], "segment": "1", "nodes": [columns(opener, own)]}]
    found = drive(walk(Address("1", "", "2"), ["d"], by_segments("c", ["d"])), rows).result
    assert found.path == [Node.of(opener)]
    assert found.path[0].values["d"] is not None


def test_a_checkpoint_that_does_not_name_its_channels_is_scanned_for() -> None:
    """Where the names are many, or a release that did not know of them has stored it."""
    before = [document("1", None, "d"), document("2", "1"), document("3", "2", "e"), document("4", "3")]
    unnamed = {**columns(*before), "populated": [populated(["d"]), "", None, ""]}
    rows = [{"known": [document("5", "4", segment="1")], "segment": "1", "nodes": [unnamed]}]
    run = drive(walk(Address("1", "", "5"), ["e", "d"], by_segments("c", ["e", "d"])), rows, list(reversed(before))[1:])
    assert run.calls == ["checkpoints.aggregate", "checkpoints.find"]
    assert run.requests[1].args[0]["checkpoint_id"] == {"$lte": "3"}
    assert [node.checkpoint_id for node in run.result.path] == ["4", "3", "2", "1"]
    assert run.result.ends == {"e": 1, "d": 3}


def test_what_its_segment_begins_with_needs_no_names() -> None:
    opener, own = document("1", None, "d", segment="1"), document("2", "1", segment="1")
    rows = [{"known": [own, opener], "segment": "1", "nodes": [{**columns(opener, own), "populated": [None, None]}]}]
    run = drive(walk(Address("1", "", "2"), ["d"], by_segments("c", ["d"])), rows)
    assert run.result.path == [Node.of(opener)]


def test_the_first_request_hops_less_far_than_the_later_ones() -> None:
    """A history that ends at a near snapshot does not fetch the rest of the thread."""
    hops = []
    for first in (True, False):
        (request,) = drive(by_segments("c", [])(Address("1", "", "4"), first), []).requests
        (stage,) = (each["$graphLookup"] for each in request.args[0] if "$graphLookup" in each)
        hops.append(stage["maxDepth"])
    assert 0 < hops[0] < hops[1]


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_without_a_segment_is_scanned_for(first: bool) -> None:
    """The one that was found, also where the latest was asked for and a later one has come since."""
    address = Address("1", "", None if first else "4")
    scanned = [document("4", "3"), document("3")]
    run = drive(
        by_segments("c", ["d"])(address, first),
        [{"known": [document("4", "3")], "segment": False, "nodes": []}],
        scanned,
    )
    assert run.calls == ["checkpoints.aggregate", "checkpoints.find"]
    assert run.requests[1].args[0]["checkpoint_id"] == {"$lte": "4"}
    assert run.result == [Node.of(each) for each in scanned]


@pytest.mark.parametrize("first", [True, False])
def test_a_scan_that_begins_with_another_checkpoint_has_not_found_the_one_asked_for(first: bool) -> None:
    assert drive(by_scan(Address("1", "", "4"), first), [document("3")]).result == []
    assert drive(by_scan(Address("1", "", "4"), first), []).result == []


def test_a_scan_from_the_latest_looks_for_that_first() -> None:
    """Not for the newest: that may be retired."""
    rows = [document("3", "2"), document("2")]
    run = drive(by_scan(Address("1", ""), True), [{"checkpoint_id": "3"}], rows)
    assert run.requests[0].args[0] == {"thread_id": "1", "checkpoint_ns": "", "retired": {"$exists": False}}
    assert run.requests[1].args[0]["checkpoint_id"] == {"$lte": "3"}
    assert run.result == [Node.of(each) for each in rows]
    assert drive(by_scan(Address("1", ""), True), []).result == []


def test_a_scan_does_not_begin_with_what_is_about_to_go() -> None:
    for how, found in (("going", 0), ("kept", 2)):
        rows = [{**document("3", "2"), "retired": how}, document("2")]
        assert len(drive(by_scan(Address("1", "", "3"), True), rows).result) == found


def scan(forest: Forest, plan: Generator[Request, Any, Any]) -> tuple[Lineage, Counter[str], int]:
    """Answer the scans of a plan as a server does; how often each document was read, and in how many requests."""
    read: Counter[str] = Counter()
    reply, requests = None, 0
    while True:
        try:
            request = plan.send(reply)
        except StopIteration as done:
            return done.value, read, requests
        requests += 1
        if request.kwargs["projection"] == {"checkpoint_id": 1}:  # which is the latest
            reply = [{"checkpoint_id": max(forest)}]
            continue
        most = request.args[0].get("checkpoint_id", {}).get("$lte", "~")
        names = sorted((name for name in forest if name <= most), reverse=True)[: request.kwargs["limit"]]
        read.update(names)
        reply = [forest[name] for name in names]


@given(forests(), TARGETS, st.integers(1, 5))
def test_a_scan_finds_the_same_and_asks_for_each_ancestor_once_at_most(forest: Forest, pick: int, size: int) -> None:
    id_ = sorted(forest)[pick % len(forest)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lineage, "_SCANNED", size)
        result, read, requests = scan(forest, walk(Address("1", "", id_), ["d", "never"], by_scan))
    assert found(result) == expected(forest, id_, ["d", "never"], False)
    assert requests <= 1 + len(result.path) + (result.missing is not None)
    assert max(read.values()) <= requests


def test_a_scan_in_the_order_of_time_reads_every_checkpoint_once() -> None:
    names = [f"{number:04}" for number in range(1000)]
    forest = {name: document(name, parent) for name, parent in zip(names, [None, *names], strict=False)}
    result, read, requests = scan(forest, walk(Address("1", ""), ["d"], by_scan))
    assert [node.checkpoint_id for node in result.path] == names[-2::-1]
    assert set(read.values()) == {1}
    assert requests == 1 + 4
