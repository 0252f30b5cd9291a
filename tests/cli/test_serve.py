"""`glmplan serve` as a user starts and ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from glmplan.cli import main

CODE = "import sys; from glmplan.cli import main; main(sys.argv[1:])"


def started(*words, **surroundings):
    service = subprocess.Popen(
        [sys.executable, "-c", CODE, "serve", "--port", "0", "--workers", "1", *words],
        env=os.environ | surroundings,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = service.stderr.readline()
    match = re.search(r"http://\S+:(\d+)/(\S*)", line)
    assert match, line + service.stderr.read()
    return service, int(match[1]), match[2]


def test_the_extra_that_is_missing_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "pip install 'glmplan[serve]'" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_told_to_stop_and_ends_with_0(number):
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    service, port, _ = started()
    with urlopen(f"http://127.0.0.1:{port}/v1/value?model=llama-3.1-8b&on=1xh100-sxm&get=verdict") as answer:
        assert answer.read() == b"fits"
    service.send_signal(number)
    rest = service.stderr.read()
    assert service.wait(60) == 0
    assert "Traceback" not in rest
    [logged] = [json.loads(line) for line in rest.splitlines()]
    assert (logged["route"], logged["status"]) == ("/v1/value", 200)
    assert "llama" not in rest


def test_bound_for_others_it_makes_a_token_and_shows_it_once():
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    service, port, fragment = started("--host", "0.0.0.0", "--quiet")
    try:
        name, _, token = fragment.partition("=")
        assert name == "#token"
        asked = Request(f"http://127.0.0.1:{port}/v1/values", headers={"Authorization": f"Bearer {token}"})
        with urlopen(asked) as answer:
            assert "tokens_per_s" in json.load(answer)
    finally:
        service.terminate()
        assert service.stderr.read() == ""
        assert service.wait(60) == 0


def test_a_port_that_is_taken_is_told_in_one_line(capsys):
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--port", str(other.getsockname()[1])])
    assert ended.value.code == 2
    assert "cannot be taken: address already in use" in capsys.readouterr().err


def test_what_still_waits_when_the_service_ends_is_told_so():
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    service, port, _ = started()
    told = []

    def ask(output):
        # one of them alone takes longer than the time that answers under way are given
        load = {"model": "glm-5.1-nvfp4", "on": "6..8xrtx-pro-6000-ws", "users": "1..500", "exact": True}
        load |= {"input": ",".join(str(1000 * one) for one in range(1, 14)), "output": output}
        asked = Request(f"http://127.0.0.1:{port}/v1/sweep", json.dumps(load).encode())
        asked.add_header("content-type", "application/json")
        try:
            with urlopen(asked, timeout=600) as answer:
                told.append((answer.status, ""))
        except HTTPError as error:
            told.append((error.code, json.load(error)["error"]["message"]))

    threads = [threading.Thread(target=ask, args=(100 + one,)) for one in range(4)]
    for one in threads:
        one.start()
    while f'glmplan_questions_waiting{{kind="long"}} {len(threads) - 1}' not in metrics_of(port):
        time.sleep(0.1)
    service.terminate()
    rest = service.stderr.read()
    for one in threads:
        one.join(600)
    assert service.wait(600) == 0
    codes = sorted(code for code, _ in told)
    assert codes[-1] == 503 and set(codes) <= {200, 503} and len(codes) == len(threads)
    assert all("shutting down" in words for code, words in told if code == 503)
    assert "Exception" not in rest and "CancelledError" not in rest


def metrics_of(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode()
