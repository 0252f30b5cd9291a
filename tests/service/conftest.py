"""A real server in a thread, with processes that answer, and a client."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from glmplan.service.guard import Limits
from glmplan.service.server import bound, server

# run by the Python of LibreOffice, not by this one
collect_ignore = ["recalculate.py"]

#: no test waits for a machine that does other things besides; a limit that is tested is set by its test
PATIENT = replace(Limits(), quick_workers=1, quick_seconds=600.0, long_seconds=600.0)


@contextmanager
def _serving(limits=PATIENT, token=""):
    """Run a server; its address."""
    taken, ready = bound("127.0.0.1", 0), threading.Event()
    running = server("127.0.0.1", limits=limits, token=token, ready=ready.set)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [taken]})
    thread.start()
    try:
        assert ready.wait(300)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def address():
    with _serving() as found:
        yield found


@pytest.fixture(scope="session")
def client(address):
    with httpx.Client(base_url=address, timeout=600, trust_env=False) as found:
        yield found


@pytest.fixture(scope="session")
def serving():
    """Makes further servers, with limits or a token of their own."""
    return _serving


@pytest.fixture(scope="session")
def patient():
    """The limits of the server that tests share."""
    return PATIENT
