"""Where a checkpoint lies: thread, namespace, checkpoint id; read from and written to `RunnableConfig`.

The only reader of ``config["configurable"]``. Every identifier that reaches a query has passed through
`identifier`, so that an operator document such as ``{"$ne": None}`` can never widen a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from langgraph_mongo_saver.errors import InvalidArgument


class Address(NamedTuple):
    """The place of one checkpoint, or of the latest one of a namespace where `checkpoint_id` is None."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None = None

    @property
    def key(self) -> dict[str, str]:
        """The three address fields as every document carries them.

        Raises:
            InvalidArgument: if the address names no checkpoint.
        """
        if self.checkpoint_id is None:
            raise InvalidArgument("config: 'checkpoint_id' is missing; it names the checkpoint this belongs to")
        return {
            "thread_id": self.thread_id,
            "checkpoint_ns": self.checkpoint_ns,
            "checkpoint_id": self.checkpoint_id,
        }

    def at(self, checkpoint_id: str | None) -> Address:
        """The same namespace at another checkpoint."""
        return self._replace(checkpoint_id=checkpoint_id)

    def to_config(self) -> RunnableConfig:
        """The config that leads back here."""
        return {"configurable": dict(self.key)}


def identifier(value: object, name: str) -> str:
    """Check an id that is about to be used in a query.

    Args:
        value: the id as the caller gave it.
        name: what the caller calls it, for the error.

    Returns:
        The id as a plain string.

    Raises:
        InvalidArgument: if it is not a string, or not one that UTF-8 can hold.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a str, but a {type(value).__name__} was given")
    plain = str.__str__(value)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} holds a lone surrogate, which MongoDB cannot store as UTF-8") from None
    return plain


def thread_identifier(value: object, name: str = "thread_id") -> str:
    """Check a thread id; ints and UUIDs, which many apps use as such, become strings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))  # of an IntEnum, too, before Python 3.11
    if isinstance(value, UUID):
        return str(value)
    return identifier(value, name)


def configurable(config: object, argument: str = "config") -> Mapping[str, Any]:
    """The ``configurable`` part of a config.

    Raises:
        InvalidArgument: if there is none.
    """
    part = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(part, Mapping):
        raise InvalidArgument(
            f"{argument} must be a mapping with a 'configurable' mapping, such as "
            f"{{'configurable': {{'thread_id': '1'}}}}, but a {type(config).__name__} was given"
        )
    return part


def read_checkpoint_id(config: object, argument: str = "config") -> str | None:
    """The checkpoint id of a config; None where it is absent, None or empty."""
    value = configurable(config, argument).get("checkpoint_id")
    return None if value is None or value == "" else identifier(value, f"{argument}: checkpoint_id")


def read_namespace(config: object, argument: str = "config") -> str | None:
    """The namespace of a config; None where it is absent."""
    value = configurable(config, argument).get("checkpoint_ns")
    return None if value is None else identifier(value, f"{argument}: checkpoint_ns")


def read_address(config: object, argument: str = "config") -> Address:
    """The address that a config names; an absent namespace is the root's, ``""``.

    Raises:
        InvalidArgument: if `thread_id` is missing or any id is not a string.
    """
    part = configurable(config, argument)
    if part.get("thread_id") is None:
        raise InvalidArgument(
            f"{argument}: 'thread_id' is missing; pass {{'configurable': {{'thread_id': ...}}}} "
            "so that the checkpoint can be found again"
        )
    return Address(
        thread_identifier(part["thread_id"], f"{argument}: thread_id"),
        read_namespace(config, argument) or "",
        read_checkpoint_id(config, argument),
    )
