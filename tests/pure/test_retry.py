"""Which errors are repeated, and for how long."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    CursorNotFound,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidName,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from langgraph_mongo_saver.retry import is_transient, pauses

PASSING_CODES = {
    "HostUnreachable": 6,
    "HostNotFound": 7,
    "NetworkTimeout": 89,
    "ShutdownInProgress": 91,
    "ReadConcernMajorityNotAvailableYet": 134,
    "PrimarySteppedDown": 189,
    "ExceededTimeLimit": 262,
    "SocketException": 9001,
    "NotWritablePrimary": 10107,
    "InterruptedAtShutdown": 11600,
    "InterruptedDueToReplStateChange": 11602,
    "NotPrimaryNoSecondaryOk": 13435,
    "NotPrimaryOrSecondary": 13436,
}
LASTING_CODES = {
    "Unauthorized": 13,
    "AuthenticationFailed": 18,
    "NamespaceNotFound": 26,
    "MaxTimeMSExpired": 50,
    "CommandNotFound": 59,
    "IndexOptionsConflict": 85,
    "DocumentValidationFailure": 121,
    "Location17280": 17280,
    "none": None,
}


def labelled(error: PyMongoError) -> PyMongoError:
    error._add_error_label("RetryableWriteError")
    return error


def bulk(*concerns: int) -> BulkWriteError:
    return BulkWriteError({"writeErrors": [{"code": 91}], "writeConcernErrors": [{"code": c} for c in concerns]})


@pytest.mark.parametrize("name", PASSING_CODES)
def test_codes_that_pass(name: str) -> None:
    assert is_transient(OperationFailure(name, PASSING_CODES[name]))
    assert is_transient(WriteConcernError(name, PASSING_CODES[name]))
    assert is_transient(bulk(64, PASSING_CODES[name]))


@pytest.mark.parametrize("name", LASTING_CODES)
def test_codes_that_last(name: str) -> None:
    assert not is_transient(OperationFailure(name, LASTING_CODES[name]))
    assert not is_transient(WriteError(name, LASTING_CODES[name]))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (AutoReconnect("cut"), True),
        (NetworkTimeout("slow"), True),
        (NotPrimaryError("stepped down"), True),
        (ConnectionFailure("cut"), True),
        (labelled(OperationFailure("said so", 1)), True),
        (labelled(WriteConcernError("said so", 64)), True),
        (ServerSelectionTimeoutError("waited for long"), False),
        (WaitQueueTimeoutError("the pool is full"), False),
        (DuplicateKeyError("there already", 11000), False),
        (WTimeoutError("slow secondaries", 64), False),
        (ExecutionTimeout("too slow", 50), False),
        (CursorNotFound("gone", 43), False),
        (bulk(), False),
        (bulk(64), False),
        (BulkWriteError({}), False),
        (InvalidName("a..b"), False),
        (ConfigurationError("wrong"), False),
        (PyMongoError("any"), False),
    ],
    ids=lambda value: f"{value!r}"[:50],
)
def test_errors_of_the_driver(error: PyMongoError, passes: bool) -> None:
    assert is_transient(error) is passes


class Clock:
    """Time passes by what is waited, and by nothing else."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seconds", [0.01, 1, 30, 300])
def test_pauses_end_at_the_deadline_and_never_later(seconds: float) -> None:
    clock = Clock()
    for pause in pauses(seconds, clock):
        assert 0 < pause <= 2
        clock.now += pause
    assert clock.now == pytest.approx(1000 + seconds)


def test_pauses_grow_and_differ_between_processes() -> None:
    longest = [max(column) for column in zip(*(islice(pauses(1000, Clock()), 9) for _ in range(200)), strict=True)]
    assert longest[0] <= 0.05
    assert all(b > a for a, b in pairwise(longest[:6]))
    assert longest[-1] <= 2
    assert len({next(pauses(1000, Clock())) for _ in range(20)}) > 1


def test_without_time_there_is_no_second_attempt() -> None:
    assert list(pauses(0, Clock())) == []


def test_time_that_the_attempts_take_counts() -> None:
    clock = Clock()
    attempts = pauses(10, clock)
    next(attempts)
    clock.now += 10
    assert next(attempts, None) is None
