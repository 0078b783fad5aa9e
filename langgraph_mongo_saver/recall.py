"""What a saver remembers between calls, to save round trips; everything in it can be forgotten at any time."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import Known

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that keeps the entries used last. Safe for threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The entry, if it is still there."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember an entry, and forget the one that was not used for longest."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def keys(self) -> list[K]:
        """What is remembered, the oldest first."""
        with self._lock:
            return list(self._entries)

    def discard(self, unwanted: Callable[[K], bool]) -> None:
        """Forget some entries."""
        with self._lock:
            for key in [key for key in self._entries if unwanted(key)]:
                del self._entries[key]


class Recall:
    """A saver's memory, shared by its shallow copies.

    Attributes:
        lock: held while the collections are set up.
        set_up: whether they are known to have their indexes.
        checkpoints: what is known of the checkpoints seen last, for those that follow them.
        active: the activity noted last of a thread, where threads expire.
        scans: whether the server has turned out to lack ``$graphLookup``.
        seen: when a blob was last known to be there, by thread and digest: what a task writes is often the next
            checkpoint's value.
        missing: parents that are not stored, and of which a warning has told.
    """

    _all: ClassVar[weakref.WeakSet[Recall]] = weakref.WeakSet()

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._new_lock = new_lock
        self.forget()
        Recall._all.add(self)

    def forget(self) -> None:
        """Begin anew."""
        self.lock = self._new_lock()
        self.set_up = False
        self.checkpoints: Recent[Address, Known] = Recent(2048)
        self.active: Recent[str, datetime] = Recent(4096)
        self.seen: Recent[tuple[str, str], datetime] = Recent(4096)
        self.scans = False
        self.missing: Recent[Address, bool] = Recent(1024)

    def forget_thread(self, thread_id: str) -> None:
        """Forget all that was a thread's."""
        self.checkpoints.discard(lambda address: address.thread_id == thread_id)
        self.active.discard(lambda active: active == thread_id)
        self.seen.discard(lambda blob: blob[0] == thread_id)

    @classmethod
    def _after_fork(cls) -> None:
        # A thread that the child process does not have may hold a lock; nobody would ever release it here.
        for recall in cls._all:
            recall.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=Recall._after_fork)
