"""What each operation of a saver sends and makes of the replies, once for every shell.

A plan is a generator: it yields a `Request`, is sent the driver's reply (rows as a list) or thrown the driver's error,
and returns the operation's result. Everything that depends on the caller's objects is done before the generator is
made: arguments are checked and the state is serialized when a method of `Planner` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from pymongo.errors import DuplicateKeyError, WriteError

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import (
    Address,
    identifier,
    read_address,
    read_checkpoint_id,
    read_namespace,
    thread_identifier,
)
from langgraph_mongo_saver.blobs import ATTEMPTS, BlobPlans, dated, without_documents
from langgraph_mongo_saver.codec import (
    CheckpointDraft,
    Document,
    Known,
    check_layout,
    checkpoint_draft,
    checkpoint_tuple,
    entries,
    exact_metadata,
    has_layout,
    known_of,
    known_with_values,
    writes_document,
)
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument
from langgraph_mongo_saver.metadata import check_filter, matches, of_checkpoint
from langgraph_mongo_saver.pipelines import Part, Plan
from langgraph_mongo_saver.recall import Recall
from langgraph_mongo_saver.schema import activity
from langgraph_mongo_saver.settings import Settings
from langgraph_mongo_saver.values import Blob, PartKey, Sealer, part_keys

T = TypeVar("T")
Load = Callable[[], CheckpointTuple]

PAGE = 128
"""Checkpoints fetched at a time by `list`: memory holds no more, and a hundred take three commands."""


@dataclass(frozen=True)
class Listing:
    """What `list` was asked for, and how far it has got."""

    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    before: str | None
    filter: dict[str, Any]
    left: int | None
    after: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class Planner:
    """Makes the plans of one saver.

    Attributes:
        settings: what the saver was constructed with.
        sealer: its serializer.
        recall: what it remembers.
        clock: tells the time.
    """

    settings: Settings
    sealer: Sealer
    recall: Recall
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    @property
    def blobs(self) -> BlobPlans:
        """Makes the plans for values that do not stand in documents."""
        return BlobPlans(self.sealer, self.recall, self.clock)

    # --- reading ---------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        """Load a checkpoint, or the latest of a namespace."""
        return self._get_tuple(read_address(config))

    def _get_tuple(self, address: Address) -> Plan[CheckpointTuple | None]:
        while True:
            document, writes = yield from self._document(address)
            if document is None:
                return None
            try:
                parts = yield from self.blobs.fetch(_blob_keys([document], writes))
                loaded = checkpoint_tuple(self.sealer, document, writes, parts)
                self._remember(document, loaded, latest=address.checkpoint_id is None)
                self.blobs.saw(address.thread_id, document["values"])
                return loaded
            except CorruptCheckpoint:
                # Its thread may have been deleted between the two reads; then it is gone, and nothing is corrupt.
                again, _ = yield from self._document(address)
                if again is not None and again["_id"] == document["_id"]:
                    raise

    def _remember(self, document: Document, loaded: CheckpointTuple, *, latest: bool) -> None:
        before = self.recall.checkpoints.get(_address(document))
        # One that was the latest once may have got a child from another process since.
        followed = True if before and before.followed else False if latest else None
        self.recall.checkpoints.put(_address(document), known_of(document, loaded, followed))

    def _document(self, address: Address) -> Plan[tuple[Document | None, list[Document]]]:
        if self.settings.joins:
            rows = yield pipelines.checkpoint_with_writes(address, self.settings.writes)
            return (rows[0], rows[0]["writes"]) if rows else (None, [])
        rows = yield pipelines.checkpoint(address)
        if not rows:
            return None, []
        writes = yield pipelines.writes_of([address.at(rows[0]["checkpoint_id"])])
        return rows[0], writes

    def listing(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        """Check what `list` is asked for."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            given = limit if isinstance(limit, int) else type(limit).__name__
            raise InvalidArgument(
                f"limit must be None (all) or a number of checkpoints from 0 on, but {given} was given"
            )
        address = None if config is None else read_address(config)
        return Listing(
            thread_id=address and address.thread_id,
            checkpoint_ns=None if config is None else read_namespace(config),
            checkpoint_id=address and address.checkpoint_id,
            before=None if before is None else read_checkpoint_id(before, "before"),
            filter=check_filter(filter, self.settings.clear_keys),
            left=limit,
        )

    def page(self, listing: Listing) -> Plan[tuple[list[Load], Listing | None]]:
        """Fetch the next checkpoints of a listing, and tell how to go on; None at the end.

        What is fetched is deserialized one by one, since callers often stop after the first. Each page is a query of
        its own, so that no cursor stays open while the caller works on what it has got.
        """
        if listing.left == 0:
            return [], None
        size = PAGE if listing.left is None else min(PAGE, listing.left)
        documents = yield pipelines.checkpoints_page(
            listing.thread_id,
            listing.checkpoint_ns,
            checkpoint_id=listing.checkpoint_id,
            before=listing.before,
            filter=listing.filter,
            after=listing.after,
            size=size,
        )
        chosen = [d for d in documents if self._matches(listing, d)]
        loaded = (yield from self._load(chosen, gaps=bool(listing.filter))) if chosen else []
        if len(documents) < size:
            return loaded, None
        last = documents[-1]
        rest = replace(
            listing,
            left=None if listing.left is None else listing.left - len(loaded),
            after=(last["checkpoint_id"], last["thread_id"], last["checkpoint_ns"]),
        )
        return loaded, None if rest.left == 0 else rest

    def _matches(self, listing: Listing, document: Document) -> bool:
        check_layout(document)
        return not listing.filter or matches(listing.filter, exact_metadata(self.sealer, document))

    def _load(self, documents: Sequence[Document], *, gaps: bool) -> Plan[list[Load]]:
        addresses = [_address(document) for document in documents]
        writes: dict[Address, list[Document]] = {address: [] for address in addresses}
        for write in (yield pipelines.writes_of(addresses, gaps=gaps)):
            # Within a range there may be writes of checkpoints that are not stored, or stored since.
            if (found := writes.get(_address(write))) is not None:
                found.append(write)
        keys = _blob_keys(documents, [write for found in writes.values() for write in found])
        parts = yield from self.blobs.fetch(keys)
        whole = keys <= parts.keys()
        loads: list[Load] = []
        for address, document in zip(addresses, documents, strict=True):
            # Nothing of it is remembered: who lists a long history goes on from few of its checkpoints, if any.
            if whole or _blob_keys([document], writes[address]) <= parts.keys():
                loads.append(partial(checkpoint_tuple, self.sealer, document, writes[address], parts))
            elif (again := (yield from self._get_tuple(address))) is not None:
                loads.append(partial(_same, again))
        return loads

    # --- writing ---------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Plan[RunnableConfig]:
        """Store a checkpoint."""
        address = read_address(config)
        identifier(checkpoint["id"], "checkpoint: id")
        parent = self._remembered(address)
        draft = checkpoint_draft(
            self.sealer,
            address,
            checkpoint,
            of_checkpoint(config, metadata),
            new_versions,
            parent=parent,
            now=self.clock(),
            clear_keys=self.settings.clear_keys,
        )
        return self._put(draft, address, parent, checkpoint["channel_values"])

    def _remembered(self, address: Address) -> Known | None:
        if self._expired(self.recall.active.get(address.thread_id)):
            self.recall.forget_thread(address.thread_id)
        return self.recall.checkpoints.get(address) if address.checkpoint_id else None

    def _expired(self, active_at: datetime | None) -> bool:
        # What has expired may go at any moment, and its values before it.
        ttl = self.settings.ttl
        return ttl is not None and (active_at is None or self.clock() >= active_at + timedelta(seconds=ttl))

    def _put(
        self, draft: CheckpointDraft, parent_address: Address, parent: Known | None, values: Mapping[str, Any]
    ) -> Plan[RunnableConfig]:
        if draft.asks_parent(parent):
            rows = yield pipelines.known_of(parent_address)
            # Of another saver's document nothing is taken over, nor of one that has expired.
            there = bool(rows) and has_layout(rows[0]) and not self._expired(rows[0].get("active_at", self.clock()))
            followed = parent.followed if parent else None
            parent = replace(known_with_values(self.sealer, rows[0]), followed=followed) if there else None
        if parent and (place := draft.asks_place(parent)):
            parent = replace(parent, followed=bool((yield pipelines.at_place(parent_address, place))))
        new = draft.finish(parent)
        if gone := (yield from self.blobs.gone(new)):
            draft = draft.restored(self.blobs.sealed_again(new.address, gone, values))
            new = draft.finish(parent)
        active_at = yield from self.note_activity(new.address.thread_id)
        yield from self.blobs.store(new.blobs, active_at)
        for _ in range(ATTEMPTS):
            document = dated(new.document, active_at)
            try:
                yield pipelines.insert("checkpoints", document)
            except DuplicateKeyError as error:
                last = error
            except WriteError as error:
                raise without_documents(error) from None
            else:
                if known := self.recall.checkpoints.get(parent_address):
                    self.recall.checkpoints.put(parent_address, replace(known, followed=True))
                self.recall.checkpoints.put(new.address, new.known)
                return new.address.to_config()
            if (yield pipelines.replace_checkpoint(document)).matched_count:
                self.recall.checkpoints.discard(new.address.__eq__)
                return new.address.to_config()
            # A unique index on places, which this release no longer makes, refuses a second child.
            new = draft.finish(parent and replace(parent, followed=True))
        raise last

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Plan[None]:
        """Store the writes of a task."""
        address = read_address(config)
        document, blobs = writes_document(
            self.sealer,
            address,
            list(writes),
            identifier(task_id, "task_id"),
            identifier(task_path, "task_path"),
            now=self.clock(),
        )
        return self._put_writes(document, blobs)

    def _put_writes(self, document: Document, blobs: Sequence[Blob]) -> Plan[None]:
        if not document["writes"]:
            return
        active_at = yield from self.note_activity(document["thread_id"])
        yield from self.blobs.store(blobs, active_at)
        with_time = dated(document, active_at)
        for _ in range(ATTEMPTS):
            try:
                yield pipelines.insert("writes", with_time)
                return
            except DuplicateKeyError as error:
                last = error
            except WriteError as error:
                raise without_documents(error) from None
            if (yield pipelines.merge_writes(with_time)).matched_count:
                return
        raise last

    # --- expiry and deletion ---------------------------------------------------------------------------------------

    def activity(self) -> datetime | None:
        """The time to note for activity now; None if threads do not expire."""
        return None if self.settings.ttl is None else activity(self.clock(), self.settings.ttl)

    def note_activity(self, thread_id: str, *, always: bool = False) -> Plan[datetime | None]:
        """Keep all of a thread alive, if threads expire: once within a throttle's length, or always.

        Returns:
            The time that the thread's documents carry.
        """
        # Looked up once a plan: all that it stores expires with what it notes.
        active_at = self.activity()
        if active_at is None or (not always and self.recall.active.get(thread_id) == active_at):
            return active_at
        # Values before the checkpoints that need them, so that a kill in between leaves no head without its values.
        parts: tuple[Part, ...] = ("blobs", "writes", "checkpoints")
        for part in parts:
            yield pipelines.keep_alive(part, thread_id, active_at)
        self.recall.active.put(thread_id, active_at)
        return active_at

    def delete_thread(self, thread_id: str) -> Plan[None]:
        """Delete everything of a thread."""
        return self.delete_everything(thread_identifier(thread_id))

    def delete_everything(self, thread_id: str) -> Plan[None]:
        """Delete everything of a thread whose id has been checked."""
        for part in pipelines.PARTS:
            yield pipelines.delete(part, {"thread_id": thread_id})
        self.recall.forget_thread(thread_id)


def _blob_keys(checkpoints: Sequence[Document], writes: Sequence[Document]) -> set[PartKey]:
    keys: set[PartKey] = set()
    for document in (*checkpoints, *writes):
        check_layout(document)
        packed = document["values"] if "values" in document else (write for _, write in entries(document))
        keys.update(part_keys(document["thread_id"], packed))
    return keys


def _address(document: Document) -> Address:
    return Address(document["thread_id"], document["checkpoint_ns"], document["checkpoint_id"])


def _same(loaded: CheckpointTuple) -> CheckpointTuple:
    return loaded
