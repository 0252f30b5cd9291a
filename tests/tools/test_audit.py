"""Known weaknesses of dependencies: found where the list answers, one line where it does not."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "audit.py"


@contextmanager
def listing(answer):
    """A service that answers every question by a function of what is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = answer(asked)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def audited(service, *options, **environment):
    command = [sys.executable, str(TOOL), "--service", service, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def weak(name):
    def answer(asked):
        found = [{"vulns": [{"id": "X-1"}]} if one["package"]["name"] == name else {} for one in asked["queries"]]
        return json.dumps({"results": found}).encode()

    return answer


@pytest.mark.parametrize(("options", "expected"), [((), 0), (("--fail",), 1)])
def test_a_known_weakness_of_an_installed_package_is_printed_and_fails_where_that_is_wanted(options, expected):
    with listing(weak("numpy")) as service:
        code, lines = audited(service, *options)
    assert code == expected and lines[0].startswith("numpy ") and "X-1" in lines[0] and "1 of" in lines[-1]


def test_without_a_known_weakness_it_passes():
    with listing(weak("no such package")) as service:
        code, lines = audited(service, "--fail")
    assert code == 0 and len(lines) == 1 and "0 of" in lines[0]


@pytest.mark.parametrize("body", [b"<html>", b'{"results": [{}]}', b"[]", b'{"results": null}'])
def test_an_answer_that_is_none_is_told_in_one_line_and_not_taken_for_none_found(body):
    with listing(lambda asked: body) as service:
        code, lines = audited(service)
    assert code == 0 and len(lines) == 1 and "not looked up" in lines[0]


@pytest.mark.parametrize("proxy", ["", "socks5://127.0.0.1:9", "http://127.0.0.1:9", "nothing://127.0.0.1"])
def test_a_list_that_cannot_be_reached_is_told_in_one_line(proxy):
    code, lines = audited("http://127.0.0.1:9/v1", "--fail", ALL_PROXY=proxy, NO_PROXY="", no_proxy="")
    assert code == 0 and len(lines) == 1 and "not looked up" in lines[0]
