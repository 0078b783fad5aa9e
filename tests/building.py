"""Configs and checkpoints for tests, no more than each test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.base.id import uuid6


def config(thread_id: Any = "1", checkpoint_ns: Any = "", checkpoint_id: Any = None, **configurable: Any) -> Any:
    """A config; without ``checkpoint_id`` unless one is given."""
    named = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, **configurable}
    return {"configurable": named if checkpoint_id is None else {**named, "checkpoint_id": checkpoint_id}}


def checkpoint(
    values: Mapping[str, Any] | None = None, versions: Mapping[str, Any] | None = None, id: str | None = None
) -> Checkpoint:
    """A checkpoint with these channel values; every channel has version 1 unless told otherwise."""
    values = dict(values or {})
    return {
        "v": 4,
        "id": id or str(uuid6(clock_seq=-2)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1) if versions is None else dict(versions),
        "versions_seen": {},
        "updated_channels": None,
    }
