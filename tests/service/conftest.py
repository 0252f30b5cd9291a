"""A real server in a thread, with processes that answer, and a client."""

from __future__ import annotations

import shutil
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


#: a plan that is computed quickly
_START = "/?model=llama-3.1-8b&on=1xh100-sxm&users=8&input=512&output=128&api_in=0.05&api_out=0.1"
_PATIENCE = 300_000


@pytest.fixture(scope="module")  # while it runs no other test of the process may run an event loop
def browser():
    """Chromium; without it, or without Playwright, its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, address):
    """Opens the page; what it says to the console, and what it asks elsewhere, fails the test."""
    contexts, faults = [], []

    def open_page(where=_START, *, errors=False, **options):
        context = browser.new_context(accept_downloads=True, **options)
        contexts.append(context)
        context.set_default_timeout(_PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        # a browser notes each refusal that it was answered: that is no fault of the page where one is asked for
        page.on("console", lambda one: None if errors or one.type in ("log", "info") else faults.append(one.text))
        page.on("request", lambda one: _local(one.url, address) or faults.append(one.url))
        page.goto(address + where)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _local(url, address):
    return url.startswith((address, "blob:", "data:"))
