"""Checkpoints and writes as documents, and back.

``checkpoints`` holds one document a checkpoint, ``checkpoint_writes`` one a task. Their ``_id`` is their address, so
that a delete event of a change stream tells what went; the same address stands in plain fields for the index that the
official saver's documents share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import Any, cast

import bson
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.errors import CorruptCheckpoint, TooLarge
from langgraph_mongo_saver.metadata import field, key_of, queryable
from langgraph_mongo_saver.values import Blob, BlobParts, Budget, Packed, Sealer, place, unpack

LAYOUT = 1
"""Version of the document layout; documents without it are the official saver's."""

# The rest of a 16 MB document, once values have moved to blobs.
_METADATA_BYTES = 4 * 2**20
_SKELETON_BYTES = 8 * 2**20
_WRITES_OF_A_TASK = 50_000
_WRITES_BUDGET = Budget(changed=256 * 1024, document=4 * 2**20)

SEGMENT = 256
"""Checkpoints of a segment, a run on one branch that `lineage` takes in one hop."""

# More names would make an index of them slow; such checkpoints are scanned for.
_POPULATED_BYTES = 1024

# writes_sort_key of langgraph.checkpoint.base: task path, task id, idx.
_ORDER = itemgetter(0, 1, 2)

Document = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What is remembered of a stored checkpoint, for the one that follows it.

    Attributes:
        versions: the version of every channel.
        values: the packed value of every channel that holds one; None where it is embedded and not remembered.
        place: its segment and its number in there; None where it has none.
        followed: whether the next place in its segment is taken, by a child of it; None where nobody knows.
    """

    versions: Mapping[str, Any]
    values: Mapping[str, Packed | None]
    place: tuple[str, int] | None = None
    followed: bool | None = None

    def value(self, channel: str, version: Any) -> tuple[bool, Packed | None]:
        """Whether a channel held a value at this very version, and that value if it is remembered."""
        if version is None or self.versions.get(channel) != version or channel not in self.values:
            return False, None
        return True, self.values[channel]


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint ready to be stored: the document that commits it, and the blobs that must be there before."""

    address: Address
    document: Document
    blobs: Sequence[Blob]
    known: Known

    @property
    def taken_over(self) -> dict[str, Packed]:
        """The values, by channel, that are blobs stored with an earlier checkpoint."""
        own = {blob.digest for blob in self.blobs}
        return {e["channel"]: e for e in self.document["values"] if "blob" in e and e["blob"] not in own}


@dataclass(frozen=True)
class CheckpointDraft:
    """A checkpoint, serialized, before it is decided where its values go.

    Whatever the caller does to the state afterwards, the draft no longer changes.

    Attributes:
        address: where the checkpoint goes.
        base: the document without its values.
        sealed: the serialized value of each channel, None where the parent's is known to be the same.
        limits: for each of these channels the bytes up to which its value may be embedded.
        unchanged: the channels given again though they did not change.
        carried: channels that take over the parent's value, if it has one, with their versions. A `DeltaChannel` is
            the usual case: its snapshot is handed over once, and belongs to every later checkpoint until the
            channel's version changes.
        versions: the version of every channel.
        budget: how much to embed.
        shared: the values that are known to be the parent's.
        snapshot: whether it holds a snapshot of a `DeltaChannel`.
    """

    address: Address
    base: Document
    sealed: Mapping[str, tuple[str, bytes] | None]
    limits: Mapping[str, int]
    unchanged: frozenset[str]
    carried: Sequence[str]
    versions: Mapping[str, Any]
    budget: Budget
    shared: Mapping[str, Packed]
    snapshot: bool

    def asks_parent(self, parent: Known | None) -> bool:
        """Whether the parent's document has to be read, given what is remembered of it."""
        if self.base["parent_checkpoint_id"] is None:
            return False
        if parent is None:
            return True
        return any(parent.value(c, self.versions[c]) == (True, None) for c in self.carried)

    def asks_place(self, parent: Known) -> tuple[str, int] | None:
        """The place in its parent's segment of which has to be asked whether another checkpoint has it."""
        if parent.place is None or parent.followed is not None or self._opens(parent.place):
            return None
        return parent.place[0], parent.place[1] + 1

    def _opens(self, place: tuple[str, int]) -> bool:
        return self.snapshot or place[1] + 1 >= SEGMENT

    def restored(self, sealed: Mapping[str, tuple[str, bytes]]) -> CheckpointDraft:
        """The same draft with values of its own for channels whose value the parent no longer has."""
        return replace(
            self,
            sealed={**self.sealed, **sealed},
            shared={channel: packed for channel, packed in self.shared.items() if channel not in sealed},
            unchanged=self.unchanged - sealed.keys(),
        )

    def finish(self, parent: Known | None) -> NewCheckpoint:
        """The documents to store.

        Args:
            parent: what is known of the parent, embedded values included where `asks_parent` said so.
        """
        kept: dict[str, Packed] = dict(self.shared)
        for channel in (*self.unchanged, *self.carried):
            packed = parent.value(channel, self.versions.get(channel))[1] if parent else None
            if packed is not None and ("blob" in packed or channel in self.carried):
                kept[channel] = packed
        names = [c for c, sealed in self.sealed.items() if c not in kept and sealed is not None]
        values = [sealed for c in names if (sealed := self.sealed[c]) is not None]
        placed, blobs = place(self.address.thread_id, values, [self.limits[c] for c in names], self.budget.document)
        kept.update(zip(names, placed, strict=True))
        entries = [{"channel": c, **kept[c]} for c in (*self.sealed, *self.carried) if c in kept]
        document = {**self.base, "values": entries, **self._placed(parent)}
        holding = populated(entry["channel"] for entry in entries)
        if len(holding) <= _POPULATED_BYTES:
            document["populated"] = holding
        known = replace(_known(self.versions, entries), place=_place(document), followed=False)
        return NewCheckpoint(self.address, document, blobs, known)

    def _placed(self, parent: Known | None) -> Document:
        """The fields that tell its place: the next in its parent's segment, or the first in one of its own."""
        own: Document = {"segment": self.address.checkpoint_id, "seq": 0}
        if parent is None or parent.place is None:
            return own
        segment, seq = parent.place
        # A fork begins one, lest its ancestors' segment grows with every branch.
        if parent.followed or self._opens(parent.place):
            return {**own, "grew_from": {"segment": segment, "seq": seq}}
        return {"segment": segment, "seq": seq + 1}


