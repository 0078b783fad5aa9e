"""The primary is killed again and again: the writer sees nothing, and a listener misses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from langgraph_mongo_saver import AsyncCheckpointListener, AsyncMongoDBSaver, CheckpointListener, MongoDBSaver
from tests.building import checkpoint, config
from tests.listening import Heard, numbers
from tests.servers import ReplicaSet, until

pytestmark = pytest.mark.needs_mongod

TIMES = {"serverSelectionTimeoutMS": 5000, "retryWrites": True}


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    with ReplicaSet() as replica_set:
        yield replica_set


class Writer(threading.Thread):
    """Stores checkpoints, until so many are acknowledged and it is told that the kills are over."""

    def __init__(self, uri: str, db_name: str, least: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.error: BaseException | None = None
        self.enough = threading.Event()
        self._uri, self._db_name, self._least = uri, db_name, least

    def run(self) -> None:
        try:
            with MongoClient[dict[str, Any]](self._uri, **TIMES) as client:
                self._store(MongoDBSaver(client, self._db_name, retry_seconds=60))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _store(self, saver: MongoDBSaver) -> None:
        here = config()
        while len(self.acknowledged) < self._least or not self.enough.is_set():
            id_ = f"{len(self.acknowledged):06}"
            here = saver.put(here, checkpoint({"n": id_}, id=id_), {"source": "loop", "step": 1}, {"n": 1})
            self.acknowledged.append(id_)
            time.sleep(0.01)  # so that the kills come in the midst of it


def kill_primaries(replica_set: ReplicaSet, writer: Writer, heard: Heard, kills: int) -> None:
    try:
        for _ in range(kills):
            begin, told = len(writer.acknowledged), len(heard.events)
            until(lambda begin=begin: len(writer.acknowledged) >= begin + 20, "the writer goes on", 90)
            until(lambda told=told: len(heard.events) >= told + 10, "the listener goes on", 90)
            assert writer.error is None
            killed = replica_set.kill_primary()
            replica_set.wait_for_primary()
            replica_set.restart(killed)
    finally:
        writer.enough.set()


def assert_all_arrived(writer: Writer, heard: Heard) -> None:
    writer.join(120)
    assert not writer.is_alive()
    assert writer.error is None
    until(lambda: len(heard.events) >= len(writer.acknowledged), "all arrive", 60)
    assert heard.ids == writer.acknowledged == numbers(0, len(writer.acknowledged))
    positions = [event.position for event in heard.events]
    assert len(set(positions)) == len(positions)


@pytest.mark.parametrize("name", [None, "n"])
def test_every_acknowledged_checkpoint_arrives_in_order(replica_set: ReplicaSet, name: str | None) -> None:
    heard, db_name = Heard(), f"failover_{name}"
    writer = Writer(replica_set.uri, db_name, 500)
    with MongoClient[dict[str, Any]](replica_set.uri, **TIMES) as client:
        listener = CheckpointListener(MongoDBSaver(client, db_name), name=name)
        listener.on("checkpoint")(heard)
        with listener:
            writer.start()
            kill_primaries(replica_set, writer, heard, 5 if name is None else 2)
            assert_all_arrived(writer, heard)
            assert listener.status().state == "running"


async def test_every_acknowledged_checkpoint_arrives_in_order_in_a_loop(replica_set: ReplicaSet) -> None:
    heard, db_name = Heard(), "failover_async"
    writer = Writer(replica_set.uri, db_name, 200)
    async with AsyncMongoClient[dict[str, Any]](replica_set.uri, **TIMES) as client:
        listener = AsyncCheckpointListener(AsyncMongoDBSaver(client, db_name), name="n")

        @listener.on("checkpoint")
        async def hear(event: Any) -> None:
            heard(event)

        async with listener:
            writer.start()
            await asyncio.to_thread(kill_primaries, replica_set, writer, heard, 2)
            await asyncio.to_thread(assert_all_arrived, writer, heard)
            assert listener.status().state == "running"
