"""LangGraph checkpoints in MongoDB, for sync and async graphs."""

from langgraph_mongo_saver.aio import AsyncMongoDBSaver
from langgraph_mongo_saver.alistener import AsyncCheckpointListener
from langgraph_mongo_saver.cleanup import Removed
from langgraph_mongo_saver.delivery import ListenerStatus
from langgraph_mongo_saver.errors import (
    ChangeStreamsUnavailable,
    CheckpointerError,
    CorruptCheckpoint,
    DeltaThreadRefused,
    EventsLost,
    FilterNotQueryable,
    InvalidArgument,
    ListenerBusy,
    NoServerFound,
    PlaintextRefused,
    ThreadExists,
    TooLarge,
    Unserializable,
    UnsuitableCollection,
    WrongEventLoop,
)
from langgraph_mongo_saver.events import CheckpointEvent
from langgraph_mongo_saver.listener import CheckpointListener
from langgraph_mongo_saver.saver import MongoDBSaver
from langgraph_mongo_saver.streams import AsyncCheckpointStream, CheckpointStream
from langgraph_mongo_saver.subscriptions import AsyncSubscription, Subscription
from langgraph_mongo_saver.threads import ThreadSummary

__all__ = [
    "AsyncCheckpointListener",
    "AsyncCheckpointStream",
    "AsyncMongoDBSaver",
    "AsyncSubscription",
    "ChangeStreamsUnavailable",
    "CheckpointEvent",
    "CheckpointListener",
    "CheckpointStream",
    "CheckpointerError",
    "CorruptCheckpoint",
    "DeltaThreadRefused",
    "EventsLost",
    "FilterNotQueryable",
    "InvalidArgument",
    "ListenerBusy",
    "ListenerStatus",
    "MongoDBSaver",
    "NoServerFound",
    "PlaintextRefused",
    "Removed",
    "Subscription",
    "ThreadExists",
    "ThreadSummary",
    "TooLarge",
    "Unserializable",
    "UnsuitableCollection",
    "WrongEventLoop",
]
