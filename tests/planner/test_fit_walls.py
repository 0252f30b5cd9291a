"""Walls in a plan: what falls back is planned as it falls back, what never runs is said so, what can be fixed warns."""

from __future__ import annotations

import json

import pytest

from glmplan.errors import SpecError
from glmplan.planner import fit_answer
from glmplan.planner.capacity import contexts_of
from glmplan.planner.ranking import deployment_of
from glmplan.prediction.effects import LEVELS, keys_of
from glmplan.present.answer_text import fit_text
from glmplan.request.plan import PlanRequest
from tests.io.models.published import PUBLISHED


def test_an_engine_that_never_runs_the_model_on_the_silicon_does_not_fit_and_another_is_named():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "8xa100-80gb-sxm", engine="sglang"))
    assert answer.verdict == "does_not_fit"
    assert answer.headline.startswith("does not run with sglang")
    assert any("Hopper or later" in reason for reason in answer.reasons)
    assert answer.changes and all(one.name == "engine" for one in answer.changes)
    assert answer.users == () and answer.command == ()


@pytest.mark.parametrize(
    ("engine", "machine", "wall"),
    [
        ("vllm", "b200-sxm", "vllm-int8-on-blackwell"),
        ("vllm", "rtx-pro-6000-ws", "vllm-int8-on-blackwell"),
        ("sglang", "b300-sxm", "sglang-int8-on-blackwell"),
        ("trtllm", "h200-sxm", "trtllm-reads-no-int8"),
        ("vllm", "h200-sxm", None),
        ("sglang", "h200-sxm", None),
    ],
)
def test_int8_runs_only_where_the_engine_has_kernels_for_it(engine, machine, wall):
    """Such plans were recommended: no engine multiplies INT8 on Blackwell."""
    holding = fit_answer(PlanRequest("qwen3.6-27b-int8", machine, engine=engine), changes=False).holding
    assert (holding.terms.blocked and holding.terms.blocked.id) == wall


@pytest.mark.parametrize(
    ("weights", "engine", "wall"),
    [
        ("bnb-4bit", "vllm", None),
        ("bnb-4bit", "sglang", None),
        ("bnb-4bit", "trtllm", "bitsandbytes-files-not-read"),
        ("bnb-8bit", "llama.cpp", "bitsandbytes-files-not-read"),
        ("mlx-4bit", "vllm", "mlx-files-outside-mlx"),
    ],
)
def test_files_of_a_library_run_with_the_engines_that_read_them(weights, engine, wall):
    holding = fit_answer(PlanRequest("llama-3.1-8b", "h100-sxm", weights=weights, engine=engine), changes=False).holding
    assert (holding.terms.blocked and holding.terms.blocked.id) == wall


@pytest.mark.parametrize(
    ("model", "machine", "engine"),
    [
        ("glm-5.1-mlx-2.906bpw", "m3-ultra", "vllm"),
        ("glm-5.3-flash-mlx-8bit", "4xrtx-pro-6000-ws", "llama.cpp"),
        ("glm-4.6-exl3-3.00bpw", "4xrtx-pro-6000-ws", "vllm"),
        ("qwen3-32b-q4_k_m", "rtx-pro-6000-ws", "trtllm"),
        ("qwen3-32b-q4_k_m", "m3-ultra", "mlx"),
    ],
)
def test_files_that_an_engine_does_not_read_do_not_run_with_it_and_no_other_engine_is_said_to_read_them(
    model, machine, engine
):
    answer = fit_answer(PlanRequest(model, machine, engine=engine))
    assert answer.verdict == "does_not_fit" and answer.command == ()
    assert answer.headline.startswith(f"does not run with {answer.asked.engine}")
    files = answer.asked.checkpoint.form
    assert files.upper() in answer.headline
    readers = {"mlx"} if files == "mlx" and machine == "m3-ultra" else set()
    readers |= {"llama.cpp", "ktransformers", "sglang", "vllm"} if files == "gguf" else set()
    assert {
        one.what.split()[0] for one in answer.changes if one.name == "engine" and " with " not in one.what
    } <= readers


