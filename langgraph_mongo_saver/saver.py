"""MongoDBSaver: checkpoints in MongoDB through the blocking driver.

Its twin is `aio.py`: what is changed here is changed there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from langgraph_mongo_saver.bridge import AsyncOverSync
from langgraph_mongo_saver.cleanup import GRACE, Options, Progress, Removed
from langgraph_mongo_saver.compaction import compact_thread
from langgraph_mongo_saver.copying import copy_thread
from langgraph_mongo_saver.driver import DRIVER_INFO
from langgraph_mongo_saver.embedded import embedded_server
from langgraph_mongo_saver.events import OnGap
from langgraph_mongo_saver.gathering import watch_of
from langgraph_mongo_saver.history import delta_channel_history, delta_channel_keepset
from langgraph_mongo_saver.maintenance import delete_for_runs, prune
from langgraph_mongo_saver.pipelines import Plan, Request
from langgraph_mongo_saver.plans import Listing, T
from langgraph_mongo_saver.retry import is_transient, pauses
from langgraph_mongo_saver.schema import setup
from langgraph_mongo_saver.streams import CheckpointStream
from langgraph_mongo_saver.threads import ThreadListing, ThreadSummary, threads_listing, threads_page, touch_thread
from langgraph_mongo_saver.watching import Feed

if TYPE_CHECKING:
    from typing_extensions import Self  # a dependency of langgraph-checkpoint's dependencies only


class MongoDBSaver(AsyncOverSync["MongoClient[Any]"]):
    """A LangGraph checkpointer that keeps checkpoints in MongoDB.

    It also serves async graphs, from worker threads; `AsyncMongoDBSaver` does so natively.

    Safe for use by several threads and several processes. Constructing one sends nothing; the indexes are made when
    it is first used, or by `setup`.

    Example:
        >>> from langgraph_mongo_saver import MongoDBSaver
        >>> with MongoDBSaver.from_conn_string("mongodb://localhost:27017", db_name="agents") as saver:
        ...     graph = builder.compile(checkpointer=saver)
    """

    _is_async = False
    _new_lock = threading.Lock

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str | None = None, *args: Any, **kwargs: Any) -> Iterator[Self]:
        """A saver on a client of its own, which is closed at the end.

        Args:
            conn_string: a MongoDB URI; None for the local default.
            *args: further arguments of the class, from `db_name` on.
            **kwargs: further arguments of the class.

        Yields:
            The saver.
        """
        client: MongoClient[Any] = MongoClient(conn_string, connect=False, driver=DRIVER_INFO)
        try:
            yield cls(client, *args, **kwargs)
        finally:
            client.close()

    @classmethod
    @contextmanager
    def embedded(cls, path: str | PathLike[str] | None = None, **kwargs: Any) -> Iterator[Self]:
        """A saver on a local server that lives as long as the context, for development.

        Args:
            path: a folder for the data, found again at the next start; None for a temporary one.
            **kwargs: arguments of the class.

        Yields:
            The saver.

        Raises:
            NoServerFound: if there is no server to start.
        """
        with embedded_server(path) as uri, cls.from_conn_string(uri, **kwargs) as saver:
            yield saver

    def setup(self) -> None:
        """Create the indexes now, and bring their expiry to `ttl`; otherwise this happens on first use.

        It can be repeated, also by several processes at once.

        Raises:
            UnsuitableCollection: if an existing collection would mix threads up.
            pymongo.errors.PyMongoError: if the database cannot be reached or refuses.
        """
        self._recall.set_up = False
        self._set_up()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint with its metadata and pending writes.

        Args:
            config: names the thread, and optionally the namespace (default: the root graph's) and the checkpoint
                (default: the latest).

        Returns:
            The checkpoint, or None if there is none.

        Raises:
            InvalidArgument: if an id is missing or not a string.
            CorruptCheckpoint: if what is stored cannot be given back as it was.
        """
        return self._run(self._planner.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first.

        They are loaded in pages as the iterator gets there; no cursor stays open between two.

        Args:
            config: names the thread, and optionally the namespace (default: all) and the checkpoint; None for
                everything.
            filter: metadata keys and the exact values that they must have. Numbers are compared as numbers; True is
                not 1; None also stands for an absent key.
            before: only checkpoints with a smaller id than this config's; without an id it means nothing.
            limit: how many at most; None for all.

        Returns:
            An iterator of checkpoints.

        Raises:
            InvalidArgument: if an argument cannot be used.
            FilterNotQueryable: if a filter key is stored encrypted only.
        """
        return self._pages(self._planner.listing(config, filter=filter, before=before, limit=limit))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint: a reader sees all of it or nothing.

        Args:
            config: names the thread, the namespace and the parent's checkpoint id, if there is a parent.
            checkpoint: the checkpoint.
            metadata: its metadata.
            new_versions: the channels that changed in it, with their versions.

        Returns:
            The config that names the stored checkpoint.

        Raises:
            InvalidArgument: if an id is missing or not a string, or metadata is too large.
        """
        return self._run(self._planner.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task: a reader sees all of them or none.

        Of the writes to a special channel (an interrupt, an error) the last one counts, of others the first.

        Args:
            config: names the checkpoint that the task started from.
            writes: channels and values.
            task_id: the task.
            task_path: its path, by which LangGraph orders the writes of a superstep.

        Raises:
            InvalidArgument: if an id is missing or not a string.
        """
        self._run(self._planner.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread; if it is interrupted, calling it again finishes the work.

        Args:
            thread_id: the thread; one that does not exist is nothing to do.

        Raises:
            InvalidArgument: if the id is not a string.
        """
        self._run(self._planner.delete_thread(thread_id))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What delta channels are made of at a checkpoint: their ancestors' writes, and the value these began with.

        Args:
            config: names the checkpoint; its own writes do not belong to it yet.
            channels: the channels.

        Returns:
            For each channel its writes, oldest first, and its ``seed`` if an ancestor holds a value; see
            `BaseCheckpointSaver.get_delta_channel_history`.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        return self._run(delta_channel_history(self._planner, config, channels))

    def get_delta_channel_keepset(self, *, config: RunnableConfig, channels: Sequence[str]) -> set[str]:
        """The checkpoints that must stay for delta channels to keep their value at a checkpoint.

        Args:
            config: names the checkpoint.
            channels: its delta channels.

        Returns:
            The ids of the checkpoint and of its ancestors, until each channel has been found to hold a value; empty
            if there is no such checkpoint.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        return self._run(delta_channel_keepset(self._planner, config, channels))

    def prune(  # type: ignore[override]  # the base returns nothing; this tells what went
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
        older_than: timedelta | None = None,
        refuse_delta: bool = False,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """Delete old checkpoints of threads, with all that only they need.

        What is kept can be read as before: the ancestors that hold the history of its delta channels stay too, for
        that purpose alone; they are no longer listed, nor can they become the latest. A checkpoint that stays without
        its parent has none any more. The namespace of a finished subgraph call goes with the root checkpoint that it
        started from. It can be interrupted and repeated at any time, and runs may append meanwhile.

        Args:
            thread_ids: the threads; those that do not exist are nothing to do.
            strategy: ``"keep_latest"``, or ``"delete"`` (also ``"delete_all"``) for everything of these threads.
            keep_last: how many checkpoints of each namespace to keep, newest first; with ``"keep_latest"`` only, like
                the two that follow.
            older_than: delete only what was stored longer ago than this.
            refuse_delta: raise, before anything is deleted, if a thread uses delta channels.
            grace: how old blobs and writes must be, which no checkpoint refers to, to be taken for left behind by a
                killed process rather than for part of a checkpoint that is just being stored. Zero is for threads that
                no run is storing to: it may take the values of a checkpoint that is about to be stored.
            dry_run: delete nothing, and tell what would go.
            progress: called with the number of checkpoints deleted and to be deleted, thread by thread; with
                ``"delete"``, with the number of threads.

        Returns:
            How many documents went, by collection.

        Raises:
            TypeError: if `thread_ids` is a single string.
            InvalidArgument: if another argument cannot be used.
            DeltaThreadRefused: if `refuse_delta` is set and a thread uses delta channels.
        """
        options = Options(grace, dry_run, progress, keep_last, older_than, refuse_delta)
        return self._run(prune(self._planner, thread_ids, strategy, options))

    def delete_for_runs(  # type: ignore[override]  # the base returns nothing; this tells what went
        self,
        run_ids: Sequence[str],
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """Delete the checkpoints of runs in all threads and namespaces, with all that only they need.

        Checkpoints of these runs that the delta channels of a surviving one need stay, but are no longer listed.

        Args:
            run_ids: the runs, as in the checkpoints' metadata.
            grace: see `prune`.
            dry_run: delete nothing, and tell what would go.
            progress: called with the number of checkpoints deleted and to be deleted, thread by thread.

        Returns:
            How many documents went, by collection.

        Raises:
            TypeError: if `run_ids` is a single string.
            FilterNotQueryable: if ``run_id`` is stored encrypted only.
        """
        options = Options(grace, dry_run, progress)
        return self._run(delete_for_runs(self._planner, run_ids, options))

    def copy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
        *,
        replace_target: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Copy a thread: every checkpoint, write and blob of every namespace, byte by byte.

        If it is interrupted, calling it again finishes the work.

        Args:
            source_thread_id: the thread; one that does not exist is nothing to do.
            target_thread_id: the copy.
            replace_target: delete first what the target holds.
            progress: called with the number of collections copied and to be copied.

        Raises:
            InvalidArgument: if both are the same, or an id is not a string.
            ThreadExists: if the target holds something else than copies of what the source has.
            CorruptCheckpoint: if the source is another saver's, or another process has deleted of the source's heads
                or of the target meanwhile.
        """
        self._run(
            copy_thread(
                self._planner, source_thread_id, target_thread_id, replace_target=replace_target, progress=progress
            )
        )

    def compact_thread(
        self,
        graph: Any,
        config: RunnableConfig,
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """Let a thread's latest checkpoint hold the values of its delta channels, and delete all before it.

        The state is the same before and after, and the thread goes on. Other namespaces are pruned as by `prune`.

        Args:
            graph: the compiled graph, whose reducers make up the values.
            config: names the thread, and the namespace if it is not the root graph's.
            grace: see `prune`.
            dry_run: change nothing, and tell what would go.
            progress: see `prune`.

        Returns:
            How many documents went, by collection.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        options = Options(grace, dry_run, progress)
        return self._run(compact_thread(self._planner, graph, config, options))

    def list_threads(self, *, after: str | None = None, limit: int | None = None) -> Iterator[ThreadSummary]:
        """List threads, ordered by id.

        They are loaded in pages as the iterator gets there.

        Args:
            after: only threads with greater ids.
            limit: how many at most; None for all.

        Returns:
            An iterator of summaries.

        Raises:
            InvalidArgument: if an argument cannot be used.
        """
        return self._thread_pages(threads_listing(after, limit))

    def touch_thread(self, thread_id: str) -> bool:
        """Keep a thread alive, where threads expire, as if something had been stored in it.

        Args:
            thread_id: the thread.

        Returns:
            Whether there is such a thread.

        Raises:
            InvalidArgument: if the id is not a string.
        """
        return self._run(touch_thread(self._planner, thread_id))

    def watch(
        self,
        *,
        thread_id: Any = None,
        checkpoint_ns: str | None = None,
        kinds: str | Collection[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from: str | None = None,
        start_at: datetime | None = None,
        on_gap: OnGap = "raise",
        poll_interval: float | None = None,
        retry_seconds: float | None = None,
    ) -> CheckpointStream:
        """Follow what happens to checkpoints, in the order of the database.

        ``for event in saver.watch(thread_id="42")`` goes on through elections, cut connections and a database that is
        dropped. It needs a replica set (of one member at least). The filters run on the server.

        Args:
            thread_id: of this thread, or of several; None for all.
            checkpoint_ns: of this namespace; None for all. Deleted threads are told of in any case.
            kinds: of these kinds, see `CheckpointEvent`; None for all.
            metadata: checkpoints whose metadata have exactly these values; then no other events come.
            resume_from: the position of an event: what comes after it.
            start_at: what came from this time on, as far as the server still knows. By default all from now on.
            on_gap: what to do where the server no longer has the events since `resume_from`: ``"raise"``, or
                ``"catch_up"``, which delivers the checkpoints that were stored since then, and goes on.
            poll_interval: look for what has been stored every so many seconds, on servers without change streams.
            retry_seconds: how long to try to go on after a failure, once it is open; None for ever.

        Returns:
            The stream, which is closed by leaving ``with saver.watch() as events``.

        Raises:
            InvalidArgument: if an argument cannot be used.
            FilterNotQueryable: if a metadata key is stored encrypted only.
            ChangeStreamsUnavailable: if the server is no replica set.
            EventsLost: if the server no longer has the events since `resume_from`.
        """
        watch = watch_of(
            self.settings,
            thread_id=thread_id,
            checkpoint_ns=checkpoint_ns,
            kinds=kinds,
            metadata=metadata,
            resume_from=resume_from,
            start_at=start_at,
            on_gap=on_gap,
            poll_interval=poll_interval,
            retry_seconds=retry_seconds,
        )
        return CheckpointStream(self, Feed(self._planner, watch, time.monotonic))

    def _pages(self, listing: Listing | None) -> Iterator[CheckpointTuple]:
        while listing is not None:
            page, listing = self._run(self._planner.page(listing))
            for load in page:
                yield load()

    def _thread_pages(self, listing: ThreadListing | None) -> Iterator[ThreadSummary]:
        while listing is not None:
            page, listing = self._run(threads_page(self._planner, listing))
            for summary in page:  # noqa: UP028  # an async generator has no `yield from`, and twins are alike
                yield summary

    def _run(self, plan: Plan[T]) -> T:
        self._set_up()
        return self._drive(plan)

    def _set_up(self) -> None:
        if self._recall.set_up:
            return
        with self._recall.lock:
            if not self._recall.set_up:
                self._drive(setup(self.settings))
                self._recall.set_up = True

    def _drive(self, plan: Plan[T]) -> T:
        advance, reply = plan.send, None
        try:
            while True:
                request = advance(reply)
                try:
                    advance, reply = plan.send, self._perform(request)
                except PyMongoError as error:
                    advance, reply = plan.throw, error
        except StopIteration as done:
            result: T = done.value
            return result

    def _perform(self, request: Request) -> Any:
        attempts = pauses(self.settings.retry_seconds, time.monotonic)
        while True:
            try:
                return self._send(request)
            except PyMongoError as error:
                pause = next(attempts, None) if is_transient(error) else None
                if pause is None:
                    raise
            time.sleep(pause)

    def _send(self, request: Request) -> Any:
        reply = getattr(self._collections[request.part], request.method)(*request.args, **request.kwargs)
        if not request.rows:
            return reply
        # Faster than to step through it (a third of a millisecond in 1,000 documents); mongomock's have no such method.
        return reply.to_list() if hasattr(reply, "to_list") else list(reply)
