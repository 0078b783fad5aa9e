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
from langgraph_mongo_saver.codec import SEGMENT, Document, written_since
from langgraph_mongo_saver.errors import CorruptCheckpoint, InvalidArgument
from langgraph_mongo_saver.lineage import BEGUN, Lineage, by_scan, by_segments, from_own, walk
from langgraph_mongo_saver.pipelines import Plan, Request
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.values import BlobParts, blob_parts, part_keys, unpack

logger = logging.getLogger(__name__)

# "$graphLookup reached maximum memory consumption": 25 segments that begin with documents of 4 MB.
_TOO_HEAVY = 40099

# Somebody compacts or deletes a thread while its history is read: then it is read again, and ends at the compacted
# checkpoint, or is no longer there.
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
    place = _remembered_place(planner, address)
    lineage = yield from ancestors(planner, address, channels, from_target=True, place=place)
    if lineage is None:
        return set()
    return {lineage.target.checkpoint_id, *(node.checkpoint_id for node in lineage.path)}


def _remembered_place(planner: Planner, address: Address) -> tuple[str, int] | None:
    known = planner.recall.checkpoints.get(address)
    return known.place if known else None


def ancestors(
    planner: Planner,
    address: Address,
    channels: Sequence[str],
    *,
    from_target: bool = False,
    place: tuple[str, int] | None = None,
) -> Plan[Lineage | None]:
    """The plan that walks along a checkpoint's ancestors, in the way that the server can.

    Args:
        planner: the planner.
        address: the checkpoint.
        channels: as in `walk`.
        from_target: as in `walk`.
        place: as in `by_segments`.
    """
    if not planner.settings.joins or planner.recall.scans:
        found = yield from walk(address, channels, by_scan, from_target=from_target)
    else:
        try:
            fetch = by_segments(planner.settings.checkpoints, channels, place)
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
    for attempt in range(_ATTEMPTS):
        near = yield from _near(planner, address, channels)
        lineage, writes = near or ((yield from ancestors(planner, address, channels)), None)
        if lineage is None or (not lineage.path and len(lineage.channels) == len(channels)):
            return {channel: {"writes": []} for channel in channels}
        try:
            contents = yield from _contents(planner, address, lineage, channels, writes)
            if contents is not None:
                return (yield from _read(planner, address, lineage, channels, contents))
        except CorruptCheckpoint:
            if attempt == _ATTEMPTS - 1:
                raise
    raise CorruptCheckpoint(
        f"Thread {address.thread_id!r}: the ancestors of a checkpoint were deleted {_ATTEMPTS} times while its history "
        "was being read"
    )


def _near(planner: Planner, address: Address, channels: Sequence[str]) -> Plan[tuple[Lineage, list[Document]] | None]:
    """The ancestors within a segment that has just begun, and the writes on them; None if the history goes further.

    The writes are read before the ancestors, so that those which are still there then had all theirs.
    """
    place = _remembered_place(planner, address)
    if place is None or place[1] >= BEGUN or planner.recall.scans or not planner.settings.joins:
        return None
    first, last = place[0], str(address.checkpoint_id)
    writes = pipelines.writes_to(address, [[first, last]], channels)
    rows, documents = yield from _replies(planner, writes, pipelines.begun(address, place))
    nodes = from_own(address, documents)
    if not nodes:
        return None
    lineage = Lineage.begin(nodes[0], channels)
    whole = lineage.advance(nodes) is None and all(first <= node.checkpoint_id < last for node in lineage.path)
    return (lineage, rows) if whole else None


Seeds = dict[str, Mapping[str, Any] | None]
"""The entry of each channel that holds a value at an ancestor; None where it was not fetched with that one."""


class _Contents(NamedTuple):
    writes: Sequence[Document]
    seeds: Mapping[str, Mapping[str, Any]]
    parts: BlobParts


