"""A small calibration that tests share: the runs of one engine on one part and a few others."""

from __future__ import annotations

import pytest

from glmplan.calibrate.all_fits import calibrate_steps
from glmplan.readers.runs.ledger import load_measurements


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
