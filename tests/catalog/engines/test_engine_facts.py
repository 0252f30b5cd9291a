"""How engines run and what they cache, as the data folders say it, and what is said where they say nothing."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.engine import Engine
from glmplan.catalog.schema.validation import validated
from glmplan.costs.blocks.stack import cache_layout
from glmplan.errors import SpecError, UnknownName
from glmplan.io.runs.record import Run
from glmplan.planner import fit_answer
from glmplan.planner.question import DEFAULT_ENGINE, read_words
from glmplan.prediction.deployment import keeps_indexer, runs_sparse
from glmplan.prediction.from_row import question_of
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_says_how_it_runs_and_what_it_caches(name):
    engine = load_engine(name)
    assert engine.running.source and engine.cache.source
    assert kv_format(engine.default_cache).bytes == 2.0
    for one in engine.cache_formats:
        assert one.source
        assert not one.when_short or kv_format(one.format).bytes < 2.0


@pytest.mark.parametrize(
    ("field", "entry", "said"),
    [
        ("cache_formats", [{"format": "fp9", "source": "x"}], "'fp9' is not a KV cache format; nearest: fp8"),
        ("cache_formats", [{"format": "fp8", "writen": "fp8", "source": "x"}], "is not a field"),
        ("running", {"reads": "safetensor", "source": "x"}, "'safetensors', 'gguf', 'mlx' or 'exl3'"),
        ("cache", {"packed_latent": True, "source": "x"}, "index_keys"),
        ("unnamed_versions", [{"before": "june", "version": "1.0", "source": "x"}], "before"),
        ("defaultz", [], "nearest: defaults"),
    ],
)
def test_a_wrong_entry_of_an_engine_is_refused_with_its_field(field, entry, said):
    content = {"name": "new", "full_name": "New", "cache": {"packed_latent": True, "index_keys": True, "source": "x"}}
    with pytest.raises(SpecError, match="new.toml") as error:
        validated(Engine, {**content, "cache_formats": [{"format": "bf16", "source": "x"}], field: entry}, "new.toml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("engine", "kv", "nearest"), [("sglang", "nvfp4", "fp8"), ("llama.cpp", "fp8", "q8_0"), ("mlx", "fp8", "bf16")]
)
def test_a_cache_format_that_the_engine_has_not_is_refused_and_not_replaced(engine, kv, nearest):
    with pytest.raises(SpecError, match="--kv") as error:
        read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", engine=engine, kv=kv))
    assert nearest in str(error.value)


@pytest.mark.parametrize(
    ("engine", "kv", "flag"),
    [
        ("vllm", "fp8", "--kv-cache-dtype fp8"),
        ("sglang", "fp8", "--kv-cache-dtype fp8_e4m3"),
        ("trtllm", "nvfp4", "kv_cache_config: {dtype: nvfp4}"),
        ("llama.cpp", "q8_0", "--cache-type-k q8_0 --cache-type-v q8_0"),
    ],
)
def test_the_command_names_the_cache_format_as_the_engine_does(engine, kv, flag):
    answer = fit_answer(PlanRequest("llama-3.1-8b", "1xb200-sxm", engine=engine, kv=kv))
    assert flag in " ".join((*answer.command, *answer.command_notes))


def test_llama_cpp_caches_in_f16_unless_told_and_then_needs_no_flag():
    answer = fit_answer(PlanRequest("llama-3.1-8b-q4_k_m", "1xrtx-4090", users="1", context="8192"))
    assert answer.holding.terms.kv == "f16"
    assert "--cache-type-k" not in " ".join(answer.command)


def test_experts_may_be_dealt_over_a_divisor_of_the_ranks_where_the_engine_can():
    words = {"tp": "8", "dp": "1", "pp": "1", "ep": "4"}
    assert fit_answer(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine="sglang", **words)).asked.ep == 4
    with pytest.raises(SpecError, match="--ep"):
        fit_answer(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine="vllm", **words))


def test_a_refused_engine_is_replaced_by_engines_that_read_the_same_files_or_name_their_own():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "8xa100-80gb-sxm", engine="sglang"))
    assert answer.holding.terms.blocked.id == "sglang-dsa-on-ampere"
    others = [change for change in answer.changes if change.name == "engine"]
    # an engine with files of its own says which; TensorRT-LLM has no NVFP4 before Blackwell
    assert [one.what.split()[0] for one in others if "--weights" not in one.ask] == ["vllm"]


def test_the_engine_that_is_taken_when_none_is_named_has_most_measurements(pytestconfig):
    rows = Counter()
    for path in (pytestconfig.rootpath / "calibration/measurements").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as stream:
            rows.update(row["engine"] for row in csv.DictReader(stream) if row.get("engine"))
    assert rows.most_common(1)[0][0] == DEFAULT_ENGINE


def test_a_row_of_an_engine_that_nobody_described_says_whose_rules_are_taken():
    run = {"model": "llama-3.1-8b", "accelerator": "h200-sxm", "accelerator_count": 1, "protocol": "closed-loop"}
    told = question_of(Run("a", engine="vllm", **run)).assumed
    unknown = question_of(Run("a", engine="mindie", **run)).assumed
    assert set(unknown) - set(told) == {
        "engine mindie is not described: prompts in chunks beside decoding, cache pool as vllm's"
    }


def test_the_cache_layout_of_an_unknown_engine_is_an_error():
    with pytest.raises(UnknownName, match="vllm"):
        cache_layout("vlm")
    assert keeps_indexer("mindie", False)  # nothing is taken out for an engine that nobody described


def test_sparse_latent_attention_runs_where_its_kernels_are_published():
    # FlashMLA, README: "SM90a or SM100f"
    runs = {name: runs_sparse(load_accelerator(name), None) for name in ("h100-sxm", "b200-sxm", "b300-sxm")}
    assert all(runs.values())
    assert not any(runs_sparse(load_accelerator(name), None) for name in ("rtx-pro-6000-ws", "a100-80gb-sxm", "mi300x"))
    assert runs_sparse(load_accelerator("rtx-pro-6000-ws"), "b12x nsa")