def test_an_error_that_a_patch_lifts_is_a_warning_with_what_to_do():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version="0.19.0"))
    wall = next(one for one in answer.warnings if one.name == "vllm-glm-moe-dsa-unknown-to-transformers")
    assert wall.severity == "error" and "transformers" in wall.do
    assert answer.verdict == "fits"


@pytest.mark.parametrize(
    ("version", "drafts", "severity"),
    [
        ("0.25.1", 1, "quality"),
        ("0.26.0", 1, "error"),
        ("0.27.1", 4, "error"),
        ("0.26.0", 5, None),
        ("0.28.0", 1, None),
    ],
)
def test_a_block_drafter_takes_no_fewer_tokens_than_its_block(version, drafts, severity):
    answer = fit_answer(PlanRequest("deepseek-v4-flash-0731", "2xh200-sxm", engine_version=version, mtp=drafts))
    found = [one.severity for one in answer.warnings if one.name.startswith("vllm-dspark-fewer")]
    assert found == ([severity] if severity else [])
    assert answer.holding.terms.mtp == (5 if severity == "error" else drafts)


@pytest.mark.parametrize(("model", "drafts"), [("deepseek-v4-flash-0731", 5), ("deepseek-v4-flash", 1)])
def test_the_longest_context_is_the_longest_that_starts(model, drafts):
    """vllm#51041: an indexer keeps a buffer for max_model_len, so a shorter one leaves more to the pool."""

    def asked(**more):
        words = {"tp": 2, "engine_version": "0.26.0", "memory_fraction": 0.95, "mtp": drafts} | more
        return fit_answer(PlanRequest(model, "2xh20-96gb", **words), changes=False)

    found = asked().holding
    assert 0 < found.context_low < found.context < 1_048_576
    assert asked(max_model_len=int(found.context)).holding.short <= 0
    assert asked(max_model_len=int(1.1 * found.context)).holding.short > 0
    alone = contexts_of(asked().asked, found, (1,))[0]
    assert alone == pytest.approx(found.context, rel=0.02)


@pytest.mark.parametrize(
    ("model", "machine", "engine", "version", "verdict"),
    [
        # recipes ask for a later release
        # registries in the wheels of a release before and of the first one
        ("qwen3-next-80b-a3b-fp8", "2xh100-sxm", "vllm", "0.10.1", "does_not_fit"),
        ("qwen3-next-80b-a3b-fp8", "2xh100-sxm", "vllm", "0.10.2", "fits"),
        ("qwen3-32b-fp8", "2xh100-sxm", "vllm", "0.8.3", "does_not_fit"),
        ("gpt-oss-120b", "2xh100-sxm", "vllm", "0.10.0", "does_not_fit"),
        ("gemma-3-27b", "2xh100-sxm", "vllm", "0.7.3", "does_not_fit"),
        ("deepseek-v3.1-fp8", "8xh200-sxm", "vllm", "0.6.5", "does_not_fit"),
        ("qwen3.5-397b-a17b-fp8", "8xh200-sxm", "sglang", "0.5.8", "does_not_fit"),
        ("glm-5.2-fp8", "8xh200-sxm", "vllm", "0.21.0", "does_not_fit"),
        ("glm-5.2-fp8", "8xh200-sxm", "vllm", "0.23.0", "fits"),
        ("deepseek-v4-flash", "8xh200-sxm", "vllm", "0.19.1", "does_not_fit"),
        ("deepseek-v4-flash", "2xrtx-pro-6000-maxq", "sglang", "0.5.19", "does_not_fit"),
        ("deepseek-v4-flash", "2xrtx-pro-6000-maxq", "trtllm", "1.2.1", "does_not_fit"),
        # builds of llama.cpp
        ("qwen3-32b", "2xh100-sxm", "llama.cpp", "b5091", "does_not_fit"),
        ("qwen3-32b", "2xh100-sxm", "llama.cpp", "b5092", "fits"),
        ("gpt-oss-20b", "1xh100-sxm", "llama.cpp", "b6095", "does_not_fit"),
        ("gpt-oss-20b", "1xh100-sxm", "llama.cpp", "b6096", "fits"),
        ("inkling-small", "8xb200-sxm", "llama.cpp", "b11434", "does_not_fit"),
        ("inkling-small", "8xb200-sxm", "vllm", "0.33.0", "fits"),
        # release notes of pre-releases
        ("glm-5.1-fp8", "8xb200-sxm", "trtllm", "1.3.0rc8", "does_not_fit"),
        ("glm-5.1-fp8", "8xb200-sxm", "trtllm", "1.3.0rc9", "fits"),
        # a build between the releases may have it
        ("deepseek-v4-flash", "8xh200-sxm", "vllm", "0.19.2rc1.dev220", "fits"),
    ],
)
def test_a_release_without_the_model_or_its_kernels_does_not_run_it(model, machine, engine, version, verdict):
    answer = fit_answer(PlanRequest(model, machine, engine=engine, engine_version=version), changes=False)
    assert answer.verdict == verdict
    assert (answer.holding.terms.blocked is None) == (verdict == "fits")


