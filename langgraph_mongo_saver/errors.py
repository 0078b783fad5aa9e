"""What can go wrong, as a tree.

::

    CheckpointerError
    ├── InvalidArgument (also a ValueError)    an argument is refused before anything is sent
    │   ├── FilterNotQueryable                 the metadata key is stored encrypted only
    │   ├── TooLarge                           metadata or bookkeeping over what a document can hold
    │   ├── ThreadExists                       the target of a copy holds something else
    │   └── Unserializable (also a TypeError)  the serde cannot hold a value
    ├── CorruptCheckpoint                      stored data cannot be given back, or copied, as it was
    │   └── PlaintextRefused                   an encrypted saver met data that is not encrypted
    ├── DeltaThreadRefused (also a NotImplementedError)  a thread with delta channels was not to be pruned
    ├── UnsuitableCollection                   an existing collection would mix threads up
    ├── ChangeStreamsUnavailable               the server cannot tell what changes: it is no replica set
    ├── EventsLost                             the server no longer has the events since a position
    ├── ListenerBusy                           another process runs the listener of this name
    ├── WrongEventLoop (also a RuntimeError)   an async saver is used from the wrong place
    └── NoServerFound (also a RuntimeError)    no local server for development could be started

Errors of the database pass through as they are: they are ``pymongo.errors.PyMongoError``.
"""

from __future__ import annotations

from datetime import datetime


class CheckpointerError(Exception):
    """The checkpointer could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class InvalidArgument(CheckpointerError, ValueError):
    """An argument cannot be used."""


class FilterNotQueryable(InvalidArgument):
    """A filter names a metadata key that is stored encrypted, so the database cannot compare it."""


class TooLarge(InvalidArgument):
    """Metadata or bookkeeping is larger than one MongoDB document can hold."""


class ThreadExists(InvalidArgument):
    """The target of a copy holds checkpoints that are not the source's."""


class Unserializable(InvalidArgument, TypeError):
    """The serializer cannot hold a value."""


class CorruptCheckpoint(CheckpointerError):
    """A stored checkpoint cannot be given back, or copied, as it was."""


class PlaintextRefused(CorruptCheckpoint):
    """An encrypted saver met stored data that is not encrypted.

    Somebody else may have written it. If it dates from before encryption was switched on,
    construct the saver with ``accept_plaintext=True``.
    """


class DeltaThreadRefused(CheckpointerError, NotImplementedError):
    """A thread uses a DeltaChannel, and pruning was asked to refuse such threads."""


class UnsuitableCollection(CheckpointerError):
    """An existing collection compares strings in a way that would mix threads up."""


class ChangeStreamsUnavailable(CheckpointerError):
    """The server has no change streams."""


class EventsLost(CheckpointerError):
    """The server no longer has the events since the position to resume from.

    Attributes:
        since: the time of the last event that was delivered, if it is known.
        until: when the loss was found.
    """

    def __init__(
        self, message: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.since = since
        self.until = until


class ListenerBusy(CheckpointerError):
    """Another process runs the listener of this name."""


class WrongEventLoop(CheckpointerError, RuntimeError):
    """An async saver belongs to the event loop that it was first used on."""


class NoServerFound(CheckpointerError, RuntimeError):
    """No local MongoDB server could be found or started."""
