"""Checkpoint metadata as the database can query it, and the filters that do.

Metadata is stored twice: exactly, through the serde, which is what callers get back; and as native BSON, which
applications, dashboards and filters query. The native form may be lossy (BSON has no huge ints, no microseconds,
no objects), so a filter is answered in two steps: the database selects what *can* match, by comparing native
forms, and `matches` decides on the exact values. For that, all values that are equal in Python must have equal
native forms; nothing else is asked of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timezone
from decimal import Decimal
from enum import Enum
from numbers import Integral
from operator import itemgetter
from typing import Any, cast
from urllib.parse import quote, unquote
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from langgraph_mongo_saver.errors import FilterNotQueryable, InvalidArgument

QUERYABLE_WHEN_ENCRYPTED = frozenset({"source", "step", "run_id"})
"""Metadata keys that stay in clear under an encrypting serde, unless the saver is told otherwise."""

# The parts of a name by which LangGraph itself takes a configurable for a secret (langgraph._internal._config);
# get_checkpoint_metadata would copy such values into every checkpoint.
_SECRETS = ("key", "token", "secret", "password", "auth")

# mongod refuses documents nested deeper than 180 levels; nobody queries the 32nd.
_DEEPEST = 32
_INT64 = range(-(2**63), 2**63)


def of_checkpoint(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store with a checkpoint: what was given, and what the config adds to it.

    Configurables whose names tell of a secret (an API key, a token) are left out.
    """
    configurable = {
        key: value
        for key, value in config.get("configurable", {}).items()
        if not any(part in key.casefold() for part in _SECRETS)
    }
    reduced = cast(RunnableConfig, {**config, "configurable": configurable})
    return cast(dict[str, Any], get_checkpoint_metadata(reduced, metadata))


def field(key: str) -> str:
    """The name of a metadata key or channel in the database: percent-encoded where BSON or a path trips over it."""
    name = key.replace("%", "%25").replace(".", "%2E").replace("\0", "%00")
    name = "".join(c if not "\ud800" <= c <= "\udfff" else quote(c, errors="surrogatepass") for c in name)
    return f"%24{name[1:]}" if name.startswith("$") else name or "%"


def key_of(name: str) -> str:
    """The metadata key or channel that `field` made a name of."""
    return "" if name == "%" else unquote(name, errors="surrogatepass")


def native(value: Any, depth: int = 0) -> Any:
    """A value as BSON that a query can compare: equal for equal values, readable where BSON can hold it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "replace").decode()  # as the serializer has it
    if isinstance(value, Integral):
        return int(value) if int(value) in _INT64 else _as_float(int(value))
    if isinstance(value, Decimal) and value.is_finite() and -(2**63) <= value < 2**63 and value == int(value):
        return int(value)
    if isinstance(value, (float, Decimal)):
        return _as_float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (Mapping, list, tuple)):
        return _native_container(value, depth)
    return _native_object(value)


def _as_float(number: int | float | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def _native_container(value: Any, depth: int) -> Any:
    if depth >= _DEEPEST:
        return "<nested too deeply to query>"
    if not isinstance(value, Mapping):
        return [native(item, depth + 1) for item in value]
    if not all(isinstance(key, str) for key in value):
        return "<mapping with keys that are not strings>"
    # Sorted, since BSON documents are equal only if their keys come in the same order.
    return {
        name: native(item, depth + 1)
        for name, item in sorted(((field(k), v) for k, v in value.items()), key=itemgetter(0))
    }


def _native_object(value: Any) -> Any:
    if isinstance(value, datetime):
        try:
            return value if value.utcoffset() is None else value.astimezone(timezone.utc)
        except OverflowError:
            return "<datetime>"
    if isinstance(value, time) and value.utcoffset() is not None:
        return "<time>"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return "<set>"
    if isinstance(value, Enum):
        return f"<{type(value).__name__}.{value.name}>"
    return f"<{type(value).__name__}>"


def queryable(metadata: Mapping[Any, Any], keys: Collection[str] | None) -> dict[str, Any]:
    """The native form of metadata.

    Args:
        metadata: what is stored.
        keys: the keys to keep in clear; None keeps all.
    """
    return {
        field(key): native(value)
        for key, value in metadata.items()
        if isinstance(key, str) and (keys is None or key in keys)
    }


def check_filter(filter: object, keys: Collection[str] | None, argument: str = "filter") -> dict[str, Any]:
    """Check a filter of `list` or `watch`.

    Args:
        filter: metadata keys and the values they must equal; None for no filter.
        keys: the keys that the database can compare; None for all.
        argument: what the caller calls it, for the error.

    Raises:
        InvalidArgument: if it is not a mapping with string keys.
        FilterNotQueryable: if a key is stored encrypted only.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        raise InvalidArgument(f"{argument} must be a mapping or None, but a {type(filter).__name__} was given")
    for key in filter:
        if not isinstance(key, str):
            raise InvalidArgument(f"{argument}: keys must be metadata keys (str), but a {type(key).__name__} was given")
        if keys is not None and key not in keys:
            raise FilterNotQueryable(
                f"{argument}: metadata key {key!r} is stored encrypted, so the database cannot compare it; queryable "
                f"are {sorted(keys)}. Construct the saver with queryable_metadata=[..., {key!r}] to store it in clear."
            )
    # get_checkpoint_metadata takes NULs out of what is stored.
    return {key: value.replace("\0", "") if isinstance(value, str) else value for key, value in filter.items()}


def readable(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata in their native form, under the keys that they were given with."""
    return {key_of(name): _readable(value) for name, value in stored.items()}


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return readable(value)
    return [_readable(item) for item in value] if isinstance(value, list) else value


def filter_query(filter: Mapping[str, Any]) -> dict[str, Any]:
    """The query that selects every checkpoint which can match a filter (and few others)."""
    return {f"metadata.{field(key)}": {"$eq": native(value)} for key, value in filter.items()}


def matches(filter: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether metadata holds exactly the values that a filter asks for."""
    return all(_equal(metadata.get(key), value) for key, value in filter.items())


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (ArithmeticError, ValueError):  # a signalling NaN, an array: such values have no equality
        return False
