"""What passes by itself is not seen by callers; what lasts is, once and as it is; and no error tells secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure, PyMongoError

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver
from tests.building import checkpoint, config
from tests.faults import CommandRecorder, Proxy, fail_command
from tests.servers import Server
from tests.steps import LARGE, at_once, ids, put, stored, values, writes
from tests.surfaces import OpenSurface, Surface

HERE = config(checkpoint_id="1")
VICTIM = "victim"
TIMES = 3  # the driver itself repeats once

passing = pytest.mark.parametrize(
    "failure",
    [{"error_code": 10107}, {"error_code": 91}, {"error_code": 11600}, {"close_connection": True}],
    ids=["NotWritablePrimary", "ShutdownInProgress", "InterruptedAtShutdown", "cut"],
)
without_the_drivers_retries = pytest.mark.parametrize(
    "client",
    [{}, {"client_retryWrites": False, "client_retryReads": False}],
    ids=["driver repeats", "driver does not"],
)
each_operation = pytest.mark.parametrize("command", ["insert", "update", "aggregate", "find", "delete"])


@pytest.fixture(autouse=True)
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # After an error of the server, the driver looks at it again at most twice a second, and every attempt waits for
    # that. Only where the driver has the constant: else the tests take longer.
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02, raising=False)


async def ready(open_saver: OpenSurface, **options: Any) -> Surface:
    """A saver in whose database checkpoint 1 with a write is stored."""
    saver = await open_saver(client_appname=VICTIM, client_serverMonitoringMode="poll", **options)
    await put(saver, config(), {"a": "first"}, id="1")
    await saver.put_writes(HERE, [("c", 1)], "t")
    return saver


async def act(saver: Surface, command: str) -> None:
    """An operation that sends this command, and a look whether it did its work."""
    if command == "insert":
        await put(saver, HERE, {"a": "x" * LARGE}, id="2")
        assert await values(saver, config()) == {"a": "x" * LARGE}
    elif command == "update":
        await saver.put_writes(HERE, [("c", 2), ("d", 2)], "t")
        assert await writes(saver, HERE) == [("t", "c", 1), ("t", "d", 2)]
    elif command == "aggregate":
        assert await values(saver, config()) == {"a": "first"}
    elif command == "find":
        assert ids(await saver.list(None)) == ["1"]
    else:
        await saver.delete_thread("1")
        assert await saver.get_tuple(config()) is None


@passing
@without_the_drivers_retries
async def test_what_passes_is_not_seen(
    open_saver: OpenSurface,
    mongo: MongoClient[Any],
    recorder: CommandRecorder,
    failure: dict[str, Any],
    client: dict[str, bool],
) -> None:
    saver = await ready(open_saver, **client)
    for command in ("insert", "update"):
        with fail_command(mongo, [command], times=TIMES, app_name=VICTIM, **failure), recorder.recording() as seen:
            await act(saver, command)
        assert seen.failed == [command] * TIMES
    await saver.delete_thread("1")
    saver = await ready(open_saver, **client)
    for command in ("aggregate", "find", "delete"):
        with fail_command(mongo, [command], times=TIMES, app_name=VICTIM, **failure), recorder.recording() as seen:
            await act(saver, command)
        assert seen.failed == [command] * TIMES


@pytest.mark.parametrize("code", [2, 13])
@each_operation
async def test_what_lasts_is_seen_at_once_and_as_it_is(
    open_saver: OpenSurface, mongo: MongoClient[Any], recorder: CommandRecorder, command: str, code: int
) -> None:
    saver = await ready(open_saver)
    with fail_command(mongo, [command], times=None, error_code=code, app_name=VICTIM):
        with recorder.recording() as seen, pytest.raises(OperationFailure) as caught:
            await act(saver, command)
        assert type(caught.value) is OperationFailure
        assert caught.value.code == code
        assert seen.names.count(command) == 1
    await act(saver, command)


@each_operation
async def test_repeating_ends_in_time_with_the_real_error(
    open_saver: OpenSurface, mongo: MongoClient[Any], command: str
) -> None:
    saver = await ready(open_saver, retry_seconds=0.3)
    with fail_command(mongo, [command], times=None, error_code=91, app_name=VICTIM):
        began = time.monotonic()
        with pytest.raises(AutoReconnect) as caught:
            await act(saver, command)
        assert 0.3 <= time.monotonic() - began < 10
    assert isinstance(caught.value, NotPrimaryError)
    assert caught.value.details["code"] == 91
    await act(saver, command)


async def test_without_time_nothing_is_repeated(
    open_saver: OpenSurface, mongo: MongoClient[Any], recorder: CommandRecorder
) -> None:
    saver = await ready(open_saver, retry_seconds=0, client_retryWrites=False)
    failing = fail_command(mongo, ["insert"], error_code=91, app_name=VICTIM)
    with failing, recorder.recording() as seen, pytest.raises(AutoReconnect):
        await act(saver, "insert")
    assert seen.names == ["insert"]


# --- connections ---------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    target = urlsplit(server.uri)
    assert target.hostname
    with Proxy(target.hostname, target.port or 27017) as proxy:
        yield proxy


@without_the_drivers_retries
async def test_an_outage_delays_a_put_and_it_is_stored_once(
    proxy: Proxy, open_saver: OpenSurface, mongo: MongoClient[Any], db_name: str, client: dict[str, bool]
) -> None:
    saver = await open_saver(uri=proxy.uri, **client)
    await put(saver, config(), {"a": "first"}, id="1")
    given = checkpoint({"a": "x" * LARGE}, id="2")
    proxy.refuse()
    began = time.monotonic()
    putting = asyncio.ensure_future(at_once(saver, "put", HERE, given, {"step": 2}, {"a": 1}))
    while not proxy.refused or time.monotonic() < began + 1:
        await asyncio.sleep(0.02)
        assert not putting.done()
    proxy.accept()
    await putting
    assert [document["checkpoint_id"] for document in stored(mongo, db_name)["checkpoints"]] == ["1", "2"]
    assert len(stored(mongo, db_name)["checkpoint_blobs"]) == 1
    assert await values(saver, config()) == {"a": "x" * LARGE}


async def test_connections_cut_again_and_again_are_not_seen(proxy: Proxy, open_saver: OpenSurface) -> None:
    saver = await open_saver(uri=proxy.uri)
    for number in range(8):
        putting = asyncio.ensure_future(at_once(saver, "put", config(), checkpoint({"n": number}), {}, {"n": 1}))
        await asyncio.sleep(0)
        proxy.cut()
        await asyncio.wait_for(putting, 60)
    assert [loaded.checkpoint["channel_values"]["n"] for loaded in await saver.list(None)] == [*reversed(range(8))]


@without_the_drivers_retries
@pytest.mark.parametrize("size", [1, LARGE], ids=["embedded", "blob"])
async def test_an_insert_that_succeeded_unheard_leaves_one_whole_checkpoint(
    open_saver: OpenSurface,
    mongo: MongoClient[Any],
    db_name: str,
    recorder: CommandRecorder,
    size: int,
    client: dict[str, bool],
) -> None:
    saver = await ready(open_saver, **client)
    # The server does the work, and says then that it could not be confirmed.
    unheard = {"code": 91, "errmsg": "Replication is being shut down"}
    failures = {"times": TIMES, "write_concern_error": unheard, "app_name": VICTIM}
    with fail_command(mongo, ["insert"], **failures), recorder.recording() as seen:
        await put(saver, HERE, {"a": "x" * size}, metadata={"m": 1}, id="2")
    assert seen.names.count("insert") > 1
    with fail_command(mongo, ["insert"], **failures):
        await saver.put_writes(config(checkpoint_id="2"), [("c", "y" * size), ("__error__", 2)], "t")
    found = stored(mongo, db_name)
    assert [document["checkpoint_id"] for document in found["checkpoints"]] == ["1", "2"]
    assert len(found["checkpoint_writes"]) == 2
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"a": "x" * size}
    assert loaded.metadata["m"] == 1
    assert loaded.parent_config == HERE
    assert loaded.pending_writes == [("t", "__error__", 2), ("t", "c", "y" * size)]


# --- secrets -------------------------------------------------------------------------------------------------------

PASSWORD = "hunter2"
STATE = "the-patients-name"


async def test_no_error_tells_the_password(open_saver: OpenSurface, server: Server) -> None:
    host = urlsplit(server.uri).netloc
    uris = {
        "unreachable": f"mongodb://user:{PASSWORD}@127.0.0.1:9/?serverSelectionTimeoutMS=200",
        "refused": f"mongodb://user:{PASSWORD}@{host}/?serverSelectionTimeoutMS=2000&authMechanism=SCRAM-SHA-256",
    }
    for uri in uris.values():
        saver = await open_saver(uri=uri, retry_seconds=0.1)
        with pytest.raises(PyMongoError) as caught:
            await saver.setup()
        assert PASSWORD not in f"{caught.value!s} {caught.value!r} {saver.raw!r}"
    for malformed in (f"mongodb://user:{PASSWORD}@@host", f"mongodb://us@er:{PASSWORD}@host", f"http://u:{PASSWORD}@h"):
        with pytest.raises(PyMongoError) as caught, MongoDBSaver.from_conn_string(malformed):
            pass
        assert PASSWORD not in f"{caught.value!s} {caught.value!r}"
        with pytest.raises(PyMongoError) as caught:
            async with AsyncMongoDBSaver.from_conn_string(malformed):
                pass
        assert PASSWORD not in f"{caught.value!s} {caught.value!r}"


@pytest.mark.parametrize("code", [2, 91])
async def test_a_command_that_fails_does_not_tell_the_state(
    open_saver: OpenSurface, mongo: MongoClient[Any], code: int
) -> None:
    saver = await ready(open_saver, retry_seconds=0.1)
    for size in (1, LARGE):
        with fail_command(mongo, ["insert"], times=None, error_code=code, app_name=VICTIM):
            with pytest.raises(PyMongoError) as caught:
                await put(saver, HERE, {"a": STATE * size})
            assert STATE not in f"{caught.value!s} {caught.value!r}"
            with pytest.raises(PyMongoError) as caught:
                await saver.put_writes(HERE, [("a", STATE * size)], "other")
            assert STATE not in f"{caught.value!s} {caught.value!r}"


@pytest.mark.needs_mongod
@pytest.mark.parametrize("rule", ["never", "type"])
@pytest.mark.parametrize("collection", ["checkpoints", "checkpoint_writes", "checkpoint_blobs"])
async def test_a_document_that_is_refused_does_not_tell_the_state(
    saver: Surface, mongo: MongoClient[Any], db_name: str, collection: str, rule: str
) -> None:
    await saver.setup()
    field = {"checkpoints": "values", "checkpoint_writes": "writes", "checkpoint_blobs": "data"}[collection]
    validator: dict[str, Any] = {field: {"$type": "string"}} if rule == "type" else {"refused": True}
    mongo[db_name].command("collMod", collection, validator=validator)
    state = STATE * (20_000 if collection == "checkpoint_blobs" else 1)
    storing = saver.put_writes(HERE, [("a", state)], "t") if field == "writes" else put(saver, config(), {"a": state})
    with pytest.raises(OperationFailure) as caught:
        await storing
    assert caught.value.code in (121, 65)
    assert STATE not in f"{caught.value!s} {caught.value!r}"
