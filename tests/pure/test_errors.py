"""The tree of errors is as it is drawn, and each says what it is about."""

from __future__ import annotations

import inspect
import re

import pytest

import langgraph_mongo_saver
from langgraph_mongo_saver import errors

CLASSES = {n: c for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, BaseException)}


def drawn() -> dict[str, tuple[str, ...]]:
    """The bases of each error, as the docstring of the module draws them."""
    found: dict[str, tuple[str, ...]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+)(?: \(also an? (\w+)\))?(?:  |$)", line)
        if match:
            branch, name, also = match.groups()
            path[len(branch) // 4 :] = [name]
            found[name] = tuple(filter(None, (path[-2] if path[1:] else "Exception", also)))
    return found


def test_the_tree_is_as_it_is_drawn() -> None:
    assert drawn() == {name: tuple(base.__name__ for base in error.__bases__) for name, error in CLASSES.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_exported(name: str) -> None:
    assert getattr(langgraph_mongo_saver, name) is CLASSES[name]


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_without_a_message_says_what_it_is_about(name: str) -> None:
    error = CLASSES[name]()
    assert str(error) == CLASSES[name].__doc__
    assert len(str(error)) > 20
    assert str(CLASSES[name]("this")) == "this"
