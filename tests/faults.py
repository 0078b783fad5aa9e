"""What tests look at and break: commands sent, commands failed by the server, connections cut on the way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from langgraph_mongo_saver import MongoDBSaver

_COMMAND_NOT_FOUND = 59
# Sent by the driver on its own account.
_HOUSEKEEPING = {"hello", "ismaster", "isMaster", "endSessions", "saslStart", "saslContinue"}


@dataclass(frozen=True)
class Command:
    """One command as it was sent."""

    name: str
    database: str
    body: Mapping[str, Any]


class Seen(list[Command]):
    """The commands of one recording; the cursors that were closed early are kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.killed_cursors: list[Command] = []
        self.failed: list[str] = []

    @property
    def names(self) -> list[str]:
        return [command.name for command in self]


class CommandRecorder(CommandListener):
    """An event listener for a client: ``MongoClient(uri, event_listeners=[recorder])``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: list[Seen] = []

    @contextmanager
    def recording(self) -> Iterator[Seen]:
        seen = Seen()
        with self._lock:
            self._recordings.append(seen)
        try:
            yield seen
        finally:
            with self._lock:
                # By identity: two empty recordings are equal.
                self._recordings = [other for other in self._recordings if other is not seen]

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in _HOUSEKEEPING:
            return
        command = Command(event.command_name, event.database_name, dict(event.command))
        with self._lock:
            for seen in self._recordings:
                (seen.killed_cursors if command.name == "killCursors" else seen).append(command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        with self._lock:
            for seen in self._recordings:
                seen.failed.append(event.command_name)


@contextmanager
def fail_command(
    client: MongoClient[Any],
    commands: Sequence[str],
    *,
    times: int | None = 1,
    error_code: int | None = None,
    labels: Sequence[str] | None = None,
    close_connection: bool = False,
    write_concern_error: Mapping[str, Any] | None = None,
    block_ms: int | None = None,
    app_name: str | None = None,
) -> Iterator[None]:
    """Make the server fail these commands, of every client or of those that call themselves ``app_name``.

    ``times=None`` is always. The test is skipped where the server has no fail points.
    """
    data: dict[str, Any] = {"failCommands": list(commands), "closeConnection": close_connection}
    optional = {
        "errorCode": error_code,
        "errorLabels": labels,
        "writeConcernError": write_concern_error,
        "blockTimeMS": block_ms,
        "appName": app_name,
    }
    data |= {key: value for key, value in optional.items() if value is not None}
    if block_ms is not None:
        data["blockConnection"] = True
    set_fail_point(client, mode="alwaysOn" if times is None else {"times": times}, data=data)
    try:
        yield
    finally:
        set_fail_point(client, mode="off")


def set_fail_point(client: MongoClient[Any], **arguments: Any) -> None:
    try:
        client.admin.command("configureFailPoint", "failCommand", **arguments)
    except OperationFailure as error:
        if error.code != _COMMAND_NOT_FOUND:
            raise
        pytest.skip("the server has no fail points (it runs without enableTestCommands)")


class Proxy:
    """A TCP proxy on the way to a server, which can cut connections and refuse new ones."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refusing = False
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def uri(self) -> str:
        # Not by the replica set's name: the client would go on to the member's own address.
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        # shutdown wakes the thread that waits in accept; close alone does not.
        _shut(self._listener)
        self._listener.close()

    def cut(self) -> None:
        """Drop every open connection."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def refuse(self) -> None:
        """Drop every connection, and each new one as soon as it is there."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        with self._lock:
            if self._refusing:
                self.refused += 1
                near.close()
                far.close()
                return
            self._open |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # either end was cut
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(sink)
        with self._lock:
            self._open.discard(source)
        source.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the other end was first
        connection.shutdown(socket.SHUT_RDWR)


class Beside:
    """Something that another process does, once, before a saver sends a certain request."""

    def __init__(self, saver: MongoDBSaver, what: Callable[[], object], when: Callable[[Any], bool]) -> None:
        self._send, self._what, self._when, self.done = saver._send, what, when, False

    def __call__(self, request: Any) -> Any:
        if not self.done and self._when(request):
            self.done = True
            self._what()
        return self._send(request)


def nth(number: int, *names: str) -> Callable[[Any], bool]:
    """Whether a request is so manieth of those to some collections, or by some methods."""
    left = [number]

    def reached(request: Any) -> bool:
        left[0] -= not {request.part, request.method}.isdisjoint(names)
        return left[0] == 0

    return reached
