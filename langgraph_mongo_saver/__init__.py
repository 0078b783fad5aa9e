"""LangGraph checkpoints in MongoDB, for sync and async graphs."""

from langgraph_mongo_saver.aio import AsyncMongoDBSaver
from langgraph_mongo_saver.errors import (
    CheckpointerError,
    CorruptCheckpoint,
    DeltaThreadRefused,
    FilterNotQueryable,
    InvalidArgument,
    NoServerFound,
    PlaintextRefused,
    ThreadExists,
    TooLarge,
    Unserializable,
    UnsuitableCollection,
    WrongEventLoop,
)
from langgraph_mongo_saver.maintenance import Removed
from langgraph_mongo_saver.saver import MongoDBSaver
from langgraph_mongo_saver.threads import ThreadSummary

__all__ = [
    "AsyncMongoDBSaver",
    "CheckpointerError",
    "CorruptCheckpoint",
    "DeltaThreadRefused",
    "FilterNotQueryable",
    "InvalidArgument",
    "MongoDBSaver",
    "NoServerFound",
    "PlaintextRefused",
    "Removed",
    "ThreadExists",
    "ThreadSummary",
    "TooLarge",
    "Unserializable",
    "UnsuitableCollection",
    "WrongEventLoop",
]
