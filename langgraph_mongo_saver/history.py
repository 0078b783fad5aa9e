"""Delta history and keepset: what a `DeltaChannel`'s value at a checkpoint is made of.

Semantics: `BaseCheckpointSaver.get_delta_channel_history` in langgraph-checkpoint 4.3, and the keepset of LangGraph's
DeltaChannel guide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory
from pymongo.errors import OperationFailure

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import Address, read_address
from langgraph_mongo_saver.codec import SEGMENT, Document, in_order, opened
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument
from langgraph_mongo_saver.lineage import Lineage, by_scan, by_segments, walk
from langgraph_mongo_saver.pipelines import Plan, Request
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.values import BlobParts, Packed, blob_parts, part_keys, unpack

logger = logging.getLogger(__name__)

# "$graphLookup reached maximum memory consumption": 25 segments that begin with documents of 4 MB.
_TOO_HEAVY = 40099

# Somebody compacts a thread while its history is read: then it is read again, and ends at the compacted checkpoint.
_ATTEMPTS = 3

# What servers say that lack $graphLookup, $lookup with a pipeline or $unionWith: unrecognized stage, not supported, not
# implemented, FailedToParse for localField beside a pipeline (before MongoDB 5.0), and an internal error of SecantusDB
# 0.7, which does not walk over documents whose _id is a document.
_NO_SUCH_STAGE = frozenset({1, 9, 115, 238, 303, 304, 40324})


def delta_channel_history(
    planner: Planner, config: RunnableConfig, channels: Sequence[str]
) -> Plan[Mapping[str, DeltaChannelHistory]]:
    """The plan for `get_delta_channel_history`."""
    return _history(planner, read_address(config), _names(channels))


def delta_channel_keepset(planner: Planner, config: RunnableConfig, channels: Sequence[str]) -> Plan[set[str]]:
    """The plan for `get_delta_channel_keepset`."""
    return _keepset(planner, read_address(config), _names(channels))


def _names(channels: Sequence[str]) -> list[str]:
    names = list(channels) if isinstance(channels, Iterable) and not isinstance(channels, str) else [None]
    if not all(isinstance(name, str) for name in names):
        given = type(channels).__name__
        raise InvalidArgument(f"channels must be a sequence of channel names (str), but a {given} was given")
    return [name for name in dict.fromkeys(names) if name is not None]


def _keepset(planner: Planner, address: Address, channels: Sequence[str]) -> Plan[set[str]]:
    lineage = yield from ancestors(planner, address, channels, from_target=True)
    if lineage is None:
        return set()
    return {lineage.target.checkpoint_id, *(node.checkpoint_id for node in lineage.path)}


def ancestors(
    planner: Planner, address: Address, channels: Sequence[str], *, from_target: bool = False
) -> Plan[Lineage | None]:
    """The plan that walks along a checkpoint's ancestors, in the way that the server can."""
    if not planner.settings.joins or planner.recall.scans:
        found = yield from walk(address, channels, by_scan, from_target=from_target)
    else:
        try:
            known = planner.recall.checkpoints.get(address)
            fetch = by_segments(planner.settings.checkpoints, channels, known.place if known else None)
            found = yield from walk(address, channels, fetch, from_target=from_target)
        except OperationFailure as error:
            if error.code != _TOO_HEAVY:
                _do_without(planner, "$graphLookup", error)
            found = yield from walk(address, channels, by_scan, from_target=from_target)
    if found is not None and found.missing is not None:
        _warn_once(planner, address.at(found.missing))
    return found


def _do_without(planner: Planner, stage: str, error: OperationFailure) -> None:
    if error.code not in _NO_SUCH_STAGE:
        raise error
    logger.warning("The server cannot do %s (code %s); ancestors are scanned from now on", stage, error.code)
    planner.recall.scans = True


def _warn_once(planner: Planner, missing: Address) -> None:
    if planner.recall.missing.get(missing) is None:
        planner.recall.missing.put(missing, True)
        logger.warning(
            "Thread %r, namespace %r: checkpoint %s is referred to as a parent and not stored; "
            "channels whose values lie before it are incomplete",
            *missing,
        )


def _history(planner: Planner, address: Address, channels: Sequence[str]) -> Plan[Mapping[str, DeltaChannelHistory]]:
    if not channels:
        return {}
    for _ in range(_ATTEMPTS):
        lineage = yield from ancestors(planner, address, channels)
        if lineage is None or (not lineage.path and len(lineage.channels) == len(channels)):
            return {channel: {"writes": []} for channel in channels}
        contents = yield from _contents(planner, address, lineage, channels)
        if contents is not None:
            return (yield from _read(planner, address, lineage, channels, contents))
    raise CorruptCheckpoint(
        f"Thread {address.thread_id!r}: the ancestors of a checkpoint were deleted {_ATTEMPTS} times while its history "
        "was being read"
    )


Seeds = dict[str, Mapping[str, Any] | None]
"""The entry of each channel that holds a value at an ancestor; None where it was not fetched with that one."""


class _Contents(NamedTuple):
    writes: Sequence[Document]
    seeds: Mapping[str, Mapping[str, Any]]
    parts: BlobParts


