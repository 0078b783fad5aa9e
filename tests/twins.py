"""How `saver.py` and `aio.py` are compared: ``async`` and ``await`` are taken out, and names are put in their place."""

from __future__ import annotations

import ast
from typing import Any

# A name in aio.py, and what it is called in saver.py.
RENAMED = {
    "AsyncCheckpointStream": "CheckpointStream",
    "AsyncIterator": "Iterator",
    "AsyncMongoClient": "MongoClient",
    "AsyncMongoDBSaver": "MongoDBSaver",
    "SyncOverAsync": "AsyncOverSync",
    "_apages": "_pages",
    "_athread_pages": "_thread_pages",
    "acompact_thread": "compact_thread",
    "acopy_thread": "copy_thread",
    "adelete_for_runs": "delete_for_runs",
    "adelete_thread": "delete_thread",
    "aget_delta_channel_history": "get_delta_channel_history",
    "aget_delta_channel_keepset": "get_delta_channel_keepset",
    "aget_tuple": "get_tuple",
    "alist": "list",
    "alist_threads": "list_threads",
    "aprune": "prune",
    "aput": "put",
    "aput_writes": "put_writes",
    "asynccontextmanager": "contextmanager",
    "atouch_thread": "touch_thread",
    "asyncio.Lock": "threading.Lock",
    "asyncio.sleep": "time.sleep",
}

# What differs on purpose, and why.
DIFFERENT = {
    "import asyncio": "the event loop's pauses and locks",
    "import inspect": "Motor gives some cursors at once, where pymongo has them awaited",
    "import threading": "the lock of threads",
    "_is_async": "which of the two it is",
    "_run": "the async saver checks first that it is on its own event loop",
    "_send": "the cursors of the async drivers are read in another way",
}


class _Sync(ast.NodeTransformer):
    """Takes ``async``, ``await`` and docstrings out, renames, and unfolds ``with a, b:``."""

    def __init__(self, renamed: dict[str, str]) -> None:
        self._renamed = renamed
        self.used: set[str] = set()

    def _name(self, name: str) -> str:
        if name in self._renamed:
            self.used.add(name)
        return self._renamed.get(name, name)

    def _function(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        fields = {name: getattr(node, name) for name in ast.FunctionDef._fields if hasattr(node, name)}
        return ast.FunctionDef(**{**fields, "name": self._name(node.name), "body": _without_docstring(node.body)})

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name, node.body = self._name(node.name), _without_docstring(node.body)
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        return ast.For(node.target, node.iter, node.body, node.orelse, None)

    def _with(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        body = node.body
        for item in reversed(node.items):
            body = [ast.With([item], body, None)]
        return body[0]

    visit_With = visit_AsyncWith = _with

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        dotted = ast.unparse(node)
        if dotted in self._renamed:
            return ast.parse(self._name(dotted), mode="eval").body
        self.generic_visit(node)
        node.attr = self._name(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        self.generic_visit(node)
        node.names.sort(key=lambda alias: alias.name)
        return node

    def visit_alias(self, node: ast.alias) -> ast.AST:
        node.name = self._name(node.name)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # A forward reference to a type is a string that holds an expression.
        if isinstance(node.value, str) and "[" in node.value:
            node.value = ast.unparse(self.visit(ast.parse(node.value, mode="eval")))
        return node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    has_one = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] or [ast.Pass()] if has_one else body


def _key(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return f"import {getattr(node, 'module', None) or node.names[0].name}"
    return ast.unparse(node).split(" = ")[0]


def statements(source: str, renamed: dict[str, str]) -> tuple[dict[str, str], set[str]]:
    """Each import, method and assignment of a shell by its name, and the renames that were used."""
    sync = _Sync(renamed)
    tree = ast.fix_missing_locations(sync.visit(ast.parse(source)))
    found: dict[str, str] = {}
    for node in _without_docstring(tree.body):
        inner = node.body if isinstance(node, ast.ClassDef) else []
        if inner:
            assert isinstance(node, ast.ClassDef)
            found[f"class {node.name}"] = ", ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
        for part in inner or [node]:
            found[_key(part)] = ast.unparse(part)
    return found, sync.used


def differences(native: dict[str, str], blocking: dict[str, str]) -> set[str]:
    """What the twins do not share, whether that is meant or not."""
    return {name for name in {*native, *blocking} if native.get(name) != blocking.get(name)}
