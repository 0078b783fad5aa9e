"""Whatever fails, is killed, cancelled or races: what is read is whole, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
import inspect
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from langgraph_mongo_saver import MongoDBSaver
from tests.building import checkpoint, config
from tests.faults import set_fail_point
from tests.servers import Server
from tests.steps import LARGE, at_once, ids, put, stored, values, writes
from tests.surfaces import OpenSurface, Surface

HERE = config(checkpoint_id="1")
ROOT = Path(__file__).parents[2]

on_surfaces_that_can_be_cancelled = pytest.mark.parametrize("surface_name", ["sync-under-async", "async", "motor"])


def content(n: int) -> dict[str, Any]:
    """Channel values that tell whether they belong together, embedded and in blobs."""
    return {"n": n, "large": f"{n:03}" * (LARGE // 3), "other": [f"{n:04}" * (LARGE // 4)]}


def assert_whole(loaded: CheckpointTuple) -> int:
    """The checkpoint holds what its step says, and nothing else; returns the step."""
    step = loaded.metadata["step"]
    # Compared outside of assert, which would print megabytes.
    whole = loaded.checkpoint["channel_values"] == content(step)
    assert whole, f"step {step} is not whole"
    assert loaded.checkpoint["channel_versions"] == dict.fromkeys(content(step), step)
    return step


async def put_step(saver: Surface, before: Any, step: int, **options: Any) -> Any:
    return await put(
        saver, before, content(step), dict.fromkeys(content(step), step), metadata={"step": step}, **options
    )


@contextmanager
def fail_after(mongo: MongoClient[Any], command: str, skip: int) -> Iterator[None]:
    """Make the victim's command fail with code 2 whenever it has succeeded so often."""
    # A mode with both `times` and `skip` counts the times alone.
    data = {"failCommands": [command], "errorCode": 2, "appName": "victim"}
    set_fail_point(mongo, mode={"skip": skip} if skip else "alwaysOn", data=data)
    try:
        yield
    finally:
        set_fail_point(mongo, mode="off")


# --- failures ------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_that_fails_after_its_blobs_leaves_the_old_one(
    open_saver: OpenSurface, mongo: MongoClient[Any], db_name: str
) -> None:
    saver = await open_saver(client_appname="victim")
    first = await put_step(saver, config(), 1)
    blobs = len(stored(mongo, db_name)["checkpoint_blobs"])
    with (
        fail_after(mongo, "insert", 1),
        pytest.raises(OperationFailure, check=lambda error: error.code == 2),
    ):
        await put_step(saver, first, 2)
    assert len(stored(mongo, db_name)["checkpoint_blobs"]) > blobs
    loaded = await saver.get_tuple(config())
    assert loaded is not None
    assert loaded.config == first
    assert_whole(loaded)
    assert ids(await saver.list(None)) == ids([loaded])
    await put_step(saver, first, 2)
    assert [assert_whole(loaded) for loaded in await saver.list(None)] == [2, 1]


async def test_a_replacement_that_fails_after_its_blobs_leaves_the_old_one(
    open_saver: OpenSurface, mongo: MongoClient[Any]
) -> None:
    saver = await open_saver(client_appname="victim")
    first = await put_step(saver, config(), 1, id="1")
    with fail_after(mongo, "update", 0), pytest.raises(OperationFailure):
        await put_step(saver, config(), 2, id="1")
    assert [assert_whole(loaded) for loaded in await saver.list(None)] == [1]
    await put_step(saver, config(), 2, id="1")
    assert [assert_whole(loaded) for loaded in await saver.list(first)] == [2]


