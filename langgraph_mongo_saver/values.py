"""Serialized values: embedded in the document that names them, or in `checkpoint_blobs`, referred to by digest.

A *packed* value is what stands in a document: ``{"type", "data"}`` where it is embedded, and
``{"type", "blob", "parts", "bytes"}`` where it is not. A blob is named after its content, so that the same value is
stored once in a thread, whoever stores it again; and two forks can never take each other's value for their own,
whatever versions they mint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_mongo_saver.errors import CorruptCheckpoint, PlaintextRefused, Unserializable

Packed = dict[str, Any]

PART_BYTES = 4 * 2**20
"""Bytes of one part of a blob. A document holds 16 MB, but a mongod with a small cache refuses such a write
(TransactionTooLargeForCache, measured with parts of 15 MB and a cache of 256 MB)."""


class PartKey(NamedTuple):
    """The name of one part of a blob; as a document, its `_id`."""

    thread_id: str
    blob: str
    part: int


BlobParts = Mapping[PartKey, bytes]
"""Fetched parts of blobs."""


@dataclass(frozen=True)
class Budget:
    """How much a document embeds before values move to blobs.

    A value that changed in this step is written anyway, once, and embedding it saves a round trip (1.2 ms); one that
    did not change would be written again with every later step, so all but small ones are worth a blob.

    Attributes:
        changed: bytes up to which a value that changed is embedded.
        unchanged: bytes up to which a value that did not change is embedded.
        document: bytes up to which values are embedded altogether.
    """

    changed: int = 256 * 1024
    unchanged: int = 4 * 1024
    document: int = 2**20


@dataclass(frozen=True)
class Blob:
    """A serialized value that does not stand in the document that names it."""

    thread_id: str
    data: bytes
    digest: str

    @classmethod
    def of(cls, thread_id: str, type_: str, data: bytes) -> Blob:
        """Name a serialized value after its content."""
        return cls(thread_id, data, blake2b(data, digest_size=20, person=type_.encode()[:16]).hexdigest())

    def reference(self, type_: str) -> Packed:
        """What stands in the document instead of the value."""
        return {"type": type_, "blob": self.digest, "parts": len(self._parts), "bytes": len(self.data)}

    def documents(self, now: datetime) -> list[dict[str, Any]]:
        """The documents to store, one a part."""
        return [
            {
                "_id": key._asdict(),
                "thread_id": self.thread_id,
                "stored_at": now,
                "data": data,
            }
            for key, data in zip(self.keys, self._parts, strict=True)
        ]

    @property
    def keys(self) -> Sequence[PartKey]:
        """The names of its parts."""
        return [PartKey(self.thread_id, self.digest, part) for part in range(len(self._parts))]

    @property
    def _parts(self) -> Sequence[bytes]:
        return [self.data[i : i + PART_BYTES] for i in range(0, len(self.data), PART_BYTES)]


@dataclass(frozen=True)
class Sealer:
    """Turns values into typed bytes and back, through the saver's serde.

    Attributes:
        serde: the serializer.
        encrypted: whether the serde encrypts, which its type tags tell (``msgpack+aes``).
        accept_plaintext: whether an encrypting serde may read bytes that are not encrypted.
    """

    serde: SerializerProtocol
    encrypted: bool = False
    accept_plaintext: bool = False

    def seal(self, value: Any, name: str) -> tuple[str, bytes]:
        """Serialize a value.

        Args:
            value: the value.
            name: what the caller calls it, for the error.

        Raises:
            Unserializable: if the serde cannot hold it.
        """
        try:
            type_, data = self.serde.dumps_typed(value)
        except Exception as error:  # a serde is free to raise what it likes
            raise Unserializable(
                f"{name} ({type(value).__name__}) cannot be serialized by {type(self.serde).__name__}: {error}"
            ) from error
        return type_, bytes(data)

    @property
    def loads(self) -> Callable[[tuple[str, bytes]], Any]:
        """What deserializes a value from its type and bytes.

        It raises `PlaintextRefused` if the saver encrypts and the bytes are not encrypted.
        """
        return self._loads_encrypted if self.encrypted and not self.accept_plaintext else self.serde.loads_typed

    def _loads_encrypted(self, typed: tuple[str, bytes]) -> Any:
        if "+" not in typed[0]:
            raise PlaintextRefused
        return self.serde.loads_typed(typed)

    def embed(self, value: Any, name: str) -> Packed:
        """Serialize a value to stand in the document; see `seal`."""
        type_, data = self.seal(value, name)
        return {"type": type_, "data": data}


def encrypts(serde: SerializerProtocol) -> bool:
    """Whether a serde encrypts: LangGraph's `EncryptedSerializer` adds ``+cipher`` to each type that it writes."""
    return "+" in serde.dumps_typed(None)[0]


def place(
    thread_id: str, sealed: Sequence[tuple[str, bytes]], limits: Sequence[int], document: int
) -> tuple[list[Packed], list[Blob]]:
    """Decide which values are embedded.

    Args:
        thread_id: the thread they belong to.
        sealed: the values, serialized.
        limits: for each value, the bytes up to which it may be embedded.
        document: bytes up to which values may be embedded altogether.

    Returns:
        The packed values, in the order given, and the blobs to store before the document that names them.
    """
    embedded = {i for i, (_, data) in enumerate(sealed) if len(data) <= limits[i]}
    total = sum(len(sealed[i][1]) for i in embedded)
    for i in sorted(embedded, key=lambda i: -len(sealed[i][1])):
        if total <= document:
            break
        embedded.remove(i)
        total -= len(sealed[i][1])
    packed: list[Packed] = []
    blobs: dict[str, Blob] = {}
    for i, (type_, data) in enumerate(sealed):
        if i in embedded:
            packed.append({"type": type_, "data": data})
        else:
            blob = Blob.of(thread_id, type_, data)
            blobs[blob.digest] = blob
            packed.append(blob.reference(type_))
    return packed, list(blobs.values())


def part_keys(thread_id: str, packed: Iterable[Mapping[str, Any]]) -> list[PartKey]:
    """The name of every blob part that these packed values refer to."""
    return [PartKey(thread_id, v["blob"], part) for v in packed if "blob" in v for part in range(v["parts"])]


def blob_parts(documents: Iterable[Mapping[str, Any]]) -> dict[PartKey, bytes]:
    """Fetched blob documents, ready for `unpack`."""
    return {PartKey(**document["_id"]): document["data"] for document in documents}


def unpack(sealer: Sealer, thread_id: str, packed: Iterable[Mapping[str, Any]], parts: BlobParts) -> list[Any]:
    """The values that packed ones stand for, in their order.

    Raises:
        CorruptCheckpoint: if a part of a blob is missing.
        PlaintextRefused: if the saver encrypts and a value is not encrypted.
    """
    loads = sealer.loads
    return [
        loads((each["type"], each["data"] if "data" in each else _joined(thread_id, each, parts))) for each in packed
    ]


def _joined(thread_id: str, packed: Mapping[str, Any], parts: BlobParts) -> bytes:
    try:
        return b"".join(parts[key] for key in part_keys(thread_id, [packed]))
    except KeyError:
        raise CorruptCheckpoint(
            f"A value of {packed['bytes']} bytes is missing from the blobs of thread {thread_id!r}: "
            f"blob {packed['blob']} was deleted while a checkpoint or write still refers to it"
        ) from None
