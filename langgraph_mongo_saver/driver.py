"""How the savers use the driver: their own options whatever the URI or the client says, and their name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from random import random
from typing import Any, ClassVar, Generic, TypeVar

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.driver_info import DriverInfo
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import _ServerMode

from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.pipelines import Part
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.recall import Recall
from langgraph_mongo_saver.settings import CHECKPOINTS, DB_NAME, WRITES, Dialect, Settings
from langgraph_mongo_saver.values import Sealer

try:
    _VERSION: str | None = version("langgraph-mongo-saver")
except PackageNotFoundError:  # run from a source tree that is not installed
    _VERSION = None

DRIVER_INFO = DriverInfo(name="langgraph-mongo-saver", version=_VERSION)
"""What the server's logs and Atlas show beside the driver's own name."""

_CODEC_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)


def introduce(client: Any) -> None:
    """Add this package's name to what a client tells the server, where the driver can (pymongo 4.14 and newer)."""
    inner = vars(client).get("delegate", client)  # Motor's client is a shell around one of pymongo
    # On older drivers the attribute is a database of that name, hence the look at the class.
    if hasattr(type(inner), "append_metadata"):
        inner.append_metadata(DRIVER_INFO)


def collections(
    client: Any,
    settings: Settings,
    write_concern: WriteConcern | None,
    read_preference: _ServerMode | None,
) -> Mapping[Part, Any]:
    """The database and collections of a saver, by part.

    Args:
        client: a client of pymongo, its async API or Motor.
        settings: the saver's settings.
        write_concern: None for majority.
        read_preference: None for the primary.
    """
    writes = WriteConcern("majority") if write_concern is None else write_concern
    # What a majority has not got yet can still be rolled back; but who writes with less must be able to read that.
    level = "majority" if writes.document.get("w") == "majority" else "local"
    database = client.get_database(
        settings.db_name,
        codec_options=_CODEC_OPTIONS,
        read_preference=ReadPreference.PRIMARY if read_preference is None else read_preference,
        write_concern=writes,
        read_concern=ReadConcern(level),
    )
    return {
        "database": database,
        "checkpoints": database[settings.checkpoints],
        "writes": database[settings.writes],
        "blobs": database[settings.blobs],
        "listeners": database[settings.listeners],
    }


ClientT = TypeVar("ClientT")


class MongoSaver(BaseCheckpointSaver[Any], Generic[ClientT]):
    """What `MongoDBSaver` and `AsyncMongoDBSaver` share: their arguments, and nothing that waits for the database.

    Attributes:
        client: the client that was given; it is never closed here.
        settings: the arguments, checked.
    """

    _is_async: ClassVar[bool]
    _new_lock: ClassVar[Callable[[], Any]]

    def __init__(
        self,
        client: ClientT,
        db_name: str = DB_NAME,
        checkpoint_collection_name: str = CHECKPOINTS,
        writes_collection_name: str = WRITES,
        ttl: float | None = None,
        serde: SerializerProtocol | None = None,
        *,
        blobs_collection_name: str | None = None,
        queryable_metadata: Collection[str] | None = None,
        accept_plaintext: bool = False,
        write_concern: WriteConcern | None = None,
        read_preference: _ServerMode | None = None,
        retry_seconds: float = 30.0,
        dialect: Dialect = "mongodb",
    ) -> None:
        """Construct a saver; nothing is sent yet.

        Args:
            client: a client; it stays yours, and open.
            db_name: the database.
            checkpoint_collection_name: the collection of checkpoints.
            writes_collection_name: the collection of pending writes.
            ttl: seconds after its last activity at which a thread expires, as a whole; None for never. A thread may
                live up to a twentieth longer, and until the server's next pass (every 60 seconds by default).
            serde: a serializer; default: LangGraph's `JsonPlusSerializer`. With an `EncryptedSerializer` only what
                `queryable_metadata` names, ids, channel names and times are stored in clear.
            blobs_collection_name: the collection of large values; default: ``checkpoint_blobs``, or for checkpoints
                in a collection of another name, that name and ``.blobs``.
            queryable_metadata: metadata keys that are stored in clear, for queries and filters; default: all, or
                with an encrypting serde ``source``, ``step`` and ``run_id``.
            accept_plaintext: whether an encrypting saver may read what is not encrypted, such as threads from before.
            write_concern: default: majority, whatever the URI or the client says.
            read_preference: default: the primary, whatever the URI or the client says.
            retry_seconds: how long an operation is repeated that fails for a passing reason, such as an election.
            dialect: ``"basic"`` for servers that cannot join with ``$lookup`` and a pipeline.

        Raises:
            InvalidArgument: naming the argument that cannot be used.
        """
        super().__init__(serde=serde)
        self._check_client(client)
        self.client = client
        self.settings = Settings.of(
            self.serde,
            db_name=db_name,
            checkpoint_collection_name=checkpoint_collection_name,
            writes_collection_name=writes_collection_name,
            blobs_collection_name=blobs_collection_name,
            ttl=ttl,
            queryable_metadata=queryable_metadata,
            accept_plaintext=accept_plaintext,
            dialect=dialect,
            retry_seconds=retry_seconds,
        )
        introduce(client)
        self._collections = collections(client, self.settings, write_concern, read_preference)
        self._recall = Recall(type(self)._new_lock)
        self._constructed()

    def _constructed(self) -> None:
        """For what a saver needs besides its arguments."""

    def _check_client(self, client: object) -> None:
        needed, other = ("AsyncMongoClient", "MongoDBSaver") if self._is_async else ("MongoClient", "AsyncMongoDBSaver")
        if isinstance(client, MongoClient if self._is_async else AsyncMongoClient):
            raise InvalidArgument(
                f"client must be a pymongo.{needed}, but a {type(client).__name__} was given, which {other} takes"
            )
        if not hasattr(client, "get_database"):
            raise InvalidArgument(
                f"client must be a pymongo.{needed}, but a {type(client).__name__} was given; "
                "for a URI there is from_conn_string"
            )

    @property
    def db(self) -> Any:
        """The database, with the options that the saver uses."""
        return self._collections["database"]

    @property
    def checkpoint_collection(self) -> Any:
        """The collection of checkpoints."""
        return self._collections["checkpoints"]

    @property
    def writes_collection(self) -> Any:
        """The collection of writes."""
        return self._collections["writes"]

    @property
    def blobs_collection(self) -> Any:
        """The collection of large values."""
        return self._collections["blobs"]

    @property
    def ttl(self) -> float | None:
        """Seconds that a thread outlives its last activity; None for ever."""
        return self.settings.ttl

    def close(self) -> None:
        """Leave the client open: it is its maker's to close. For code that closed the official saver."""

    @property
    def _planner(self) -> Planner:
        # Made anew each time, since LangGraph replaces the serde of shallow copies of a saver.
        sealer = Sealer(self.serde, self.settings.encrypted, self.settings.accept_plaintext)
        return Planner(self.settings, sealer, self._recall)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version that follows another one.

        Versions are strings that sort by their number and end at random, so that two forks never mint the same.
        Threads that have numbers as versions go on with numbers, since versions of one checkpoint are compared.

        Args:
            current: the highest version so far; None at the start.
            channel: not used any more.

        Returns:
            A higher version.

        Raises:
            InvalidArgument: if the current one is none of LangGraph's.
        """
        if isinstance(current, (int, float)):
            return current + 1
        try:
            number = 0 if current is None else int(str(current).split(".")[0])
        except ValueError:
            raise InvalidArgument(
                f"current must be a version that begins with a number, but {current!r} was given"
            ) from None
        return f"{number + 1:032}.{random():016}"
