"""The README is true: its Python runs and prints what it says, its queries find, its documents are stored like that.

The blocks run in their order, in one namespace, on the session's server and in a database of their own: only the URI
and the name of the database are replaced.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pymongo import MongoClient

from langgraph_mongo_saver import aio, errors, saver
from langgraph_mongo_saver.schema import ACTIVE_AT, INDEXES, Index, expire_after
from tests.servers import Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
URI, DATABASE = '"mongodb://localhost:27017"', '"agents"'
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
COLLECTIONS = {"checkpoints": "checkpoints", "writes": "checkpoint_writes", "blobs": "checkpoint_blobs"}


class Block(NamedTuple):
    language: str
    line: int
    text: str
    output: str | None
    """The ``text`` block that follows directly."""


def blocks() -> list[Block]:
    found: list[Block] = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$(\n\n(?=```text$))?", README, flags=re.MULTILINE | re.DOTALL):
        language, text, followed = match.groups()
        line = README.count("\n", 0, match.start()) + 2
        if language == "text" and found and found[-1].output == "":
            found[-1] = found[-1]._replace(output=text)
        else:
            found.append(Block(language, line, text, "" if followed and language == "python" else None))
    return found


def of(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def mongosh(method: str) -> list[tuple[str, list[Any]]]:
    """Each call of a collection's method in a ``javascript`` block: the collection and its arguments."""
    calls = [
        re.fullmatch(r"db\.(\w+)\.(\w+)\((.*)\)", line).groups()
        for block in of("javascript")
        for line in block.text.splitlines()
    ]
    return [(collection, json.loads(f"[{args}]")) for collection, called, args in calls if called == method]


def run(block: Block, namespace: dict[str, Any], uri: str, db_name: str) -> str:
    source = block.text.replace(URI, repr(uri)).replace(DATABASE, repr(db_name))
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + source, str(ROOT / "README.md"), "exec"), namespace)
    return printed.getvalue()


def comparable(value: Any) -> Any:
    """A document without what differs from run to run: ids, times and the bytes of serialized values."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, bytes):
        return "<bytes>"
    if isinstance(value, datetime):
        return "<date>"
    return re.sub(r"<\d+ bytes>", "<bytes>", re.sub(UUID, "<id>", value)) if isinstance(value, str) else value


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch, server: Server, db_name: str, mongo: MongoClient[Any]) -> None:
    """The session's server instead of a local one of its own, whose data go at the end; that one has its own tests."""

    @contextmanager
    def the_session_server(path: object = None) -> Iterator[str]:
        before = mongo[db_name]["checkpoints"].distinct("thread_id")
        yield server.uri
        for name in COLLECTIONS.values():
            mongo[db_name][name].delete_many({"thread_id": {"$nin": before}})

    monkeypatch.setattr(saver, "embedded_server", the_session_server)
    monkeypatch.setattr(aio, "embedded_server", the_session_server)
    monkeypatch.setenv("MONGODB_URI", server.uri)
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")


@pytest.mark.usefixtures("patched")
@pytest.mark.asks
def test_python_runs_and_prints_what_the_readme_says(server: Server, db_name: str, mongo: MongoClient[Any]) -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    run_, compared = 0, 0
    for block in of("python"):
        printed = run(block, namespace, server.uri, db_name)
        assert printed == (block.output or ""), f"README.md:{block.line}"
        run_ += 1
        compared += block.output is not None
    assert run_ == len(re.findall(r"^[ \t]*(?:```|~~~)[ \t]*[pP]y", README, flags=re.MULTILINE))
    assert compared >= 1
    first = blocks()[0]
    assert first.language == "python"
    assert first.output, "the example that opens the page shows what it prints"

    queries = mongosh("find")
    assert queries
    for collection, args in queries:
        assert mongo[db_name][collection].find_one(*args), f"nothing is found by {args}"

    examples = of("json")
    assert len(examples) == len(COLLECTIONS)
    for block, collection in zip(examples, COLLECTIONS.values(), strict=True):
        stored = [comparable(document) for document in mongo[db_name][collection].find({"thread_id": "42"})]
        assert comparable(json.loads(block.text)) in stored, f"README.md:{block.line}"


def test_every_block_has_a_language_that_is_tested() -> None:
    assert {block.language for block in blocks()} == {"python", "text", "json", "javascript", "console"}
    assert len(re.findall(r"^[ \t]*(?:```|~~~)", README, flags=re.MULTILINE)) == 2 * (
        len(blocks()) + sum(block.output is not None for block in blocks())
    )


def test_examples_use_the_database_that_is_replaced() -> None:
    for block in of("python"):
        opened = re.findall(r"(?<!import )MongoDBSaver(?:\.\w+)?\(", block.text)
        assert block.text.count(f"db_name={DATABASE}") == len(opened), f"README.md:{block.line}"
        assert block.text.count("mongodb://") == block.text.count(URI), f"README.md:{block.line}"


def test_an_administrator_finds_every_index() -> None:
    def options(index: Index) -> dict[str, Any]:
        document = index.model(unique=index.unique).document
        return {name: document[name] for name in ("unique", "partialFilterExpression") if name in document}

    needed: list[Any] = [(COLLECTIONS[index.part], index.keys, options(index)) for index in INDEXES]
    expiring = {"expireAfterSeconds": expire_after(3600)}
    needed += [(collection, ACTIVE_AT, expiring) for collection in COLLECTIONS.values()]
    given = [(name, tuple(keys.items()), options) for name, (keys, options) in mongosh("createIndex")]
    own = [entry for entry in given if "metadata.tenant" not in dict(entry[1])]
    assert own == needed


def test_the_tree_of_errors_is_the_modules() -> None:
    tree = re.search(r"^    CheckpointerError\n.*?(?=\n\n)", errors.__doc__ or "", flags=re.MULTILINE | re.DOTALL)
    assert tree
    assert "\n".join(line[4:] for line in tree.group().splitlines()) + "\n" in [block.text for block in of("text")]


def test_named_files_exist() -> None:
    named = set(re.findall(r"(?:scripts|tests|\.ci)/[\w./-]*\w", README)) | {"docker-compose.yml"}
    assert {"scripts/check", "scripts/test", "scripts/demo", "scripts/figures"} <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", README, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", README)) <= anchors
