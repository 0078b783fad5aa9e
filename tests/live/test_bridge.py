"""Savers in the other world, on the wrong loop, in copies and in forks; and whose the client is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import InvalidOperation

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver, WrongEventLoop
from tests.building import checkpoint, config
from tests.faults import CommandRecorder
from tests.servers import Server
from tests.steps import LARGE, put, stored, values
from tests.surfaces import OpenSurface, Surface

ROOT = Path(__file__).parents[2]
METADATA: Any = {"source": "loop", "step": 1}
HERE = config(checkpoint_id="1")
SYNC_CALLS: Any = pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get_tuple", (config(),)),
        ("list", (None,)),
        ("put", (config(), checkpoint({"a": 1}), METADATA, {"a": 1})),
        ("put_writes", (HERE, [("a", 1)], "t")),
        ("delete_thread", ("1",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
on_async_surfaces = pytest.mark.parametrize("surface_name", ["async", "motor"])


def called(saver: Any, method: str, arguments: Any) -> None:
    result = getattr(saver, method)(*arguments)
    if method == "list":
        list(result)


@pytest.fixture
async def own(server: Server, db_name: str) -> AsyncIterator[AsyncMongoDBSaver]:
    """An async saver on this test's loop."""
    async with AsyncMongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        yield saver


# --- loops ---------------------------------------------------------------------------------------------------------


@on_async_surfaces
@SYNC_CALLS
@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
async def test_a_sync_call_on_the_savers_own_loop_is_refused_and_does_not_hang(
    saver: Surface, used: bool, method: str, arguments: Any
) -> None:
    if used:
        await saver.setup()
    # A call that waited for its own loop would stop this test for ever, wait_for included: hence a way out.
    way_out = threading.Timer(20, os._exit, [3])
    way_out.start()
    try:
        with pytest.raises(WrongEventLoop, match="own event loop"):
            called(saver.raw, method, arguments)
    finally:
        way_out.cancel()
    assert await asyncio.wait_for(saver.get_tuple(HERE), 20) is None


@on_async_surfaces
async def test_a_second_loop_is_refused_and_the_first_goes_on(saver: Surface) -> None:
    await put(saver, config(), {"a": 1}, id="1")
    with pytest.raises(WrongEventLoop, match="another event loop"):
        await asyncio.to_thread(asyncio.run, saver.get_tuple(HERE))
    with pytest.raises(WrongEventLoop, match="another event loop"):
        await asyncio.to_thread(asyncio.run, saver.list(None))
    assert await values(saver, HERE) == {"a": 1}


@SYNC_CALLS
def test_a_sync_call_while_no_loop_runs_is_refused(server: Server, db_name: str, method: str, arguments: Any) -> None:
    async def construct() -> AsyncMongoDBSaver:
        async with AsyncMongoDBSaver.from_conn_string(server.uri, db_name) as saver:
            await saver.setup()
            return saver

    for saver in (AsyncMongoDBSaver(AsyncMongoClient(server.uri, connect=False), db_name), asyncio.run(construct())):
        with pytest.raises(WrongEventLoop, match="loop to run in another thread"):
            called(saver, method, arguments)


def test_a_saver_made_outside_a_loop_belongs_to_the_one_that_uses_it_first(server: Server, db_name: str) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(server.uri, connect=False)
    saver = AsyncMongoDBSaver(client, db_name)

    async def use() -> None:
        await saver.aput(config(), checkpoint({"a": 1}, id="1"), METADATA, {"a": 1})
        assert await asyncio.to_thread(saver.get_tuple, HERE) is not None
        await client.close()

    asyncio.run(use())
    with pytest.raises(WrongEventLoop):
        asyncio.run(saver.aget_tuple(HERE))


class Stuck(AsyncMongoDBSaver):
    """Never answers."""

    reached: asyncio.Event

    async def _send(self, request: Any) -> Any:
        self.reached.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("end", ["stopped", "closed"])
def test_a_loop_that_ends_while_a_thread_waits_frees_the_thread(server: Server, db_name: str, end: str) -> None:
    saver = Stuck(AsyncMongoClient(server.uri, connect=False), db_name)
    saver.reached = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def begin() -> concurrent.futures.Future[Any]:
        saver._home.enter()
        waiting: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def wait() -> None:
            try:
                saver.get_tuple(HERE)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test has to see it
                waiting.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        await saver.reached.wait()
        return waiting

    waiting = loop.run_until_complete(begin())
    tasks = asyncio.all_tasks(loop)
    if end == "closed":  # as asyncio.run does
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
    with pytest.raises(WrongEventLoop, match="stopped before"):
        waiting.result(20)
    if end == "stopped":
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()


