"""The demo runs on the session's server, and what it prints is what happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from tests.servers import Server

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"
COLLECTIONS = ("checkpoints", "checkpoint_writes", "checkpoint_blobs")


def run(uri: str, db_name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--db", db_name],
        env={**os.environ, "MONGODB_URI": uri},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sections(output: str) -> dict[str, str]:
    """What stands under each heading, by the heading's first words."""
    parts = re.split(r"^== (.*)$", output, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_demo_shows_each_step_and_leaves_nothing(server: Server, db_name: str, mongo: MongoClient[Any]) -> None:
    talk, history, replay, fork, stored, deleted = sections(run(server.uri, db_name)).values()

    assert "the graph waits: A report of 500,000 characters. Publish it?" in talk
    assert "ai: Published.\nhuman: Thank you.\nai: You said 'Thank you.'" in talk

    steps = [int(step) for step in re.findall(r"^step +(-?\d+)", history, flags=re.MULTILINE)]
    assert steps == list(range(7, -2, -1))
    assert "next: look_up, look_up, look_up" in history

    assert "from step 6 on, once more: ai: You said 'Thank you.'" in replay
    before, after = re.findall(r"(\d+) before, (\d+) after", replay)[0]
    assert int(after) > int(before) == len(steps)
    assert re.search(r"^the fork says +ai: You said 'What if\?'", fork, flags=re.MULTILINE)
    assert re.search(r"^the original still says +ai: You said 'Thank you\.'", fork, flags=re.MULTILINE)

    counts = dict(re.findall(r"^(\w+): (\d+) documents$", stored, flags=re.MULTILINE))
    assert tuple(counts) == COLLECTIONS
    assert all(int(count) > 0 for count in counts.values())
    assert stored.count("'_id'") == 3, "an example of each"
    assert re.search(r"'data': '<500,\d\d\d bytes>'", stored), "the large value is a blob"
    assert dict(re.findall(r"^(\w+): (\d+) documents$", deleted, flags=re.MULTILINE)) == dict.fromkeys(COLLECTIONS, "0")

    assert all(mongo[db_name][name].find_one() is None for name in COLLECTIONS)