def checkpoint_draft(
    sealer: Sealer,
    address: Address,
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    new_versions: ChannelVersions,
    *,
    parent: Known | None,
    now: datetime,
    clear_keys: frozenset[str] | None = None,
    budget: Budget | None = None,
) -> CheckpointDraft:
    """Serialize a checkpoint.

    Args:
        sealer: serializes values.
        address: the thread, namespace and *parent* of the checkpoint, as the config of `put` names them.
        checkpoint: the checkpoint.
        metadata: its metadata, complete.
        new_versions: the channels that changed in it.
        parent: what is remembered of the parent.
        now: the time to store with it.
        clear_keys: the metadata keys to store in clear; None for all.
        budget: how much to embed.

    Raises:
        TooLarge: if metadata or bookkeeping cannot fit into a document.
    """
    budget = budget or Budget()
    values, versions = checkpoint["channel_values"], dict(checkpoint.get("channel_versions", {}))
    own = address.at(checkpoint["id"])
    sealed: dict[str, tuple[str, bytes] | None] = {}
    limits: dict[str, int] = {}
    shared: dict[str, Packed] = {}
    for channel, value in values.items():
        same = parent.value(channel, versions.get(channel))[1] if parent and channel not in new_versions else None
        if same:
            shared[channel] = same
        sealed[channel] = None if same else sealer.seal(value, f"channel {channel!r}")
        # A snapshot is never embedded: later checkpoints take it over by reference.
        changed = -1 if isinstance(value, _DeltaSnapshot) else budget.changed
        limits[channel] = changed if channel in new_versions else budget.unchanged
    base = _base(sealer, own, address.checkpoint_id, checkpoint, metadata, clear_keys, now)
    unchanged = frozenset(c for c in values if c not in new_versions)
    carried = [c for c in versions if c not in values and c not in new_versions]
    snapshot = any(isinstance(value, _DeltaSnapshot) for value in values.values())
    return CheckpointDraft(own, base, sealed, limits, unchanged, carried, versions, budget, shared, snapshot)


