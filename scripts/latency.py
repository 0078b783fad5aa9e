"""How long it takes from an acknowledged put to a listener's callback, and how many events a second one listener takes.

Each subscriber is a callback of one `CheckpointListener`, in the process of the writer: ``scripts/latency [PUTS]``.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
import uuid
from typing import Any

from figures import checkpoint, server
from pymongo import MongoClient

from langgraph_mongo_saver import CheckpointEvent, CheckpointListener, MongoDBSaver

DATABASE = "figures_events"


def config() -> Any:
    return {"configurable": {"thread_id": uuid.uuid4().hex, "checkpoint_ns": ""}}


class Arrivals:
    """When each checkpoint reached each callback."""

    def __init__(self, expected: int) -> None:
        self._lock = threading.Lock()
        self._left = expected
        self.at: list[tuple[str, float]] = []
        self.all_there = threading.Event()

    def note(self, event: CheckpointEvent) -> None:
        now = time.perf_counter()
        with self._lock:
            self.at.append((event.checkpoint_id or "", now))
            self._left -= 1
            if not self._left:
                self.all_there.set()


def latencies(saver: MongoDBSaver, subscribers: int, puts: int) -> list[float]:
    """Milliseconds from acknowledgement to callback, for each callback; less than 0 where it was faster."""
    arrivals, acknowledged = Arrivals(subscribers * puts), {}
    listener = CheckpointListener(saver, kinds="checkpoint")
    for _ in range(subscribers):
        listener.on()(arrivals.note)
    with listener:
        place = config()
        for step in range(puts):
            new = checkpoint({"count": step}, step)
            place = saver.put(place, new, {"source": "loop", "step": step}, {})
            acknowledged[new["id"]] = time.perf_counter()
            time.sleep(0.005)
        if not arrivals.all_there.wait(60):
            raise RuntimeError("not every event arrived")
    return sorted((at - acknowledged[id_]) * 1000 for id_, at in arrivals.at)


def events_a_second(saver: MongoDBSaver, events: int) -> float:
    """How fast one listener takes what is there already."""
    arrivals, place = Arrivals(events), config()
    with saver.watch() as stream:
        begin = stream.position
    for step in range(events):
        place = saver.put(place, checkpoint({"count": step}, step), {"source": "loop", "step": step}, {})
    listener = CheckpointListener(saver, resume_from=begin, kinds="checkpoint")
    listener.on(size=events)(arrivals.note)
    started = time.perf_counter()
    with listener:
        if not arrivals.all_there.wait(60):
            raise RuntimeError("not every event arrived")
        return events / (time.perf_counter() - started)


def main() -> int:
    puts = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with server() as uri, MongoClient[dict[str, Any]](uri) as client:
        saver = MongoDBSaver(client, DATABASE)
        saver.setup()
        print(f"MongoDB {client.server_info()['version']}, {puts} checkpoints each")
        missed = False
        try:
            for subscribers in (1, 10, 100):
                took = latencies(saver, subscribers, puts)
                p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
                missed = missed or p50 > 10
                print(
                    f"  put acknowledged -> callback, {subscribers:3} subscribers: p50 {p50:.2f} ms, p99 {p99:.2f} ms"
                )
            print(f"  one listener takes {events_a_second(saver, 10 * puts):.0f} events/s")
        finally:
            client.drop_database(DATABASE)
    print(f"  p50 at most 10 ms: {'MISSED' if missed else 'reached'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
