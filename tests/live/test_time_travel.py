"""Replays, forks and edits of old checkpoints, as with `InMemorySaver`."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import StateUpdate

from tests.graphs import Play, Run, at, chain, counter


async def test_replay_from_an_old_checkpoint(play: Play) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"count": 0, "steps": ["begin"]})
        history = await run.history()
        old = next(s for s in history if s.values.get("count") == 2)
        await run.state(old.config)
        result = await run.see("invoke", None, {**at("1"), **old.config})
        assert result["steps"] == ["begin", "1", "2", "3", "4"]
        again = await run.history()
        assert len(again) > len(history)
        await run.history(before=old.config)
        await run.invoke({"count": 3})

    await play(lambda: counter(4), scenario)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_forks_of_one_checkpoint(play: Play, durability: Any) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"foo": "", "bar": ["begin"]})
        history = await run.history()
        old = next(s for s in history if s.next == ("b",))
        for name in ("left", "right"):
            fork = await run.update(old.config, {"foo": name, "bar": [name]})
            result = await run.see("invoke", None, fork, durability=durability)
            assert result == {"foo": "c", "bar": ["begin", "a", name, "b", "c"]}
        children = [s for s in await run.history() if s.parent_config == old.config]
        assert len(children) == 3
        for child in children:
            await run.state(child.config)
        assert (await run.state(history[0].config)).values["bar"] == ["begin", "a", "b", "c"]

    await play(lambda: chain("a", "b", "c"), scenario)


async def test_updates_as_a_node(play: Play) -> None:
    async def scenario(run: Run) -> None:
        await run.update("new", {"foo": "edited", "bar": ["edited"]}, as_node="a")
        assert (await run.state("new")).next == ("b",)
        await run.invoke(None, "new")
        await run.update("new", {"bar": ["late"]}, as_node="__start__")
        assert (await run.state("new")).next == ("a",)
        await run.update("new", None, as_node="__end__")
        await run.update("new", {"foo": "input"}, as_node="__input__")
        await run.invoke(None, "new")
        await run.history("new")

    await play(lambda: chain("a", "b"), scenario)


async def test_copies(play: Play) -> None:
    async def scenario(run: Run) -> None:
        await run.invoke({"foo": "x" * 10_000, "bar": ["begin"]})
        history = await run.history()
        for old in (history[0], history[2], history[-2]):
            copy = await run.update(old.config, None, as_node="__copy__")
            copied = await run.state(copy)
            assert (copied.values, copied.next) == (old.values, old.next)
            assert copied.parent_config == old.parent_config
            await run.see("invoke", None, copy)
        twice = await run.update(copy, None, as_node="__copy__")
        await run.update(twice, [({"foo": "instead", "bar": ["instead"]}, "a")], as_node="__copy__")
        await run.history()

    await play(lambda: chain("a", "b"), scenario)


async def test_many_updates_at_once(play: Play) -> None:
    async def scenario(run: Run) -> None:
        steps = [
            [StateUpdate({"foo": "in", "bar": ["in"]}, "__input__")],
            [StateUpdate({"bar": [str(number)]}, name) for number, name in enumerate(("a", "b"))],
            [StateUpdate({"foo": "last"}, "a")],
        ]
        await run.see("bulk_update_state", at("1"), steps)
        assert (await run.state()).values == {"foo": "last", "bar": ["0", "1"]}
        await run.invoke(None)
        await run.history()

    await play(lambda: chain("a", "b"), scenario)
