"""The ancestors of a checkpoint: the one walk that delta history, keepset and clean-up rest on.

Checkpoints of one branch form *segments*, runs of up to 256; a fork and a `DeltaChannel` snapshot begin a new one. A
``$graphLookup`` hops from segment to segment, so that its depth is the number of forks and snapshots, not of
supersteps. What it fetches is a guess at the ancestors; the truth are the parents' ids, by which `Lineage` walks. Where
a parent is not among what was fetched, the next request starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, NamedTuple

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import Address
from langgraph_mongo_saver.codec import SEGMENT, Document, channels_of
from langgraph_mongo_saver.pipelines import Request

# Segments that the first request hops over, and the later ones: 1,000 ancestors take one request, and a history that
# ends at a near snapshot does not fetch the rest of the thread.
_FIRST_HOPS = 3
_LATER_HOPS = 15
# A segment that has just begun is most often where a history ends: at its root, or at a snapshot. To read it alone is
# faster than to hop (0.6 ms against 0.9 ms for 50 checkpoints), if one knows it.
BEGUN = 128
# Checkpoints of a page where a server cannot hop, or a document has no segment.
_SCANNED = 256
# What a checkpoint holds whose channels are too many to be named in the index.
_UNNAMED: dict[str, None] = {}


class Node(NamedTuple):
    """A checkpoint without its weight.

    Attributes:
        checkpoint_id: its id.
        parent_id: its parent's id, if it has one.
        values: the entry of each channel that holds a value here, without embedded data; None where only the name was
            fetched.
        segment: its segment, if it has one.
        compacted: whether values were given to it after it was stored, to stand for its ancestors' writes.
    """

    checkpoint_id: str
    parent_id: str | None
    values: Mapping[str, Mapping[str, Any] | None]
    segment: str | None = None
    compacted: bool = False

    @classmethod
    def of(cls, document: Document) -> Node:
        """Read a document, projected or whole."""
        entries = {entry["channel"]: entry for entry in document.get("values") or ()}
        parent_id, segment = document.get("parent_checkpoint_id"), document.get("segment")
        return cls(document["checkpoint_id"], parent_id, entries, segment, bool(document.get("compacted")))


@dataclass
class Lineage:
    """A walk from a checkpoint to its ancestors, until each of some channels has been found to hold a value.

    Attributes:
        target: the checkpoint that it begins at.
        path: the ancestors visited, newest first.
        ends: for each channel that was found, the index in `path` of the ancestor that holds it.
        missing: the id of a parent that is referred to and not stored, where the walk had to end there.
        fetches: how often it had to fetch.
    """

    target: Node
    channels: Sequence[str]
    path: list[Node] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    missing: str | None = None
    fetches: int = 1

    @classmethod
    def begin(cls, target: Node, channels: Collection[str], *, from_target: bool = False) -> Lineage:
        """A walk that has not gone a step; see `walk`."""
        held = target.values if from_target or target.compacted else ()
        return cls(target, [channel for channel in dict.fromkeys(channels) if channel not in held])

    def advance(self, fetched: Iterable[Node]) -> str | None:
        """Walk as far as these nodes lead; the id of the next ancestor that is not among them, None at the end.

        A parent that has been visited already, a cycle, ends the walk like a root.
        """
        ahead = {node.checkpoint_id: node for node in fetched}
        for node in (self.target, *self.path):
            ahead.pop(node.checkpoint_id, None)
        path, ends, wanted = self.path, self.ends, len(self.channels)
        following = (path[-1] if path else self.target).parent_id
        while len(ends) < wanted and following is not None:
            if following not in ahead:
                visited = any(node.checkpoint_id == following for node in (self.target, *path))
                return None if visited else following
            node = ahead.pop(following)
            if node.values:
                for channel in self.channels:
                    if channel in node.values:
                        ends.setdefault(channel, len(path))
            path.append(node)
            following = node.parent_id
        return None

    def runs(self) -> Iterator[list[str]]:
        """The ids of the ancestors, those together that lie near each other: of a segment, and of full ones in a row.

        Where nothing is known of its segment, an ancestor stands alone.
        """
        run: list[str] = []
        for _, nodes in groupby(self.path, lambda node: node.segment or node):
            segment = [node.checkpoint_id for node in nodes]
            # One that is passed in full was left because it was full, not by a fork: the next one follows it closely.
            if run and len(segment) < SEGMENT:
                yield run
                run = []
            run += segment
        if run:
            yield run


Fetch = Callable[[Address, bool], Generator[Request, Any, list[Node]]]
"""Fetches a checkpoint and, after it, guesses at its ancestors; told whether it is the first request."""


def walk(
    address: Address, channels: Collection[str], fetch: Fetch, *, from_target: bool = False
) -> Generator[Request, Any, Lineage | None]:
    """The plan that walks from a checkpoint, or from the latest of its namespace.

    Args:
        address: where to begin.
        channels: the channels to look for.
        fetch: how to fetch.
        from_target: whether a channel that holds a value at the target itself is found there.

    Returns:
        The walk; None if there is no such checkpoint.
    """
    fetched = yield from fetch(address, True)
    if not fetched:
        return None
    lineage = Lineage.begin(fetched[0], channels, from_target=from_target)
    while (following := lineage.advance(fetched)) is not None:
        fetched = yield from fetch(address.at(following), False)
        lineage.fetches += 1
        if not fetched:
            lineage.missing = following
            break
    return lineage


def by_segments(collection: str, channels: Sequence[str], place: tuple[str, int] | None = None) -> Fetch:
    """Fetch along the segments; where a document has none, by a scan.

    Args:
        collection: the name of the collection of checkpoints.
        channels: the channels of whose values to tell.
        place: the segment of the checkpoint that the walk begins at, and its number in there, if they are remembered.
    """
    unnamed: set[str] = set()

    def fetch(address: Address, first: bool) -> Generator[Request, Any, list[Node]]:
        if address.checkpoint_id in unnamed:
            return (yield from by_scan(address, first))
        if (
            first
            and place is not None
            and place[1] < BEGUN
            and (nodes := from_own(address, (yield pipelines.begun(address, place))))
        ):
            return nodes
        hops = _FIRST_HOPS if first else _LATER_HOPS
        rows: list[Document] = yield pipelines.lineage(address, collection, channels, hops)
        if not rows:
            return []
        own, *openers = rows[0]["known"]
        if "segment" not in own:
            return (yield from by_scan(address.at(own["checkpoint_id"]), first))
        columns = [(row["segment"], nodes) for row in rows for nodes in row["nodes"]]
        names = {name for _, nodes in columns for name in nodes["populated"]} - {None}
        held = {None: _UNNAMED, **{n: dict.fromkeys(set(channels).intersection(channels_of(n))) for n in names}}
        nodes = [node for segment, each in columns for node in _nodes(segment, each, held)]
        unnamed.update(node.checkpoint_id for node in nodes if node.values is _UNNAMED)
        return [Node.of(own), *(node for node in nodes if node.values is not _UNNAMED), *map(Node.of, openers)]

    return fetch


def from_own(address: Address, documents: Sequence[Document]) -> list[Node]:
    """The nodes of some documents, first the checkpoint itself; nothing if that is not among them, or about to go."""
    own = [d for d in documents if d["checkpoint_id"] == address.checkpoint_id and d.get("retired") != "going"]
    return [Node.of(document) for document in (*own, *documents)] if own else []


def _nodes(segment: str, columns: Document, held: Mapping[str | None, dict[str, None]]) -> Iterator[Node]:
    values = map(held.__getitem__, columns["populated"])
    return map(Node._make, zip(columns["ids"], columns["parents"], values, repeat(segment), repeat(False)))


def by_scan(address: Address, first: bool) -> Generator[Request, Any, list[Node]]:
    """Fetch the checkpoints with smaller ids, of whatever branch: for servers without ``$graphLookup``."""
    if address.checkpoint_id is None:
        found: list[Document] = yield pipelines.latest(address)
        if not found:
            return []
        address = address.at(found[0]["checkpoint_id"])
    documents: list[Document] = yield pipelines.older(address, _SCANNED)
    own = documents[0] if documents else {}
    there = own.get("checkpoint_id") == address.checkpoint_id and own.get("retired") != "going"
    return [Node.of(document) for document in documents] if there else []
