"""A real process of a command that Ctrl-C ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

#: a process that runs longer than this hangs [s]
HANGS = 300


@pytest.fixture
def interrupted():
    """Return a function that runs a command and sends SIGINT once records are written; it returns both streams."""

    def run(words, records):
        code = f"from glmplan.cli import main; main({[*words, '--records', str(records)]!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        # until enough is written, however busy this machine is
        deadline = time.monotonic() + HANGS
        while process.poll() is None and time.monotonic() < deadline:
            if any(file.stat().st_size > 100_000 for file in records.parent.glob(f".{records.name}.*")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=HANGS)
        finally:
            process.kill()
        assert process.returncode == 130, err
        return out, err

    return run