@pytest.mark.parametrize("command", ["insert", "update"])
async def test_writes_that_fail_leave_those_before(
    open_saver: OpenSurface, mongo: MongoClient[Any], db_name: str, command: str
) -> None:
    saver = await open_saver(client_appname="victim")
    await put(saver, config(), id="1")
    given: list[tuple[str, Any]] = [("a", 1), ("large", "x" * LARGE), ("b", 2)]
    before = [given[0]] if command == "update" else []
    await saver.put_writes(HERE, before, "t")
    # The blobs are inserted first; then comes the document, which is there already or not.
    skip = 1 if command == "insert" else 0
    with fail_after(mongo, command, skip), pytest.raises(OperationFailure):
        await saver.put_writes(HERE, given, "t")
    assert len(stored(mongo, db_name)["checkpoint_blobs"]) == 1
    assert await writes(saver, HERE) == [("t", *write) for write in before]
    await saver.put_writes(HERE, given, "t")
    assert await writes(saver, HERE) == [("t", *write) for write in given]


# --- kills ---------------------------------------------------------------------------------------------------------

WRITER = f"""
from __future__ import annotations
import sys
from typing import Any
from pymongo import MongoClient
from langgraph_mongo_saver import MongoDBSaver
from tests.building import checkpoint, config

LARGE = {LARGE}
{inspect.getsource(content)}
saver = MongoDBSaver(MongoClient(sys.argv[1]), sys.argv[2])
latest = saver.get_tuple(config())
step, here = (latest.metadata["step"], latest.config) if latest else (0, config())
while True:
    step += 1
    given = content(step)
    versions = dict.fromkeys(given, step)
    here = saver.put(here, checkpoint(given, versions), {{"step": step}}, versions)
    print("put", step, flush=True)
    saver.put_writes(here, list(given.items()), "task")
    print("written", step, flush=True)
"""


def run_and_kill(server: Server, db_name: str, choose: random.Random) -> set[tuple[str, int]]:
    """Let the writer write until it is killed; returns what was acknowledged."""
    command = [sys.executable, "-c", WRITER, server.uri, db_name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(choose.randrange(1, 8))]
        # Anywhere between two acknowledgements, which are some milliseconds apart.
        time.sleep(choose.random() * 0.03)
        writer.kill()
        lines += writer.stdout.readlines()
    acknowledged = {(what, int(step)) for what, step in (line.split() for line in lines if line.endswith("\n"))}
    assert acknowledged, "the writer did not get to writing"
    return acknowledged


def test_a_killed_writer_leaves_whole_checkpoints_and_all_that_was_acknowledged(server: Server, db_name: str) -> None:
    choose = random.Random(0)
    acknowledged = set[tuple[str, int]]().union(*(run_and_kill(server, db_name, choose) for _ in range(10)))
    found: set[tuple[str, int]] = set()
    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        for loaded in saver.list(None):
            step = assert_whole(loaded)
            found.add(("put", step))
            if loaded.pending_writes:
                found.add(("written", step))
                whole = loaded.pending_writes == [("task", *write) for write in content(step).items()]
                assert whole, f"the writes of step {step} are not whole"
    assert acknowledged <= found
    # Each writer went on where the one before was killed.
    steps = sorted(step for what, step in found if what == "put")
    assert steps == [*range(1, len(steps) + 1)]


# --- cancelling ----------------------------------------------------------------------------------------------------


async def cancelled(coroutine: Any, seconds: float) -> bool:
    """Start it, and cancel it after this time; whether that was before its end."""
    task = asyncio.create_task(coroutine)
    await asyncio.wait([task], timeout=seconds)
    task.cancel()
    return isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)


@on_surfaces_that_can_be_cancelled
async def test_a_cancelled_put_leaves_the_old_or_the_whole_new(saver: Surface) -> None:
    choose = random.Random(1)
    here, outcomes = await put_step(saver, config(), 1), Counter[bool]()
    began = time.monotonic()
    await put_step(saver, here, 2)
    usual = time.monotonic() - began
    for step in range(3, 28):
        was_cancelled = await cancelled(put_step(saver, here, step), choose.random() * usual * 1.5)
        outcomes[was_cancelled] += 1
        loaded = await saver.get_tuple(config())
        assert loaded is not None
        assert assert_whole(loaded) <= step if was_cancelled else assert_whole(loaded) == step
        here = loaded.config
    assert outcomes[True] >= 3
    assert len({assert_whole(loaded) for loaded in await saver.list(None)}) >= 2
    await put_step(saver, here, 99)
    assert await values(saver, config()) == content(99)