def _contents(
    planner: Planner, address: Address, lineage: Lineage, channels: Sequence[str], writes: list[Document] | None
) -> Plan[_Contents | None]:
    """What the history is made of; None if its ancestors have changed meanwhile.

    Args:
        planner: the planner.
        address: the checkpoint.
        lineage: its ancestors.
        channels: the channels.
        writes: what was read of the writes before the ancestors were; None if nothing.
    """
    holders = {channel: lineage.path[end] for channel, end in lineage.ends.items()}
    # A caller that loaded it before it was compacted does not know of its values.
    holders.update((c, lineage.target) for c in channels if c not in lineage.channels)
    seeds: Seeds = {channel: node.values[channel] for channel, node in holders.items()}
    unread = {
        channel: holders[channel].checkpoint_id for channel, seed in seeds.items() if not seed or "blob" not in seed
    }
    keys = sorted(set(part_keys(address.thread_id, filter(None, seeds.values()))))
    values = pipelines.values_of(address, sorted(set(unread.values())), list(seeds)) if unread else None
    blobs = pipelines.whole("blobs", [key._asdict() for key in keys]) if keys else None
    if writes is not None:
        others, found = yield from _replies(planner, values, blobs)
    else:
        writes, others, found, marks = yield from _fetched(planner, address, lineage, channels, seeds, values, blobs)
        if _changed(lineage, marks):
            return None
    held = {row["checkpoint_id"]: {entry["channel"]: entry for entry in row["values"]} for row in others}
    for channel, checkpoint_id in unread.items():
        if channel not in held.get(checkpoint_id, ()):
            raise CorruptCheckpoint(
                f"Thread {address.thread_id!r}: the value of channel {channel!r} was deleted with checkpoint "
                f"{checkpoint_id} while its history was being read"
            )
        seeds[channel] = held[checkpoint_id][channel]
    if late := set(part_keys(address.thread_id, (held[unread[channel]][channel] for channel in unread))):
        found = [*found, *(yield pipelines.whole("blobs", [key._asdict() for key in sorted(late)]))]
    return _Contents(writes, {channel: seed for channel, seed in seeds.items() if seed}, blob_parts(found))


def _fetched(
    planner: Planner,
    address: Address,
    lineage: Lineage,
    channels: Sequence[str],
    seeds: Seeds,
    values: Request | None,
    blobs: Request | None,
) -> Plan[list[list[Document]]]:
    """The documents of the writes, the values and the blobs, and then what tells whether they belong together."""
    writes = pipelines.writes_to(address, list(lineage.runs()), channels) if lineage.path else None
    marks = pipelines.marks(address.at(lineage.target.checkpoint_id))
    # To unite many rows takes the server longer than a command more (3 ms for 1,000); a seed that is not known yet may
    # take one for its blob.
    if len(lineage.path) <= SEGMENT or lineage.fetches > 1 or None in seeds.values():
        return (yield from _replies(planner, writes, values, blobs, marks))
    rows: list[Document] = (yield writes) if writes else []
    return [rows, *(yield from _replies(planner, values, blobs, marks))]


def _changed(lineage: Lineage, marks: Sequence[Document]) -> bool:
    """Whether clean-up may have begun to delete the ancestors since the walk.

    A checkpoint goes before its ancestors; those of one that stays go where one on the way was compacted.
    """
    rows = {row["checkpoint_id"]: row for row in marks}
    target = rows.get(lineage.target.checkpoint_id)
    if target is None or target.get("retired") == "going":
        return True
    compacted = {i: {e["channel"] for e in row["values"]} for i, row in rows.items() if row.get("compacted")}
    ends = {channel: lineage.ends.get(channel, len(lineage.path)) for channel in lineage.channels}
    return bool(compacted) and any(
        compacted[node.checkpoint_id] & {channel for channel, end in ends.items() if end > number}
        for number, node in enumerate((lineage.target, *lineage.path), -1)
        if node.checkpoint_id in compacted
    )


def _read(
    planner: Planner, address: Address, lineage: Lineage, channels: Sequence[str], contents: _Contents
) -> Plan[Mapping[str, DeltaChannelHistory]]:
    oldest_first = {node.checkpoint_id: rank for rank, node in enumerate(reversed(lineage.path))}
    newest = len(oldest_first) - 1
    begins = {channel: newest - lineage.ends.get(channel, newest) for channel in lineage.channels}
    written = written_since(contents.writes, oldest_first, begins)
    large = part_keys(address.thread_id, (write for each in written.values() for _, write in each))
    parts = {**contents.parts, **(yield from planner.blobs.fetch(set(large) - contents.parts.keys()))}
    result: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    for channel, each in written.items():
        values = unpack(planner.sealer, address.thread_id, (write for _, write in each), parts)
        result[channel]["writes"] = [
            (task_id, channel, value) for (task_id, _), value in zip(each, values, strict=True)
        ]
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
