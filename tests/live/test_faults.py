"""The means to look at commands and to make them fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

from tests.faults import CommandRecorder, Proxy, fail_command
from tests.servers import Server


def test_a_recording_holds_what_was_sent_meanwhile(server: Server, db_name: str, recorder: CommandRecorder) -> None:
    with MongoClient(server.uri, event_listeners=[recorder]) as client:
        orders = client[db_name].orders
        orders.insert_many({"_id": number} for number in range(9))
        with recorder.recording() as seen:
            orders.insert_one({"_id": 9})
            with recorder.recording() as inner:
                orders.find_one({"_id": 9})
        with orders.find(batch_size=2) as cursor, recorder.recording() as closing:
            next(cursor)
            cursor.close()
        orders.count_documents({})
    assert seen.names == ["insert", "find"]
    assert inner.names == ["find"]
    assert inner[0].body["filter"] == {"_id": 9}
    assert inner[0].database == db_name
    assert closing.names == ["find"]
    assert len(closing.killed_cursors) == 1


def test_commands_fail_as_often_as_told(
    server: Server, db_name: str, mongo: MongoClient, recorder: CommandRecorder
) -> None:
    with MongoClient(server.uri, event_listeners=[recorder], appname="victim", retryReads=False) as client:
        orders = client[db_name].orders
        with fail_command(mongo, ["find"], error_code=2, app_name="victim"), recorder.recording() as seen:
            with pytest.raises(OperationFailure) as caught:
                orders.find_one()
            assert caught.value.code == 2
            orders.find_one()
        assert seen.names == ["find", "find"]
        assert seen.failed == ["find"]
        with fail_command(mongo, ["find"], times=None, close_connection=True, app_name="victim"):
            mongo[db_name].orders.find_one()
            for _ in range(2):
                with pytest.raises(AutoReconnect):
                    orders.find_one()
        orders.find_one()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    target = urlsplit(server.uri)
    assert target.hostname
    with Proxy(target.hostname, target.port or 27017) as proxy:
        yield proxy


def ping(proxy: Proxy, **options: int) -> None:
    with MongoClient(proxy.uri, **options) as client:
        client.admin.command("ping")


def test_a_proxy_cuts_what_is_open_and_takes_new_connections(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        ping(proxy)  # the proxy takes connections in order: the first is open by now
        proxy.cut()
        connection.settimeout(5)
        assert connection.recv(1) == b""
        ping(proxy)


def test_a_proxy_refuses_connections_until_it_accepts_them_again(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ServerSelectionTimeoutError):
        ping(proxy, serverSelectionTimeoutMS=300)
    assert proxy.refused
    proxy.accept()
    ping(proxy)
