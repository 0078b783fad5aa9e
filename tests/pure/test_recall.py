"""A memory that may forget, and never mixes up."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_mongo_saver import recall
from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Known
from langgraph_mongo_saver.recall import Recall, Recent

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@given(st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 5)), max_size=30), st.integers(1, 4))
def test_the_entries_used_last_are_kept(calls: list[tuple[str, int]], size: int) -> None:
    recent: Recent[int, int] = Recent(size)
    model: dict[int, int] = {}
    for number, (call, key) in enumerate(calls):
        if call == "get":
            assert recent.get(key) == model.get(key)
        if key in model or call == "put":
            model = {k: v for k, v in model.items() if k != key} | {key: number if call == "put" else model[key]}
            model = dict(list(model.items())[-size:])
        if call == "put":
            recent.put(key, number)
    for key in range(6):
        assert recent.get(key) == model.get(key)


def test_threads_do_not_disturb_each_other() -> None:
    recent: Recent[int, int] = Recent(8)

    def work(seed: int) -> None:
        for i in range(2000):
            key = (seed * 7 + i) % 20
            recent.put(key, key * 10)
            assert recent.get((key + seed) % 20) in (None, (key + seed) % 20 * 10)
            recent.discard(lambda kept: kept == 3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(recent.get(key) is not None for key in range(20)) <= 8


def filled() -> Recall:
    memory = Recall(threading.Lock)
    memory.set_up = True
    for thread_id in ("1", "2"):
        memory.checkpoints.put(Address(thread_id, "", "a"), Known({}, {}))
        memory.active.put(thread_id, NOW)
    return memory


def test_a_thread_is_forgotten_alone() -> None:
    memory = filled()
    memory.forget_thread("1")
    assert [memory.checkpoints.get(Address(thread_id, "", "a")) is None for thread_id in ("1", "2")] == [True, False]
    assert [memory.active.get(thread_id) for thread_id in ("1", "2")] == [None, NOW]
    assert memory.set_up


@pytest.mark.parametrize("new_lock", [threading.Lock, asyncio.Lock])
def test_what_is_begun_anew_has_a_lock_of_its_own(new_lock: type) -> None:
    memory = Recall(new_lock)
    before = memory.lock
    memory.forget()
    assert memory.lock is not before
    assert not memory.lock.locked()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_forgets_all_and_is_not_locked_out() -> None:
    memory = filled()
    with memory.lock:
        child = os.fork()
        if not child:
            forgotten = not memory.set_up and memory.active.get("1") is None and memory.lock.acquire(timeout=5)
            os._exit(0 if forgotten else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.lock.locked()
    assert memory.set_up
    assert memory.active.get("1") == NOW


def test_memories_that_nobody_holds_are_let_go() -> None:
    before = len(Recall._all)
    memory = filled()
    assert len(Recall._all) == before + 1
    del memory
    assert len(Recall._all) == before


def test_systems_that_do_not_fork_can_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    assert _fresh_copy().Recall(threading.Lock).set_up is False


def _fresh_copy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fresh_recall", recall.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
