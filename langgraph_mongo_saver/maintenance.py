"""Prune and delete_for_runs, as plans: what stays is decided in `selection`, what is sent is here.

A plan may be killed after any request: at each step every checkpoint that is left can be read, and the plan, made
again, does the rest. Runs may append to the thread meanwhile; what they store is neither seen nor deleted. Forking or
replaying from a checkpoint that is being deleted is not safe (nor is it with langgraph-checkpoint-postgres 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from langgraph.checkpoint.serde.types import TASKS

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import Address, identifier, thread_identifier
from langgraph_mongo_saver.cleanup import Options, Removed
from langgraph_mongo_saver.codec import Document, check_layout, exact_metadata, skeleton_of
from langgraph_mongo_saver.errors import DeltaThreadRefused, FilterNotQueryable, InvalidArgument
from langgraph_mongo_saver.lineage import Node
from langgraph_mongo_saver.pipelines import Part, Plan, Retired
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.selection import (
    Facts,
    Nodes,
    Removal,
    children_first,
    finished_calls,
    newest,
    removal,
    with_ancestors,
)

T = TypeVar("T")
_BATCH = 500
# Until when a blob is spared that a put has found there, and what a copy has begun with: its checkpoints are to come.
_HELD, _COPIED = "held_until", "copied_until"

Place = tuple[str, str]
"""A checkpoint by namespace and id."""

Places = set[Place]


@dataclass(frozen=True)
class Thread:
    """A thread's checkpoints, without their weight, and what is known of some of them."""

    thread_id: str
    nodes: Mapping[str, Nodes]
    stored_at: Mapping[Place, datetime]
    runs: Mapping[Place, Any]
    retired: Mapping[Place, Retired]

    def in_use(self) -> dict[str, Nodes]:
        """The checkpoints that are there for their own sake, by namespace."""
        return {
            ns: {i: node for i, node in nodes.items() if (ns, i) not in self.retired}
            for ns, nodes in self.nodes.items()
        }


# --- arguments -----------------------------------------------------------------------------------------------------


def prune(planner: Planner, thread_ids: Sequence[str], strategy: str, options: Options) -> Plan[Removed]:
    """The plan for `prune`."""
    if isinstance(thread_ids, (str, bytes)) or not isinstance(thread_ids, (Sequence, set, frozenset)):
        raise TypeError(f"thread_ids must be a sequence of thread ids, but a {type(thread_ids).__name__} was given")
    threads = list(dict.fromkeys(thread_identifier(thread_id, "thread_ids: an id") for thread_id in thread_ids))
    if strategy not in ("keep_latest", "delete", "delete_all"):
        raise InvalidArgument(f"strategy must be 'keep_latest', 'delete' or 'delete_all', but {strategy!r} was given")
    if strategy != "keep_latest":
        options.check_whole_threads(strategy)
        return _delete_threads(planner, threads, options)
    return _prune(planner, threads, options)


def delete_for_runs(planner: Planner, run_ids: Sequence[str], options: Options) -> Plan[Removed]:
    """The plan for `delete_for_runs`."""
    if isinstance(run_ids, (str, bytes)) or not isinstance(run_ids, (Sequence, set, frozenset)):
        raise TypeError(f"run_ids must be a sequence of run ids, but a {type(run_ids).__name__} was given")
    # A UUID stands in metadata as a string; an int would not, and never be found.
    runs = [identifier(str(i) if isinstance(i, UUID) else i, "run_ids: an id") for i in run_ids]
    clear = planner.settings.clear_keys
    if clear is not None and "run_id" not in clear:
        raise FilterNotQueryable(
            "delete_for_runs: metadata key 'run_id' is stored encrypted; construct the saver with 'run_id' in "
            "queryable_metadata to find the checkpoints of a run"
        )
    return _delete_for_runs(planner, runs, options)


# --- which checkpoints stay ----------------------------------------------------------------------------------------


def _delete_threads(planner: Planner, thread_ids: Sequence[str], options: Options) -> Plan[Removed]:
    removed = Removed()
    for done, thread_id in enumerate(thread_ids, 1):
        counts = []
        for part in pipelines.PARTS:
            counts.append((yield from _take(part, {"thread_id": thread_id}, options)))
        removed += Removed(*counts)
        planner.recall.forget_thread(thread_id)
        _tell(options, done, len(thread_ids))
    return removed


