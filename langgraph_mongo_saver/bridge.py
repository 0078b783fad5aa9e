"""Each saver in the other world: the sync saver under async graphs, the async saver from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_mongo_saver.cleanup import GRACE, Options, Progress, Removed
from langgraph_mongo_saver.compaction import compact_thread
from langgraph_mongo_saver.copying import copy_thread
from langgraph_mongo_saver.driver import ClientT, MongoSaver
from langgraph_mongo_saver.errors import WrongEventLoop
from langgraph_mongo_saver.history import delta_channel_history, delta_channel_keepset
from langgraph_mongo_saver.maintenance import delete_for_runs, prune
from langgraph_mongo_saver.pipelines import Plan
from langgraph_mongo_saver.plans import Listing, T
from langgraph_mongo_saver.threads import ThreadListing, ThreadSummary, threads_listing, threads_page, touch_thread

# How often a waiting thread looks whether the loop that it waits for still runs, in seconds.
_LOOK = 1.0
_STOPPED = "The saver's event loop stopped before the operation was done."


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Home:
    """The event loop that an async saver belongs to, shared by the saver's shallow copies."""

    def __init__(self) -> None:
        self.loop = _running_loop()

    def enter(self) -> None:
        """Check that the caller runs on this loop; the first caller decides which it is.

        Raises:
            WrongEventLoop: if it runs on another one.
        """
        running = asyncio.get_running_loop()
        if self.loop is None:
            self.loop = running
        elif self.loop is not running:
            raise WrongEventLoop(
                "This async saver was first used on another event loop, and its connections belong to that one. "
                "Construct saver and client inside the coroutine that uses them, once a loop."
            )

    def wait(self, run: Callable[[Plan[T]], Coroutine[Any, Any, T]], plan: Plan[T]) -> T:
        """Run a plan on the loop, from another thread, and wait for its result.

        Raises:
            WrongEventLoop: at once, if nothing would ever run it.
        """
        loop = self.loop
        if loop is None or not loop.is_running():
            raise WrongEventLoop(
                "A sync method of the async saver needs the saver's event loop to run in another thread, and it does "
                "not. Use the method's async twin, or MongoDBSaver."
            )
        if _running_loop() is loop:
            raise WrongEventLoop(
                "A sync method of the async saver was called on the saver's own event loop, where it would wait for "
                "itself for ever. Await the method's async twin, or call it from another thread."
            )
        future = asyncio.run_coroutine_threadsafe(run(plan), loop)
        try:
            while True:
                try:
                    return future.result(_LOOK)
                except FutureTimeoutError:
                    if future.done():
                        return future.result()
                    if not loop.is_running():
                        raise WrongEventLoop(_STOPPED) from None
        except CancelledError:  # asyncio.run cancels what is left when it ends
            raise WrongEventLoop(_STOPPED) from None
        finally:
            future.cancel()  # no effect once it is done; a wait that was interrupted ends the operation too


