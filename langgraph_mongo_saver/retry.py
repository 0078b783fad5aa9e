"""Which errors pass by themselves, and how long to wait for that.

LangGraph does not retry a checkpointer. Every operation of this package can be repeated without harm, so one that
fails for a passing reason (an election, a cut connection) is repeated here, within a bounded time. The driver repeats
once by itself; an election can take longer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import random

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

# Codes after which the MongoDB specifications for retryable reads and writes let an operation be repeated:
# github.com/mongodb/specifications, source/retryable-writes and source/retryable-reads.
_PASSING_CODES = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


def is_transient(error: PyMongoError) -> bool:
    """Whether the operation that raised this may succeed when it is repeated.

    A server selection that timed out has waited its time already; a full connection pool is no matter of waiting.
    """
    if isinstance(error, (ServerSelectionTimeoutError, WaitQueueTimeoutError)):
        return False
    if isinstance(error, (AutoReconnect, ConnectionFailure)) or error.has_error_label("RetryableWriteError"):
        return True
    if isinstance(error, BulkWriteError):
        failed = (error.details or {}).get("writeConcernErrors", [])
        return any(entry.get("code") in _PASSING_CODES for entry in failed)
    return isinstance(error, OperationFailure) and error.code in _PASSING_CODES


def pauses(seconds: float, clock: Callable[[], float]) -> Iterator[float]:
    """The pauses to make between attempts, growing and jittered, until `seconds` have passed.

    Args:
        seconds: how long to go on, from the first attempt.
        clock: tells the time in seconds; it never goes back.
    """
    deadline = clock() + seconds
    pause = _FIRST_PAUSE
    while (left := deadline - clock()) > 0:
        yield min(pause * (0.5 + random() / 2), left)
        pause = min(pause * 2, _LONGEST_PAUSE)
