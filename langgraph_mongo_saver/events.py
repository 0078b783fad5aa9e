"""What a listener is told, what it may ask for, and from where it goes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, get_args

import bson
from bson.timestamp import Timestamp
from langchain_core.runnables import RunnableConfig

from langgraph_mongo_saver.address import identifier, thread_identifier
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.metadata import check_filter, native

OnGap = Literal["raise", "catch_up"]
"""What to do where the server no longer has the events since a position."""

Kind = Literal["checkpoint", "writes", "interrupt", "error", "thread_deleted"]
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


@dataclass(frozen=True)
class CheckpointEvent:
    """Something that happened to a thread. Values of the state are not in it: `config` leads to them.

    Events are delivered at least once: one and the same may come again after a restart, or if a put was repeated.

    Attributes:
        kind: ``"checkpoint"``, a checkpoint was stored; ``"writes"``, a task has stored its writes; ``"interrupt"`` and
            ``"error"``, a task waits for an answer, or failed; ``"thread_deleted"``, nothing is left of a thread.
        thread_id: the thread.
        created_at: when it was stored, by the writer's clock; for deletions by the server's.
        position: where to resume to get all that comes after it, for `watch(resume_from=...)`.
        checkpoint_ns: the namespace; the root graph's is ``""``.
        checkpoint_id: the checkpoint, or the one that the task started from; None for deletions.
        parent_checkpoint_id: of a checkpoint, its parent.
        step: of a checkpoint, its superstep; -1 for the input.
        source: of a checkpoint, ``"input"``, ``"loop"``, ``"update"`` or ``"fork"``.
        run_id: of a checkpoint, the run that made it.
        metadata: of a checkpoint, the metadata that are stored in clear.
        task_id: the task, except for checkpoints.
        channels: the channels that the task has written to.
        interrupts: of an interrupt, its values, deserialized.
        error: of an error, what it says.
    """

    kind: Kind
    thread_id: str
    created_at: datetime
    position: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    parent_checkpoint_id: str | None = None
    step: int | None = None
    source: str | None = None
    run_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    task_id: str | None = None
    channels: tuple[str, ...] = ()
    interrupts: tuple[Any, ...] = ()
    error: str | None = None

    @property
    def config(self) -> RunnableConfig:
        """The config that `get_tuple` takes; of a deleted thread, the thread's."""
        place = {"thread_id": self.thread_id, "checkpoint_ns": self.checkpoint_ns}
        return {"configurable": place if self.checkpoint_id is None else {**place, "checkpoint_id": self.checkpoint_id}}

    def to_dict(self) -> dict[str, Any]:
        """The event in JSON's types. Interrupts become ``{"value", "id"}``; what JSON does not know becomes text."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # JSON has no NaN and no infinity.
        plain: dict[str, Any] = json.loads(json.dumps(fields, default=_plain, skipkeys=True), parse_constant=str)
        return plain

    def to_json(self) -> str:
        """`to_dict` as text, on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "value") and hasattr(value, "id"):  # langgraph.types.Interrupt, which is not ours to import
        return {"value": value.value, "id": value.id}
    return str(value)