def _contents(planner: Planner, address: Address, lineage: Lineage, channels: Sequence[str]) -> Plan[_Contents | None]:
    """What the history is made of; None if its ancestors have gone meanwhile."""
    holders = {channel: lineage.path[end] for channel, end in lineage.ends.items()}
    # A caller that loaded it before it was compacted does not know of its values.
    holders.update((c, lineage.target) for c in channels if c not in lineage.channels)
    seeds: Seeds = {channel: node.values[channel] for channel, node in holders.items()}
    unread = {
        channel: holders[channel].checkpoint_id for channel, seed in seeds.items() if not seed or "blob" not in seed
    }
    rows, others, blobs = yield from _fetched(planner, address, lineage, channels, seeds, unread.values())
    found = {row["checkpoint_id"]: {entry["channel"]: entry for entry in row["values"]} for row in others}
    # Of ancestors that are deleted the newest goes first, and writes after their checkpoints.
    newest = {node.checkpoint_id for node in lineage.path[:1]}
    if not newest <= found.keys() | {row["checkpoint_id"] for row in rows}:
        return None
    for channel, checkpoint_id in unread.items():
        if channel not in found.get(checkpoint_id, ()):
            raise CorruptCheckpoint(
                f"Thread {address.thread_id!r}: the value of channel {channel!r} was deleted with checkpoint "
                f"{checkpoint_id} while its history was being read"
            )
        seeds[channel] = found[checkpoint_id][channel]
    if late := set(part_keys(address.thread_id, (found[unread[channel]][channel] for channel in unread))):
        blobs = [*blobs, *(yield pipelines.whole("blobs", [key._asdict() for key in sorted(late)]))]
    return _Contents(rows, {channel: seed for channel, seed in seeds.items() if seed}, blob_parts(blobs))


def _fetched(
    planner: Planner,
    address: Address,
    lineage: Lineage,
    channels: Sequence[str],
    seeds: Seeds,
    holders: Iterable[str],
) -> Plan[list[list[Document]]]:
    """The documents of the writes, of the checkpoints whose values are needed, and of the seeds' blobs."""
    newest = [node.checkpoint_id for node in lineage.path[:1]]
    keys = sorted(set(part_keys(address.thread_id, filter(None, seeds.values()))))
    writes = pipelines.writes_to(address, list(lineage.runs()), channels) if lineage.path else None
    values = pipelines.values_of(address, sorted({*holders, *newest}), list(seeds))
    blobs = pipelines.whole("blobs", [key._asdict() for key in keys]) if keys else None
    # To unite many rows takes the server longer than a command more (3 ms for 1,000); a seed that is not known yet may
    # take one for its blob.
    if seeds and (len(lineage.path) <= SEGMENT or lineage.fetches > 1 or None in seeds.values()):
        return (yield from _replies(planner, writes, values, blobs))
    rows: list[Document] = (yield writes) if writes else []
    if not seeds and any(row["checkpoint_id"] in newest for row in rows):
        return [rows, [], []]
    return [rows, *(yield from _replies(planner, values, blobs))]


def _read(
    planner: Planner, address: Address, lineage: Lineage, channels: Sequence[str], contents: _Contents
) -> Plan[Mapping[str, DeltaChannelHistory]]:
    oldest_first = {node.checkpoint_id: rank for rank, node in enumerate(reversed(lineage.path))}
    newest, never = len(oldest_first) - 1, len(oldest_first)
    begins = {channel: newest - lineage.ends.get(channel, newest) for channel in lineage.channels}
    written: dict[str, list[tuple[str, Packed]]] = {channel: [] for channel in channels}
    for rank, _, task_id, writes in in_order(contents.writes, oldest_first):
        for write in writes:
            if rank >= begins.get(write["channel"], never):
                written[write["channel"]].append((task_id, write))
    large = part_keys(address.thread_id, (write for each in written.values() for _, write in each))
    parts = {**contents.parts, **(yield from planner.blobs.fetch(set(large) - contents.parts.keys()))}
    result: dict[str, DeltaChannelHistory] = {
        channel: {"writes": opened(planner.sealer, address.thread_id, each, parts)} for channel, each in written.items()
    }
    seeds = unpack(planner.sealer, address.thread_id, contents.seeds.values(), parts)
    for channel, seed in zip(contents.seeds, seeds, strict=True):
        result[channel]["seed"] = seed
    return result


def _replies(planner: Planner, *requests: Request | None) -> Plan[list[list[Document]]]:
    """What each of several finds replies, in one command where the server can; nothing for one that is left out."""
    asked = [request for request in requests if request is not None]
    replies: list[list[Document]] | None = None
    if len(asked) > 1 and planner.settings.joins and not planner.recall.scans:
        try:
            rows = yield pipelines.together(asked, planner.settings.name_of)
            replies = [[row for row in rows if row.get("of", 0) == number] for number in range(len(asked))]
        except OperationFailure as error:
            _do_without(planner, "$unionWith", error)
    if replies is None:
        replies = []
        for request in asked:
            replies.append((yield request))
    left = iter(replies)
    return [[] if request is None else next(left) for request in requests]
