"""The servers that tests run on: one for the session, and replica sets that tests may break."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from langgraph_mongo_saver.embedded import Kind, embedded_server, find_mongod
from langgraph_mongo_saver.errors import NoServerFound
from langgraph_mongo_saver.mongod import Mongod


@dataclass(frozen=True)
class Server:
    """A server that answers. ``kind`` is uri, docker, mongod or secantus."""

    uri: str
    kind: str
    version: tuple[int, ...]
    replica_set: bool
    is_mongod: bool

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def ask(uri: str, kind: str) -> Server:
    """Find out what answers at this URI."""
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=5000) as client:
        build = client.admin.command("buildInfo")
        hello = client.admin.command("hello")
    return Server(
        uri=uri,
        kind=kind,
        version=tuple(build["versionArray"][:3]),
        replica_set="setName" in hello or hello.get("msg") == "isdbgrid",
        # What only speaks the protocol tells so in a field of its own, or leaves out how it was built.
        is_mongod="secantusVersion" not in build and "ferretdb" not in build and "openssl" in build,
    )


@contextmanager
def docker_server(image: str) -> Iterator[str]:
    """A container with a replica set of one; NoServerFound where no engine answers."""
    _probe_docker()
    # Late: a slow import that only this kind needs.
    from testcontainers.core.container import DockerContainer

    command = "--replSet rs0 --bind_ip_all --setParameter enableTestCommands=1"
    with DockerContainer(image).with_command(command).with_exposed_ports(27017) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(27017)
        uri = f"mongodb://{host}:{port}/?directConnection=true"
        with MongoClient[dict[str, Any]](uri) as client:
            members = [{"_id": 0, "host": "localhost:27017"}]
            until(lambda: _initiated(client, members), "the container's mongod answers", seconds=60)
            until(lambda: is_primary(client), "the container's mongod is primary")
        yield uri


def _probe_docker() -> None:
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        engine = docker.from_env(timeout=2)
        try:
            engine.ping()
        finally:
            engine.close()
    except (DockerException, RequestException) as error:
        raise NoServerFound("no engine answers") from error


def local_server(kind: Kind) -> Callable[[], Any]:
    return lambda: embedded_server(server=kind, _test_commands=True)


def until(holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Poll until it holds; an AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def is_primary(client: MongoClient[Any]) -> bool:
    try:
        return bool(client.admin.command("hello").get("isWritablePrimary"))
    except PyMongoError:
        return False


def _initiated(client: MongoClient[Any], members: list[dict[str, Any]]) -> bool:
    try:
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
    except OperationFailure as error:
        return error.code == 23  # AlreadyInitialized
    except PyMongoError:
        return False
    return True


class ReplicaSet:
    """Three members of a replica set, which elect a new primary when the old one is killed."""

    def __init__(self) -> None:
        binary = find_mongod()
        if binary is None:
            raise NoServerFound("no mongod in reach")
        self.folder = Path(tempfile.mkdtemp(prefix="langgraph-mongo-set-"))
        args = ["--setParameter", "enableTestCommands=1"]
        self._binary, self._args = binary, args
        self.members = [self._member(index) for index in range(3)]

    def __enter__(self) -> ReplicaSet:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def uri(self) -> str:
        return f"mongodb://{','.join(member.address for member in self.members)}/?replicaSet=rs0"

    def start(self) -> None:
        for member in self.members:
            member.start()
        config = {
            "_id": "rs0",
            "members": [{"_id": index, "host": member.address} for index, member in enumerate(self.members)],
            # The default of 10 s would make every test of a failover wait as long.
            "settings": {"electionTimeoutMillis": 1000},
        }
        with self._client(self.members[0]) as client:
            client.admin.command("replSetInitiate", config)
        self.wait_for_primary()
        for member in self.members:
            until(lambda member=member: self._state(member) in ("primary", "secondary"), "every member is up")

    def wait_for_primary(self) -> Mongod:
        until(lambda: self.primary is not None, "a primary is elected")
        primary = self.primary
        assert primary is not None
        return primary

    @property
    def primary(self) -> Mongod | None:
        return next((member for member in self.members if self._state(member) == "primary"), None)

    def kill_primary(self) -> Mongod:
        """Kill the primary with SIGKILL, and return it; the others elect a new one by themselves."""
        primary = self.wait_for_primary()
        os.kill(primary.pid, signal.SIGKILL)
        primary.stop()
        return primary

    def restart(self, member: Mongod) -> Mongod:
        """Start a member again on its data and its port, and wait until it follows."""
        index = self.members.index(member)
        self.members[index] = again = self._member(index, member.port)
        again.start()
        until(lambda: self._state(again) in ("primary", "secondary"), "the member is back")
        return again

    def stop(self) -> None:
        for member in self.members:
            member.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _member(self, index: int, port: int | None = None) -> Mongod:
        folder = self.folder / str(index)
        # Killed at the end: a member that is asked to end first waits 15 s for another one to take over.
        return Mongod(folder, self._binary, port=port, remove=folder, args=self._args)

    def _client(self, member: Mongod) -> MongoClient[dict[str, Any]]:
        return MongoClient(f"mongodb://{member.address}/?directConnection=true", serverSelectionTimeoutMS=500)

    def _state(self, member: Mongod) -> str:
        try:
            with self._client(member) as client:
                hello = client.admin.command("hello")
        except PyMongoError:
            return "down"
        return "primary" if hello["isWritablePrimary"] else "secondary" if hello["secondary"] else "starting"
