"""Which values are embedded, and that every value comes back whole."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_mongo_saver import values
from langgraph_mongo_saver.errors import CorruptCheckpoint, PlaintextRefused, Unserializable
from langgraph_mongo_saver.values import Blob, Packed, PartKey, Sealer, blob_parts, encrypts, part_keys, place, unpack
from tests.pure.drawing import VALUES

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
PLAIN = Sealer(JsonPlusSerializer())


@pytest.fixture(params=["aes", "plaintext accepted"])
def encrypted(request: pytest.FixtureRequest) -> Sealer:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    return Sealer(serde, encrypted=True, accept_plaintext=request.param != "aes")


def store(blobs: list[Blob]) -> dict[PartKey, bytes]:
    return blob_parts(bson.decode(bson.encode(d)) for blob in blobs for d in blob.documents(NOW))


# --- where values go -----------------------------------------------------------------------------------------------

SIZED = st.lists(st.tuples(st.binary(max_size=12), st.integers(-1, 12)), max_size=8)


@given(SIZED, st.integers(0, 40))
def test_budgets_are_kept_and_nothing_is_lost(sized: list[tuple[bytes, int]], document: int) -> None:
    sealed = [("bytes", data) for data, _ in sized]
    packed, blobs = place("1", sealed, [limit for _, limit in sized], document)
    embedded = {i: p["data"] for i, p in enumerate(packed) if "data" in p}
    assert sum(map(len, embedded.values())) <= document
    assert all(len(data) <= sized[i][1] for i, data in embedded.items())
    assert len({blob.digest for blob in blobs}) == len(blobs)
    assert unpack(PLAIN, "1", packed, store(blobs)) == [data for data, _ in sized]


@given(SIZED)
def test_what_fits_is_embedded(sized: list[tuple[bytes, int]]) -> None:
    packed, _ = place("1", [("bytes", data) for data, _ in sized], [limit for _, limit in sized], 1000)
    assert ["data" in p for p in packed] == [len(data) <= limit for data, limit in sized]


def test_the_largest_go_first_when_together_they_are_too_many() -> None:
    packed, blobs = place("1", [("bytes", b"x" * size) for size in (2, 5, 3, 4)], [9] * 4, 9)
    assert ["data" in p for p in packed] == [True, False, True, True]
    assert [len(blob.data) for blob in blobs] == [5]


def test_equal_values_share_one_blob() -> None:
    packed, blobs = place("1", [("bytes", b"same"), ("bytes", b"same"), ("bytearray", b"same")], [0, 0, 0], 0)
    assert packed[0] == packed[1]
    assert len(blobs) == 2
    assert [type(value) for value in unpack(PLAIN, "1", packed, store(blobs))] == [bytes, bytes, bytearray]


# --- blobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20, 21, 30])
def test_a_blob_is_whole_at_the_borders_of_its_parts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PART_BYTES", 10)
    data = bytes(range(size))
    (packed,), (blob,) = place("1", [("bytes", data)], [-1], 0)
    documents = blob.documents(NOW)
    assert packed["parts"] == len(documents) == -(-size // 10)
    assert packed["bytes"] == size
    assert all(len(d["data"]) <= 10 and d["thread_id"] == "1" for d in documents)
    assert [d["_id"] for d in documents] == [key._asdict() for key in part_keys("1", [packed])]
    assert unpack(PLAIN, "1", [packed], store([blob])) == [data]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_told(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PART_BYTES", 10)
    (packed,), blobs = place("1", [("bytes", bytes(25))], [0], 0)
    parts = store(blobs)
    del parts[PartKey("1", packed["blob"], missing)]
    with pytest.raises(CorruptCheckpoint, match="25 bytes is missing from the blobs of thread '1'"):
        unpack(PLAIN, "1", [packed], parts)


def test_a_blob_of_another_thread_is_not_taken() -> None:
    (packed,), blobs = place("1", [("bytes", b"abc")], [0], 0)
    with pytest.raises(CorruptCheckpoint):
        unpack(PLAIN, "2", [packed], store(blobs))


@given(st.binary(max_size=6), st.binary(max_size=6), st.sampled_from(["bytes", "msgpack+aes"]))
def test_a_digest_names_the_content(a: bytes, b: bytes, type_: str) -> None:
    assert (Blob.of("1", type_, a).digest == Blob.of("2", type_, b).digest) == (a == b)
    assert Blob.of("1", type_, a).digest != Blob.of("1", "null", a).digest


def test_a_part_fits_into_a_document() -> None:
    (largest, _) = Blob.of("t" * 1000, "bytes", bytes(values.PART_BYTES + 1)).documents(NOW)
    assert len(bson.encode(largest)) < 16 * 2**20


# --- serializing ---------------------------------------------------------------------------------------------------


@given(VALUES)
def test_a_value_comes_back(value: Any) -> None:
    packed = bson.decode(bson.encode(PLAIN.embed(value, "value")))
    assert unpack(PLAIN, "1", [packed], {}) == [value]


@pytest.mark.parametrize("value", [object(), {"a": lambda: None}, 2**64])
def test_what_cannot_be_serialized_is_named(value: Any) -> None:
    with pytest.raises(Unserializable, match=r"^channel 'x' \((object|dict|int)\) cannot be serialized by JsonPlus"):
        PLAIN.seal(value, "channel 'x'")


def test_sealed_bytes_no_longer_change() -> None:
    state = bytearray(b"before")
    _, data = PLAIN.seal(state, "value")
    state[:] = b"after!"
    assert data == b"before"


def test_an_encrypting_serializer_is_recognized(encrypted: Sealer) -> None:
    assert encrypts(encrypted.serde)
    assert not encrypts(PLAIN.serde)


@pytest.mark.parametrize("value", [None, b"", "secret", bytearray(b"x"), {"a": 1}])
def test_plaintext_is_read_only_where_it_was_agreed_to(value: Any, encrypted: Sealer) -> None:
    sealed: Packed = encrypted.embed(value, "value")
    assert b"secret" not in sealed["data"]
    assert unpack(encrypted, "1", [sealed], {}) == [value]
    plain = PLAIN.embed(value, "value")
    if encrypted.accept_plaintext:
        assert unpack(encrypted, "1", [plain], {}) == [value]
    else:
        with pytest.raises(PlaintextRefused, match="accept_plaintext=True"):
            unpack(encrypted, "1", [plain], {})
