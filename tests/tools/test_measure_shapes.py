"""The campaign of shapes: they are those of the models, each once, and without a GPU the tool says so."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from glmplan.calibrate.kernels.own_tables import shape_work
from glmplan.catalog.entries.models import load_model

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
measure_shapes = importlib.import_module("measure_shapes")
shape_table = importlib.import_module("shape_table")
CASES = list(shape_table.cases())


def first(model, kind, part="mixer"):
    for layer in load_model(model).layers.values():
        for one in (layer.mixer, *layer.ffn):
            if one.kind == kind:
                return one
    raise AssertionError(f"{model} has no {kind}")


def test_experts_are_those_of_the_models():
    for model, ranks, experts, top, hidden, inner, _ in shape_table.EXPERTS:
        spec = first(model, "experts")
        assert (experts, top, hidden) == (spec.experts, spec.topk, load_model(model).hidden)
        assert inner * ranks == spec.inner


def test_attention_is_that_of_the_models():
    for model, heads, kv, d in shape_table.ATTENTION:
        spec = first(model, "grouped_query")
        assert (heads, kv, d) == (spec.heads, spec.kv_heads, spec.head_dim)
    assert first("glm-5.1", "latent").heads == dict(shape_table.LATENT)["glm-5.1"]
    assert first("glm-5.1", "latent").indexer.topk == shape_table.SELECTED


def widths(model):
    """Outputs and inputs of products, from the model's file."""
    spec = load_model(model)
    found = {(spec.vocabulary, spec.hidden)}
    for layer in spec.layers.values():
        one = layer.mixer
        if one.kind == "latent":
            found |= {
                (one.q_rank + one.kv_rank + one.rope_dim, spec.hidden),
                (one.heads * (one.nope_dim + one.rope_dim), one.q_rank),
                (spec.hidden, one.heads * one.v_dim),
            }
        if one.kind == "grouped_query":
            found.add(((one.heads + 2 * one.kv_heads) * one.head_dim, spec.hidden))
            found.add((spec.hidden, one.heads * one.head_dim))
        if one.kind == "recurrent":
            found.add((2 * one.key_heads * one.key_dim + 2 * one.value_heads * one.value_dim, spec.hidden))
        for ffn in layer.ffn:
            inner = ffn.inner if ffn.kind == "dense" else ffn.shared_inner
            if inner:
                found |= {(2 * inner, spec.hidden), (spec.hidden, inner)}
    return found


@pytest.mark.parametrize("product", shape_table.PRODUCTS, ids=lambda one: f"{one[0]} {one[3]}")
def test_products_are_those_of_the_models(product):
    model, n, k, _ = product
    assert (n, k) in widths(model)


def test_every_case_is_there_once_and_has_work_that_can_be_counted():
    keys = [
        (case.kernel, case.precision, case.model, *(case.sizes.get(name, 0) for name in measure_shapes.SIZES))
        for case in CASES
    ]
    assert len(set(keys)) == len(keys)
    assert {case.kernel for case in CASES} == set(measure_shapes.RUNS)
    for case in CASES:
        if case.kernel in (
            "gemm",
            "experts",
            "latent-decode",
            "sparse-gather",
            "decode-attention",
            "prefill-attention",
        ):
            sizes = case.sizes | ({"touched": 8} if case.kernel == "experts" else {})
            assert float(shape_work(case.kernel, case.precision, sizes).bytes) > 0


def test_a_row_of_a_folder_is_known_again(tmp_path):
    row = {"kernel": "gemm", "backend": "triton", "precision": "int4", "model": "glm-5.1", "error": "0.001"}
    row |= {name: CASES[-1].sizes.get(name, 0) for name in measure_shapes.SIZES}
    campaign = measure_shapes.Campaign(tmp_path)
    campaign.add("rows.csv", row)
    assert measure_shapes.key_of(campaign.rows("rows.csv")[0]) == measure_shapes.key_of(row)
    other = row | {"m": row["m"] + 1}
    assert measure_shapes.key_of(other) != measure_shapes.key_of(row)


def test_without_a_gpu_it_says_so_and_is_no_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert measure_shapes.main([str(tmp_path / "new")]) == 0
    assert "nothing measured" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