# --- copies and state ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["copy", "with_allowlist"])
async def test_a_copy_shares_memory_and_works(open_saver: OpenSurface, recorder: CommandRecorder, how: str) -> None:
    # A serde with a list of its own: one that allows everything has nothing to add to.
    saver = await open_saver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    copied = copy.copy(saver.raw) if how == "copy" else saver.raw.with_allowlist([("tests.surfaces", "Surface")])
    assert copied is not saver.raw
    twin = Surface(saver.name, copied)
    large = {"large": "x" * LARGE}
    first = await put(twin, config(), large)
    with recorder.recording() as seen:
        second = await put(saver, first, large, new={})
    assert seen.names == ["insert"]  # neither indexes nor the parent's values are looked up again
    assert await values(twin, second) == await values(saver, first) == large


@pytest.mark.parametrize("surface_name", ["sync-under-async", "async", "motor"])
async def test_state_changed_after_a_call_has_begun_is_stored_as_it_was(saver: Surface) -> None:
    nested, written = {"list": [1]}, [1]
    metadata, versions = {"source": "loop", "step": 1}, {"a": 1}
    given = checkpoint({"a": nested}, id="1")
    putting = asyncio.create_task(saver.raw.aput(config(), given, metadata, versions))  # type: ignore[arg-type]  # a plain dict
    await asyncio.sleep(0)
    nested["list"].append(2)
    given["channel_values"]["b"] = 2
    metadata["step"] = 2
    versions["b"] = 2
    await putting
    calls = [("c", written)]
    writing = asyncio.create_task(saver.raw.aput_writes(HERE, calls, "t"))
    await asyncio.sleep(0)
    written.append(2)
    calls.append(("d", 2))
    await writing
    loaded = await saver.get_tuple(HERE)
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"a": {"list": [1]}}
    assert loaded.metadata["step"] == 1
    assert loaded.pending_writes == [("t", "c", [1])]


# --- clients -------------------------------------------------------------------------------------------------------


async def test_close_leaves_the_given_client_open(saver: Surface) -> None:
    assert saver.raw  # for code that asks `if checkpointer`
    await put(saver, config(), {"a": 1})
    saver.raw.close()
    assert await values(saver, config()) == {"a": 1}


async def test_from_conn_string_closes_its_own_client(server: Server, db_name: str) -> None:
    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        saver.setup()
    with pytest.raises(InvalidOperation):
        saver.get_tuple(HERE)
    async with AsyncMongoDBSaver.from_conn_string(server.uri, db_name) as native:
        await native.setup()
    with pytest.raises(InvalidOperation):
        await native.aget_tuple(HERE)


def introduced(client: Any) -> str:
    return client.options.pool_options.metadata["driver"]["name"]


@pytest.mark.parametrize("surface_name", ["sync", "async"])  # Motor keeps to its own name
async def test_the_server_is_told_who_calls(saver: Surface, own: AsyncMongoDBSaver, server: Server) -> None:
    if hasattr(MongoClient, "append_metadata"):
        assert introduced(saver.raw.client).split("|").count("langgraph-mongo-saver") == 1
    assert introduced(own.client).split("|").count("langgraph-mongo-saver") == 1
    with MongoDBSaver.from_conn_string(server.uri) as blocking:
        assert introduced(blocking.client).split("|").count("langgraph-mongo-saver") == 1


# --- fork ----------------------------------------------------------------------------------------------------------

FORKING = """
import os, sys, threading, time, warnings
from pymongo import MongoClient
from langgraph_mongo_saver import MongoDBSaver
from tests.building import checkpoint, config

warnings.simplefilter("ignore")  # threads and fork: that is the test
uri, db_name = sys.argv[1:]
saver = MongoDBSaver(MongoClient(uri), db_name)
big = "x" * 300_000


def put(saver, thread_id, parent=None):
    given = checkpoint({"big": big, "n": thread_id})
    return saver.put(parent or config(thread_id), given, {"step": 1}, {"big": 1, "n": 1} if not parent else {})


first = put(saver, "before")
ended = threading.Event()
done = [0] * 4


def work(number):
    while not ended.is_set():
        put(saver, f"parent{number}")
        done[number] += 1


for number in range(4):
    threading.Thread(target=work, args=[number]).start()
while not all(done):
    time.sleep(0.01)
children = []
for number in range(5):
    pid = os.fork()
    if pid == 0:
        put(saver, f"inherited{number}")
        put(saver, "before", first)
        with MongoClient(uri) as client:
            put(MongoDBSaver(client, db_name), f"own{number}")
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
done[:] = [0] * 4
while not all(done):
    time.sleep(0.01)
ended.set()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_saver_outlives_a_fork_on_both_sides(server: Server, db_name: str, mongo: MongoClient[Any]) -> None:
    command = [sys.executable, "-c", FORKING, server.uri, db_name]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (ran.stdout.strip(), ran.returncode) == ("[0, 0, 0, 0, 0]", 0), ran.stderr[-2000:]
    found = {document["thread_id"] for document in stored(mongo, db_name)["checkpoints"]}
    assert {f"{saver}{number}" for saver in ("inherited", "own") for number in range(5)} <= found
    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        assert len(list(saver.list(config("before")))) == 6
        assert {len(loaded.checkpoint["channel_values"]["big"]) for loaded in saver.list(None)} == {LARGE}