@pytest.mark.parametrize(
    ("model", "machine", "verdict"),
    [
        ("qwen3-8b-bf16", "v100-32gb", "fits"),
        ("qwen3-8b-fp8", "v100-32gb", "does_not_fit"),
        ("gpt-oss-20b-mxfp4", "v100-32gb", "does_not_fit"),
        ("gpt-oss-20b-mxfp4", "2xrtx-2080-ti", "does_not_fit"),
        ("gpt-oss-20b-mxfp4", "a100-40gb-sxm", "fits"),
    ],
)
def test_cards_before_ampere_run_the_formats_that_the_engine_has_kernels_for(model, machine, verdict):
    answer = fit_answer(PlanRequest(model, machine, engine="vllm"), changes=False)
    assert answer.verdict == verdict
    assert (answer.holding.terms.blocked is None) == (verdict == "fits")


def test_trouble_of_the_machine_is_no_verdict_on_the_model():
    answer = fit_answer(PlanRequest("gpt-oss-120b", "wrx90-2-switches-8"))
    assert answer.verdict == "fits"
    assert any(one.name == "card-drops-off-the-bus" for one in answer.warnings)


def test_sparse_attention_that_the_silicon_lacks_is_planned_dense_and_a_build_with_it_is_computed():
    # of a prompt as long as the selection nearly all keys are read either way, and the index takes room from the cache:
    # of 32,768 tokens many users lose more than one gains
    # and of 0.19.0 runs were measured, which were faster than such a build is said to be
    asked = {"engine_version": "0.18.0", "input": "65536"}
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", **asked))
    assert answer.holding.terms.sparse is False
    change = next(one for one in answer.changes if one.name == "kernels")
    assert change.user_rate > 0 and change.pool_tokens > 0


def test_a_build_with_sparse_kernels_is_no_change_where_a_prompt_is_no_longer_than_what_they_select():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version="0.19.0", input="2048"))
    assert answer.holding.terms.sparse is False
    assert "kernels" not in {one.name for one in answer.changes}


@pytest.mark.parametrize("version", [None, "latest", "0.24.0", "0.33.0"])
def test_six_cards_serve_sparsely_with_the_releases_that_have_the_kernels(version):
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version=version))
    terms = answer.holding.terms
    assert terms.sparse and terms.indexer and terms.graphs and terms.kv == "fp8"
    assert answer.verdict == "fits" and answer.safe.users > 0
    names = {one.name: one for one in answer.warnings}
    assert "vllm-no-sparse-mla-on-sm120" not in names
    # what nobody has run is said
    assert names["vllm-sparse-mla-on-sm120-in-stages"].severity == "unknown"