def _prune(planner: Planner, thread_ids: Sequence[str], options: Options) -> Plan[Removed]:
    if options.refuse_delta:
        for thread_id in thread_ids:
            heads = yield from _heads(planner, (yield from _load(planner, thread_id)))
            if any(facts.uses_delta for facts in heads.values()):
                raise DeltaThreadRefused(
                    f"Thread {thread_id!r} uses a DeltaChannel, and refuse_delta was asked for; nothing was pruned"
                )
    removed = Removed()
    for thread_id in thread_ids:
        removed += yield from prune_thread(planner, thread_id, options)
    return removed


def prune_thread(
    planner: Planner, thread_id: str, options: Options, held: Mapping[Place, Iterable[str]] = MappingProxyType({})
) -> Plan[Removed]:
    """The plan that prunes one thread.

    Args:
        planner: the planner.
        thread_id: the thread.
        options: how.
        held: channels that some checkpoints are to be taken to hold a value of, beside those that they do hold.
    """
    thread = yield from _load(planner, thread_id, held)
    chosen = yield from _chosen(planner, thread, options)
    return (yield from _remove(planner, thread, chosen, options))


def _heads(planner: Planner, thread: Thread) -> Plan[dict[str, Facts]]:
    facts = yield from _facts(planner, thread, {ns: newest(nodes, 1) for ns, nodes in thread.in_use().items()})
    return {ns: of_head for (ns, _), of_head in facts.items()}


def _chosen(planner: Planner, thread: Thread, options: Options) -> Plan[dict[str, set[str]]]:
    cutoff = None if options.older_than is None else planner.clock() - options.older_than
    chosen: dict[str, set[str]] = {}
    for ns, nodes in thread.in_use().items():
        chosen[ns] = newest(nodes, options.keep_last)
        if cutoff is not None:
            chosen[ns] |= {i for i in nodes if thread.stored_at[ns, i] >= cutoff}
    heads = yield from _heads(planner, thread)
    for ns in finished_calls(chosen, heads, thread.nodes.get("", {})):
        chosen[ns] = set()
    return chosen


def _with_ancestors(planner: Planner, thread: Thread, chosen: Mapping[str, set[str]]) -> Plan[dict[str, set[str]]]:
    facts = yield from _facts(planner, thread, chosen)
    return {
        ns: with_ancestors(thread.nodes[ns], {i: facts.get((ns, i), Facts()) for i in ids})
        for ns, ids in chosen.items()
    }


def _delete_for_runs(planner: Planner, run_ids: Sequence[str], options: Options) -> Plan[Removed]:
    removed = Removed()
    for batch in _batches(run_ids):
        rows = yield pipelines.threads_of_runs(batch)
        for row in rows:
            thread = yield from _load(planner, row["_id"])
            of_runs = {place for place, run in thread.runs.items() if run in batch}
            staying = {ns: {i for i in nodes if (ns, i) not in of_runs} for ns, nodes in thread.in_use().items()}
            removed += yield from _remove(planner, thread, staying, options, of_runs)
    return removed


# --- reading a thread ----------------------------------------------------------------------------------------------


def _load(planner: Planner, thread_id: str, held: Mapping[Place, Iterable[str]] = MappingProxyType({})) -> Plan[Thread]:
    rows = yield pipelines.nodes_of_thread(thread_id)
    nodes: dict[str, dict[str, Node]] = {}
    for row in rows:
        check_layout(row)
        node = Node.of(row)
        if more := held.get(_place(row)):
            node = node._replace(values={**{channel: {} for channel in more}, **node.values})
        nodes.setdefault(row["checkpoint_ns"], {})[row["checkpoint_id"]] = node
    keyed = [((row["checkpoint_ns"], row["checkpoint_id"]), row) for row in rows]
    return Thread(
        thread_id,
        nodes,
        {key: row["stored_at"] for key, row in keyed},
        {key: row.get("metadata", {}).get("run_id") for key, row in keyed},
        {key: row["retired"] for key, row in keyed if row.get("retired")},
    )


def _facts(planner: Planner, thread: Thread, wanted: Mapping[str, Collection[str]]) -> Plan[dict[Place, Facts]]:
    facts: dict[Place, Facts] = {}
    for ns, ids in wanted.items():
        for batch in _batches(sorted(ids)):
            for row in (yield pipelines.contents_of(Address(thread.thread_id, ns), batch)):
                checkpoint_id = row["checkpoint_id"]
                facts[ns, checkpoint_id] = yield from _facts_of(planner, thread, ns, row)
    return facts


