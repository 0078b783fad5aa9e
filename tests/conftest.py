"""Every rule about the servers that tests run on.

- ``--mongo-uri``, or ``MONGODB_URI`` in the environment: that server, and nothing else.
- ``--mongo-server=docker|mongod|secantus``: that kind, and nothing else.
- Otherwise the first of the three kinds that is there. Without any, tests that need a server skip.
- What was asked for and does not answer ends the run at once.
- Every test gets a database of its own, dropped afterwards.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from langgraph_mongo_saver.errors import NoServerFound
from tests.faults import CommandRecorder
from tests.servers import Server, ask, docker_server, local_server

_KINDS = ("docker", "mongod", "secantus")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mongo")
    group.addoption("--mongo-uri", default=os.environ.get("MONGODB_URI"), help="run on this server")
    group.addoption("--mongo-server", choices=_KINDS, help="start this kind of server")
    group.addoption("--surface", action="append", help="run only this way to call a saver (default: every one)")
    group.addoption("--mongo-image", default="mongo:8", help="the image for docker (default: %(default)s)")


class SessionServer:
    """Starts the session's server at the first question, and remembers why others did not do."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.option
        self._stack = ExitStack()
        self._server: Server | None = None
        self.reasons: list[str] = []

    def get(self) -> Server | None:
        if self._server is None and not self.reasons:
            self._server = self._configured() if self._option.mongo_uri else self._first_of_the_kinds()
        return self._server

    def close(self) -> None:
        self._stack.close()

    def _configured(self) -> Server:
        try:
            return ask(self._option.mongo_uri, "uri")
        except PyMongoError as error:
            pytest.exit(f"the server of --mongo-uri or MONGODB_URI does not answer: {error}", returncode=4)

    def _first_of_the_kinds(self) -> Server | None:
        forced = self._option.mongo_server
        starters = {
            "docker": lambda: docker_server(self._option.mongo_image),
            "mongod": local_server("mongod"),
            "secantus": local_server("secantus"),
        }
        for kind in [forced] if forced else _KINDS:
            try:
                return ask(self._stack.enter_context(starters[kind]()), kind)
            except Exception as error:  # noqa: BLE001 - an engine, an image or a server may fail in any way
                if forced:
                    pytest.exit(f"--mongo-server={kind}: {error}", returncode=4)
                expected = isinstance(error, NoServerFound)
                self.reasons.append(f"{kind}: {str(error if expected else repr(error)).splitlines()[0]}")
        return None


_SESSION_SERVER = pytest.StashKey[SessionServer]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SESSION_SERVER] = SessionServer(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_SESSION_SERVER].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.option.collectonly:
        return []
    session_server = config.stash[_SESSION_SERVER]
    server = session_server.get()
    return [f"mongo server: {server or 'none'}", *(f"  not {reason}" for reason in session_server.reasons)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.option.surface
    if not chosen:
        return
    params = {item: getattr(getattr(item, "callspec", None), "params", {}) for item in items}
    left_out = [item for item in items if params[item].get("surface_name", chosen[0]) not in chosen]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("asks") and sys.version_info < (3, 11):
        params = getattr(getattr(item, "callspec", None), "params", {})
        if params.get("surface_name", params.get("saver")) not in ("sync", "async-from-threads"):
            pytest.skip("LangGraph's interrupt() in an async graph needs Python 3.11")
    markers = {mark.name: mark for mark in item.iter_markers() if mark.name.startswith("needs_")}
    if not markers:
        return
    server = _server_or_skip(item.config)
    if "needs_mongod" in markers and not server.is_mongod:
        pytest.skip(f"needs a real mongod, and this is {server}")
    if "needs_replica_set" in markers and not server.replica_set:
        pytest.skip(f"needs a replica set, and this is a standalone {server}")
    if "needs_version" in markers and server.version < markers["needs_version"].args:
        least = ".".join(map(str, markers["needs_version"].args))
        pytest.skip(f"needs MongoDB {least}, and this is {server}")


def _server_or_skip(config: pytest.Config) -> Server:
    session_server = config.stash[_SESSION_SERVER]
    server = session_server.get()
    if server is None:
        pytest.skip(f"no MongoDB server: {'; '.join(session_server.reasons)}")
    return server


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    """The server of this session."""
    return _server_or_skip(pytestconfig)


@pytest.fixture
def mongo(server: Server) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client for looking into what was stored, and for fail points."""
    with MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client:
        yield client


@pytest.fixture
def db_name(request: pytest.FixtureRequest, mongo: MongoClient[dict[str, Any]]) -> Iterator[str]:
    """The name of a database of this test's own, dropped afterwards."""
    test = re.sub(r"\W+", "_", request.node.name, flags=re.ASCII)
    name = f"{test[:25]}_{uuid.uuid4().hex[:12]}"  # 38 bytes is the limit on Atlas
    yield name
    mongo.drop_database(name)


@pytest.fixture
def recorder() -> CommandRecorder:
    """A listener for a client under test, which records the commands that it sends."""
    return CommandRecorder()