def test_a_dense_fallback_takes_the_memory_of_what_the_engine_keeps():
    def per_token(answer):
        return answer.holding.memory.per_token[answer.holding.point]

    def plan(engine, version, kv):
        words = {"engine": engine, "engine_version": version, "kv": kv, "tp": "8", "pp": "1"}
        return fit_answer(PlanRequest("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", **words))

    dropped, kept = plan("vllm", "0.19.0", "fp8"), plan("sglang", "0.5.10", "bf16")
    assert not dropped.holding.terms.indexer and per_token(dropped) == 78 * 576
    # SGLang goes on allocating index keys: 100,152 B a token with BF16 latents, as measured
    assert kept.holding.terms.indexer and per_token(kept) == 100_152
    assert "without the indexer" in " ".join(fit_text(dropped).split())
    assert "without the indexer" not in " ".join(fit_text(kept).split())


def test_sparse_attention_runs_where_the_kernels_are():
    assert fit_answer(PlanRequest("glm-5.1-fp8", "8xb200-sxm")).holding.terms.sparse is True


def test_expert_parallelism_over_pcie_is_left_out_unless_asked_for():
    chosen = fit_answer(PlanRequest("qwen3-235b-a22b-fp8", "8xrtx-pro-6000-ws"))
    assert chosen.holding.terms.ep == 1
    asked = fit_answer(PlanRequest("qwen3-235b-a22b-fp8", "8xrtx-pro-6000-ws", tp="8", pp="1", dp="1", ep="8"))
    assert asked.holding.terms.ep == 8
    assert any(one.name == "vllm-expert-parallel-on-pcie" for one in asked.warnings)


def test_a_version_that_ended_a_wall_is_not_warned_about():
    old = fit_answer(PlanRequest("glm-5.1-fp8", "8xb200-sxm", engine_version="0.19.0"))
    new = fit_answer(PlanRequest("glm-5.1-fp8", "8xb200-sxm", engine_version="0.25.0"))
    assert len(new.warnings) < len(old.warnings)


@pytest.mark.parametrize("host", ["six-cards-and-display-gpu", "quad-rtx-3090"])
def test_hazards_of_named_machines_have_numbers_and_a_source(host):
    answer = fit_answer(PlanRequest("llama-3.1-70b-q4_k_m", host))
    found = [one for one in answer.warnings if one.kind == "hazard"]
    assert found and all(one.effect and one.do and one.source for one in found)


def test_what_was_measured_behind_a_wall_of_unknown_price_is_not_measured_without_it():
    # the prompts of SGLang 0.5.10 on B300 were reported as a bug by the campaign that measured them
    measured = {"engine": "sglang", "replicas": "1", "tp": "8", "pp": "1", "dp": "1"}
    struck, later = (
        fit_answer(PlanRequest("deepseek-v3-nvfp4", "dgx-b300-8", engine_version=version, **measured))
        for version in ("0.5.10", "0.5.14")
    )
    name = "sglang-deepseek-prompts-on-b300"
    assert name in {one.name for one in struck.warnings}
    wait = [next(one for one in answer.users if one.users == 8).ttft for answer in (struck, later)]
    assert wait[0].value > 1.4 * wait[1].value
    groups = [dict(zip(LEVELS, keys_of(deployment_of(one.asked, one.holding.terms)), strict=True))["group"]
              for one in (struck, later)]  # fmt: skip
    assert groups[0] == f"{groups[1]} behind {name}"


@pytest.mark.parametrize(
    ("engine", "on"),
    [
        ("trtllm", "1xtpu-v7"),
        ("trtllm", "1xgaudi-3"),
        ("trtllm", "1xarc-pro-b70"),
        ("trtllm", "1xascend-910c"),
        ("trtllm", "1xm3-ultra"),
        ("trtllm", "1xm5"),
        ("llama.cpp", "1xtpu-v7"),
        ("llama.cpp", "1xgaudi-3"),
        ("mlx", "1xmi355x"),
        ("mlx", "1xtpu-v7"),
    ],
)
def test_an_engine_without_a_backend_for_the_part_does_not_run_on_it(engine, on):
    answer = fit_answer(PlanRequest("llama-3.1-8b", on, engine=engine), changes=False)
    assert answer.verdict == "does_not_fit"
    assert answer.headline.startswith(f"does not run with {engine}: ")
    assert answer.command == ()
    named = next(text for text in answer.reasons if text.startswith("engines on ")).partition(": ")[2].split(", ")
    assert "vllm" in named and engine not in named


