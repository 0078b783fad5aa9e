"""What is sent for values that do not stand in the documents that name them, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pymongo.errors import BulkWriteError, WriteError

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Document, NewCheckpoint
from langgraph_mongo_saver.errors import CorruptCheckpoint
from langgraph_mongo_saver.pipelines import Plan
from langgraph_mongo_saver.recall import Recall
from langgraph_mongo_saver.values import Blob, BlobParts, PartKey, Sealer, blob_parts, part_keys

WriteErrorT = TypeVar("WriteErrorT", WriteError, BulkWriteError)

HOLD = timedelta(minutes=1)
"""How long clean-up spares a blob that a put has found there already, and is about to refer to."""

SURE = timedelta(seconds=10)
"""How long a blob that was there is taken to be there still, when another checkpoint takes it over. Clean-up or a
deletion beside a run may have removed it, and a checkpoint that referred to it could never be read."""

ATTEMPTS = 5
"""How often a document is stored that is there when it is inserted, and gone when it is to be held, merged or replaced:
the two alternate only while others delete and store the same document; that many times is no accident."""

_DUPLICATE_KEY = 11000


@dataclass(frozen=True)
class BlobPlans:
    """Makes the plans for the blobs of one saver; see `Planner` for its attributes."""

    sealer: Sealer
    recall: Recall
    clock: Callable[[], datetime]

    def fetch(self, keys: Collection[PartKey]) -> Plan[BlobParts]:
        """Fetch parts of blobs."""
        return blob_parts((yield pipelines.whole("blobs", [key._asdict() for key in keys]))) if keys else {}

    def store(self, blobs: Sequence[Blob], active_at: datetime | None, *, held: bool = False) -> Plan[None]:
        """Store blobs, all that are not there yet.

        Args:
            blobs: the blobs, each once.
            active_at: when their thread was last active, if threads expire.
            held: whether clean-up spares those that are new for a while, whatever its grace, as it spares the others.
        """
        new = [blob for blob in blobs if not self.recall.seen.get((blob.thread_id, blob.digest))]
        there = [key._asdict() for blob in blobs if blob not in new for key in blob.keys]
        if there and not (yield from self._hold(there, active_at)):
            new = list(blobs)
        until = {"held_until": self.clock() + HOLD} if held else {}
        documents = [{**dated(d, active_at), **until} for blob in new for d in blob.documents(self.clock())]
        if documents:
            yield from self._insert(documents, active_at)
        for blob in blobs:
            self.recall.seen.put((blob.thread_id, blob.digest), self.clock())

    def _insert(self, documents: Sequence[Document], active_at: datetime | None) -> Plan[None]:
        for _ in range(ATTEMPTS):
            try:
                yield pipelines.insert_all("blobs", documents)
                return
            except BulkWriteError as error:
                last, documents = without_documents(error), already_there(documents, error)
            if (yield from self._hold([document["_id"] for document in documents], active_at)):
                return
        raise last

    def _hold(self, keys: Sequence[Document], active_at: datetime | None) -> Plan[bool]:
        """Let clean-up and expiry spare blobs for a while; whether all were still there."""
        times = dated({"held_until": self.clock() + HOLD}, active_at)
        return bool((yield pipelines.hold_blobs(keys, times)).matched_count == len(keys))

    def gone(self, new: NewCheckpoint) -> Plan[list[str]]:
        """The channels whose value was taken over from a checkpoint that somebody has deleted meanwhile."""
        now, thread_id = self.clock(), new.address.thread_id
        due = {
            channel: packed
            for channel, packed in new.taken_over.items()
            # A clock that was set back does not tell how long ago that was.
            if (seen := self.recall.seen.get((thread_id, packed["blob"]))) is None
            or not timedelta(0) <= now - seen < SURE
        }
        if not due:
            return []
        rows = yield pipelines.blobs_there([key._asdict() for key in part_keys(thread_id, due.values())])
        there = {PartKey(**row["_id"]) for row in rows}
        gone = [channel for channel, packed in due.items() if not there.issuperset(part_keys(thread_id, [packed]))]
        self.saw(thread_id, (packed for channel, packed in due.items() if channel not in gone))
        return gone

    def saw(self, thread_id: str, packed: Iterable[Mapping[str, Any]]) -> None:
        """Remember that blobs are there."""
        for each in packed:
            if "blob" in each:
                self.recall.seen.put((thread_id, each["blob"]), self.clock())

    def sealed_again(
        self, address: Address, channels: Sequence[str], values: Mapping[str, Any]
    ) -> dict[str, tuple[str, bytes]]:
        """The values of channels, serialized though they were taken to be stored.

        Raises:
            CorruptCheckpoint: if a channel has none, because its value was handed over by the parent.
        """
        self.recall.forget_thread(address.thread_id)
        for channel in channels:
            if channel not in values:
                raise CorruptCheckpoint(
                    f"Thread {address.thread_id!r}: the snapshot of channel {channel!r} was deleted while a run went "
                    f"on from it; checkpoint {address.checkpoint_id} cannot be stored without it"
                )
        return {channel: self.sealer.seal(values[channel], f"channel {channel!r}") for channel in channels}


def dated(document: Document, active_at: datetime | None) -> Document:
    """The document with the time of its thread's activity, if threads expire."""
    return document if active_at is None else {**document, "active_at": active_at}


def already_there(documents: Sequence[Document], error: BulkWriteError) -> list[Document]:
    """Those of some documents that could not be inserted because they were there already.

    Raises:
        BulkWriteError: without documents, if the insert has failed for another reason.
    """
    details = error.details or {}
    failed = details.get("writeErrors", [])
    if not failed or details.get("writeConcernErrors") or any(e["code"] != _DUPLICATE_KEY for e in failed):
        raise without_documents(error) from None
    return [documents[e["index"]] for e in failed]


def without_documents(error: WriteErrorT) -> WriteErrorT:
    """The error without the documents that failed: messages would hold the state, whatever its size.

    The driver quotes the operation, and a collection's validator the value that it refused.
    """
    details = {key: value for key, value in (error.details or {}).items() if key != "errInfo"}
    if isinstance(error, BulkWriteError):
        failed = details.get("writeErrors", [])
        details["writeErrors"] = [{k: v for k, v in e.items() if k not in ("op", "errInfo")} for e in failed]
        return type(error)(details)
    return type(error)(str(details.get("errmsg", "the write failed")), error.code, details)
