"""Checkpoint events for browsers, as server-sent events: an example to start from.

    pip install starlette uvicorn
    MONGODB_URI=mongodb://localhost:27017 uvicorn scripts.events_server:app

A page subscribes with ``new EventSource("/events?thread_id=42&kind=checkpoint&kind=interrupt")``. The browser
reconnects by itself, and tells in ``Last-Event-ID`` how far it had got: the position of the last event.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from langgraph_mongo_saver import AsyncCheckpointStream, AsyncMongoDBSaver, InvalidArgument


async def events(request: Request) -> Response:
    saver: AsyncMongoDBSaver = request.app.state.saver
    try:
        stream = saver.watch(
            thread_id=request.query_params.getlist("thread_id") or None,
            kinds=request.query_params.getlist("kind") or None,
            resume_from=request.headers.get("last-event-id"),
            on_gap="catch_up",
        )
    except InvalidArgument as error:
        return PlainTextResponse(str(error), status_code=400)
    return StreamingResponse(as_text(stream), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def as_text(stream: AsyncCheckpointStream) -> AsyncIterator[str]:
    async with stream:
        yield ": open\n\n"
        async for event in stream:
            yield f"id: {event.position}\nevent: {event.kind}\ndata: {event.to_json()}\n\n"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    uri, database = os.environ.get("MONGODB_URI"), os.environ.get("MONGODB_DB", "checkpointing_db")
    async with AsyncMongoDBSaver.from_conn_string(uri, db_name=database) as app.state.saver:
        yield


app = Starlette(routes=[Route("/events", events)], lifespan=lifespan)