@pytest.mark.parametrize(("tp", "pp", "dp"), [(None, None, None), (4, None, None), (1, 1, None)])
def test_mlx_splits_matrices_alone_on_nvidia_cards(tp, pp, dp):
    """mlx_lm.server 0.32.2 has one group of ranks; its NCCL backend does not send, so there are no stages."""
    answer = fit_answer(PlanRequest("glm-5.1-mlx-2.906bpw", "6xrtx-pro-6000-ws", tp=tp, pp=pp, dp=dp), changes=False)
    terms = answer.holding.terms
    assert (terms.pp, terms.dp, terms.ep) == (1, 1, 1)
    if tp != 1:
        assert answer.verdict == "fits" and "mlx-on-several-nvidia-gpus" in {one.name for one in answer.warnings}


@pytest.mark.parametrize("degrees", [{"dp": 3}, {"tp": 2, "pp": 3}, {"tp": 4, "ep": 4}])
def test_degrees_that_mlx_has_not_are_refused(degrees):
    with pytest.raises(SpecError, match="neither data nor expert parallelism"):
        fit_answer(PlanRequest("glm-5.1-mlx-2.906bpw", "6xrtx-pro-6000-ws", **degrees), changes=False)


def test_stages_of_mlx_on_nvidia_cards_do_not_run():
    answer = fit_answer(PlanRequest("glm-5.1-mlx-2.906bpw", "6xrtx-pro-6000-ws", pp=6), changes=False)
    assert answer.verdict == "does_not_fit" and answer.holding.terms.blocked.id == "mlx-pipeline-on-nvidia"


@pytest.mark.parametrize(
    ("engine", "on"),
    [("trtllm", "1xh100-sxm"), ("llama.cpp", "1xmi355x"), ("mlx", "1xm3-ultra"), ("mlx", "1xh100-sxm")],
)
def test_an_engine_with_a_backend_for_the_part_is_not_stopped(engine, on):
    assert fit_answer(PlanRequest("llama-3.1-8b", on, engine=engine), changes=False).holding.terms.blocked is None


def test_sparse_kernels_that_the_command_asks_for_are_those_of_latents_without_rotary_values():
    with_rotary = fit_answer(PlanRequest("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", engine="sglang"), changes=False)
    without = fit_answer(PlanRequest("glm-5.3-flash-nvfp4", "4xrtx-pro-6000-ws", engine="sglang"), changes=False)
    assert "--dsa-decode-backend flashinfer_sparse_mla" in with_rotary.command
    assert "--dsa-decode-backend tilelang" in without.command
    assert not any("flashinfer_sparse_mla" in words for words in without.command)


@pytest.mark.parametrize(
    ("name", "last", "first_without"),
    [("Qwen/Qwen-7B", "0.23.0", "0.24.0"), ("gl198976/mpt-7b-instruct", "0.28.0", "0.29.0")],
)
def test_a_release_that_no_longer_has_an_architecture_does_not_run_it(tmp_path, name, last, first_without):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name].config))
    verdicts = [
        fit_answer(PlanRequest(str(path), "1xh100-sxm", engine="vllm", engine_version=version, context=2000),
                   changes=False).verdict
        for version in (last, first_without)
    ]  # fmt: skip
    assert verdicts == ["fits", "does_not_fit"]


def test_an_engine_without_room_is_no_rate_of_a_change():
    """The pool of a change to vLLM holds nothing here; its rate was simulated and divided by no tokens."""
    answer = fit_answer(
        PlanRequest("glm-5.3-flash-q3_k_xl", "2xrtx-pro-6000-ws", engine="llama.cpp", engine_version="b9193",
                    max_num_batched_tokens=512)
    )  # fmt: skip
    assert answer.verdict == "does_not_fit"
    assert answer.changes and all(change.name == "engine" for change in answer.changes)
