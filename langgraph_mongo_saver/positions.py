"""How far named listeners have got, and which process runs each: plans on one small collection.

Times are the server's, so that processes whose clocks differ agree on when a lease has run out.
"""

from __future__ import annotations

from datetime import datetime, timezone

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from langgraph_mongo_saver.codec import Document
from langgraph_mongo_saver.pipelines import Plan, Request

_LONG_AGO = datetime(2000, 1, 1, tzinfo=timezone.utc)


def take_lease(name: str, owner: str, seconds: float) -> Plan[bool]:
    """Become the one that runs a listener, unless another is; tells whether it worked."""
    # Also where it has neither field yet: what is missing is less than any number. As numbers, since SecantusDB does
    # not compare $$NOW with stored dates.
    over = {"$lt": [{"$toLong": "$until"}, {"$toLong": "$$NOW"}]}
    free = {"$or": [{"$eq": ["$owner", {"$literal": owner}]}, over]}
    change = {
        "owner": {"$cond": [free, {"$literal": owner}, "$owner"]},
        "until": {"$cond": [free, _in(seconds), "$until"]},
    }
    options = {"upsert": True, "return_document": ReturnDocument.AFTER}
    try:
        found = yield Request("listeners", "find_one_and_update", ({"_id": name}, [{"$set": change}]), options)
    except DuplicateKeyError:  # another was first to make it
        return False
    return bool(found["owner"] == owner)


def stored_position(name: str) -> Plan[str | None]:
    """The position that a listener has kept; None if it has none."""
    rows = yield Request("listeners", "find", ({"_id": name},), rows=True)
    return rows[0].get("position") if rows else None


def keep(name: str, owner: str, seconds: float, position: str | None) -> Plan[bool]:
    """Keep a position and the lease; tells whether it is still the owner's."""
    change: Document = {"until": _in(seconds)}
    if position is not None:
        change.update(position={"$literal": position}, saved_at="$$NOW")
    reply = yield Request("listeners", "update_one", ({"_id": name, "owner": owner}, [{"$set": change}]))
    return bool(reply.matched_count)


def release(name: str, owner: str) -> Plan[None]:
    """Let another process take over at once."""
    yield Request("listeners", "update_one", ({"_id": name, "owner": owner}, {"$set": {"until": _LONG_AGO}}))


def _in(seconds: float) -> Document:
    return {"$add": ["$$NOW", int(seconds * 1000)]}
