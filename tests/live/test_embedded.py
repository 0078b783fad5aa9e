"""The local server for development: it starts, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from langgraph_mongo_saver.embedded import Kind, embedded_server, find_mongod, find_secantus
from langgraph_mongo_saver.errors import NoServerFound
from langgraph_mongo_saver.mongod import Mongod
from tests.servers import until

only_with_mongod = pytest.mark.skipif(find_mongod() is None, reason="no mongod in reach")


@pytest.fixture(
    params=[
        pytest.param("mongod", marks=only_with_mongod),
        pytest.param("secantus", marks=pytest.mark.skipif(not find_secantus(), reason="secantusdb is not installed")),
    ]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go in this test, here and in subprocesses."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def connect(uri: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(uri, serverSelectionTimeoutMS=5000)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_has_change_streams_and_leaves_no_folder(kind: Kind, temporary_folders: Path) -> None:
    with embedded_server(server=kind) as uri, connect(uri) as client:
        assert list(temporary_folders.iterdir())
        with client.shop.orders.watch() as changes:
            client.shop.orders.insert_one({"_id": 1})
            assert changes.next()["documentKey"] == {"_id": 1}
    assert not list(temporary_folders.iterdir())


def test_data_are_found_again_at_the_next_start(kind: Kind, tmp_path: Path) -> None:
    uris = []
    for count in range(3):
        # Named only the first time: the folder is then opened by the kind that wrote it.
        with (
            embedded_server(tmp_path / "data", server=None if count else kind) as uri,
            connect(uri) as client,
        ):
            uris.append(uri)
            assert client.shop.orders.count_documents({}) == count
            client.shop.orders.insert_one({"_id": count})
            assert client.admin.command("hello")["isWritablePrimary"]
    assert len(set(uris)) == 3  # each at another port


def test_a_folder_in_use_is_refused(kind: Kind, tmp_path: Path) -> None:
    with embedded_server(tmp_path, server=kind) as uri, connect(uri) as client:
        with pytest.raises(NoServerFound, match=r"is in use by another"), embedded_server(tmp_path):
            pass
        assert client.admin.command("ping")["ok"]


@only_with_mongod
def test_mongod_is_gone_after_the_block_also_after_an_error() -> None:
    pids = []

    def fail(uri: str) -> None:
        with connect(uri) as client:
            pids.append(client.admin.command("serverStatus")["pid"])
        assert runs(pids[0])
        raise LookupError

    with pytest.raises(LookupError), embedded_server(server="mongod") as uri:
        fail(uri)
    assert not runs(pids[0])


@only_with_mongod
def test_mongod_outlives_the_thread_that_started_it() -> None:
    with ExitStack() as stack:
        uris: list[str] = []
        starter = threading.Thread(target=lambda: uris.append(stack.enter_context(embedded_server(server="mongod"))))
        starter.start()
        starter.join()
        with connect(uris[0]) as client:
            assert client.admin.command("ping")["ok"]


@only_with_mongod
def test_mongod_that_does_not_start_quotes_its_log(tmp_path: Path) -> None:
    binary = find_mongod()
    assert binary
    with pytest.raises(NoServerFound, match=r"(?s)did not start.*nonsense"):
        Mongod(tmp_path, binary, args=["--nonsense"]).start()


USER = """
import os, sys, time
from pymongo import MongoClient
from langgraph_mongo_saver.embedded import embedded_server

with embedded_server(sys.argv[2] or None, server="mongod") as uri, MongoClient(uri) as client:
    status, options = client.admin.command("serverStatus"), client.admin.command("getCmdLineOpts")
    if sys.argv[1] == "fork" and os.fork() == 0:
        time.sleep(30)  # holds every pipe of its parent open
        os._exit(0)
    try:
        # Ctrl-C may follow at once; just before a sleep, it is noticed at its end only.
        print(status["pid"], options["parsed"]["storage"]["dbPath"], flush=True)
        for _ in range(300):
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("ping", client.admin.command("ping")["ok"], flush=True)
"""


class User:
    """A process that uses an embedded server, in a process group of its own as in a terminal."""

    def __init__(self, how: str = "", path: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, how, path], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout
        pid, self.folder = self.process.stdout.readline().split()
        self.mongod = int(pid)

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdout
        self.process.stdout.close()
        self.process.wait()


@only_with_mongod
def test_ctrl_c_ends_the_client_first_and_then_mongod(temporary_folders: Path) -> None:
    with User() as user:
        os.killpg(user.process.pid, signal.SIGINT)
        output, _ = user.process.communicate(timeout=20)
        assert output == "ping 1.0\n"
        assert not runs(user.mongod)
        assert not list(temporary_folders.iterdir())


@only_with_mongod
@pytest.mark.parametrize("how", ["", "fork"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_a_killed_process_leaves_no_mongod_and_no_folder(signum: int, how: str) -> None:
    with User(how) as user:
        assert runs(user.mongod)
        user.process.send_signal(signum)
        user.process.wait()
        until(lambda: not runs(user.mongod), "mongod is gone")
        until(lambda: not os.path.exists(user.folder), "its folder is gone")


@only_with_mongod
def test_the_folder_of_a_killed_process_can_be_used_at_once(tmp_path: Path) -> None:
    with User(path=str(tmp_path)) as user:
        user.process.kill()
        user.process.wait()
        with embedded_server(tmp_path) as uri, connect(uri) as client:
            assert client.admin.command("ping")["ok"]
            assert not runs(user.mongod)
