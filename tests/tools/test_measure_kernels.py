"""The measuring tool really measures the processor, and ends cleanly where there is no GPU."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "measure_kernels.py"
spec = importlib.util.spec_from_file_location("measure_kernels", TOOL)
assert spec is not None and spec.loader is not None
measure_kernels = importlib.util.module_from_spec(spec)
sys.modules["measure_kernels"] = measure_kernels
spec.loader.exec_module(measure_kernels)


def test_the_processor_is_measured_in_every_class(tmp_path):
    out = tmp_path / "cpu.csv"
    assert measure_kernels.main(["--cpu", "--scale", "0.02", "--repeats", "2", "--out", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"] for row in rows} == {"gemm", "experts", "decode-attention", "copy", "launch"}
    assert all(float(row["time_us"]) > 0 for row in rows)
    gemm = next(row for row in rows if row["kernel"] == "gemm")
    assert float(gemm["flop"]) == 2 * int(gemm["m"]) * int(gemm["n"]) * int(gemm["k"])


def test_numpy_attention_is_softmax_attention():
    device = measure_kernels.NumpyCpu()
    query, keys, values = device.attention(2, 5, 4, 2, 8)
    keys[:] = 0  # equal scores: the mean of the values
    mean = values.mean(axis=1, keepdims=True)
    assert device.attend(query, keys, values) == pytest.approx(mean.repeat(2, axis=1), abs=1e-6)


def test_without_a_gpu_it_says_so_and_ends_cleanly(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where PyTorch is not installed
    out = tmp_path / "none.csv"
    assert measure_kernels.main(["--out", str(out)]) == 0
    assert "nothing measured" in capsys.readouterr().err
    assert not out.exists()