class AsyncOverSync(MongoSaver[ClientT]):
    """The async methods of the sync saver: its plans are made at once and run in a worker thread."""

    def _run(self, plan: Plan[T]) -> T:
        raise NotImplementedError

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return await asyncio.to_thread(self._run, self._planner.get_tuple(config))

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        return self._apages(self._planner.listing(config, filter=filter, before=before, limit=limit))

    async def _apages(self, listing: Listing | None) -> AsyncIterator[CheckpointTuple]:
        while listing is not None:
            page, listing = await asyncio.to_thread(self._run, self._planner.page(listing))
            for load in page:
                yield load()

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        plan = self._planner.put(config, checkpoint, metadata, new_versions)
        return await asyncio.to_thread(self._run, plan)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        await asyncio.to_thread(self._run, self._planner.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await asyncio.to_thread(self._run, self._planner.delete_thread(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `get_delta_channel_history`."""
        return await asyncio.to_thread(self._run, delta_channel_history(self._planner, config, channels))

    async def aget_delta_channel_keepset(self, *, config: RunnableConfig, channels: Sequence[str]) -> set[str]:
        """See `get_delta_channel_keepset`."""
        return await asyncio.to_thread(self._run, delta_channel_keepset(self._planner, config, channels))

    async def aprune(  # type: ignore[override]  # the base returns nothing; this tells what went
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
        """See `prune`."""
        options = Options(grace, dry_run, progress, keep_last, older_than, refuse_delta)
        return await asyncio.to_thread(self._run, prune(self._planner, thread_ids, strategy, options))

    async def adelete_for_runs(  # type: ignore[override]  # the base returns nothing; this tells what went
        self,
        run_ids: Sequence[str],
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """See `delete_for_runs`."""
        options = Options(grace, dry_run, progress)
        return await asyncio.to_thread(self._run, delete_for_runs(self._planner, run_ids, options))

    async def acopy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
        *,
        replace_target: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """See `copy_thread`."""
        plan = copy_thread(
            self._planner, source_thread_id, target_thread_id, replace_target=replace_target, progress=progress
        )
        await asyncio.to_thread(self._run, plan)

    async def acompact_thread(
        self,
        graph: Any,
        config: RunnableConfig,
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """See `compact_thread`."""
        options = Options(grace, dry_run, progress)
        return await asyncio.to_thread(self._run, compact_thread(self._planner, graph, config, options))

    def alist_threads(self, *, after: str | None = None, limit: int | None = None) -> AsyncIterator[ThreadSummary]:
        """See `list_threads`."""
        return self._athread_pages(threads_listing(after, limit))

    async def _athread_pages(self, listing: ThreadListing | None) -> AsyncIterator[ThreadSummary]:
        while listing is not None:
            page, listing = await asyncio.to_thread(self._run, threads_page(self._planner, listing))
            for summary in page:
                yield summary

    async def atouch_thread(self, thread_id: str) -> bool:
        """See `touch_thread`."""
        return await asyncio.to_thread(self._run, touch_thread(self._planner, thread_id))


class SyncOverAsync(MongoSaver[ClientT]):
    """The sync methods of the async saver, for threads other than its event loop's."""

    def _constructed(self) -> None:
        self._home = Home()

    async def _run(self, plan: Plan[T]) -> T:
        raise NotImplementedError

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `aget_tuple`. For threads other than the event loop's."""
        return self._home.wait(self._run, self._planner.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `alist`. For threads other than the event loop's."""
        return self._pages(self._planner.listing(config, filter=filter, before=before, limit=limit))

    def _pages(self, listing: Listing | None) -> Iterator[CheckpointTuple]:
        while listing is not None:
            page, listing = self._home.wait(self._run, self._planner.page(listing))
            for load in page:
                yield load()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `aput`. For threads other than the event loop's."""
        return self._home.wait(self._run, self._planner.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `aput_writes`. For threads other than the event loop's."""
        self._home.wait(self._run, self._planner.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """See `adelete_thread`. For threads other than the event loop's."""
        self._home.wait(self._run, self._planner.delete_thread(thread_id))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `aget_delta_channel_history`. For threads other than the event loop's."""
        return self._home.wait(self._run, delta_channel_history(self._planner, config, channels))

    def get_delta_channel_keepset(self, *, config: RunnableConfig, channels: Sequence[str]) -> set[str]:
        """See `aget_delta_channel_keepset`. For threads other than the event loop's."""
        return self._home.wait(self._run, delta_channel_keepset(self._planner, config, channels))

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
        """See `aprune`. For threads other than the event loop's."""
        options = Options(grace, dry_run, progress, keep_last, older_than, refuse_delta)
        return self._home.wait(self._run, prune(self._planner, thread_ids, strategy, options))

    def delete_for_runs(  # type: ignore[override]  # the base returns nothing; this tells what went
        self,
        run_ids: Sequence[str],
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """See `adelete_for_runs`. For threads other than the event loop's."""
        options = Options(grace, dry_run, progress)
        return self._home.wait(self._run, delete_for_runs(self._planner, run_ids, options))

    def copy_thread(
        self,
        source_thread_id: str,
        target_thread_id: str,
        *,
        replace_target: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """See `acopy_thread`. For threads other than the event loop's."""
        plan = copy_thread(
            self._planner, source_thread_id, target_thread_id, replace_target=replace_target, progress=progress
        )
        self._home.wait(self._run, plan)

    def compact_thread(
        self,
        graph: Any,
        config: RunnableConfig,
        *,
        grace: timedelta = GRACE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Removed:
        """See `acompact_thread`. For threads other than the event loop's."""
        options = Options(grace, dry_run, progress)
        return self._home.wait(self._run, compact_thread(self._planner, graph, config, options))

    def list_threads(self, *, after: str | None = None, limit: int | None = None) -> Iterator[ThreadSummary]:
        """See `alist_threads`. For threads other than the event loop's."""
        return self._thread_pages(threads_listing(after, limit))

    def _thread_pages(self, listing: ThreadListing | None) -> Iterator[ThreadSummary]:
        while listing is not None:
            page, listing = self._home.wait(self._run, threads_page(self._planner, listing))
            yield from page

    def touch_thread(self, thread_id: str) -> bool:
        """See `atouch_thread`. For threads other than the event loop's."""
        return self._home.wait(self._run, touch_thread(self._planner, thread_id))
