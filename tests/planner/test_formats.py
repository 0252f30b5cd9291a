"""The format of a request that names none, and the answer to its question."""

from __future__ import annotations

import pytest

from glmplan.planner import fit_answer
from glmplan.planner.formats import best_format, bits_of, question_met
from glmplan.planner.question import read_words
from glmplan.request.plan import PlanRequest


@pytest.mark.parametrize(
    ("model", "on", "weights"),
    [
        ("llama-3.1-8b", "1xh100-sxm", "bf16"),  # the default meets the question
        ("glm-5.1", "6xrtx-pro-6000-ws", "nvfp4"),  # BF16 and FP8 are larger than six cards
        ("llama-3.1-70b", "1xh100-sxm", "fp8"),
        ("deepseek-r1", "m3-ultra", "q4_k_m"),  # MLX has no files of it
    ],
)
def test_without_a_format_the_highest_precision_that_meets_the_question_is_planned(model, on, weights):
    asked = best_format(PlanRequest(model, on), read_words)
    assert asked.checkpoint.name == weights
    assert question_met(asked).fits
    assert any(text.startswith(f"weights {weights}") for text in asked.assumed)


def test_of_a_format_of_unknown_prefill_only_decoding_is_said_to_meet_the_question():
    asked = best_format(PlanRequest("deepseek-r1", "m3-ultra"), read_words)
    assert asked.assumed[0].startswith(
        "weights q4_k_m: the highest precision whose decoding meets the question, after fp8"
    )


def test_a_format_that_was_typed_is_never_changed():
    for words in (
        PlanRequest("glm-5.1", "6xrtx-pro-6000-ws", weights="fp8"),
        PlanRequest("glm-5.1-fp8", "6xrtx-pro-6000-ws"),
    ):
        answer = fit_answer(words)
        assert answer.asked.checkpoint.name == "fp8" and answer.verdict == "does_not_fit"
        assert answer.reply.name == "does_not_load"


def test_the_answer_is_that_of_the_question_with_its_probability():
    few, many = (fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", users=users)) for users in ("1", "24"))
    assert few.reply.name == "yes" and few.reply.probability >= 0.95
    assert many.reply.name == "likely" and 0.5 <= many.reply.probability < 0.95
    assert fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", users="64")).reply.name == "unlikely"


def test_a_cache_format_that_was_typed_is_not_computed_as_another():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", kv="bf16"))
    assert answer.reply.name == "engine_cannot" and answer.holding.terms.blocked is not None
    assert [change.ask for change in answer.changes][0] == "--kv fp8"
    assert fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws")).holding.terms.kv == "fp8"


def test_a_layout_that_was_typed_and_does_not_fit_names_the_one_that_does():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", tp="4"))
    assert answer.verdict == "does_not_fit"
    assert answer.changes[0].layout == "TP2×PP3" and answer.changes[0].ask.startswith("--tp 2 --pp 3")


def test_a_chosen_format_of_few_bits_says_that_its_losses_are_not_modelled():
    words = PlanRequest("glm-5.1", "1xrtx-5090", host_memory=256e9, host_memory_bandwidth=90e9, users=(1,))
    answer = fit_answer(words, changes=False)
    assert bits_of(answer.asked.checkpoint) < 4 and "losses are not modelled" in answer.asked.assumed[0]
    large = fit_answer(words.but(host_memory=768e9), changes=False)
    assert bits_of(large.asked.checkpoint) >= 4 and "losses" not in large.asked.assumed[0]


def test_a_format_that_no_source_says_the_engine_loads_is_not_chosen():
    # vLLM multiplies FP8 on other AMD parts only; INT4 of AWQ has kernels there
    for model, part in (("qwen3-14b", "rx-7900-xtx"), ("qwen3-8b", "rx-6900-xt")):
        asked = best_format(PlanRequest(model, f"1x{part}"), read_words)
        assert asked.checkpoint.name == "awq-int4"
        assert question_met(asked).known
        assert not question_met(read_words(PlanRequest(model, f"1x{part}", weights="fp8"))).known


def test_an_engine_with_experts_in_host_memory_takes_a_format_that_this_memory_holds():
    words = PlanRequest(
        "glm-5.1", "1xrtx-pro-6000-ws", engine="ktransformers", host_memory="768GB", host_memory_bandwidth="460GB/s",
        host_cores=96,
    )  # fmt: skip
    asked = best_format(words, read_words)
    assert asked.checkpoint.name == "nvfp4"  # BF16 has 1,350 GiB
    assert question_met(asked).fits


def test_the_memory_of_all_kinds_of_accelerators_counts_for_a_gguf_file():
    # 41 GiB of weights, of which neither card holds more than 24 GB
    asked = best_format(PlanRequest("llama-3.1-70b", "1xrtx-4090+1xrtx-3090"), read_words)
    assert (asked.engine, asked.checkpoint.name) == ("llama.cpp", "q4_k_m")
    assert question_met(asked).fits


def test_a_model_without_listed_files_is_offered_in_the_usual_one():
    # no format of Nemotron-Super-49B in the catalogue has fewer than 8 bits
    answer = fit_answer(PlanRequest("llama-3.3-nemotron-super-49b-v1", "1xm4-pro"))
    assert answer.verdict == "does_not_fit"
    assert answer.changes[0].ask == "--weights q4_k_m" and answer.changes[0].verdict == "fits"
    # a typed format is kept
    typed = fit_answer(PlanRequest("llama-3.3-nemotron-super-49b-v1-fp8", "1xm4-pro"))
    assert all("q4_k_m" not in change.ask for change in typed.changes)


@pytest.mark.parametrize(("model", "on"), [("qwen3.6-27b", "1xm4-max"), ("llama-3.1-8b", "1xm5")])
def test_decoding_alone_decides_a_format_where_prompts_have_no_time(model, on):
    asked = best_format(PlanRequest(model, on), read_words)
    assert question_met(asked).probability >= 0.95
    # 4 bits: the bandwidth does not read 16 or 8 bits of each weight ten times a second in the pessimistic case
    assert question_met(read_words(PlanRequest(model, on, weights="bf16"))).probability < 0.95
    assert bits_of(asked.checkpoint) < 6