def _base(
    sealer: Sealer,
    own: Address,
    parent_id: str | None,
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    clear_keys: frozenset[str] | None,
    now: datetime,
) -> Document:
    skeleton = sealer.embed({k: v for k, v in checkpoint.items() if k != "channel_values"}, "checkpoint")
    _check_size("checkpoint: versions and other bookkeeping", len(skeleton["data"]), _SKELETON_BYTES)
    exact = sealer.embed(dict(metadata), "metadata")
    _check_size("metadata", len(exact["data"]), _METADATA_BYTES)
    clear = queryable(metadata, clear_keys)
    # BSON takes more: 19.9 MB for a list of numbers of 1.5 MB. Small metadata need no measuring.
    if len(exact["data"]) > 2**16:
        _check_size("metadata as BSON", len(bson.encode(clear)), _METADATA_BYTES)
    return {
        "_id": own.key,
        **own.key,
        "parent_checkpoint_id": parent_id,
        "layout": LAYOUT,
        "stored_at": now,
        "metadata": clear,
        "exact_metadata": exact,
        "skeleton": skeleton,
    }


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"{what} takes {size} bytes; at most {limit} can be stored")


def populated(channels: Iterable[str]) -> str:
    """The names of the channels that hold a value, as one string for an index; more can be appended to it."""
    return "".join(f"{json.dumps(channel)}\n" for channel in channels)


def channels_of(names: str) -> list[str]:
    """The names that `populated` made a string of."""
    return [json.loads(name) for name in names.splitlines()]


def _known(versions: Mapping[str, Any], entries: Iterable[Packed]) -> Known:
    return Known(
        dict(versions),
        {e["channel"]: None if "data" in e else {k: v for k, v in e.items() if k != "channel"} for e in entries},
    )


def known_with_values(sealer: Sealer, document: Document) -> Known:
    """What a stored checkpoint hands on to the next, embedded values included."""
    values = {e["channel"]: {k: v for k, v in e.items() if k != "channel"} for e in document["values"]}
    return Known(skeleton_of(sealer, document).get("channel_versions", {}), values, _place(document))


def _place(document: Document) -> tuple[str, int] | None:
    return (document["segment"], document["seq"]) if "segment" in document else None


def skeleton_of(sealer: Sealer, document: Document) -> dict[str, Any]:
    """A stored checkpoint without its values."""
    packed = document["skeleton"]
    return cast(dict[str, Any], sealer.loads((packed["type"], packed["data"])))


def has_layout(document: Document) -> bool:
    """Whether a document has the layout that this release writes."""
    return document.get("layout") == LAYOUT


def check_layout(document: Document) -> None:
    """Refuse documents of a layout that this release cannot read.

    Raises:
        CorruptCheckpoint: if the document has another layout.
    """
    if not has_layout(document):
        raise CorruptCheckpoint(
            f"A document of thread {document.get('thread_id')!r}, namespace {document.get('checkpoint_ns')!r}, "
            f"checkpoint {document.get('checkpoint_id')!r} has layout {document.get('layout')!r}; this release reads "
            f"{LAYOUT}. It was written by another saver, or by a newer release of this one."
        )


def checkpoint_tuple(
    sealer: Sealer, document: Document, writes: Iterable[Document], parts: BlobParts
) -> CheckpointTuple:
    """A stored checkpoint as LangGraph reads it.

    Args:
        sealer: deserializes values.
        document: the checkpoint's document.
        writes: the documents of its tasks' writes.
        parts: the blob parts that both refer to.

    Raises:
        CorruptCheckpoint: if a blob is missing or the layout is unknown.
        PlaintextRefused: if the saver encrypts and the document is not encrypted.
    """
    check_layout(document)
    address = Address(document["thread_id"], document["checkpoint_ns"], document["checkpoint_id"])
    entries = document["values"]
    values = dict(zip((e["channel"] for e in entries), unpack(sealer, address.thread_id, entries, parts), strict=True))
    parent_id = document.get("parent_checkpoint_id")
    return CheckpointTuple(
        config=address.to_config(),
        checkpoint=cast(Checkpoint, {**skeleton_of(sealer, document), "channel_values": values}),
        metadata=exact_metadata(sealer, document),
        parent_config=address.at(parent_id).to_config() if parent_id else None,
        pending_writes=pending_writes(sealer, address.thread_id, writes, parts),
    )


def known_of(document: Document, loaded: CheckpointTuple, followed: bool | None) -> Known:
    """What to remember of a checkpoint that was loaded from this document."""
    known = _known(loaded.checkpoint.get("channel_versions", {}), document["values"])
    return replace(known, place=_place(document), followed=followed)


def exact_metadata(sealer: Sealer, document: Document) -> CheckpointMetadata:
    """The metadata of a stored checkpoint, with its types."""
    packed = document["exact_metadata"]
    return cast(CheckpointMetadata, sealer.loads((packed["type"], packed["data"])))


