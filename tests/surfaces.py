"""Every way to call a saver behind one async face, so that each behaviour is tested once and on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient

from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver

Saver = MongoDBSaver | AsyncMongoDBSaver

SURFACES = ("sync", "sync-under-async", "async", "motor", "async-from-threads")


@dataclass(frozen=True)
class Surface:
    """A saver and one way to call it; `raw` is the saver itself."""

    name: str
    raw: Saver

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method that is named without its ``a``."""
        if self.name == "sync":
            return getattr(self.raw, method)(*args, **kwargs)
        if self.name == "async-from-threads":
            return await asyncio.to_thread(getattr(self.raw, method), *args, **kwargs)
        return await getattr(self.raw, f"a{method}")(*args, **kwargs)

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        return await self.call("put", *args, **kwargs)

    async def put_writes(self, *args: Any, **kwargs: Any) -> None:
        await self.call("put_writes", *args, **kwargs)

    async def get_tuple(self, config: Any) -> CheckpointTuple | None:
        return await self.call("get_tuple", config)

    async def delete_thread(self, thread_id: Any) -> None:
        await self.call("delete_thread", thread_id)

    async def list(self, *args: Any, **kwargs: Any) -> list[CheckpointTuple]:
        return [loaded async for loaded in self.iterate(*args, **kwargs)]

    async def iterate(self, *args: Any, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        """The listing as it comes, one checkpoint at a time."""
        if self.name == "sync":
            for loaded in self.raw.list(*args, **kwargs):
                yield loaded
        elif self.name == "async-from-threads":
            iterator = self.raw.list(*args, **kwargs)
            while (loaded := await asyncio.to_thread(next, iterator, None)) is not None:
                yield loaded
        else:
            async for loaded in self.raw.alist(*args, **kwargs):
                yield loaded

    async def setup(self) -> None:
        result = self.raw.setup()
        if result is not None:
            await result


@asynccontextmanager
async def open_surface(name: str, uri: str, db_name: str, *listeners: Any, **options: Any) -> AsyncIterator[Surface]:
    """A saver with a client of its own.

    Args:
        name: one of `SURFACES`.
        uri: the server.
        db_name: the database.
        *listeners: event listeners for the client.
        **options: arguments of the saver; those that begin with ``client_`` are the client's.
    """
    client_options = {key[7:]: options.pop(key) for key in list(options) if key.startswith("client_")}
    client_options["event_listeners"] = list(listeners)
    if name.startswith("sync"):
        with MongoClient[dict[str, Any]](uri, **client_options) as client:
            yield Surface(name, MongoDBSaver(client, db_name, **options))
    elif name == "motor":
        motor = AsyncIOMotorClient(uri, **client_options)
        try:
            yield Surface(name, AsyncMongoDBSaver(motor, db_name, **options))
        finally:
            motor.close()
    else:
        async with AsyncMongoClient[dict[str, Any]](uri, **client_options) as client:
            yield Surface(name, AsyncMongoDBSaver(client, db_name, **options))


OpenSurface = Callable[..., Any]
