"""The example for browsers: a client that is cut off goes on where it was."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import uvicorn
from langgraph.checkpoint.base import empty_checkpoint
from pymongo import MongoClient

from langgraph_mongo_saver import MongoDBSaver
from scripts.events_server import app
from tests.building import config
from tests.servers import Server, until

pytestmark = pytest.mark.needs_replica_set


@pytest.fixture
def port(server: Server, db_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("MONGODB_URI", server.uri)
    monkeypatch.setenv("MONGODB_DB", db_name)
    web = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=web.run)
    thread.start()
    until(lambda: web.started, "the web server has started")
    yield web.servers[0].sockets[0].getsockname()[1]
    web.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@contextmanager
def subscribed(port: int, query: str = "", last_event_id: str | None = None) -> Iterator[Iterator[dict[str, str]]]:
    """What an EventSource reads: each event's fields."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", f"/events?{query}", headers={"Last-Event-ID": last_event_id} if last_event_id else {})
    with closing(connection), connection.getresponse() as response:
        assert response.status == 200
        assert response.readline() == b": open\n"
        yield fields(response)


def fields(response: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            found[name] = value
        elif found:
            yield found
            found = {}


def put(saver: MongoDBSaver, thread_id: str, steps: range) -> None:
    for step in steps:
        saver.put(config(thread_id), empty_checkpoint(), {"source": "loop", "step": step}, {})


def steps(events: Iterator[dict[str, str]], number: int) -> list[tuple[int, str]]:
    taken = [next(events) for _ in range(number)]
    assert {event["event"] for event in taken} == {"checkpoint"}
    return [(json.loads(event["data"])["step"], event["id"]) for event in taken]


def test_a_browser_that_reconnects_misses_nothing_and_sees_nothing_twice(
    port: int, mongo: MongoClient[dict[str, Any]], db_name: str
) -> None:
    saver = MongoDBSaver(mongo, db_name)
    with subscribed(port, "kind=checkpoint&thread_id=42") as events:
        put(saver, "41", range(1))
        put(saver, "42", range(3))
        seen = steps(events, 2)
    put(saver, "42", range(3, 6))
    with subscribed(port, "kind=checkpoint&thread_id=42", seen[-1][1]) as events:
        seen += steps(events, 4)
        put(saver, "42", range(6, 7))
        seen += steps(events, 1)
    assert [step for step, _ in seen] == list(range(7))


def test_nonsense_is_a_bad_request(port: int) -> None:
    for query, headers in (("kind=nonsense", {}), ("", {"Last-Event-ID": "nonsense"})):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", f"/events?{query}", headers=headers)
            assert connection.getresponse().status == 400
