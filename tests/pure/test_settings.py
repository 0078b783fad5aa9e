"""Arguments of a saver that cannot be used are refused by name, and without telling what they hold."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo import AsyncMongoClient, MongoClient

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.metadata import QUERYABLE_WHEN_ENCRYPTED
from tests.pure.driving import settings

SECRET = "s3cret"
URI = f"mongodb://user:{SECRET}@localhost"
PLAIN = JsonPlusSerializer()
AES = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
NAMES = ("db_name", "checkpoint_collection_name", "writes_collection_name", "blobs_collection_name")


BAD = [
    *((name, value) for name in NAMES for value in ("", "a$b", "a\0b", 5, {"$ne": None}, b"a", "\ud800")),
    *((name, None) for name in NAMES[:3]),
    *(("db_name", value) for value in ("a.b", "a b", "a/b", "a\\b", 'a"b')),
    *((name, value) for name in NAMES[1:] for value in ("a..b", ".a", "a.")),
    *(("ttl", value) for value in (0, -1, float("nan"), float("inf"), 2**31, True, "60", 1 + 2j)),
    *(("retry_seconds", value) for value in (-1, float("nan"), float("inf"), None, True, "1")),
    *(("dialect", value) for value in ("cosmos", None, [], "")),
    *(("queryable_metadata", value) for value in ("source", [1], {"a": 1, 2: 3}, [None], 5)),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: f"{value!a}"[:30])
def test_what_cannot_be_used_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{name} (must|holds)"):
        settings(**{name: value})


@pytest.mark.parametrize("name", [*NAMES, "ttl", "retry_seconds", "dialect", "queryable_metadata"])
@pytest.mark.parametrize("value", [f"${URI}", [URI, 1], {"uri": URI, 1: 1}, URI.encode()])
def test_what_is_refused_is_not_told(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings(**{name: value})
    assert SECRET not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "names",
    [
        {"writes_collection_name": "checkpoints"},
        {"blobs_collection_name": "checkpoints"},
        {"blobs_collection_name": "checkpoint_writes"},
        {"writes_collection_name": "checkpoint_blobs"},
    ],
)
def test_collections_must_differ(names: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="must differ"):
        settings(**{"blobs_collection_name": None, **names})


@pytest.mark.parametrize(
    ("names", "blobs"),
    [
        ({}, "checkpoint_blobs"),
        ({"checkpoint_collection_name": "mine"}, "mine.blobs"),
        ({"checkpoint_collection_name": "mine", "blobs_collection_name": "theirs"}, "theirs"),
    ],
)
def test_blobs_go_with_their_checkpoints(names: dict[str, str], blobs: str) -> None:
    assert settings(**{"blobs_collection_name": None, **names}).blobs == blobs


@pytest.mark.parametrize("ttl", [None, 0.001, 1, 60.5, 2**31 / 1.06])
def test_times_that_can_be_kept(ttl: float | None) -> None:
    assert settings(ttl=ttl).ttl == ttl
    assert settings(retry_seconds=0).retry_seconds == 0


@pytest.mark.parametrize(
    ("serde", "queryable", "keys"),
    [
        (PLAIN, None, None),
        (AES, None, QUERYABLE_WHEN_ENCRYPTED),
        (AES, ["user"], {"user"}),
        (PLAIN, ("user", "user"), {"user"}),
        (PLAIN, (), set()),
        (PLAIN, (key for key in ("a", "b")), {"a", "b"}),
    ],
)
def test_which_metadata_stays_in_clear(serde: Any, queryable: Any, keys: Any) -> None:
    found = settings(serde, queryable_metadata=queryable)
    assert found.clear_keys == keys
    assert found.encrypted is (serde is AES)


def test_a_dialect_says_whether_the_server_joins() -> None:
    assert (settings().joins, settings(dialect="basic").joins) == (True, False)


@pytest.mark.parametrize(
    ("saver", "client", "told"),
    [
        (MongoDBSaver, AsyncMongoClient, "AsyncMongoClient was given, which AsyncMongoDBSaver takes"),
        (AsyncMongoDBSaver, MongoClient, "MongoClient was given, which MongoDBSaver takes"),
        (MongoDBSaver, lambda *_, **__: URI, "a str was given; for a URI there is from_conn_string"),
        (AsyncMongoDBSaver, lambda *_, **__: None, "a NoneType was given"),
    ],
)
async def test_a_client_of_the_wrong_kind_is_named(saver: Any, client: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^client must be a .*{told}") as caught:
        saver(client("mongodb://localhost", connect=False))
    assert SECRET not in str(caught.value)
