"""Each answer says whether the model was ever served on the part by the engine, and where a recipe stands."""

from __future__ import annotations

import json
import re

import pytest

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.recipes import known_version
from glmplan.errors import GlmplanError
from glmplan.io.runs.ledger import load_measurements
from glmplan.planner import fit_answer
from glmplan.planner.evidence import EVIDENCE, evidence_words
from glmplan.planner.launch import recipe_for
from glmplan.planner.question import read_words
from glmplan.present.answer_text import fit_text
from glmplan.present.first_screen import first_screen
from glmplan.present.json_answers import fit_json
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize(
    ("model", "on", "engine", "said"),
    [
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", "vllm", "measured"),
        ("gpt-oss-120b", "2xl40s", "vllm", "measured on another accelerator"),
        (
            "qwen3.8-2.4t-a95b-nvfp4",
            "8xb300-sxm",
            "vllm",
            "recipe only, not measured (run by its publisher)",
        ),
        ("hy4", "8xb200-sxm", "vllm", "no published run"),
    ],
)
def test_one_of_four_answers_stands_on_the_first_screen_and_in_every_form(model, on, engine, said):
    answer = fit_answer(PlanRequest(model, on, engine=engine))
    assert answer.evidence.startswith(said) and answer.evidence.startswith(EVIDENCE)
    assert " ".join(answer.evidence.split()) in " ".join(fit_text(answer, 400).split())
    shown = answer.basis if said == "measured" else said.partition(" (")[0]
    assert shown in " ".join(first_screen(answer, 100).split())
    assert json.loads(fit_json(answer))["evidence"] == answer.evidence


@pytest.mark.parametrize(
    ("model", "on", "engine", "verdict", "said"),
    [
        ("glm-5.1-nvfp4", "4xrtx-pro-6000-ws", "vllm", "does_not_fit", "measured"),
        ("glm-5.3-flash-fp8", "1xl40s", "vllm", "does_not_fit", "measured on another accelerator"),
        ("hy4", "1xl40s", "vllm", "does_not_fit", "no published run"),
        ("glm-5.1-nvfp4", "1xm3-ultra", "mlx", "does_not_fit", "measured"),
        ("llama-3.1-8b", "1xmi308x", "vllm", "unknown", "measured on another accelerator"),
        ("llama-3.1-8b", "1xgh200-96gb", "sglang", "fits", "measured on another accelerator"),
    ],
)
def test_answers_without_speeds_say_it_too(model, on, engine, verdict, said):
    answer = fit_answer(PlanRequest(model, on, engine=engine))
    assert (answer.verdict, answer.basis, answer.users) == (verdict, "", ())
    assert answer.evidence == said
    assert f"evidence {said}: " in " ".join(first_screen(answer, 100).split())
    assert said in " ".join(fit_text(answer, 100).split())
    assert json.loads(fit_json(answer))["evidence"] == said


@pytest.mark.parametrize(
    ("model", "on", "engine", "said"),
    [
        # TensorRT-LLM's own table of throughput has them, and no fit takes it
        ("qwen3-30b-a3b", "1xb200-sxm", "trtllm", "measured, but those runs were not used for the calibration"),
        ("qwen3-30b-a3b", "1xh100-sxm", "trtllm", "measured on another accelerator"),
    ],
)
def test_a_published_run_that_no_fit_takes_was_run_by_somebody(model, on, engine, said):
    assert fit_answer(PlanRequest(model, on, engine=engine)).evidence == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Qwen3-30B-A3B was run in BF16 on an H100, in no other format
        (PlanRequest("qwen3-30b-a3b-bf16", "1xh100-sxm"), "measured"),
        (PlanRequest("qwen3-30b-a3b-fp8", "1xh100-sxm"), "measured, in other weight formats (bf16)"),
        # without drafting it was run there
        (PlanRequest("qwen3-30b-a3b-bf16", "1xh100-sxm", eager=True), "measured, with other settings"),
    ],
)
def test_a_model_measured_on_the_part_in_another_format_is_not_said_to_be_measured_elsewhere(words, said):
    assert fit_answer(words).evidence == said


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "ktransformers"])
def test_a_purchase_is_planned_with_the_newest_release_that_evidence_covers(engine):
    asked = read_words(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine=engine))
    latest = read_words(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine=engine, engine_version="latest"))
    assert asked.runs_as == latest.runs_as is not None
    assert any(asked.runs_as in text and "evidence" in text for text in asked.assumed)


