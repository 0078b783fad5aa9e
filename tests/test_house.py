"""The rules of the house: twins agree, exports agree, imports run one way, rooms stay small."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

import langgraph_mongo_saver as package
from langgraph_mongo_saver import AsyncMongoDBSaver, MongoDBSaver, errors
from tests.twins import DIFFERENT, RENAMED, differences, statements

PACKAGE = Path(package.__file__).parent
MODULES = {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
TEST_FILES = sorted(Path(__file__).parent.rglob("*.py"))

each_module = pytest.mark.parametrize("module", MODULES)


# --- twins ---------------------------------------------------------------------------------------------------------

AIO = MODULES["aio"].read_text(encoding="utf-8")
BLOCKING, _ = statements(MODULES["saver"].read_text(encoding="utf-8"), {})
NATIVE, USED = statements(AIO, RENAMED)


@pytest.mark.parametrize("name", sorted({*BLOCKING, *NATIVE} - set(DIFFERENT)))
def test_twins_agree(name: str) -> None:
    assert NATIVE.get(name) == BLOCKING.get(name)


def test_twins_keep_the_same_order() -> None:
    native, blocking = ([n for n in found if not n.startswith("import ")] for found in (NATIVE, BLOCKING))
    assert native == blocking


def test_every_rename_and_every_difference_is_needed() -> None:
    assert set(RENAMED) == USED
    assert set(DIFFERENT) <= differences(NATIVE, BLOCKING)


def test_the_async_twin_calls_nothing_that_blocks() -> None:
    dotted = {ast.unparse(node) for node in ast.walk(TREES["aio"]) if isinstance(node, ast.Attribute)}
    assert dotted & {name for name in RENAMED.values() if "." in name} == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class A:\n async def f(self):\n  await self.x()", "class A:\n def f(self):\n  self.x()"),
        ("async def f():\n async with a as b, c:\n  pass", "def f():\n with a as b:\n  with c:\n   pass"),
        ("async def f():\n 'doc'\n async for a in b:\n  pass", "def f():\n for a in b:\n  pass"),
        ("async def f():\n await asyncio.sleep(1)", "def f():\n time.sleep(1)"),
    ],
)
def test_the_comparison_takes_out_what_it_says(before: str, after: str) -> None:
    assert statements(before, RENAMED)[0] == statements(after, {})[0]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("self.settings.retry_seconds", "30"), "_perform"),
        (("before: RunnableConfig | None = None", "before: RunnableConfig | None = 1"), "list"),
        (("advance, reply = plan.throw, error", "raise"), "_drive"),
        (("SyncOverAsync[", "MongoSaver["), "class MongoDBSaver"),
    ],
)
def test_the_comparison_sees_a_difference(change: tuple[str, str], where: str) -> None:
    assert change[0] in AIO
    found = differences(statements(AIO.replace(*change), RENAMED)[0], BLOCKING)
    assert found - set(DIFFERENT) == {where}


# --- exports -------------------------------------------------------------------------------------------------------


def test_all_is_sorted_and_importable() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_every_error_is_exported() -> None:
    public = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert public <= set(package.__all__)


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_front_door_holds_names_and_nothing_else() -> None:
    kinds = {type(node) for node in TREES["__init__"].body}
    assert kinds == {ast.Expr, ast.ImportFrom, ast.Assign}


# --- signatures ----------------------------------------------------------------------------------------------------

METHODS = ("get_tuple", "list", "put", "put_writes", "delete_thread", "get_delta_channel_history")
# Methods that take more than LangGraph's own, all of it by keyword and with defaults.
EXTENDED = ("prune", "copy_thread", "delete_for_runs")
# Methods that LangGraph does not have, or not yet.
OWN = ("get_delta_channel_keepset", "compact_thread", "list_threads", "touch_thread")


def _parameters(owner: type, method: str) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(getattr(owner, method)).parameters.values()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("owner", [MongoDBSaver, AsyncMongoDBSaver])
@pytest.mark.parametrize("prefix", ["", "a"])
def test_every_method_has_the_parameters_of_langgraphs_own(owner: type, method: str, prefix: str) -> None:
    assert _parameters(owner, prefix + method) == _parameters(BaseCheckpointSaver, prefix + method)


@pytest.mark.parametrize("method", EXTENDED)
@pytest.mark.parametrize("owner", [MongoDBSaver, AsyncMongoDBSaver])
@pytest.mark.parametrize("prefix", ["", "a"])
def test_extended_methods_can_be_called_like_langgraphs_own(owner: type, method: str, prefix: str) -> None:
    ours, base = _parameters(owner, prefix + method), _parameters(BaseCheckpointSaver, prefix + method)
    assert ours[: len(base)] == base
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in ours[len(base) :])
    assert all(default is not inspect.Parameter.empty for _, _, default in ours[len(base) :])


@pytest.mark.parametrize("method", METHODS + EXTENDED + OWN)
def test_a_method_has_the_same_parameters_on_every_surface(method: str) -> None:
    surfaces = [_parameters(owner, p + method) for owner in (MongoDBSaver, AsyncMongoDBSaver) for p in ("", "a")]
    assert all(found == surfaces[0] for found in surfaces)


@pytest.mark.parametrize("owner", [MongoDBSaver, AsyncMongoDBSaver])
@pytest.mark.parametrize("method", ["put_writes", "aput_writes"])
def test_langgraph_finds_task_path(owner: type, method: str) -> None:
    assert "task_path" in inspect.signature(getattr(owner, method)).parameters


def test_the_savers_are_constructed_alike() -> None:
    assert inspect.signature(MongoDBSaver) == inspect.signature(AsyncMongoDBSaver)


# --- imports -------------------------------------------------------------------------------------------------------

# A room imports rooms of earlier layers only.
LAYERS = (
    {"errors", "keeper"},
    {"address", "metadata", "values", "retry", "mongod", "cleanup"},
    {"codec", "settings", "embedded"},
    {"pipelines", "recall"},
    {"schema", "lineage"},
    {"blobs"},
    {"plans", "selection", "events", "thread_pipelines"},
    {"history", "copying", "maintenance", "threads", "event_pipelines"},
    {"driver", "compaction", "changes"},
    {"gathering"},
    {"bridge", "stored_events", "delivery", "positions"},
    {"watching", "subscriptions"},
    {"listening", "streams"},
    {"saver", "aio"},
    {"listener", "alistener"},
    {"__init__"},
)
NOT_PURE = {
    "__init__",
    "aio",
    "bridge",
    "driver",
    "embedded",
    "keeper",
    "listener",
    "alistener",
    "mongod",
    "saver",
    "streams",
    "subscriptions",
}
PURE = frozenset(MODULES) - NOT_PURE
# What a pure room must not import; and who may all the same, with the reason.
IMPURE = frozenset({"time", "asyncio", "threading", "socket", "subprocess", "motor", "gridfs"})
IMPURE_BUT_ALLOWED = {
    ("recall", "threading"): "a memory shared by threads needs a lock; it waits for nothing else",
    ("delivery", "threading"): "the same",
    ("listening", "threading"): "the same",
}
# The driver's vocabulary (errors, constants) is data; its clients are not.
DATA_OF_THE_DRIVER = frozenset(
    {"pymongo.errors", "pymongo.ASCENDING", "pymongo.DESCENDING", "pymongo.IndexModel", "pymongo.ReturnDocument"}
)
CLOCKS = {
    ("plans", "now"): "the default of a clock that is handed in",
    ("watching", "monotonic"): "one that is handed in",
}
# The distribution that brings a module, as pyproject.toml names it.
DISTRIBUTIONS = {
    "bson": "pymongo",
    "pymongo": "pymongo",
    "langgraph": "langgraph-checkpoint",
    "langchain_core": "langgraph-checkpoint",  # its savers take and return RunnableConfig
}
EXTRAS = {("embedded", "secantus"): "the extra `embedded`, imported where it is asked for"}
FOR_TYPE_CHECKERS = {"typing_extensions.Self"}  # imported under TYPE_CHECKING


def _imports(module: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported name with its module, dotted: ``pymongo.errors.PyMongoError``."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(filter(None, ["langgraph_mongo_saver" if node.level else "", node.module]))
            yield from ((f"{origin}.{alias.name}", node) for alias in node.names)


def _rooms(module: str) -> set[str]:
    parts = (name.split(".") for name, _ in _imports(module))
    return {path[1] for path in parts if path[0] == "langgraph_mongo_saver"}


def test_every_room_has_a_layer() -> None:
    named = [name for layer in LAYERS for name in layer]
    assert sorted(named) == sorted(MODULES)


@each_module
def test_imports_run_one_way(module: str) -> None:
    layer = next((i for i, layer in enumerate(LAYERS) if module in layer), 0)
    assert _rooms(module) <= set().union(*LAYERS[:layer])


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_rooms_import_no_client_clock_or_event_loop(module: str) -> None:
    assert _rooms(module) <= PURE
    names = {name for name, _ in _imports(module)}
    impure = {name for name in names if name.split(".")[0] in IMPURE and (module, name) not in IMPURE_BUT_ALLOWED}
    driver = {n for n in names if n.startswith("pymongo") and not any(n.startswith(d) for d in DATA_OF_THE_DRIVER)}
    assert impure | driver == set()


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_rooms_read_no_clock(module: str) -> None:
    calls = {n.func.attr for n in ast.walk(TREES[module]) if isinstance(n, ast.Call) and hasattr(n.func, "attr")}
    clocks = calls & {"now", "utcnow", "today", "time", "monotonic"}
    assert clocks == {name for room, name in CLOCKS if room == module}


def test_every_exception_to_purity_is_used() -> None:
    used = {(module, name) for module in PURE for name, _ in _imports(module)}
    assert set(IMPURE_BUT_ALLOWED) <= used


def _declared() -> set[str]:
    # What the project says now; the metadata of an editable installation may be older.
    pyproject = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)
    return set(re.findall(r'^ *"([\w-]+)', listed, re.MULTILINE))


@each_module
def test_the_core_imports_only_what_it_depends_on(module: str) -> None:
    third_party = {
        (name.split(".")[0], name)
        for name, _ in _imports(module)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "langgraph_mongo_saver"}
    }
    undeclared = {
        name
        for top, name in third_party
        if (module, top) not in EXTRAS and DISTRIBUTIONS.get(top, top) not in _declared()
    }
    assert undeclared <= FOR_TYPE_CHECKERS, "declare it in pyproject.toml, or do without"
    # The rest of the langgraph namespace is another distribution, which users of the savers need not have.
    assert {n for top, n in third_party if top == "langgraph" and not n.startswith("langgraph.checkpoint.")} == set()


@pytest.mark.parametrize(("module", "extra"), sorted(EXTRAS))
def test_extras_are_imported_inside_functions_only(module: str, extra: str) -> None:
    at_top = {name.split(".")[0] for name, node in _imports(module) if node in TREES[module].body}
    assert extra in {name.split(".")[0] for name, _ in _imports(module)} - at_top


# --- size and manners ----------------------------------------------------------------------------------------------


def _docstrings(tree: ast.AST) -> set[int]:
    """The lines of bare strings, docstrings of attributes included."""
    strings = (n for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    return {line for n in strings for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}


def _code_lines(source: str) -> set[int]:
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for t in tokens if t.type not in ignored for line in range(t.start[0], t.end[0] + 1)}
    return lines - _docstrings(ast.parse(source))


@pytest.mark.parametrize("path", [*MODULES.values(), *TEST_FILES], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_and_functions_stay_small(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    lines = _code_lines(source)
    assert len(lines) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = lines & set(range(node.lineno, (node.end_lineno or 0) + 1))
            assert len(body) <= 40, f"{node.name} has {len(body)} lines of code"


@each_module
def test_no_error_is_swallowed_unseen(module: str) -> None:
    for handler in (node for node in ast.walk(TREES[module]) if isinstance(node, ast.ExceptHandler)):
        broad = handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}
        empty = all(isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and s.value is ...) for s in handler.body)
        assert not (broad and empty), f"line {handler.lineno}"


_WITH_REASON = re.compile(r"#\s*(noqa|type: ignore)\b(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[\w, -]+\])\s*(-|#)\s*\w+\W+\w+")


@pytest.mark.parametrize("path", [*MODULES.values(), *TEST_FILES], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_silenced_checks_carry_a_code_and_a_reason(path: Path) -> None:
    with path.open(encoding="utf-8") as file:
        comments = [t for t in tokenize.generate_tokens(file.readline) if t.type == tokenize.COMMENT]
    for token in comments:
        if re.match(r"#\s*(noqa|type:\s*ignore)", token.string):
            assert _WITH_REASON.match(token.string), f"line {token.start[0]}: {token.string}"


@each_module
def test_rooms_are_named_for_what_they_hold(module: str) -> None:
    assert not set(module.lower().split("_")) & {"utils", "util", "helpers", "helper", "common", "base", "misc"}
