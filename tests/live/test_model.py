"""Random histories, compared with `InMemorySaver`.

The histories are those that a LangGraph run can make: a `put` names its parent, a channel that changes gets a version
that no other has, the values of all channels are handed over (of a delta channel: its snapshot, once). For these the
two savers must agree exactly; where they differ on purpose stands in `test_intended_differences.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import AsyncMongoClient, MongoClient

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver, plans
from tests.building import checkpoint, config
from tests.histories import (
    ABSENT,
    CHANNELS,
    DELTA,
    LEAVES,
    LOOKALIKES,
    METADATA,
    NAMESPACES,
    PICK,
    STEPS,
    TASKS,
    THREADS,
    Stored,
    exact,
    nested,
    newest_first,
)
from tests.servers import Server

Call = Callable[..., Any]
Step = dict[str, Any]


class Histories(RuleBasedStateMachine):
    """Two savers on the same collections, as two processes would have them, against one `InMemorySaver`."""

    def __init__(self, start: Callable[[], Call]) -> None:
        super().__init__()
        self.start = start
        self.savers = [start(), start()]
        self.oracle = InMemorySaver()
        self.stored: list[Stored] = []
        self.taken: set[tuple[str, str, str]] = set()
        self.time = 10
        self.versions = itertools.count(1)
        self.last: tuple[Any, ...] | None = None

    def both(self, by: int, method: str, *args: Any, **kwargs: Any) -> None:
        expected = getattr(self.oracle, method)(*args, **kwargs)
        assert exact(self.savers[by % 2](method, *args, **kwargs)) == exact(expected)

    def new_id(self, thread_id: str, namespace: str, later: int) -> str:
        """Mostly rising, but clocks differ; the same in several threads, but never twice in a namespace."""
        self.time = max(self.time, self.time + later)
        time = self.time + min(later, 0)
        # Of equal length, as LangGraph's are: SecantusDB sorts "1" behind "1+" where it should be the other way round.
        id_ = next(i for n in itertools.count() if (thread_id, namespace, i := f"{time:06}.{n:03}") not in self.taken)
        self.taken.add((thread_id, namespace, id_))
        return id_

    def store(self, by: int, place: Stored, parent_id: str | None, before: Checkpoint, step: Step) -> None:
        values, versions, new = dict(before["channel_values"]), dict(before["channel_versions"]), {}
        values.pop(DELTA, None)
        for channel, value in step["changes"].items():
            versions[channel] = new[channel] = f"{next(self.versions):032}.{0:016}"
            values.pop(channel, None)
            if value is not ABSENT:
                values[channel] = _DeltaSnapshot([value]) if channel == DELTA else value
        id_ = self.new_id(place.thread_id, place.namespace, step["later"])
        self.put(by, place, parent_id, checkpoint(values, versions, id_), new, step)
        if "copied" in step:
            self.copy(by, self.stored[-1], step)

    def put(
        self, by: int, place: Stored, parent_id: str | None, made: Checkpoint, new: dict[str, Any], step: Step
    ) -> None:
        into = config(place.thread_id, place.namespace, parent_id, **step.get("configurable", {}))
        into["metadata"] = step.get("config_metadata", {})
        for task in step.get("early", []):
            self.both(by, "put_writes", config(place.thread_id, place.namespace, made["id"]), *task)
        self.last = (into, made, step["metadata"], new)
        self.both(by, "put", *self.last)
        self.stored.append(Stored(place.thread_id, place.namespace, made, parent_id))
        self.both(by, "get_tuple", self.stored[-1].config)

    def copy(self, by: int, node: Stored, step: Step) -> None:
        loaded = self.oracle.get_tuple(node.config)
        assert loaded
        made: Checkpoint = {**loaded.checkpoint, "id": self.new_id(node.thread_id, node.namespace, 1)}
        self.put(by, node, node.parent_id, made, {}, {"metadata": step["metadata"]})

    def picked(self, pick: int) -> Stored:
        return self.stored[-1 - pick % len(self.stored)]

    @initialize(step=STEPS)
    def start_thread(self, step: Step) -> None:
        self.store(0, Stored("1", "", checkpoint(), None), None, checkpoint(), step)

    @rule(by=PICK, thread_id=THREADS, namespace=NAMESPACES, parent=st.sampled_from([None, "pruned"]), step=STEPS)
    def start_namespace(self, by: int, thread_id: str, namespace: str, parent: str | None, step: Step) -> None:
        self.store(by, Stored(thread_id, namespace, checkpoint(), None), parent, checkpoint(), step)

    @precondition(lambda self: self.stored)
    @rule(by=PICK, steps=st.lists(st.tuples(PICK, STEPS), min_size=1, max_size=4))
    def go_on(self, by: int, steps: list[tuple[int, Step]]) -> None:
        """The next steps, and forks."""
        for pick, step in steps:
            node = self.picked(pick)
            self.store(by, node, node.checkpoint["id"], node.checkpoint, step)

    @precondition(lambda self: self.last)
    @rule(by=PICK, metadata=METADATA)
    def put_again(self, by: int, metadata: Any) -> None:
        assert self.last
        self.both(by, "put", *self.last[:2], metadata, self.last[3])

    @precondition(lambda self: self.stored)
    @rule(by=PICK, pick=PICK, task=TASKS)
    def put_writes(self, by: int, pick: int, task: Any) -> None:
        node = self.picked(pick)
        self.both(by, "put_writes", node.config, *task)
        self.both(by + 1, "get_tuple", node.config)

    @rule(by=PICK, thread_id=THREADS, namespace=NAMESPACES)
    def get_latest(self, by: int, thread_id: str, namespace: str) -> None:
        self.both(by, "get_tuple", config(thread_id, namespace))

    @precondition(lambda self: self.stored)
    @rule(by=PICK, pick=PICK, channels=st.lists(CHANNELS, max_size=3, unique=True))
    def get_delta_channel_history(self, by: int, pick: int, channels: list[str]) -> None:
        channels = [DELTA, *(channel for channel in channels if channel != DELTA)]
        self.both(by, "get_delta_channel_history", config=self.picked(pick).config, channels=channels)

    @rule(by=PICK, thread_id=THREADS, once_in=st.integers(0, 3))
    def delete_thread(self, by: int, thread_id: str, once_in: int) -> None:
        if once_in == 0:
            self.both(by, "delete_thread", thread_id)
            self.stored = [node for node in self.stored if node.thread_id != thread_id]
            self.last = None

    @rule(by=PICK)
    def restart(self, by: int) -> None:
        self.savers[by % 2] = self.start()

    @rule(by=PICK, pick=PICK, of=st.sampled_from(["all", "thread", "namespace", "checkpoint"]), data=st.data())
    def list_some(self, by: int, pick: int, of: str, data: st.DataObject) -> None:
        node = self.picked(pick) if self.stored else Stored("1", "", checkpoint(), None)
        within = {
            "all": None,
            "thread": {"configurable": {"thread_id": node.thread_id}},
            "namespace": config(node.thread_id, node.namespace),
            "checkpoint": node.config,
        }[of]
        limit = data.draw(st.none() | st.integers(0, 5))
        arguments = {"filter": data.draw(st.none() | self.filters(node)), "before": data.draw(self.befores(node))}
        expected = newest_first(self.oracle.list(within, **arguments))[:limit]
        assert exact(self.savers[by % 2]("list", within, limit=limit, **arguments)) == exact(expected)

    def filters(self, node: Stored) -> st.SearchStrategy[Any]:
        loaded = self.oracle.get_tuple(node.config)
        present = list(loaded.metadata.items()) if loaded else []
        keys = st.sampled_from(["step", "a.b", "$x", "", "nothing", "metadata.step"])
        other = st.dictionaries(keys, nested(LEAVES) | st.just({"$ne": None}), max_size=1)
        other |= st.fixed_dictionaries({"like": st.sampled_from(LOOKALIKES)})
        if not present:
            return other
        return st.lists(st.sampled_from(present), max_size=3, unique_by=lambda item: item[0]).map(dict) | other

    def befores(self, node: Stored) -> st.SearchStrategy[Any]:
        return st.sampled_from(
            [None, config(), node.config, {"configurable": {"checkpoint_id": node.checkpoint["id"]}}]
        )

    @invariant()
    def nothing_was_lost(self) -> None:
        """The latest of the namespace written last is the same for a saver that did not write it."""
        if self.stored:
            self.both(1, "get_tuple", config(self.stored[-1].thread_id, self.stored[-1].namespace))

    def teardown(self) -> None:
        for saver in self.savers:
            assert exact(saver("list", None)) == exact(newest_first(self.oracle.list(None)))


@contextmanager
def sync_savers(server: Server, db_name: str, **options: Any) -> Iterator[Callable[[], Call]]:
    with MongoClient[dict[str, Any]](server.uri) as client:

        def start() -> Call:
            saver = MongoDBSaver(client, db_name, **options)

            def call(method: str, *args: Any, **kwargs: Any) -> Any:
                result = getattr(saver, method)(*args, **kwargs)
                return list(result) if method == "list" else result

            return call

        yield start


@contextmanager
def async_savers(server: Server, db_name: str) -> Iterator[Callable[[], Call]]:
    loop = asyncio.new_event_loop()
    client = AsyncMongoClient[dict[str, Any]](server.uri)

    async def call(saver: AsyncMongoDBSaver, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "list":
            return [loaded async for loaded in saver.alist(*args, **kwargs)]
        return await getattr(saver, f"a{method}")(*args, **kwargs)

    def start() -> Call:
        saver = AsyncMongoDBSaver(client, db_name)
        return lambda *args, **kwargs: loop.run_until_complete(call(saver, *args, **kwargs))

    try:
        yield start
    finally:
        loop.run_until_complete(client.close())
        loop.close()


@pytest.mark.parametrize(
    ("savers", "options", "examples"),
    [(sync_savers, {}, 30), (sync_savers, {"dialect": "basic"}, 10), (async_savers, {}, 15)],
    ids=["sync", "basic dialect", "async"],
)
def test_a_random_history_reads_as_from_memory(
    savers: Callable[..., Any],
    options: dict[str, Any],
    examples: int,
    server: Server,
    db_name: str,
    mongo: MongoClient[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "PAGE", 3)
    with savers(server, db_name, **options) as start:

        def machine() -> Histories:
            for collection in mongo[db_name].list_collection_names():
                mongo[db_name][collection].delete_many({})
            return Histories(start)

        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=20,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
