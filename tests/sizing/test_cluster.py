"""A sweep on a cluster is the sweep on one core, also when a worker is killed in the middle."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from glmplan.errors import SpecError
from glmplan.sizing.axes import read_sweep
from glmplan.sizing.cluster import swept_on
from glmplan.sizing.sweep import swept

AXES = {"model": "llama-3.1-8b,qwen3-8b", "on": "1..4xh100-sxm,1..4xl40s", "users": "1,8", "input": "500,4000"}

installed = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="the extra cluster (dask[distributed]) is not installed"
)


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_local_cluster_computes_what_one_core_does_although_a_worker_is_killed_in_the_middle():
    sweep = read_sweep(AXES)
    seen = []

    def keep(block):
        if not seen:
            from distributed import default_client

            workers = list(default_client().run(os.getpid).values())
            os.kill(workers[0], signal.SIGKILL)
        seen.append(block.number)

    found = swept_on("local:2", sweep, keep=keep)
    assert found.whole and sorted(set(seen)) == list(range(sweep.structures))
    alone = swept(sweep)
    assert found.to_frame().to_csv() == alone.to_frame().to_csv()


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_does_not_answer_is_an_error_and_not_a_silent_fallback(monkeypatch):
    import glmplan.sizing.cluster as cluster

    monkeypatch.setattr(cluster, "_PATIENCE", 1)
    with pytest.raises(SpecError, match="cannot be reached"):
        swept_on("tcp://127.0.0.1:1", read_sweep(AXES))


@installed
def test_an_address_that_is_none_is_refused():
    with pytest.raises(SpecError, match="local:WORKERS"):
        swept_on("nearby", read_sweep(AXES))


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecError, match=r"glmplan\[cluster\]"):
        swept_on("local", read_sweep(AXES))
