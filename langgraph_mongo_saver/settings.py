"""What a saver is constructed with, checked; and the names of its collections."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_mongo_saver.address import identifier
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.metadata import QUERYABLE_WHEN_ENCRYPTED
from langgraph_mongo_saver.values import encrypts

DB_NAME = "checkpointing_db"
CHECKPOINTS = "checkpoints"
WRITES = "checkpoint_writes"
BLOBS = "checkpoint_blobs"
LISTENERS = "checkpoint_listeners"

Dialect = Literal["mongodb", "basic"]

# createIndexes takes expireAfterSeconds as a signed 32-bit number; a twentieth is added to the ttl.
_LONGEST_TTL = 2**31 / 1.06


@dataclass(frozen=True)
class Settings:
    """A saver's settings.

    Attributes:
        db_name: the database.
        checkpoints: the collection of checkpoints.
        writes: the collection of writes.
        blobs: the collection of large values.
        listeners: the collection of the positions of named listeners.
        ttl: seconds that a thread outlives its last activity; None for ever.
        clear_keys: metadata keys stored in clear; None for all.
        encrypted: whether the serde encrypts.
        accept_plaintext: whether an encrypting saver reads what is not encrypted.
        joins: whether the server can join (``$lookup`` with a pipeline).
        retry_seconds: how long to repeat what fails for a passing reason.
    """

    db_name: str
    checkpoints: str
    writes: str
    blobs: str
    listeners: str
    ttl: float | None
    clear_keys: frozenset[str] | None
    encrypted: bool
    accept_plaintext: bool
    joins: bool
    retry_seconds: float

    @classmethod
    def of(
        cls,
        serde: SerializerProtocol,
        *,
        db_name: str,
        checkpoint_collection_name: str,
        writes_collection_name: str,
        blobs_collection_name: str | None,
        ttl: float | None,
        queryable_metadata: Collection[str] | None,
        accept_plaintext: bool,
        dialect: Dialect,
        retry_seconds: float,
    ) -> Settings:
        """Check a saver's arguments.

        Raises:
            InvalidArgument: naming the one that cannot be used.
        """
        checkpoints = _name(checkpoint_collection_name, "checkpoint_collection_name")
        writes = _name(writes_collection_name, "writes_collection_name")
        # Savers that keep to collections of their own in one database must not share blobs.
        own = BLOBS if checkpoints == CHECKPOINTS else f"{checkpoints}.blobs"
        blobs = own if blobs_collection_name is None else _name(blobs_collection_name, "blobs_collection_name")
        if len({checkpoints, writes, blobs}) < 3:
            raise InvalidArgument(
                "checkpoint_collection_name, writes_collection_name and blobs_collection_name must differ, "
                f"but {checkpoints!r}, {writes!r} and {blobs!r} were given"
            )
        if dialect not in ("mongodb", "basic"):
            given = type(dialect).__name__
            raise InvalidArgument(f"dialect must be 'mongodb' or 'basic', but another {given} was given")
        encrypted = encrypts(serde)
        return cls(
            db_name=_name(db_name, "db_name"),
            checkpoints=checkpoints,
            writes=writes,
            blobs=blobs,
            listeners=LISTENERS if checkpoints == CHECKPOINTS else f"{checkpoints}.listeners",
            ttl=_seconds(ttl),
            clear_keys=_clear_keys(queryable_metadata, encrypted),
            encrypted=encrypted,
            accept_plaintext=bool(accept_plaintext),
            joins=dialect == "mongodb",
            retry_seconds=_positive(retry_seconds, "retry_seconds"),
        )

    def name_of(self, part: str) -> str:
        """The name of a collection by its part: checkpoints, writes or blobs."""
        return {"checkpoints": self.checkpoints, "writes": self.writes, "blobs": self.blobs}[part]


def _name(value: object, argument: str) -> str:
    name = identifier(value, argument)
    odd = set(name) & set('$\0/\\. "' if argument == "db_name" else "$\0")
    if odd or not all(name.split(".")):
        reason = f"without {sorted(odd)}" if odd else "not empty, and without empty parts between dots"
        raise InvalidArgument(f"{argument} must be a MongoDB name: {reason}")
    return name


def _positive(value: object, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        given = value if isinstance(value, (int, float)) else type(value).__name__
        raise InvalidArgument(f"{argument} must be a number of seconds from 0 on, but {given} was given")
    return value


def _seconds(ttl: float | None) -> float | None:
    if ttl is None:
        return None
    if not 0 < _positive(ttl, "ttl") <= _LONGEST_TTL:
        raise InvalidArgument(
            f"ttl must be above 0 and at most {_LONGEST_TTL:.0f} seconds, or None for no expiry, but {ttl} was given"
        )
    return ttl


def _clear_keys(queryable: Collection[str] | None, encrypted: bool) -> frozenset[str] | None:
    if queryable is None:
        return QUERYABLE_WHEN_ENCRYPTED if encrypted else None
    keys = frozenset(queryable) if isinstance(queryable, Iterable) and not isinstance(queryable, str) else None
    if keys is None or not all(isinstance(key, str) for key in keys):
        raise InvalidArgument(
            "queryable_metadata must be a collection of metadata keys (str), "
            f"but a {type(queryable).__name__} was given"
        )
    return keys
