"""A run beside the other runs of its configuration: a slow machine is named although the interval covers the run."""

from __future__ import annotations

import pytest

from glmplan.io.runs.ledger import host_of_row, load_measurements, split_held_out
from glmplan.io.runs.table import run_from_row
from glmplan.prediction.population import usual_causes
from glmplan.prediction.reproduce import reproduce

#: GLM-5.2 on eight cards without drafts
ROW = {
    "id": "own", "model": "glm-5.2", "weights": "nvfp4", "accelerator": "rtx-pro-6000-server", "accelerator_count": "8",
    "tp": "8", "pp": "1", "dp": "1", "ep": "1", "dcp": "1", "engine": "vllm", "phase": "serving", "concurrency": "1",
    "input_tokens": "128", "output_tokens": "1024",
}  # fmt: skip


def test_a_run_far_below_its_population_is_slow_inside_its_interval():
    found = reproduce(run_from_row({**ROW, "output_tokens_per_s": "39.6", "tpot_mean_ms": "25.3"}))
    for one in found.compared:
        assert one.predicted.low < one.measured < one.predicted.high
    assert found.population.slow
    assert found.population.own < found.population.median / 1.5
    assert found.verdict == "different"


def test_a_run_as_fast_as_its_population_is_not():
    found = reproduce(run_from_row({**ROW, "output_tokens_per_s": "80", "tpot_mean_ms": "12.5"}))
    assert not found.population.slow
    assert found.population.own == pytest.approx(found.population.median, rel=0.2)


def test_a_population_has_no_held_out_runs():
    found = reproduce(run_from_row({**ROW, "output_tokens_per_s": "39.6"}))
    _, out = split_held_out(load_measurements())
    assert not {run.id for run in out} & set(found.population.runs)


def test_few_runs_are_no_population():
    row = {**ROW, "model": "llama-3.1-8b", "weights": "bf16"}
    row |= {"tp": "2", "accelerator_count": "2", "output_tokens_per_s": "100", "engine": "trtllm"}
    assert reproduce(run_from_row(row)).population is None


def test_without_a_population_a_run_below_its_interval_is_slow():
    row = {"id": "own", "model": "qwen3-32b", "weights": "fp8", "accelerator": "rtx-5090", "accelerator_count": "2",
           "tp": "2", "engine": "vllm", "phase": "serving", "concurrency": "1", "input_tokens": "1024",
           "output_tokens": "512"}  # fmt: skip
    usual = reproduce(run_from_row({**row, "output_tokens_per_s": "50"}))
    speed = usual.compared[0].predicted
    assert usual.population is None and not usual.slow
    assert reproduce(run_from_row({**row, "output_tokens_per_s": str(speed.value / 3)})).slow == (
        speed.value / 3 < speed.low
    )
    assert reproduce(run_from_row({**row, "output_tokens_per_s": str(speed.low * 0.9)})).slow
    # a machine faster than its interval is not slow
    assert not reproduce(run_from_row({**row, "output_tokens_per_s": str(speed.high * 1.2)})).slow


def test_causes_are_those_that_the_machine_can_have():
    copies, channels = "peer-to-peer copies are off", "empty memory channels or slow memory"
    assert copies in dict(usual_causes(8, hosted=False)) and copies not in dict(usual_causes(1, hosted=True))
    assert channels in dict(usual_causes(1, hosted=True)) and channels not in dict(usual_causes(8, hosted=False))


@pytest.mark.parametrize(
    ("vendor", "link", "shared", "named", "not_named"),
    [
        ("NVIDIA", "nvlink", False, "nvidia-smi nvlink --status", "ACS"),
        ("AMD", "xgmi", False, "amd-smi", "nvidia-smi"),
        ("AMD", "pcie", False, "rocm-smi --showtopoaccess", "nvidia-smi"),
        ("NVIDIA", "unified", True, "swap in use", "PCIe lanes"),
        ("Apple", "unified", True, "powermetrics", "nvidia-smi"),
        ("Ampere", "pcie", False, "lstopo", "nvidia-smi"),
    ],
)
def test_checks_are_those_of_the_vendor_and_the_links(vendor, link, shared, named, not_named):
    causes = usual_causes(8, hosted=False, vendor=vendor, link=link, shared=shared)
    said = "; ".join(f"{cause}: {check}" for cause, check in causes)
    assert named in said and not_named not in said


def test_the_host_of_a_row_may_be_a_file(tmp_path):
    file = tmp_path / "machine.toml"
    file.write_text(
        'title = "mine"\nsource = "made up"\n[[sockets]]\nname = "cpu0"\ncpu = "made up"\nmemory_size = "512 GB"\n'
        'memory_bandwidth = "300 GB/s"\n[[roots]]\nname = "root0"\nsocket = "cpu0"\n[[cards]]\n'
        'accelerator = "rtx-pro-6000-server"\nparent = "root0"\nlink = { generation = 5, lanes = 16 }\n'
    )
    host, assumed = host_of_row(str(file), "rtx-pro-6000-server", 1)
    assert (host.host_memory_bandwidth, assumed) == (300e9, "")
    row = {"id": "own", "model": "kimi-k2-thinking", "weights": "int4", "accelerator": "rtx-pro-6000-server",
           "accelerator_count": "1", "tp": "1", "engine": "ktransformers", "phase": "serving", "concurrency": "1",
           "input_tokens": "128", "output_tokens": "512", "output_tokens_per_s": "9.5", "host": str(file)}  # fmt: skip
    found = reproduce(run_from_row(row))
    assert "weights in the memory of one socket" in dict(found.causes)
    slower = found.compared[0].predicted.value
    file.write_text(file.read_text().replace("300 GB/s", "800 GB/s"))
    assert reproduce(run_from_row(row)).compared[0].predicted.value > 1.5 * slower
