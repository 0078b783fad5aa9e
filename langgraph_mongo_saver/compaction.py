"""compact_thread, as a plan: fold a head's delta history with the graph's own reducers, then keep the head alone.

Strategy A of LangGraph's DeltaChannel guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, EmptyChannelError
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_mongo_saver import pipelines
from langgraph_mongo_saver.address import Address, read_address
from langgraph_mongo_saver.cleanup import Options, Removed
from langgraph_mongo_saver.errors import InvalidArgument
from langgraph_mongo_saver.history import delta_channel_history
from langgraph_mongo_saver.maintenance import Place, prune_thread
from langgraph_mongo_saver.pipelines import Plan
from langgraph_mongo_saver.plans import Planner
from langgraph_mongo_saver.values import Blob

# Another process compacts the same checkpoint, with other channels.
_ATTEMPTS = 3


def compact_thread(planner: Planner, graph: Any, config: RunnableConfig, options: Options) -> Plan[Removed]:
    """The plan for `compact_thread`."""
    channels = getattr(graph, "channels", None)
    if not isinstance(channels, Mapping):
        raise InvalidArgument(f"graph must be a compiled LangGraph graph, but a {type(graph).__name__} was given")
    address = read_address(config)
    if address.checkpoint_id is not None:
        raise InvalidArgument("config: only the latest checkpoint can be compacted; leave 'checkpoint_id' out")
    return _compact_thread(planner, channels, address, options)


def _compact_thread(planner: Planner, specs: Mapping[str, Any], address: Address, options: Options) -> Plan[Removed]:
    config: RunnableConfig = {"configurable": {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}}
    held: dict[Place, list[str]] = {}
    for _ in range(_ATTEMPTS):
        head = yield from planner.get_tuple(config)
        if head is None:
            return Removed()
        histories = yield from delta_channel_history(planner, head.config, _absent(specs, head))
        folded = {name: value for name, history in histories.items() for value in _fold(specs[name], history)}
        if options.dry_run:
            held = {(address.checkpoint_ns, head.checkpoint["id"]): list(folded)}
        if not folded or options.dry_run or (yield from _hold(planner, read_address(head.config), folded)):
            break
    # Whatever the head holds by now, no more is deleted than it can do without.
    return (yield from prune_thread(planner, address.thread_id, options, held))


def _absent(specs: Mapping[str, Any], head: CheckpointTuple) -> list[str]:
    """The channels whose value at the head is made of its ancestors' writes.

    The rule of `langgraph.pregel._checkpoint`: a `DeltaChannel`, or a reducer channel that was one when it was
    written, with a version and without a value.
    """
    return [
        name
        for name, spec in specs.items()
        if (hasattr(spec, "replay_writes") or hasattr(spec, "operator"))
        and name in head.checkpoint["channel_versions"]
        and name not in head.checkpoint["channel_values"]
    ]


def _fold(spec: Any, history: DeltaChannelHistory) -> list[Any]:
    """The value that a history adds up to, as it is stored; nothing if there is none."""
    try:
        if hasattr(spec, "replay_writes"):
            channel = spec.from_checkpoint(history.get("seed"))
            channel.replay_writes(history["writes"])
            return [_DeltaSnapshot(channel.get())]
        if "seed" not in history and not history["writes"]:
            return []
        channel = spec.from_checkpoint(history["seed"]) if "seed" in history else spec.copy()
        for _, _, value in history["writes"]:
            channel.update([value])
        return [channel.checkpoint()]
    except EmptyChannelError:
        return []


def _hold(planner: Planner, head: Address, folded: Mapping[str, Any]) -> Plan[bool]:
    """Let a checkpoint hold these values, all at once; whether it does not hold one of them already."""
    blobs: dict[str, Blob] = {}
    entries = []
    for channel, value in folded.items():
        type_, data = planner.sealer.seal(value, f"channel {channel!r}")
        blob = Blob.of(head.thread_id, type_, data)
        blobs[blob.digest] = blob  # channels may hold the same
        entries.append({"channel": channel, **blob.reference(type_)})
    active_at = yield from planner.note_activity(head.thread_id)
    yield from planner.blobs.store(list(blobs.values()), active_at, held=True)
    added = bool((yield pipelines.add_values(head, entries)).matched_count)
    planner.recall.forget_thread(head.thread_id)
    return added
