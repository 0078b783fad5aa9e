"""Cleaning up, killed anywhere: what is left is read as before, and a second time does the rest."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern

from langgraph_mongo_saver import MongoDBSaver, copying, maintenance
from tests.building import checkpoint, config
from tests.servers import Server, until
from tests.steps import COLLECTIONS, LARGE
from tests.trees import state, unused_and_missing_blobs

NUMBER, KILLS = 100, 30
NOW = timedelta(0)
RUN_ID = "metadata.run_id"
PRISTINE, VICTIM = "pristine", "victim"

# A process that has imported everything, and forks one for each kill.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["langgraph_mongo_saver", __name__])


def work(uri: str, db_name: str, method: str, dialect: Any, done: Connection) -> None:
    """What is killed: in many small batches, so that kills come between requests."""
    maintenance._BATCH = copying._PAGE = 6
    with MongoClient[dict[str, Any]](uri, appname=VICTIM) as client:
        saver = MongoDBSaver(client, db_name, dialect=dialect)
        saver.get_tuple(config(PRISTINE))
        done.send("ready")
        clean(saver, method)
        done.send("done")


def clean(saver: MongoDBSaver, method: str) -> None:
    if method == "prune":
        saver.prune([VICTIM], keep_last=3, grace=NOW)
    elif method == "delete_for_runs":
        saver.delete_for_runs(["gone"], grace=NOW)
    else:
        saver.copy_thread(PRISTINE, VICTIM)


def grow(saver: MongoDBSaver) -> None:
    """A trunk with branches, a snapshot now and then, blobs in values and writes; runs alternate by ten."""
    places = [saver.put(config(PRISTINE), checkpoint({}, id="0000"), {"step": -1, "run_id": "kept"}, {})]
    for n in range(1, NUMBER):
        parent = places[-4] if n % 25 == 0 else places[-1]
        large = [f"{n:06}" * (LARGE // 6)] if n % 15 == 0 else [n]
        saver.put_writes(parent, [("log", large)], f"t{n}")
        snapshot = n % 40 == 0 or n % 25 == 0
        values = {"log": _DeltaSnapshot([f"snapshot {n}"])} if snapshot else {}
        values |= {"large": f"{n // 30:06}" * (LARGE // 6)}
        versions = {"log": n, "large": n // 30 + 1}
        metadata: Any = {"step": n, "run_id": "gone" if n % 20 < 10 else "kept"}
        metadata |= {} if snapshot else {"counters_since_delta_snapshot": {"log": (1, 1)}}
        new = versions if n % 30 == 0 or n == 1 else {"log": n}
        places.append(saver.put(parent, checkpoint(values, versions, f"{n:04}"), metadata, new))


@dataclass(frozen=True)
class Bench:
    """A thread that stays as it is, another that operations are killed on, and what all its checkpoints read like.

    The database is read as the saver reads it: what a majority has.
    """

    saver: MongoDBSaver
    database: Any
    uri: str
    states: Callable[[str], Any]

    def restore(self, method: str) -> None:
        if method == "copy_thread":
            self.saver.delete_thread(VICTIM)
        else:
            self.saver.copy_thread(PRISTINE, VICTIM, replace_target=True)
            for part in COLLECTIONS:  # as a copy of long ago
                self.database[part].update_many({"thread_id": VICTIM}, {"$unset": {"copied_until": ""}})
            # Only the victim's checkpoints are those of the run.
            self.database.checkpoints.update_many({"thread_id": VICTIM}, {"$rename": {"metadata.hidden": RUN_ID}})

    def documents(self) -> Any:
        fields = {"_id": 1, "parent_checkpoint_id": 1, "retired": 1}
        return {
            part: sorted(
                (*document["_id"].values(), document.get("parent_checkpoint_id") or "", document.get("retired") or "")
                for document in self.database[part].find({"thread_id": VICTIM}, fields)
            )
            for part in COLLECTIONS
        }

    def ids(self) -> list[str]:
        return sorted(self.database.checkpoints.distinct("checkpoint_id", {"thread_id": VICTIM}))


@pytest.fixture
def bench(server: Server, db_name: str, mongo: Any) -> Iterator[Bench]:
    with MongoDBSaver.from_conn_string(server.uri, db_name) as saver:
        grow(saver)
        states = cache(lambda checkpoint_id: state(saver, config(PRISTINE, "", checkpoint_id), ["log"]))
        mongo[db_name].checkpoints.update_many({}, {"$rename": {RUN_ID: "metadata.hidden"}})
        yield Bench(saver, mongo.get_database(db_name, read_concern=ReadConcern("majority")), server.uri, states)


def run(bench: Bench, method: str, dialect: str, kill_after: float | None = None) -> float | None:
    """Let a process clean up; kill it after these seconds. How long it took; None if it was killed before its end."""
    receiver, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=work, args=(bench.uri, bench.database.name, method, dialect, sender))
    child.start()
    sender.close()
    assert receiver.recv() == "ready"
    began = time.monotonic()
    done = receiver.poll(60 if kill_after is None else kill_after)
    took = time.monotonic() - began
    child.kill()
    child.join()
    assert done or kill_after is not None
    # The server may go on for a moment with what it was at.
    until(lambda: not _operations(bench), "the server has seen that it was killed")
    return took if done and receiver.recv() == "done" else None


def _operations(bench: Bench) -> list[Any]:
    stages = [{"$currentOp": {"idleConnections": True}}, {"$match": {"appName": VICTIM}}]
    return list(bench.database.client.admin.aggregate(stages))


def assert_reads_as_before(bench: Bench, method: str, final: list[str], choose: random.Random) -> None:
    fields = {"checkpoint_id": 1, "parent_checkpoint_id": 1, "retired": 1}
    nodes = {d["checkpoint_id"]: d for d in bench.database.checkpoints.find({"thread_id": VICTIM}, fields)}
    left = sorted(nodes)
    assert {node["parent_checkpoint_id"] for node in nodes.values()} <= {None, *left}
    going = [checkpoint_id for checkpoint_id in left if nodes[checkpoint_id].get("retired") == "going"]
    assert all(bench.saver.get_tuple(config(VICTIM, "", checkpoint_id)) is None for checkpoint_id in going)
    # What is to go is read as before while it can be; but for what an ancestor of those that stay once needed.
    there = set(left) - set(going)
    tips = sorted(there - {nodes[checkpoint_id]["parent_checkpoint_id"] for checkpoint_id in there})
    for checkpoint_id in {*tips, *choose.sample(left, min(len(left), 3))} if method == "copy_thread" else tips:
        assert state(bench.saver, config(VICTIM, "", checkpoint_id), ["log"]) == bench.states(checkpoint_id)
    if method != "copy_thread":
        assert set(final) <= set(left)
    assert unused_and_missing_blobs(bench.database, VICTIM)[1] == 0


@pytest.mark.needs_mongod
@pytest.mark.parametrize(
    ("method", "dialect"),
    [("prune", "mongodb"), ("delete_for_runs", "mongodb"), ("copy_thread", "mongodb"), ("copy_thread", "basic")],
)
def test_killed_and_repeated(bench: Bench, method: str, dialect: str) -> None:
    choose = random.Random(0)
    bench.restore(method)
    usual = run(bench, method, dialect)
    assert usual is not None
    expected, final = bench.documents(), bench.ids()
    killed = between = attempts = 0
    while killed < KILLS:
        attempts += 1
        assert attempts < 4 * KILLS
        bench.restore(method)
        untouched = bench.documents()
        killed += run(bench, method, dialect, choose.random() * usual * 0.8) is None
        between += bench.documents() not in (untouched, expected)
        assert_reads_as_before(bench, method, final, choose)
        clean(bench.saver, method)
        assert bench.documents() == expected
    assert between > KILLS // 4
