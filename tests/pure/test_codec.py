"""Checkpoints and writes survive being documents, whatever is remembered of the parent."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, _DeltaSnapshot

from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import (
    CheckpointDraft,
    Known,
    NewCheckpoint,
    channels_of,
    check_layout,
    checkpoint_draft,
    checkpoint_tuple,
    entries,
    known_of,
    known_with_values,
    pending_writes,
    writes_document,
)
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument, TooLarge
from langgraph_mongo_saver.values import Budget, PartKey, Sealer, blob_parts
from tests.building import checkpoint
from tests.pure.drawing import TEXT, VALUES

SEALER = Sealer(JsonPlusSerializer())
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
# So small that some values are embedded, some are not because they are large, and some because there are many.
SMALL = Budget(changed=8, unchanged=4, document=20)
LARGEST = 16 * 2**20


def draft_of(values: dict[str, Any], versions: Any = None, new: Any = None, **options: Any) -> CheckpointDraft:
    address = options.pop("address", Address("1", "", None))
    written = checkpoint(values, versions, id=options.pop("id", "2"))
    new_versions = written["channel_versions"] if new is None else new
    metadata = options.pop("metadata", {"step": 1})
    options = {"parent": None, "now": NOW, "budget": SMALL, **options}
    return checkpoint_draft(SEALER, address, written, metadata, new_versions, **options)


@dataclass
class Store:
    """Documents and blobs as the database would keep them."""

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[PartKey, bytes] = field(default_factory=dict)

    def put(self, draft: CheckpointDraft, known: Known | None) -> NewCheckpoint:
        if draft.asks_parent(known):
            known = known_with_values(SEALER, self.documents[draft.base["parent_checkpoint_id"]])
        new = draft.finish(known)
        self.parts.update(blob_parts(bson.decode(bson.encode(d)) for b in new.blobs for d in b.documents(NOW)))
        self.documents[draft.address.key["checkpoint_id"]] = bson.decode(bson.encode(new.document))
        return new

    def get(self, checkpoint_id: str) -> tuple[Any, Known]:
        document = self.documents[checkpoint_id]
        loaded = checkpoint_tuple(SEALER, document, [], self.parts)
        return loaded, known_of(document, loaded, False)


# --- round trips ---------------------------------------------------------------------------------------------------

CHANNELS = ("a", "b.c", "$d", "")
# What becomes of a channel in a step: a new value, its old one given again, nothing said, or consumed.
STEPS = st.dictionaries(
    st.sampled_from(CHANNELS),
    st.one_of(VALUES.map(lambda value: ("new", value)), st.sampled_from([("again", None), ("consumed", None)])),
)


@given(st.lists(STEPS, min_size=1, max_size=4), st.lists(st.sampled_from(["known", "unknown", "read"]), min_size=4))
def test_every_step_reads_back_whatever_is_known_of_its_parent(steps: list[Any], knowledge: list[str]) -> None:
    store, known, versions, state = Store(), None, {}, {}
    for number, (step, remembered) in enumerate(zip(steps, knowledge, strict=False)):
        new = {channel: number for channel, (kind, _) in step.items() if kind != "again"}
        versions = {**versions, **new}
        changed = {channel: value for channel, (kind, value) in step.items() if kind == "new"}
        again = {channel: state[channel] for channel, (kind, _) in step.items() if kind == "again" and channel in state}
        state = {c: v for c, v in state.items() if c not in new} | changed
        address = Address("1", "ns", str(number - 1) if number else None)
        draft = draft_of({**again, **changed}, versions, new, address=address, id=str(number), parent=known)
        new_checkpoint = store.put(draft, known)
        loaded, reread = store.get(str(number))
        assert loaded.checkpoint["channel_values"] == state
        assert loaded.checkpoint["channel_versions"] == versions
        assert loaded.parent_config == (address.to_config() if number else None)
        assert new_checkpoint.known == reread
        known = {"known": new_checkpoint.known, "unknown": None}.get(remembered, reread)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.dictionaries(TEXT, VALUES, max_size=3))
def test_a_checkpoint_comes_back_as_it_was(values: dict[str, Any], metadata: dict[str, Any]) -> None:
    store = Store()
    store.put(draft_of(values, metadata=metadata), None)
    loaded, _ = store.get("2")
    assert loaded.checkpoint == checkpoint(values, id="2")
    assert loaded.metadata == metadata
    assert loaded.config == Address("1", "", "2").to_config()
    assert loaded.pending_writes == []


def test_every_load_gives_objects_of_its_own() -> None:
    store = Store()
    store.put(draft_of({"a": [1], "b": "x" * 50}), None)
    store.get("2")[0].checkpoint["channel_values"]["a"].append(2)
    assert store.get("2")[0].checkpoint["channel_values"]["a"] == [1]


def test_a_draft_no_longer_changes() -> None:
    value, metadata = {"k": bytearray(b"before")}, {"tags": ["t"]}
    draft = draft_of(value, metadata=metadata)
    value["k"][:] = b"after!"
    metadata["tags"].append("u")
    store = Store()
    store.put(draft, None)
    loaded, _ = store.get("2")
    assert (loaded.checkpoint["channel_values"], loaded.metadata) == ({"k": b"before"}, {"tags": ["t"]})
    assert store.documents["2"]["metadata"] == {"tags": ["t"]}


def test_a_document_names_the_channels_that_hold_a_value_in_one_string() -> None:
    """The index of the lineage has it."""
    names = ["a", "b.$x", 'quoted "\n\u2028\x85', ""]
    document = draft_of(dict.fromkeys(names, 1)).finish(None).document
    assert channels_of(document["populated"]) == names
    assert channels_of(draft_of({}).finish(None).document["populated"]) == []


def test_very_many_names_are_not_put_into_an_index() -> None:
    document = draft_of({f"channel {n:03}": n for n in range(80)}).finish(None).document
    assert "populated" not in document
    assert len(document["values"]) == 80


# --- parents -------------------------------------------------------------------------------------------------------

EMBEDDED, BLOB = None, {"type": "bytes", "blob": "0" * 40, "parts": 1, "bytes": 9}
PARENT = Address("1", "", "1")


@pytest.mark.parametrize(
    ("values", "new", "parent", "asked"),
    [
        ({}, {"c": 1}, None, True),  # nobody knows in which segment it is, and what it hands on
        ({}, {}, Known({"c": 1}, {"c": EMBEDDED}), True),
        ({}, {}, Known({"c": 1}, {"c": BLOB}), False),
        ({}, {}, Known({"c": 1}, {}), False),
        ({}, {}, Known({"c": 0}, {"c": EMBEDDED}), False),
        ({"c": b"larger than small"}, {}, Known({"c": 1}, {"c": EMBEDDED}), False),
    ],
)
def test_the_parent_is_read_only_where_it_may_help(values: Any, new: Any, parent: Known | None, asked: bool) -> None:
    draft = draft_of(values, {"c": 1}, new, address=PARENT, parent=parent)
    assert draft.asks_parent(parent) is asked
    assert draft_of(values, {"c": 1}, new, parent=parent).asks_parent(parent) is False


@pytest.mark.parametrize(
    ("known", "version", "shared"),
    [
        (Known({"c": 1}, {"c": BLOB}), 1, True),
        (Known({"c": 1}, {"c": BLOB}), 2, False),
        (Known({}, {"c": BLOB}), 1, False),
        (Known({"c": 1}, {"c": EMBEDDED}), 1, False),
        (Known({"c": 1}, {}), 1, False),
    ],
)
def test_a_value_is_shared_only_with_the_same_version(known: Known, version: int, shared: bool) -> None:
    new = draft_of({"c": b"some long value"}, {"c": version}, {}, address=PARENT, parent=known).finish(known)
    assert (new.document["values"][0]["blob"] == BLOB["blob"]) is shared
    assert len(new.blobs) == (0 if shared else 1)


def test_a_value_that_is_not_known_to_be_stored_is_stored_though_nothing_changed() -> None:
    new = draft_of({"c": b"some long value"}, {"c": 1}, {}, address=PARENT).finish(None)
    assert [blob.data for blob in new.blobs] == [b"some long value"]


@pytest.mark.parametrize("found", [None, Known({"c": 1, "d": 1}, {}), Known({"c": 2, "d": 1}, {"c": BLOB})])
def test_no_value_is_lost_when_the_parent_is_not_what_was_remembered(found: Known | None) -> None:
    """The parent was deleted or stored anew after it was remembered; "d" makes the plan look at it."""
    remembered = Known({"c": 1, "d": 1}, {"c": BLOB, "d": EMBEDDED})
    draft = draft_of({"c": b"some long value"}, {"c": 1, "d": 1}, {}, address=PARENT, parent=remembered)
    assert draft.asks_parent(remembered)
    assert "c" in [entry["channel"] for entry in draft.finish(found).document["values"]]


def test_snapshots_are_never_embedded_and_are_carried_until_their_version_changes() -> None:
    store = Store()
    first = store.put(draft_of({"c": _DeltaSnapshot(1)}, id="1"), None)
    assert "blob" in first.document["values"][0]
    store.put(draft_of({}, {"c": 1}, {}, address=PARENT, id="2", parent=first.known), first.known)
    assert store.get("2")[0].checkpoint["channel_values"] == {"c": _DeltaSnapshot(1)}
    store.put(draft_of({}, {"c": 2}, {"c": 2}, address=PARENT.at("2"), id="3"), None)
    assert store.get("3")[0].checkpoint["channel_values"] == {}


# --- sizes and layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "metadata"),
    [
        ({f"c{i}": bytes(256 * 1024) for i in range(80)}, {}),
        ({"c": bytes(40 * 2**20)}, {}),
        ({}, {"text": "x" * (4 * 2**20 - 100)}),
        ({}, {"numbers": [0] * 1_500_000}),
        ({}, {"." * 50_000 + str(i): "%" for i in range(70)}),
    ],
    ids=["many values", "a large value", "large text", "many numbers", "long keys"],
)
def test_a_checkpoint_fits_into_a_document_or_is_refused(values: dict[str, Any], metadata: dict[str, Any]) -> None:
    try:
        new = draft_of(values, metadata=metadata, budget=None).finish(None)
    except TooLarge:
        return
    sizes = [len(bson.encode(d)) for d in (new.document, *(d for blob in new.blobs for d in blob.documents(NOW)))]
    assert max(sizes) < LARGEST


def test_what_no_document_can_hold_is_named() -> None:
    with pytest.raises(TooLarge, match=r"^metadata takes \d+ bytes"):
        draft_of({}, metadata={"text": "x" * (5 * 2**20)})
    with pytest.raises(TooLarge, match=r"^checkpoint: versions"):
        draft_of({}, {"x" * (9 * 2**20): 1})
    with pytest.raises(TooLarge, match=r"^writes: 50001 writes"):
        writes_document(SEALER, PARENT, [("a", 1)] * 50_001, "t", "", now=NOW)


@pytest.mark.parametrize("layout", [None, 0, 2, "1"])
def test_other_layouts_are_refused(layout: Any) -> None:
    store = Store()
    document = store.put(draft_of({}), None).document
    with pytest.raises(CorruptCheckpoint, match="another saver, or by a newer release"):
        check_layout({**document, "layout": layout})
    with pytest.raises(CorruptCheckpoint):
        checkpoint_tuple(SEALER, {**document, "layout": layout}, [], {})


# --- writes --------------------------------------------------------------------------------------------------------

WRITES = st.lists(st.tuples(st.sampled_from(["a", "$b", "a.b", "%", "", ERROR, INTERRUPT, RESUME]), VALUES), max_size=6)


def writes_of(writes: Any, task_id: str = "t", path: str = "p") -> tuple[dict[str, Any], dict[PartKey, bytes]]:
    document, blobs = writes_document(SEALER, PARENT, writes, task_id, path, now=NOW)
    return bson.decode(bson.encode(document)), blob_parts(d for blob in blobs for d in blob.documents(NOW))


@given(WRITES)
def test_of_a_tasks_writes_the_last_special_and_every_ordinary_one_count(writes: Any) -> None:
    document, parts = writes_of(writes)
    by_idx = {WRITES_IDX_MAP.get(channel, i): (channel, value) for i, (channel, value) in enumerate(writes)}
    stored = [(write["idx"], channel) for channel, write in entries(document)]
    assert sorted(stored) == sorted((idx, channel) for idx, (channel, _) in by_idx.items())
    expected = [("t", *by_idx[idx]) for idx in sorted(by_idx)]
    assert pending_writes(SEALER, "1", [document], parts) == expected


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("pq")), unique_by=lambda t: t[0]), st.randoms())
def test_writes_come_in_langgraphs_order(tasks: list[tuple[str, str]], shuffle: random.Random) -> None:
    documents = [writes_of([("a", path), (ERROR, task), ("b", 2)], task, path)[0] for task, path in tasks]
    shuffle.shuffle(documents)
    order = sorted(writes_sort_key(path, task, idx) for task, path in tasks for idx in (-1, 0, 2))
    channels = {-1: ERROR, 0: "a", 2: "b"}
    found = pending_writes(SEALER, "1", documents, {})
    assert [(task, channel) for task, channel, _ in found] == [(task, channels[idx]) for _, task, idx in order]


def test_a_write_that_was_saved_with_another_path_is_ordered_by_its_own() -> None:
    document, _ = writes_of([("a", 1), ("b", 2)], path="m")
    document["writes"]["b"][0]["task_path"] = "z"
    between, _ = writes_of([("c", 3)], task_id="u", path="n")
    found = pending_writes(SEALER, "1", [document, between], {})
    assert [channel for _, channel, _ in found] == ["a", "c", "b"]


def test_large_writes_move_to_blobs_and_many_fit_into_a_document() -> None:
    large = [("a", bytes(300 * 1024)), ("b", b"small")]
    document, parts = writes_of(large)
    assert [(channel, "blob" in write) for channel, write in entries(document)] == [("a", True), ("b", False)]
    assert [(c, v) for _, c, v in pending_writes(SEALER, "1", [document], parts)] == large
    many, _ = writes_document(SEALER, PARENT, [("channel", bytes(250))] * 50_000, "t", "p" * 100, now=NOW)
    assert len(bson.encode(many)) < LARGEST


def test_writes_belong_to_a_checkpoint() -> None:
    with pytest.raises(InvalidArgument, match="'checkpoint_id' is missing"):
        writes_document(SEALER, PARENT.at(None), [("a", 1)], "t", "", now=NOW)
