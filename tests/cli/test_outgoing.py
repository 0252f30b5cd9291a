"""Commands open no connection: nothing leaves the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: runs the command line in an interpreter whose connections and name lookups fail
GUARDED = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"connection: {event} {arguments}")

sys.addaudithook(refuse)
from glmplan.cli import main
main(sys.argv[1:])
"""
PLAN = ("llama-3.1-8b", "--on", "1xh100-sxm")
COMMANDS = [
    ("fit", *PLAN),
    ("safe", *PLAN, "--slo", "ttft p95 < 2 s"),
    ("simulate", *PLAN, "--traffic", "poisson:2/s"),
    ("compare", "llama-3.1-8b@1xh100-sxm", "llama-3.1-8b@1xh200-sxm"),
    ("report", *PLAN, "--out", "report.html"),
    ("models", "show", "llama-3.1-8b"),
    ("hardware", "show", "h100-sxm"),
]


def _guarded(folder, *words):
    command = [sys.executable, "-c", GUARDED, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_opens_no_connection(words, tmp_path):
    done = _guarded(tmp_path, *words)
    assert done.returncode == 0, done.stderr


def test_the_guard_sees_a_connection(tmp_path):
    words = ("validate", "llama-3.1-8b", "--on", "1xh100-sxm", "--url", "http://127.0.0.1:9/v1", "--out", "out")
    assert "connection: socket.connect" in _guarded(tmp_path, *words).stderr