def writes_document(
    sealer: Sealer,
    address: Address,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    *,
    now: datetime,
) -> tuple[Document, list[Blob]]:
    """The writes of one task as the document to store, and the blobs that must be there before.

    Where one call holds several writes for the same index, the last special and the first ordinary one count, as they
    would in calls of their own.

    Raises:
        TooLarge: if there are more writes than a document can hold.
    """
    if len(writes) > _WRITES_OF_A_TASK:
        raise TooLarge(
            f"writes: {len(writes)} writes of one task were given; at most {_WRITES_OF_A_TASK} can be stored"
        )
    by_idx: dict[int, tuple[str, Any]] = {}
    for position, (channel, value) in enumerate(writes):
        by_idx[WRITES_IDX_MAP.get(channel, position)] = (channel, value)
    ordered = sorted(by_idx.items())
    sealed = [sealer.seal(value, f"write to channel {channel!r}") for _, (channel, value) in ordered]
    limits = [_WRITES_BUDGET.changed] * len(sealed)
    placed, blobs = place(address.thread_id, sealed, limits, _WRITES_BUDGET.document)
    by_channel: dict[str, list[Packed]] = {}
    for (idx, (channel, _)), packed in zip(ordered, placed, strict=True):
        by_channel.setdefault(field(channel), []).append({"idx": idx, **packed})
    document = {
        "_id": {**address.key, "task_id": task_id},
        **address.key,
        "task_id": task_id,
        "task_path": task_path,
        "layout": LAYOUT,
        "stored_at": now,
        "idxs": [idx for idx, _ in ordered if idx >= 0],
        "writes": by_channel,
    }
    return document, blobs


def entries(document: Document) -> list[tuple[str, Packed]]:
    """A task's writes, packed, each with its channel."""
    return [(key_of(name), write) for name, writes in document["writes"].items() for write in writes]


def pending_writes(
    sealer: Sealer, thread_id: str, documents: Iterable[Document], parts: BlobParts
) -> list[PendingWrite]:
    """Stored writes in the order in which LangGraph applies them: `writes_sort_key`, by task path, task id and idx.

    Raises:
        CorruptCheckpoint: if a blob is missing or the layout is unknown.
        PlaintextRefused: if the saver encrypts and a write is not encrypted.
    """
    found: list[tuple[str, str, int, str, Packed]] = []
    for document in documents:
        check_layout(document)
        path, task_id = str(document["task_path"]), str(document["task_id"])
        found += [(w.get("task_path", path), task_id, w["idx"], channel, w) for channel, w in entries(document)]
    found.sort(key=_ORDER)
    values = unpack(sealer, thread_id, (write for *_, write in found), parts)
    return [(task_id, channel, value) for (_, task_id, _, channel, _), value in zip(found, values, strict=True)]


def written_since(
    documents: Iterable[Document], ranks: Mapping[str, int], begins: Mapping[str, int]
) -> dict[str, list[tuple[str, Packed]]]:
    """The writes to some channels, packed, each with its task's id: by checkpoint, and then in LangGraph's order.

    Args:
        documents: the documents of the writes.
        ranks: the place of each checkpoint in the order, by its id; writes of others are left out.
        begins: for each channel, the rank of the first checkpoint whose writes to it are wanted.

    Raises:
        CorruptCheckpoint: if a document has an unknown layout.
    """
    never = len(ranks)
    named = {field(channel): begin for channel, begin in begins.items()}
    found: dict[str, list[tuple[int, str, str, Sequence[Packed]]]] = {name: [] for name in named}
    for document in documents:
        check_layout(document)
        if (rank := ranks.get(document["checkpoint_id"])) is None:
            continue
        path, task_id = document["task_path"], document["task_id"]
        for name, writes in document["writes"].items():
            if rank < named.get(name, never) or not writes:
                continue
            # What was merged into the writes of a task stands behind them, with its own path.
            if "task_path" in writes[-1]:
                found[name] += [(rank, own, task_id, of_path) for own, of_path in _by_path(path, writes)]
            else:
                found[name].append((rank, path, task_id, writes))
    for tasks in found.values():
        tasks.sort(key=_ORDER)
    return {
        channel: [(task_id, write) for _, _, task_id, writes in tasks for write in writes]
        for channel, tasks in zip(begins, found.values(), strict=True)
    }


def _by_path(path: str, writes: Sequence[Packed]) -> Iterable[tuple[str, Sequence[Packed]]]:
    paths: dict[str, list[Packed]] = {}
    for write in sorted(writes, key=itemgetter("idx")):
        paths.setdefault(write.get("task_path", path), []).append(write)
    return paths.items()