@pytest.mark.parametrize(
    ("engine", "version", "nearest"),
    [
        ("vllm", "9999.0", "0.33.0"),
        ("sglang", "9999.0", "0.5.23"),
        ("llama.cpp", "b99999", "b11434"),
        ("llama.cpp", "9999.0", "b11434"),
        ("mlx", "9999.0", "0.32.2"),
    ],
)
def test_a_release_beyond_all_evidence_is_refused_with_the_nearest(engine, version, nearest):
    with pytest.raises(GlmplanError, match=nearest):
        read_words(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine=engine, engine_version=version))


@pytest.mark.parametrize(
    ("engine", "version", "nearest"),
    [
        ("trtllm", "0.33.0", "0.21.0"),
        ("trtllm", "1.1.1", "1.1.0"),
        ("vllm", "0.24.7", "0.24.0"),
        ("vllm", "1.0rc1", "0.33.0"),
        ("sglang", "0.6.0", "0.5.23"),
        ("sglang", "0.5.0", "0.4.10"),
        ("ktransformers", "0.0.9", "0.1"),
        ("mlx", "0.29.0", "0.28.4"),
    ],
)
def test_a_version_that_never_was_is_refused_with_the_nearest(engine, version, nearest):
    with pytest.raises(GlmplanError, match=f"nearest: {nearest}$"):
        known_version(engine, version)


def test_a_version_that_only_its_candidates_had_is_refused_with_the_name_of_a_build():
    with pytest.raises(GlmplanError, match=r"0\.29\.1rc1\); nearest: 0\.29\.0$"):
        known_version("vllm", "0.29.1")
    assert known_version("vllm", "0.29.1rc1") == "0.29.1rc1"


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.19.2rc1.dev249+gabc"),
        ("vllm", "v0.24"),
        ("vllm", "0.8.5.post1"),
        ("vllm", "0.33.1"),
        ("sglang", "0.5.10.post1"),
        ("trtllm", "1.3.0rc20"),
        ("trtllm", "0.17.0.dev2024121700"),
        ("ktransformers", "0.2.4"),
        ("llama.cpp", "b6918"),
    ],
)
def test_versions_that_were_and_builds_between_them_are_taken(engine, version):
    assert known_version(engine, version) == version


def test_every_numbered_version_of_a_measured_run_was_published():
    """Nightly builds are named after the release that they precede; separate servers name the version of Dynamo."""
    numbered = {
        (run.engine, run.engine_version)
        for run in load_measurements()
        if run.engine in ("vllm", "sglang", "trtllm")
        and "nightly" not in (run.engine_version or "")
        and run.unusable != "disaggregated prefill and decode"
        and re.match(r"\d+\.\d+(\.|$)", run.engine_version or "")
    }
    never = [pair for pair in sorted(numbered) if not load_engine(pair[0]).published.holds(pair[1].split()[0])]
    assert len(numbered) > 40 and not never


@pytest.mark.parametrize(
    ("model", "on", "program"),
    [
        ("qwen3-32b", "8xtpu-v7x", "SGLang-JAX"),
        ("deepseek-v3", "8xtpu-v7x", "SGLang-JAX"),
        ("minimax-m3", "8xtpu-v7x", "SGLang-JAX"),
        ("qwen3-32b", "8xgaudi-3", "the fork HabanaAI/sglang-fork"),
    ],
)
def test_runs_of_an_engine_say_nothing_of_another_program_that_serves_in_its_place(model, on, program):
    answer = fit_answer(PlanRequest(model, on, engine="sglang"), changes=False)
    assert answer.evidence == f"no published run with {program}, which replaces sglang there"
    assert not answer.basis or answer.basis.startswith("computed as if sglang ran there")
    assert answer.command == ()
    text = fit_text(answer)
    assert "launch_server" not in text and program in text


