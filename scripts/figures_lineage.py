"""Delta history and clean-up against the Postgres saver and the official saver, measured in one run.

Needs PostgreSQL's server programs (Debian: ``apt-get install postgresql``), langgraph-checkpoint-postgres and
langgraph-checkpoint-mongodb==0.5.1; ``scripts/figures`` installs all of them.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from figures import Figure, Saver, checkpoint, compare, counter, milliseconds, server, thread
from langgraph.checkpoint.mongodb import MongoDBSaver as OfficialSaver
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import Connection
from pymongo import MongoClient

from langgraph_mongo_saver import MongoDBSaver

DELETED = 300
DATABASES = ("figures_ours", "figures_official")


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL of this run's own, with its defaults: every commit is on disk."""
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not programs:
        raise SystemExit("PostgreSQL's server programs are missing: apt-get install postgresql")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        data, as_user = Path(folder) / "data", []
        if os.getuid() == 0:  # it refuses to run as root
            shutil.chown(folder, "postgres")
            as_user = ["runuser", "-u", "postgres", "--"]

        def run(program: str, *arguments: str) -> None:
            subprocess.run([*as_user, f"{programs[-1]}/{program}", *arguments], check=True, stdout=subprocess.DEVNULL)

        run("initdb", "-D", str(data), "-A", "trust", "-U", "postgres")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        run("pg_ctl", "-D", str(data), "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


def chain(saver: Saver, length: int) -> Any:
    """A thread with a channel whose value lies in the writes of all its checkpoints, two a checkpoint."""
    config = thread()
    for step in range(length + 1):
        new = checkpoint({"count": step}, step)
        new["channel_versions"]["messages"] = f"{step + 1:032}.0"
        config = saver.put(config, new, {"source": "loop", "step": step}, new["channel_versions"])
        writes = [("messages", f"message {step} of a chat"), ("messages", "and another")]
        saver.put_writes(config, writes, str(uuid.UUID(int=step)), "~__pregel_pull, agent")
    return config


def history(saver: Saver, config: Any, ancestors: int) -> None:
    found = saver.get_delta_channel_history(config=config, channels=["messages"])
    if len(found["messages"]["writes"]) != 2 * ancestors:
        raise RuntimeError(f"{len(found['messages']['writes'])} writes were found")


def figures(ours: MongoDBSaver, official: Saver, peer: PostgresSaver, rounds: int) -> Iterator[Figure]:
    yield from histories(ours, peer, rounds)
    threads = {
        name: [name_of(chain(saver, 999)) for _ in range(3)] for name, saver in (("ours", ours), ("postgres", peer))
    }
    took = compare(
        3,
        ours=lambda: ours.prune([threads["ours"].pop()], grace=timedelta(0)),
        postgres=lambda: peer.prune([threads["postgres"].pop()]),
    )
    print("prune of 1000 checkpoints: " + milliseconds(took))
    yield "(prune / postgres)", "", took["ours"] / took["postgres"], float("inf")

    source = name_of(counter(ours, DELETED))
    took = compare(rounds, copy=lambda: ours.copy_thread(source, uuid.uuid4().hex))
    print(f"copy of {DELETED} supersteps: " + milliseconds(took))
    # A superstep is one put and two put_writes, as in the other figures; the least one has a single task.
    for name, bound, make in (
        ("delete / official", 0.85, lambda saver: counter(saver, DELETED)),
        ("(delete, one task each / official)", float("inf"), lambda saver: chain(saver, DELETED - 1)),
    ):
        yield name, "at most" if bound < float("inf") else "", deleting(ours, official, make, 3 * rounds), bound


def histories(ours: MongoDBSaver, peer: PostgresSaver, rounds: int) -> Iterator[Figure]:
    """A history that begins at the root, in a PostgreSQL that has just been filled, and in one that knows its tables.

    From the sixth time on a connection's statements run by a plan that is made without their values. Before the tables
    have been analyzed, which autovacuum does within a minute or so, that plan takes twice as long as the first ones.
    """
    threads = {n: (chain(ours, n), chain(peer, n)) for n in (1000, 50)}
    for analyzed in (False, True):
        if analyzed:
            assert isinstance(peer.conn, Connection)
            peer.conn.execute("ANALYZE")
            for _ in range(20):
                history(peer, threads[1000][1], 1000)
        for ancestors, bound in ((1000, 0.5), (50, 2.0)):
            a, b = threads[ancestors]
            took = compare(
                rounds * (3 if ancestors == 1000 else 20),
                ours=partial(history, ours, a, ancestors),
                postgres=partial(history, peer, b, ancestors),
            )
            print(f"history of {ancestors} ancestors{', analyzed' * analyzed}: " + milliseconds(took))
            name, ratio = f"history of {ancestors} / postgres", took["ours"] / took["postgres"]
            yield (f"({name}, analyzed)", "", ratio, float("inf")) if analyzed else (name, "at most", ratio, bound)


def deleting(ours: Saver, official: Saver, make: Callable[[Saver], Any], rounds: int) -> float:
    """How long to delete a thread takes this saver, measured in what it takes the official one."""
    # Made by turns, so that neither's are older, and written to disk, when they go.
    made = [(name_of(make(ours)), name_of(make(official))) for _ in range(rounds)]
    threads = {"ours": [a for a, _ in made], "official": [b for _, b in made]}
    took = compare(
        rounds,
        ours=lambda: ours.delete_thread(threads["ours"].pop()),
        official=lambda: official.delete_thread(threads["official"].pop()),
    )
    print(f"delete of {DELETED} supersteps: " + milliseconds(took))
    return took["ours"] / took["official"]


def name_of(config: Any) -> str:
    return str(config["configurable"]["thread_id"])


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with (
        server() as uri,
        MongoClient[dict[str, Any]](uri) as client,
        postgres() as dsn,
        PostgresSaver.from_conn_string(dsn) as peer,
    ):
        peer.setup()
        print(f"MongoDB {client.server_info()['version']}, medians of {rounds} rounds")
        try:
            ours = MongoDBSaver(client, DATABASES[0])
            return report(figures(ours, OfficialSaver(client, DATABASES[1]), peer, rounds))
        finally:
            for database in DATABASES:
                client.drop_database(database)


def report(found: Iterator[Figure]) -> int:
    missed = 0
    for name, word, ratio, bound in list(found):
        missed += ratio > bound
        goal = f"{word} {bound:.2f}: {'reached' if ratio <= bound else 'MISSED'}" if word else ""
        print(f"  {name:<38}{ratio:6.2f}   {goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
