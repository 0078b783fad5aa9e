"""The servers for tests keep what they promise."""

from __future__ import annotations

import pytest
from pymongo import MongoClient

from langgraph_mongo_saver.embedded import find_mongod
from tests.servers import ReplicaSet


@pytest.mark.skipif(find_mongod() is None, reason="no mongod in reach")
def test_a_killed_primary_is_replaced_and_can_come_back() -> None:
    with ReplicaSet() as replica_set, MongoClient(replica_set.uri) as client:
        client.shop.orders.insert_one({"_id": 1})
        killed = replica_set.kill_primary()
        elected = replica_set.wait_for_primary()
        assert elected.address != killed.address
        client.shop.orders.insert_one({"_id": 2})
        replica_set.restart(killed)
        assert client.shop.orders.count_documents({}) == 2
    assert not replica_set.folder.exists()


def test_every_test_has_a_database_of_its_own(db_name: str, mongo: MongoClient) -> None:
    assert len(db_name) <= 38
    assert db_name not in mongo.list_database_names()
    mongo[db_name].orders.insert_one({})
    assert db_name in mongo.list_database_names()