def _facts_of(planner: Planner, thread: Thread, ns: str, row: Document) -> Plan[Facts]:
    skeleton = skeleton_of(planner.sealer, row)
    node = thread.nodes[ns][row["checkpoint_id"]]
    needs_parent = False
    if skeleton.get("v", 4) < 4 and node.parent_id is not None:
        parent = Address(thread.thread_id, ns, node.parent_id)
        needs_parent = bool((yield pipelines.any_write(parent, TASKS)))
    return Facts.of(skeleton, exact_metadata(planner.sealer, row), needs_parent=needs_parent)


# --- removing ------------------------------------------------------------------------------------------------------


def _remove(
    planner: Planner, thread: Thread, chosen: Mapping[str, set[str]], options: Options, found_by: Collection[Place] = ()
) -> Plan[Removed]:
    """Remove all but the chosen checkpoints and what they need.

    Args:
        planner: the planner.
        thread: the thread.
        chosen: the checkpoints that stay for their own sake, by namespace.
        options: how.
        found_by: the checkpoints by which the thread was found: they are retired before they go, and one of them
            goes last, so that what a kill leaves is found again.
    """
    kept = yield from _with_ancestors(planner, thread, chosen)
    plans = {ns: removal(nodes, kept[ns]) for ns, nodes in thread.nodes.items()}
    going = {(ns, i) for ns, plan in plans.items() for i in (*plan.branches, *plan.rest)}
    last = min(going.intersection(found_by), default=None)
    retiring: dict[Place, Retired] = {(ns, i): "kept" for ns, ids in kept.items() for i in ids - chosen[ns]}
    if last is not None:
        retiring.update(dict.fromkeys(going, "going"))
    freed = yield from _freed(thread, going)
    if not options.dry_run:
        yield from _retire(thread, retiring)
    removed = yield from _remove_checkpoints(thread, plans, going, last, options)
    planner.recall.forget_thread(thread.thread_id)
    removed += yield from _sweep(planner, thread.thread_id, going, freed, options)
    if last is not None:
        removed += Removed(checkpoints=(yield from _take("checkpoints", _one(thread, last), options)))
        _tell(options, removed.checkpoints, len(going))
    if not options.dry_run:
        removed += yield from _remove_unneeded(planner, thread.thread_id, options)
    return removed


def _remove_unneeded(planner: Planner, thread_id: str, options: Options) -> Plan[Removed]:
    """Remove what was kept for checkpoints that another process has deleted meanwhile."""
    thread = yield from _load(planner, thread_id)
    unneeded = {(ns, i) for ns, in_use in thread.in_use().items() if not in_use for i in thread.nodes[ns]}
    if not unneeded:
        return Removed()
    freed = yield from _freed(thread, unneeded)
    removed = Removed()
    for ns in sorted({ns for ns, _ in unneeded}):
        for batch in _batches(children_first(thread.nodes[ns], list(thread.nodes[ns]))):
            removed += yield from _remove_batch(Address(thread_id, ns), batch, options, writes_first=False)
    return removed + (yield from _sweep(planner, thread_id, unneeded, freed, options))


def _freed(thread: Thread, going: Places) -> Plan[set[str]]:
    """The blobs that what goes refers to."""
    freed = {blob for ns, i in going for blob in _blobs_of(filter(None, thread.nodes[ns][i].values.values()))}
    for write in (yield from _writes(thread.thread_id)):
        if _place(write) in going:
            freed |= _blobs_written(write)
    return freed


def _writes(thread_id: str) -> Plan[list[Document]]:
    rows: list[Document] = yield pipelines.writes_of_thread(thread_id)
    for row in rows:
        check_layout(row)
    return rows


def _blobs_of(packed: Iterable[Mapping[str, Any]]) -> set[str]:
    return {each["blob"] for each in packed if "blob" in each}


def _blobs_written(row: Document) -> set[str]:
    return {blob for of_channel in row["blobs"] for blob in of_channel if blob is not None}


def _remove_checkpoints(
    thread: Thread, plans: Mapping[str, Removal], going: Places, last: Place | None, options: Options
) -> Plan[Removed]:
    """Remove checkpoints and their writes; of the last one the writes only."""
    removed = Removed()
    # The root's namespace comes last: by its checkpoints those of finished calls are known.
    for ns in sorted(plans, key=lambda ns: (ns == "", ns)):
        address = Address(thread.thread_id, ns)
        for step in (plans[ns].branches, plans[ns].cut, plans[ns].rest):
            for batch in _batches([i for i in step if (ns, i) != last]):
                if step is not plans[ns].cut:
                    removed += yield from _remove_batch(address, batch, options, writes_first=last is not None)
                    _tell(options, removed.checkpoints, len(going))
                elif not options.dry_run:
                    yield pipelines.cut_parents(address, batch)
    if last is not None:
        removed += Removed(writes=(yield from _take("writes", _one(thread, last), options)))
    return removed


