"""Where a saver differs from `InMemorySaver` on purpose, one test a difference, so that the list stays true."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_mongo_saver import InvalidArgument, MongoDBSaver
from tests.building import checkpoint, config
from tests.surfaces import Surface

METADATA: Any = {"source": "loop", "step": 1}


@pytest.fixture
def surface_name() -> str:
    """These are about what is stored, not about how it is called."""
    return "sync"


@pytest.fixture
def both(saver: Surface) -> tuple[MongoDBSaver, InMemorySaver]:
    assert isinstance(saver.raw, MongoDBSaver)
    return saver.raw, InMemorySaver()


Both = tuple[MongoDBSaver, InMemorySaver]


def values(saver: Any, at: Any) -> Any:
    return saver.get_tuple(at).checkpoint["channel_values"]


def test_listing_order(both: Both) -> None:
    """Without a thread, `InMemorySaver` goes thread by thread; ours is newest first over all of them."""
    found = []
    for saver in both:
        for thread_id, id_ in (("a", "1"), ("b", "2"), ("a", "3")):
            saver.put(config(thread_id), checkpoint(id=id_), METADATA, {})
        found.append([loaded.checkpoint["id"] for loaded in saver.list(None)])
    assert found == [["3", "2", "1"], ["3", "1", "2"]]


def test_version_collisions(both: Both) -> None:
    """Two forks that minted the same version overwrite each other's value in `InMemorySaver`; ours keeps both."""
    found = []
    for saver in both:
        root = saver.put(config(), checkpoint(id="1"), METADATA, {})
        forks = [saver.put(root, checkpoint({"a": id_}, id=id_), METADATA, {"a": 1}) for id_ in ("2", "3")]
        found.append([values(saver, fork) for fork in forks])
    assert found == [[{"a": "2"}, {"a": "3"}], [{"a": "3"}, {"a": "3"}]]


def test_values_without_versions(both: Both) -> None:
    """`InMemorySaver` drops a value that is in no `new_versions`; ours gives back what it was given."""
    found = []
    for saver in both:
        stored = saver.put(config(), checkpoint({"new": 1, "unversioned": 2}, {"new": 1}), METADATA, {"new": 1})
        found.append(values(saver, stored))
    assert found == [{"new": 1, "unversioned": 2}, {"new": 1}]


def test_values_of_others_than_the_parent(both: Both) -> None:
    """A channel without a value shows, in `InMemorySaver`, any value of that version; ours the parent's."""
    found = []
    for saver in both:
        saver.put(config(), checkpoint({"a": 1}, id="1"), METADATA, {"a": 1})
        other = saver.put(config(), checkpoint({}, {"a": 1}, id="2"), METADATA, {})
        found.append(values(saver, other))
    assert found == [{}, {"a": 1}]


def test_booleans_in_filters(both: Both) -> None:
    """To Python True is 1, and so it is to `InMemorySaver`; to MongoDB and to those who ask it is not."""
    found = []
    for saver in both:
        saver.put(config(), checkpoint(), {**METADATA, "flag": True}, {})
        found.append([len(list(saver.list(config(), filter={"flag": flag}))) for flag in (True, 1)])
    assert found == [[1, 0], [1, 1]]


def test_negative_limits(both: Both) -> None:
    """`InMemorySaver` takes a negative limit for 0; it is a mistake in the caller's arithmetic, so ours refuses it."""
    ours, theirs = both
    assert list(theirs.list(config(), limit=-1)) == []
    with pytest.raises(InvalidArgument, match="limit"):
        list(ours.list(config(), limit=-1))


def test_secrets(both: Both) -> None:
    """`InMemorySaver` copies all configurables into metadata, API keys too; ours leaves out secrets."""
    found = []
    for saver in both:
        stored = saver.put(config(user="u", openai_api_key="sk-1"), checkpoint(), METADATA, {})
        loaded = saver.get_tuple(stored)
        assert loaded
        found.append(loaded.metadata)
    assert found == [{**METADATA, "user": "u"}, {**METADATA, "user": "u", "openai_api_key": "sk-1"}]


def test_the_config_of_a_checkpoint(both: Both) -> None:
    """`InMemorySaver` gives back the very config that it was asked with; ours only what leads to the checkpoint."""
    found = []
    for saver in both:
        stored = saver.put(config(), checkpoint(id="1"), METADATA, {})
        stored["configurable"]["user"] = "u"
        loaded = saver.get_tuple(stored)
        assert loaded
        found.append(loaded.config)
    assert found == [config(checkpoint_id="1"), config(checkpoint_id="1", user="u")]
