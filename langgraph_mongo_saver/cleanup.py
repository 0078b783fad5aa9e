"""What prune, delete_for_runs and compact_thread are asked for, checked, and what they tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from langgraph_mongo_saver.errors import InvalidArgument

Progress = Callable[[int, int], object]

# What no checkpoint refers to may belong to a put that is under way: blobs are stored before their checkpoint, and
# writes may be. A put repeats what fails for `retry_seconds`; this is beyond its default.
GRACE = timedelta(minutes=1)

# Longer ago than any checkpoint, and short enough to count back from now.
_LONGEST = timedelta(days=36_500)


@dataclass(frozen=True)
class Removed:
    """How many documents went, or in a dry run would go, by collection."""

    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0

    def __add__(self, other: Removed) -> Removed:
        """Both together."""
        return Removed(self.checkpoints + other.checkpoints, self.writes + other.writes, self.blobs + other.blobs)


@dataclass(frozen=True)
class Options:
    """How to clean up; see `MongoDBSaver.prune`."""

    grace: timedelta
    dry_run: bool
    progress: Progress | None
    keep_last: int = 1
    older_than: timedelta | None = None
    refuse_delta: bool = False

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            InvalidArgument: naming the one that cannot be used.
        """
        if isinstance(self.keep_last, bool) or not isinstance(self.keep_last, int) or self.keep_last < 1:
            raise InvalidArgument(
                f"keep_last must be a number of checkpoints from 1 on, but {self.keep_last!r} was given"
            )
        _check_time("grace", self.grace)
        if self.older_than is not None:
            _check_time("older_than", self.older_than)
        if self.progress is not None and not callable(self.progress):
            given = type(self.progress).__name__
            raise InvalidArgument(f"progress must be a function or None, but a {given} was given")

    def check_whole_threads(self, strategy: str) -> None:
        """Refuse what says that some checkpoints shall stay, where whole threads are deleted.

        Raises:
            InvalidArgument: naming it.
        """
        for name, value, default in (
            ("keep_last", self.keep_last, 1),
            ("older_than", self.older_than, None),
            ("refuse_delta", self.refuse_delta, False),
        ):
            if value != default:
                raise InvalidArgument(
                    f"{name} goes with strategy 'keep_latest'; {strategy!r} deletes everything of the threads"
                )


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise InvalidArgument(f"{name} must be a datetime.timedelta, but a {type(value).__name__} was given")
    if not timedelta(0) <= value <= _LONGEST:
        raise InvalidArgument(f"{name} must be between 0 and {_LONGEST.days} days, but {value!r} was given")