def _one(thread: Thread, place: Place) -> Document:
    return pipelines.some(Address(thread.thread_id, place[0]), [place[1]])


def _retire(thread: Thread, retiring: Mapping[Place, Retired]) -> Plan[None]:
    groups: dict[tuple[str, Retired], list[str]] = {}
    for (ns, checkpoint_id), how in sorted(retiring.items()):
        if thread.retired.get((ns, checkpoint_id)) != how:
            groups.setdefault((ns, how), []).append(checkpoint_id)
    for (ns, how), ids in groups.items():
        for batch in _batches(ids):
            yield pipelines.retire(Address(thread.thread_id, ns), batch, how)


def _remove_batch(address: Address, batch: Sequence[str], options: Options, *, writes_first: bool) -> Plan[Removed]:
    # A checkpoint that was left without its writes could be read wrongly, unless nobody reads it any more.
    order: tuple[Part, ...] = ("writes", "checkpoints") if writes_first else ("checkpoints", "writes")
    counts: dict[str, int] = {}
    for part in order:
        counts[part] = yield from _take(part, pipelines.some(address, batch), options)
    return Removed(**counts)


def _take(part: Part, query: Document, options: Options) -> Plan[int]:
    if options.dry_run:
        rows = yield pipelines.count(part, query)
        return int(rows[0]["n"]) if rows else 0
    return int((yield pipelines.delete(part, query)).deleted_count)


def _tell(options: Options, done: int, total: int) -> None:
    if options.progress:
        options.progress(done, total)


def _sweep(planner: Planner, thread_id: str, going: Places, freed: set[str], options: Options) -> Plan[Removed]:
    """Remove blobs that nothing refers to any more, and what killed puts and killed plans have left behind."""
    now = planner.clock()
    nodes = yield pipelines.nodes_of_thread(thread_id)
    writes = yield from _writes(thread_id)
    stored = {_place(row) for row in nodes} - going
    heads = dict(sorted(stored))
    orphans = _orphans(writes, stored, heads, now, options.grace) - going
    used = {blob for row in nodes if _place(row) in stored for blob in _blobs_of(row["values"])}
    for write in writes:
        if _place(write) not in going and _place(write) not in orphans:
            used |= _blobs_written(write)
    removed = 0
    for ns, places in groupby(sorted(orphans), itemgetter(0)):
        for batch in _batches([i for _, i in places]):
            query = pipelines.some(Address(thread_id, ns), batch)
            # A copy may have begun since these were read.
            query = query if ns in heads else pipelines.unless(query, [_COPIED], now)
            removed += yield from _take("writes", query, options)
    unused = [row for row in (yield pipelines.ids_of_thread("blobs", thread_id)) if row["_id"]["blob"] not in used]
    known = [row["_id"] for row in unused if row["_id"]["blob"] in freed]
    loose = [row["_id"] for row in unused if row["_id"]["blob"] not in freed and row["stored_at"] < now - options.grace]
    blobs = 0
    for all_keys, spared in ((known, [_HELD]), (loose, [_HELD, _COPIED])):
        for keys in _batches(all_keys):
            query = pipelines.unless({"_id": {"$in": list(keys)}}, spared, now)
            blobs += yield from _take("blobs", query, options)
    return Removed(writes=removed, blobs=blobs)


def _place(row: Document) -> tuple[str, str]:
    return row["checkpoint_ns"], row["checkpoint_id"]


def _orphans(
    writes: Iterable[Document], stored: Places, heads: Mapping[str, str], now: datetime, grace: timedelta
) -> Places:
    before = now - grace
    # The writes of a checkpoint that is still to come are young, or have a greater id than the head. A copy begins a
    # namespace with writes that are as old as its source's, and held.
    young = {_place(write) for write in writes if write["stored_at"] >= before}
    held = {_place(write) for write in writes if write.get(_COPIED, before) > now}
    without = {_place(write) for write in writes} - stored - young
    return {(ns, i) for ns, i in without if (i < heads[ns] if ns in heads else (ns, i) not in held)}


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
