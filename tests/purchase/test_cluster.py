"""A sweep on a cluster is the sweep on one core, also when a worker is killed in the middle."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from glmplan.errors import SpecError
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.cluster import blocks_on
from glmplan.purchase.sweep import swept

AXES = {"model": "llama-3.1-8b,qwen3-8b", "on": "1xh100-sxm,1..2xl40s", "users": "1,8", "input": "500", "mtp": "0,1"}
SIMULATED = {"model": "llama-3.1-8b", "on": "1xh100-sxm,1xl40s", "traffic": "closed,poisson:2/s,sessions:2,turns=2",
             "users": "2,5", "input": "500", "output": "60", "requests": 60, "slo": "tpot p95 < 30 ms"}  # fmt: skip
#: what a cluster that hangs is given up after, on however busy a machine [s]
GIVEN_UP = 900

#: a process of its own: whatever runs the tests, a cluster that hangs can be ended with all that it started
KILLED = """
import os, signal, sys
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.cluster import blocks_on
from glmplan.purchase.sweep import swept

def keep(block):
    if not seen:
        from distributed import default_client
        workers = list(default_client().run(os.getpid).values())
        os.kill(workers[0], signal.SIGKILL)
    seen.append(block.number)

seen = []
sweep = read_sweep(eval(sys.argv[1]))
found = swept(sweep, keep=keep, blocks=blocks_on("local:2"))
assert found.whole and sorted(seen) == list(range(sweep.structures)), seen
found.to_frame().to_csv(sys.argv[2])
"""

installed = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="the extra cluster (dask[distributed]) is not installed"
)


@installed
@pytest.mark.parametrize("axes", [AXES, SIMULATED], ids=["predicted", "simulated"])
def test_a_local_cluster_computes_what_one_core_does_although_a_worker_is_killed_in_the_middle(tmp_path, axes):
    table = tmp_path / "found.csv"
    words = [sys.executable, "-c", KILLED, repr(axes), str(table)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            _, said = running.communicate(timeout=GIVEN_UP)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, said
    assert table.read_text() == swept(read_sweep(axes)).to_frame().to_csv()


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_does_not_answer_is_an_error_and_not_a_silent_fallback(monkeypatch):
    from glmplan.purchase import cluster

    monkeypatch.setattr(cluster, "_PATIENCE", 1)
    with pytest.raises(SpecError, match="cannot be reached"):
        swept(read_sweep(AXES), blocks=blocks_on("tcp://127.0.0.1:1"))


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_never_gets_a_worker_is_given_up(monkeypatch):
    from distributed import LocalCluster

    from glmplan.purchase import cluster

    monkeypatch.setattr(cluster, "_ALONE", 0.5)
    with (
        LocalCluster(n_workers=0, dashboard_address=None, processes=False) as empty,
        pytest.raises(SpecError, match=r"no worker for 0\.5 s"),
    ):
        swept(read_sweep(AXES), blocks=blocks_on(empty.scheduler_address))


@installed
def test_a_process_that_may_not_start_others_is_told_so(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(SpecError, match="itself a daemon"):
        swept(read_sweep(AXES), blocks=blocks_on("local"))


def test_an_address_that_is_none_is_refused():
    with pytest.raises(SpecError, match="local:WORKERS"):
        blocks_on("nearby")


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecError, match=r"glmplan\[cluster\]"):
        swept(read_sweep(AXES), blocks=blocks_on("local"))
