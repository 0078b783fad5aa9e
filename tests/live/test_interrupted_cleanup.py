"""Clean-up that is stopped after any of its requests, and done again: in the end as if it had never been stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import MongoClient

from langgraph_mongo_saver import MongoDBSaver
from tests.building import checkpoint, config
from tests.servers import Server
from tests.steps import LARGE
from tests.trees import counts, unused_and_missing_blobs

NOW = timedelta(0)
RUNS = ("r0", "r1")


class Killed(BaseException):
    """Not an error that anything handles."""


@contextmanager
def killed_after(saver: MongoDBSaver, requests: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    left, send = count(requests, -1), saver._send

    def sending(request: Any) -> Any:
        if next(left) <= 0:
            raise Killed
        return send(request)

    with monkeypatch.context() as patch:
        patch.setattr(saver, "_send", sending)
        yield


def grow(saver: MongoDBSaver, runs: tuple[str, ...]) -> None:
    """A thread of two runs by turns or of one, with a subgraph's call that ended at its second checkpoint."""
    before, call = config(), config("1", "call:1")
    for n in range(4):
        made = checkpoint({"a": n}, {"a": n + 1}, str(n))
        before = saver.put(before, made, {"source": "loop", "step": n, "run_id": runs[n % len(runs)]}, {"a": n + 1})
        saver.put_writes(before, [("a", f"{n}" * LARGE)], "t")
    for n in range(3):
        made = checkpoint({"a": n}, {"a": n + 1}, f"1{n}")
        metadata: Any = {"source": "loop", "step": n, "run_id": runs[-1], "parents": {"": "1"}}
        call = saver.put(call, made, metadata, {"a": n + 1})


def prune(saver: MongoDBSaver) -> None:
    saver.prune(["1"], grace=NOW)


def delete_all(saver: MongoDBSaver) -> None:
    saver.prune(["1"], strategy="delete", grace=NOW)


def delete_run(saver: MongoDBSaver) -> None:
    saver.delete_for_runs(["r1"], grace=NOW)


def found(saver: MongoDBSaver, database: Any) -> tuple[Any, ...]:
    listed = [(t.config, t.checkpoint, t.pending_writes) for t in saver.list(config())]
    return counts(database, "1"), unused_and_missing_blobs(database, "1"), listed


@pytest.mark.parametrize("runs", [("r0", "r1"), ("r1",)], ids=["two runs", "one run"])
@pytest.mark.parametrize("clean_up", [prune, delete_all, delete_run])
def test_what_was_stopped_anywhere_is_finished_by_doing_it_again(
    clean_up: Callable[[MongoDBSaver], None],
    runs: tuple[str, ...],
    server: Server,
    db_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MongoClient[Any](server.uri) as client:
        database, saver = client[db_name], MongoDBSaver(client, db_name)
        grow(saver, runs)
        whole = [loaded.checkpoint for loaded in saver.list(config())]
        clean_up(saver)
        expected = found(saver, database)
        assert expected[0] != (7, 4, 4)
        for requests in count():
            saver.delete_thread("1")
            grow(saver, runs)
            with killed_after(saver, requests, monkeypatch):
                try:
                    clean_up(saver)
                    break
                except Killed:
                    pass
            left = [loaded.checkpoint for loaded in saver.list(config())]
            assert all(each in whole for each in left)
            again = MongoDBSaver(client, db_name)
            clean_up(again)
            assert found(again, database) == expected, requests
        assert requests > 5 or clean_up is delete_all


@pytest.mark.parametrize("clean_up", [prune, delete_run])
def test_no_parent_and_no_write_is_missing_wherever_clean_up_is_stopped(
    clean_up: Callable[[MongoDBSaver], None], server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MongoClient[Any](server.uri) as client:
        saver = MongoDBSaver(client, db_name)
        for requests in count():
            saver.delete_thread("1")
            grow(saver, RUNS)
            whole = [(loaded.config, loaded.pending_writes) for loaded in saver.list(config())]
            with killed_after(saver, requests, monkeypatch):
                try:
                    clean_up(saver)
                    break
                except Killed:
                    pass
            left = list(saver.list(config()))
            assert all((loaded.config, loaded.pending_writes) in whole for loaded in left), requests
            there = client[db_name].checkpoints.distinct("checkpoint_id", {"checkpoint_ns": ""})
            parents = [loaded.parent_config["configurable"]["checkpoint_id"] for loaded in left if loaded.parent_config]
            assert set(parents) <= set(there), requests
        assert requests > 5


@pytest.mark.parametrize("dialect", ["mongodb", "basic"])
def test_what_was_kept_for_others_alone_is_whole_or_not_found_while_it_is_deleted(
    dialect: Any, server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MongoClient[Any](server.uri) as client:
        saver = MongoDBSaver(client, db_name, dialect=dialect)
        for requests in count():
            saver.delete_thread("1")
            places = [config()]
            for n in range(4):
                given = {"log": _DeltaSnapshot([n])} if n == 0 else {}
                metadata: Any = {"source": "loop", "step": n, "run_id": "r1"}
                metadata |= {"counters_since_delta_snapshot": {"log": (n, n)}} if n else {}
                made = checkpoint(given, {"log": n + 1}, str(n))
                places.append(saver.put(places[-1], made, metadata, {"log": n + 1}))
                saver.put_writes(places[-1], [("log", [n])], "t")
            prune(saver)
            whole = [saver.get_tuple(place) for place in places[1:]]
            assert None not in whole
            with killed_after(saver, requests, monkeypatch):
                try:
                    delete_run(saver)
                    break
                except Killed:
                    pass
            for place, loaded in zip(places[1:], whole, strict=True):
                assert saver.get_tuple(place) in (None, loaded), requests
                assert list(saver.list(place)) in ([], [loaded]), requests
        assert requests > 5
