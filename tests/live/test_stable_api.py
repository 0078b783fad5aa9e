"""The saver keeps to MongoDB's stable API, and to its own options whatever the client and the URI say."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import pytest
from bson import SON
from pymongo import ReadPreference, WriteConcern
from pymongo.server_api import ServerApi

from tests.building import config
from tests.faults import CommandRecorder, Seen
from tests.servers import Server
from tests.steps import LARGE, ids, put, values, writes
from tests.surfaces import OpenSurface, Surface

HERE = config(checkpoint_id="1")
WRITE_COMMANDS = {"insert", "update", "delete", "createIndexes"}
READ_COMMANDS = {"find", "aggregate"}
STRICT = ServerApi("1", strict=True, deprecation_errors=True)


async def do_everything(saver: Surface) -> None:
    """Send every command that a saver without expiry sends."""
    await saver.setup()
    large = {"large": "x" * LARGE}
    first = await put(saver, config(), large, id="1")
    await put(saver, config(), {**large, "again": 1}, id="1")
    await put(saver, first, large, new={}, id="2")
    for value in ("y", "z"):
        await saver.put_writes(first, [("a", value * LARGE), ("__error__", value)], "t")
    assert await writes(saver, first) == [("t", "__error__", "z"), ("t", "a", "y" * LARGE)]
    assert await values(saver, config()) == large
    assert ids(await saver.list(config(), filter={"step": 1}, before=config(checkpoint_id="2"), limit=2)) == ["1"]
    assert ids(await saver.list(None)) == ["2", "1"]
    await saver.delete_thread("1")
    assert await saver.get_tuple(config()) is None


# --- stable API ----------------------------------------------------------------------------------------------------


@pytest.mark.needs_mongod
@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
async def test_everything_is_accepted(open_saver: OpenSurface, recorder: CommandRecorder, dialect: str) -> None:
    saver = await open_saver(client_server_api=STRICT, dialect=dialect)
    with recorder.recording() as seen:
        await do_everything(saver)
    assert {*seen.names} >= {*WRITE_COMMANDS, "find"}
    # Collections that are not there yet have no indexes to list; and a command whose documents are duplicates succeeds.
    assert seen.failed == ["listIndexes"] * 3
    assert all(command.body["apiStrict"] and command.body["apiDeprecationErrors"] for command in seen)


@pytest.mark.needs_mongod
async def test_expiry_is_accepted_when_it_is_set_changed_and_dropped(
    open_saver: OpenSurface, recorder: CommandRecorder
) -> None:
    with recorder.recording() as seen:
        for ttl in (None, 60, 120, None):
            saver = await open_saver(client_server_api=STRICT, ttl=ttl)
            await saver.setup()
            await put(saver, config(), {"large": "x" * LARGE}, id="1")
            await saver.put_writes(HERE, [("a", ttl)], str(ttl))
            indexes = saver.raw.checkpoint_collection.index_information()
            found = indexes if isinstance(indexes, dict) else await indexes
            assert [index["expireAfterSeconds"] for index in found.values() if "expireAfterSeconds" in index] == (
                [] if ttl is None else [ttl * 1.05]
            )
    assert {"createIndexes", "collMod", "dropIndexes"} <= {*seen.names}


# --- options of the client -----------------------------------------------------------------------------------------


def sent(seen: Seen, commands: set[str], option: str) -> list[Any]:
    """What was sent as this option, without repetitions."""
    found: list[Any] = []
    for command in seen:
        if command.name in commands and command.body.get(option) not in found:
            found.append(command.body.get(option))
    return found


def with_options(server: Server) -> str:
    return (
        f"{server.uri}{'&' if '?' in server.uri else '?'}w=1&readPreference=secondaryPreferred&readConcernLevel=local"
    )


CLIENTS = pytest.mark.parametrize(
    "client",
    [
        {"client_w": 1, "client_readPreference": "secondaryPreferred", "client_readConcernLevel": "local"},
        "uri",
    ],
    ids=["client", "uri"],
)


@CLIENTS
async def test_concerns_of_the_client_do_not_leak(
    open_saver: OpenSurface, recorder: CommandRecorder, server: Server, client: Any
) -> None:
    saver = await open_saver(**({"uri": with_options(server)} if client == "uri" else client))
    with recorder.recording() as seen:
        await do_everything(saver)
    assert sent(seen, WRITE_COMMANDS, "writeConcern") == [{"w": "majority"}]
    assert [level["level"] for level in sent(seen, READ_COMMANDS, "readConcern")] == ["majority"]
    # A client that is connected to one member only says so to it, whatever it reads.
    modes = {option["mode"] for option in sent(seen, READ_COMMANDS, "$readPreference") if option}
    assert modes <= {"primary", "primaryPreferred"}


@pytest.mark.needs_replica_set
async def test_arguments_of_the_saver_change_them(open_saver: OpenSurface, recorder: CommandRecorder) -> None:
    saver = await open_saver(
        client_w="majority", write_concern=WriteConcern(1), read_preference=ReadPreference.SECONDARY_PREFERRED
    )
    with recorder.recording() as seen:
        await do_everything(saver)
    assert sent(seen, WRITE_COMMANDS, "writeConcern") == [{"w": 1}]
    assert [level["level"] for level in sent(seen, READ_COMMANDS, "readConcern")] == ["local"]
    assert [option["mode"] for option in sent(seen, READ_COMMANDS, "$readPreference")] == ["secondaryPreferred"]


async def test_codec_options_of_the_client_do_not_leak(open_saver: OpenSurface) -> None:
    odd = await open_saver(client_document_class=SON, client_tz_aware=False, client_uuidRepresentation="javaLegacy")
    usual = await open_saver()
    metadata = {
        "uuid": UUID(int=2**127 + 1),
        "nested": {"uuids": [UUID(int=1)], "bytes": b"\0"},
        "at": datetime(2026, 1, 1, tzinfo=timezone.utc),
    }
    large = {"large": "x" * LARGE, "uuid": UUID(int=1)}
    first = await put(odd, config(), large, metadata=metadata, id="1")
    await put(usual, config(), large, metadata=metadata, id="2")
    await odd.put_writes(first, [("a", UUID(int=1))], "t")
    for saver in (odd, usual):
        assert ids(await saver.list(None, filter=metadata)) == ["2", "1"]
        loaded = await saver.get_tuple(first)
        assert loaded is not None
        assert loaded.checkpoint["channel_values"] == large
        assert {key: loaded.metadata[key] for key in metadata} == metadata
        assert type(loaded.metadata["nested"]) is dict
        assert loaded.pending_writes == [("t", "a", UUID(int=1))]
    # What an application reads through the saver's collections is alike, too.
    read = [await found(saver, {"checkpoint_id": "1"}) for saver in (odd, usual)]
    assert read[0] == read[1]
    assert type(read[0]) is type(read[0]["metadata"]) is dict
    assert read[0]["stored_at"].tzinfo is not None


async def found(saver: Surface, query: Any) -> Any:
    result = saver.raw.checkpoint_collection.find_one(query)
    return result if isinstance(result, dict) else await result
