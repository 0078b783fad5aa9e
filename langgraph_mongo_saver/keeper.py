"""Runs a command, and ends it when the process that asked for it is gone, however that one went.

A script of the standard library alone, so that it starts in a few milliseconds::

    python -I -S keeper.py FOLDER COMMAND...

It writes the command's process id as one line, and stays until its standard input ends: a killed process
cannot clean up after itself, but its pipes close. With a FOLDER, the command's data is of no more use then:
it is killed rather than asked to end, and the folder is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading

_POLL_SECONDS = 0.1
_STOP_SECONDS = 30.0


def keep(folder: str, command: list[str]) -> int:
    """Run the command until it ends, or until nobody needs it any more."""
    parent = os.getppid()
    unneeded = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: unneeded.set())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    print(child.pid, flush=True)
    threading.Thread(target=_wait_for_end_of_input, args=(unneeded,), daemon=True).start()
    # The parent is watched too: a process forked from it may hold the pipe open for longer.
    while child.poll() is None and os.getppid() == parent:
        if unneeded.wait(_POLL_SECONDS):
            break
    if child.returncode is not None:
        return child.returncode & 0xFF  # the folder stays: the parent reads in the log why it ended
    _end(child, kill=bool(folder))
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _wait_for_end_of_input(unneeded: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    unneeded.set()


def _end(child: subprocess.Popen[bytes], *, kill: bool) -> None:
    if not kill:
        child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill = True
    if kill:
        child.kill()
    child.wait()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], sys.argv[2:]))