@on_surfaces_that_can_be_cancelled
async def test_cancelled_writes_are_there_wholly_or_not_at_all(saver: Surface) -> None:
    choose = random.Random(2)
    await put(saver, config(), id="1")
    given = {f"t{n:02}": [("a", n), ("large", f"{n:03}" * (LARGE // 3)), ("b", n)] for n in range(25)}
    done = {t for t, w in given.items() if not await cancelled(saver.put_writes(HERE, w, t), choose.random() * 0.01)}
    assert len(done) < len(given)
    for task, written in given.items():
        found = [(channel, value) for t, channel, value in await writes(saver, HERE) if t == task]
        assert found in ([written] if task in done else [[], written]), task
        await saver.put_writes(HERE, written, task)
    assert await writes(saver, HERE) == [(task, *write) for task, written in given.items() for write in written]


@on_surfaces_that_can_be_cancelled
async def test_a_cancelled_first_use_does_not_lock_others_out(open_saver: OpenSurface) -> None:
    for milliseconds in range(0, 20, 2):
        saver = await open_saver()
        await cancelled(saver.get_tuple(HERE), milliseconds / 1000)
        assert await asyncio.wait_for(saver.get_tuple(HERE), 30) is None


# --- races ---------------------------------------------------------------------------------------------------------


async def test_racing_writes_with_the_same_large_values_all_arrive(open_saver: OpenSurface) -> None:
    savers = [await open_saver() for _ in range(2)]
    await put(savers[0], config(), id="1")
    given = [(channel, letter * LARGE) for channel, letter in zip("abc", "xyx", strict=True)]
    tasks = [f"t{n}" for n in range(6)]
    calls = [(savers[n % 2], given[: n // 6 + 1], tasks[n % 6]) for n in range(18)]
    await asyncio.gather(*(at_once(saver, "put_writes", HERE, batch, task) for saver, batch, task in calls))
    all_there = await writes(savers[0], HERE) == [(task, *write) for task in tasks for write in given]
    assert all_there


async def test_a_reader_beside_a_writer_sees_whole_checkpoints_only(saver: Surface, open_saver: OpenSurface) -> None:
    reader = await open_saver()
    here, seen = await put_step(saver, config(), 1), [1]
    written = asyncio.Event()

    async def write() -> None:
        nonlocal here
        for step in range(2, 20):
            versions: Mapping[str, Any] = dict.fromkeys(content(step), step)
            given = checkpoint(content(step), versions)
            here = await at_once(saver, "put", here, given, {"step": step}, versions)
            again = checkpoint(content(step), versions, given["id"])
            await at_once(saver, "put", config(), again, {"step": step}, versions)
        written.set()

    writing = asyncio.create_task(write())
    while not written.is_set() and not writing.done():
        latest = await at_once(reader, "get_tuple", config())
        seen.append(assert_whole(latest))
        steps = [assert_whole(loaded) for loaded in await reader.list(config(), limit=3)]
        assert steps[0] >= seen[-1]
        assert steps == [*range(steps[0], max(steps[0] - 3, 0), -1)]
        await asyncio.sleep(0)
    await writing
    assert seen == sorted(seen)
    assert len(set(seen)) > 3


async def test_of_two_racing_puts_of_one_id_one_wins_wholly(open_saver: OpenSurface) -> None:
    savers = [await open_saver() for _ in range(2)]
    for number in range(15):
        rivals = [2 * number + 1, 2 * number + 2]
        calls = []
        for saver, step in zip(savers, rivals, strict=True):
            versions: dict[str, Any] = dict.fromkeys(content(step), step)
            given = checkpoint(content(step), versions, id=f"{number:02}")
            calls.append(at_once(saver, "put", config(checkpoint_id=str(step)), given, {"step": step}, versions))
        await asyncio.gather(*calls)
        for saver in savers:
            loaded = await saver.get_tuple(config())
            assert loaded is not None
            winner = assert_whole(loaded)
            assert winner in rivals
            assert loaded.parent_config == config(checkpoint_id=str(winner))
        assert len(await savers[0].list(config())) == number + 1
