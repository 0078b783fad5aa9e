"""Processes that run a named listener are killed at any moment; the next one misses nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from langgraph_mongo_saver import CheckpointEvent, CheckpointListener, MongoDBSaver
from langgraph_mongo_saver.settings import LISTENERS
from tests.building import checkpoint, config
from tests.servers import Server, until

pytestmark = pytest.mark.needs_mongod

KILLS = 20
NAME = "worker"

# A process that has imported everything, and forks one for each kill.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["langgraph_mongo_saver", __name__])


def work(uri: str, db_name: str, path: str, ready: Connection) -> None:
    """What is killed: it notes each checkpoint in a file, and handles it only then."""
    with MongoClient[dict[str, Any]](uri) as client, open(path, "a", encoding="ascii") as file:
        listener = CheckpointListener(MongoDBSaver(client, db_name), name=NAME, lease_seconds=1)

        @listener.on("checkpoint", size=5)
        def note(event: CheckpointEvent) -> None:
            file.write(f"{event.checkpoint_id}\n")
            file.flush()
            os.fsync(file.fileno())

        with listener:
            ready.send(listener.status().state)
            listener.wait()


class Worker:
    """A process with a listener, until it is killed."""

    def __init__(self, uri: str, db_name: str, path: Path) -> None:
        receiver, sender = processes.Pipe(duplex=False)
        self.process = processes.Process(target=work, args=(uri, db_name, str(path), sender), daemon=True)
        self.process.start()
        sender.close()
        assert receiver.poll(60)
        self.state = receiver.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)
        assert not self.process.is_alive()


class Writer(threading.Thread):
    """Stores checkpoints until it is told that it is enough."""

    def __init__(self, saver: MongoDBSaver) -> None:
        super().__init__(daemon=True)
        self.stored: list[str] = []
        self.enough = threading.Event()
        self._saver = saver

    def run(self) -> None:
        while not self.enough.is_set():
            self.store()
            time.sleep(0.005)

    def store(self) -> str:
        id_ = f"{len(self.stored):06}"
        self._saver.put(config(), checkpoint({}, id=id_), {"source": "loop", "step": 1}, {})
        self.stored.append(id_)
        return id_


@pytest.fixture
def writer(server: Server, db_name: str) -> Iterator[Writer]:
    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        writer = Writer(saver)
        yield writer
        writer.enough.set()
        if writer.ident:
            writer.join(30)


def noted(path: Path) -> list[str]:
    # A kill may leave half a line.
    return [line for line in path.read_text(encoding="ascii").split("\n") if len(line) == 6]


def test_a_worker_killed_at_any_moment_has_missed_nothing(
    server: Server, db_name: str, writer: Writer, tmp_path: Path
) -> None:
    choose, path = random.Random(0), tmp_path / "noted"
    worker = Worker(server.uri, db_name, path)
    writer.start()
    grew = 0
    for _ in range(KILLS):
        before = path.stat().st_size
        # Within the lease of the one before, or after it; while events flow or while it is caught up with.
        time.sleep(choose.random() * 2)
        worker.kill()
        grew += path.stat().st_size > before
        worker = Worker(server.uri, db_name, path)
    writer.enough.set()
    writer.join(30)
    writer.store()
    until(lambda: set(writer.stored) <= set(noted(path)), "all are noted", 60)
    worker.kill()
    assert grew > KILLS // 4
    assert len(writer.stored) > 500
    first = list(dict.fromkeys(noted(path)))
    assert first == writer.stored


def test_another_takes_over_within_the_lease_of_one_that_was_killed(
    server: Server, db_name: str, writer: Writer, mongo: MongoClient[Any], tmp_path: Path
) -> None:
    first = Worker(server.uri, db_name, tmp_path / "first")
    second = Worker(server.uri, db_name, tmp_path / "second")
    assert (first.state, second.state) == ("running", "standby")
    leases = mongo[db_name][LISTENERS]
    writer.store()
    until(lambda: noted(tmp_path / "first") == writer.stored, "the first one is active")
    first.kill()
    lease = leases.find_one({"_id": NAME})
    assert lease is not None
    last = writer.store()
    until(lambda: leases.find_one({"_id": NAME})["owner"] != lease["owner"], "the second one takes over")
    assert datetime.now(timezone.utc) >= lease["until"]  # and not before
    until(lambda: last in noted(tmp_path / "second"), "it goes on")
    second.kill()
    assert noted(tmp_path / "first") == writer.stored[:1]
    assert noted(tmp_path / "second")[-1:] == [last]
