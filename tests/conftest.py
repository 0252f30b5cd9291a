"""What all tests share: the same surroundings on every machine, and a small calibration of a few models and parts."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from glmplan.calibrate.all_fits import calibrate_steps
from glmplan.io.runs.ledger import load_measurements

# tests and tools compare generated text by one function
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

#: What shells, terminals, proxies and CI services set and programs read: colours and width of what is printed, where
#: HTTP goes, which keys are sent. A test that is about one of them sets it.
_SURROUNDINGS = (
    "COLUMNS", "LINES", "TERMINAL_WIDTH", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE",
    "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "OPENAI_API_KEY", "GLMPLAN_API_KEY",
    *(word for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") for word in (name, name.lower())),
)  # fmt: skip
for _name in _SURROUNDINGS:
    os.environ.pop(_name, None)
# what tests start speaks UTF-8 whatever the language of the shell
os.environ |= {"TERM": "dumb", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
# a job in the background inherits "ignore" for Ctrl-C, and what it starts could not be interrupted
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# how long an example takes, or drawing it, depends on what else this machine does; the same examples everywhere
settings.register_profile("everywhere", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everywhere")


#: what a test, or a fixture of it, takes at most on however busy a machine; what takes longer hangs [s]. Two seconds
#: for each plan that `GLMPLAN_PLANS` asks for
LONGEST = max(1500, 2 * int(os.environ.get("GLMPLAN_PLANS", "0")))


@contextmanager
def bounded(what: str, longest: float = LONGEST) -> Iterator[None]:
    """Fail with a trace what does not end: the alarm interrupts waits for processes, sockets and locks."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def hangs(number, frame):
        faulthandler.dump_traceback(all_threads=True)
        pytest.fail(f"{what} hangs: it did not end within {longest:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, longest)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    with bounded(f"the setup of {item.nodeid}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with bounded(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    with bounded(f"the teardown of {item.nodeid}"):
        return (yield)


def small_set():
    """Sweeps of three models on two parts, by two engines."""
    models = {"llama-3.1-70b", "gpt-oss-120b", "qwen3-32b"}
    runs = [
        run
        for run in load_measurements()
        if run.protocol == "inferencex"
        and run.model in models
        and run.accelerator in ("h100-sxm", "h200-sxm")
        and run.engine in ("vllm", "trtllm")
        and run.input_tokens == 1024
        and run.tp in (4, 8)
    ]
    return runs


@pytest.fixture(scope="session")
def small_runs():
    return small_set()


@pytest.fixture(scope="session")
def small_fit(small_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "step"
    found, written = calibrate_steps(small_runs, folder)
    return found, folder, written