PLUG_IN = "with the plug-in {}, whose kernels replace those of vllm there"


@pytest.mark.parametrize(
    ("model", "on", "engine", "says"),
    [
        # a recipe for the part, run by its publisher
        (
            "qwen3-32b",
            "8xtpu-v7x",
            "vllm",
            "recipe only, not measured (run by its publisher) " + PLUG_IN.format("tpu-inference or vllm-torchtpu"),
        ),
        ("deepseek-v3", "8xtpu-v7x", "vllm", "no published run " + PLUG_IN.format("tpu-inference or vllm-torchtpu")),
        ("llama-3.1-8b", "8xgaudi-3", "vllm", "no published run " + PLUG_IN.format("vllm-gaudi")),
        ("glm-5.1-fp8", "16xascend-910b", "vllm", "no published run " + PLUG_IN.format("vllm-ascend")),
        ("qwen3-8b", "1xm3-ultra", "vllm", "no published run " + PLUG_IN.format("vllm-metal")),
        (
            "qwen3-8b",
            "1xm3-ultra",
            "sglang",
            "no published run with MLX, whose kernels replace those of sglang there",
        ),
        # runs with the same plug-in on the part, and on another part
        ("qwen3-30b-a3b", "8xascend-910b", "vllm", "measured"),
        ("deepseek-v3.2", "16xascend-910b", "vllm", "measured on another accelerator"),
        # the engine's own kernels
        ("qwen3-32b", "1xarc-pro-b70", "vllm", "measured on another accelerator"),
        ("qwen3-8b", "1xm3-ultra", "mlx", "no published run"),
    ],
)
def test_runs_with_an_engines_own_kernels_say_nothing_of_a_plug_ins(model, on, engine, says):
    asked = read_words(PlanRequest(model, on, engine=engine))
    said = evidence_words(asked, asked.machine.count, "")
    assert said == says or said.startswith((f"{says}, ", f"{says}: ", f"{says}; "))


def test_a_plug_in_is_started_by_the_engine_and_speeds_say_whose_kernels_they_assume():
    answer = fit_answer(PlanRequest("qwen3-32b", "8xtpu-v7x", engine="vllm"), changes=False)
    assert answer.command[0].startswith("vllm serve")
    assert answer.basis.startswith("computed as if vllm had its own kernels there: ")
    cuda = fit_answer(PlanRequest("qwen3-32b", "8xh100-sxm", engine="vllm"), changes=False)
    assert "its own kernels" not in cuda.basis and "replace" not in cuda.evidence


def test_a_recipe_for_the_part_stands_though_another_program_serves_there(monkeypatch):
    recipe = recipe_for(read_words(PlanRequest("qwen3-32b", "8xtpu-v7x", engine="vllm")), 8)
    assert recipe.accelerator == "tpu-v7"
    monkeypatch.setattr("glmplan.planner.evidence.recipe_for", lambda asked, cards: recipe)
    said = evidence_words(read_words(PlanRequest("qwen3-32b", "8xtpu-v7x", engine="sglang")), 8)
    assert said.startswith(
        "recipe only, not measured (run by its publisher) with SGLang-JAX, which replaces sglang there: "
    )
    # of another part it says nothing
    said = evidence_words(read_words(PlanRequest("qwen3-32b", "8xgaudi-3", engine="sglang")), 8)
    assert said == "no published run with the fork HabanaAI/sglang-fork, which replaces sglang there"


def test_ranks_of_a_dense_model_need_no_known_link_between_them():
    answer = fit_answer(PlanRequest("qwen3-32b", "8xtpu-v7x"), changes=False)
    alone = fit_answer(PlanRequest("qwen3-32b", "1xtpu-v7x"), changes=False)
    assert answer.holding.terms.name == "TP1×PP1×DP8"
    assert answer.user_rate == pytest.approx(alone.user_rate, rel=1e-9)
    # experts are exchanged: what their link is decides
    moe = fit_answer(PlanRequest("qwen3-30b-a3b", "8xtpu-v7x", tp="1", dp="8"), changes=False)
    assert moe.unknown and not moe.user_rate
