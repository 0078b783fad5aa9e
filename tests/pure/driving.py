"""Plans driven by hand: what they ask for, and what they make of replies; and the settings of a saver."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_mongo_saver.pipelines import Request
from langgraph_mongo_saver.settings import BLOBS, CHECKPOINTS, DB_NAME, WRITES, Settings


def settings(serde: SerializerProtocol | None = None, **changed: Any) -> Settings:
    """The settings of a saver that is constructed with these arguments."""
    arguments: dict[str, Any] = {
        "db_name": DB_NAME,
        "checkpoint_collection_name": CHECKPOINTS,
        "writes_collection_name": WRITES,
        "blobs_collection_name": BLOBS,
        "ttl": None,
        "queryable_metadata": None,
        "accept_plaintext": False,
        "dialect": "mongodb",
        "retry_seconds": 30.0,
    }
    return Settings.of(serde or JsonPlusSerializer(), **{**arguments, **changed})


@dataclass(frozen=True)
class Reply:
    """What a write replies."""

    matched_count: int = 1


@dataclass(frozen=True)
class Driven:
    """What a plan asked for, and its result."""

    requests: list[Request]
    result: Any

    @property
    def calls(self) -> list[str]:
        return [f"{request.part}.{request.method}" for request in self.requests]


def drive(plan: Generator[Request, Any, Any], *replies: Any) -> Driven:
    """Run a plan with exactly these replies; errors are thrown into it."""
    requests: list[Request] = []
    left = list(replies)
    advance, reply = plan.send, None
    while True:
        try:
            request = advance(reply)
        except StopIteration as done:
            assert left == [], f"the plan ended, and did not ask for {left}"
            return Driven(requests, done.value)
        requests.append(request)
        assert left, f"nobody expected {request}"
        reply = left.pop(0)
        advance = plan.throw if isinstance(reply, BaseException) else plan.send