# --- where to go on ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """A place in the order of events.

    Attributes:
        token: the server's resume token.
        at: the time there; without a token, all since then follows.
    """

    token: Mapping[str, Any] | None = None
    at: datetime | None = None

    def __str__(self) -> str:
        """The opaque text that callers keep."""
        document = {"token": self.token, "at": self.at}
        return base64.urlsafe_b64encode(bson.encode(document)).decode().rstrip("=")

    def options(self) -> dict[str, Any]:
        """How the driver opens a change stream here."""
        if self.token is not None:
            return {"start_after": self.token}
        return {} if self.at is None else {"start_at_operation_time": Timestamp(int(self.at.timestamp()), 0)}


def start_of(resume_from: object, start_at: object) -> Position:
    """Where `watch` begins.

    Raises:
        InvalidArgument: if an argument cannot be used, or both are given.
    """
    if resume_from is not None and start_at is not None:
        raise InvalidArgument("resume_from and start_at were both given; one of them tells where to begin")
    if start_at is not None:
        if not isinstance(start_at, datetime) or start_at.utcoffset() is None:
            given = "one without a timezone" if isinstance(start_at, datetime) else f"a {type(start_at).__name__}"
            raise InvalidArgument(f"start_at must be a datetime with a timezone, but {given} was given")
        return Position(at=start_at.astimezone(timezone.utc))
    if resume_from is None:
        return Position()
    try:
        text = str.__str__(resume_from)
        document = bson.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        token, at = document["token"], document["at"]
        if token is not None and not isinstance(token, Mapping):
            raise TypeError
        return Position(token, None if at is None else at.replace(tzinfo=timezone.utc))
    except (TypeError, ValueError, KeyError, AttributeError, bson.errors.BSONError):
        raise InvalidArgument(
            f"resume_from must be the position of an event, but another {type(resume_from).__name__} was given"
        ) from None


# --- what to be told -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventFilter:
    """Which events are asked for.

    Attributes:
        kinds: of these kinds.
        thread_ids: of these threads; None for all.
        checkpoint_ns: of this namespace; None for all.
        metadata: checkpoints with these values, in native form; other events have no metadata and never match.
    """

    kinds: frozenset[Kind] = KINDS
    thread_ids: frozenset[str] | None = None
    checkpoint_ns: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, event: CheckpointEvent) -> bool:
        """Whether an event is asked for."""
        return (
            event.kind in self.kinds
            and (self.thread_ids is None or event.thread_id in self.thread_ids)
            and (self.checkpoint_ns in (None, event.checkpoint_ns) or event.kind == "thread_deleted")
            and (not self.metadata or (event.kind == "checkpoint" and self._fits(event.metadata)))
        )

    def _fits(self, metadata: Mapping[str, Any]) -> bool:
        return all(_same(native(metadata.get(key)), value) for key, value in self.metadata.items())


def _same(a: Any, b: Any) -> bool:
    # As the database compares: True is not 1.
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def event_filter(
    *kinds: str,
    thread_id: object = None,
    checkpoint_ns: object = None,
    metadata: Mapping[str, Any] | None = None,
    clear_keys: Collection[str] | None = None,
) -> EventFilter:
    """Check what events are asked for.

    Args:
        *kinds: kinds; none for all.
        thread_id: a thread, several, or None for all.
        checkpoint_ns: a namespace, or None for all.
        metadata: metadata keys and their values.
        clear_keys: the metadata keys that are stored in clear; None for all.

    Raises:
        InvalidArgument: naming the argument that cannot be used.
    """
    chosen = frozenset(kind for kind in KINDS if kind in kinds)
    if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise InvalidArgument(f"kinds must be among {sorted(KINDS)}, but others were given")
    return EventFilter(
        kinds=chosen or KINDS,
        thread_ids=None if thread_id is None else _thread_ids(thread_id),
        checkpoint_ns=None if checkpoint_ns is None else identifier(checkpoint_ns, "checkpoint_ns"),
        metadata={key: native(value) for key, value in check_filter(metadata, clear_keys, "metadata").items()},
    )


def _thread_ids(given: object) -> frozenset[str]:
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        found = frozenset(thread_identifier(each, "thread_id: an id") for each in given)
        if not found:
            raise InvalidArgument("thread_id must be one or several threads, or None for all, but none was given")
        return found
    return frozenset([thread_identifier(given)])


def kinds_of(kinds: object) -> tuple[str, ...]:
    """Kinds given as one, several or None for all, as a tuple.

    Raises:
        InvalidArgument: if they are none of these.
    """
    if kinds is None:
        return ()
    names = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(names, Iterable) and not isinstance(names, (bytes, Mapping)):
        found = tuple(name if isinstance(name, str) else "" for name in names)
        if found:
            return found
    raise InvalidArgument(f"kinds must be one or several of {sorted(KINDS)}, but a {type(kinds).__name__} was given")
