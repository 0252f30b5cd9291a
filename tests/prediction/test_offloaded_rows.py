"""Rows that ran with experts in host memory: whose machine it was, and what is answered."""

from __future__ import annotations

import math

import pytest

from glmplan.calibrate.offload import (
    fit_offload,
    fit_unified,
    hybrid_observations,
    hybrid_runs,
    left_out,
    spread_of,
    unified_rows,
    unified_runs,
)
from glmplan.costs.offload.work import COSTS, load_offload_fit
from glmplan.errors import GlmplanError, UnknownFact, UnknownName
from glmplan.io.runs.table import run_from_row
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import metrics_of
from glmplan.prediction.offloaded_rows import hybrid_case, hybrid_systems, predict_hybrid, systems_of
from glmplan.prediction.reproduce import reproduce
from glmplan.prediction.table import predict_runs

PAGE = "https://github.com/kvcache-ai/ktransformers/blob/x/doc/en/"
ROW = {
    "id": "a", "model": "deepseek-v3", "weights": "q4_k_m", "accelerator": "cpu-gpu-hybrid", "accelerator_count": "1",
    "engine": "ktransformers", "phase": "decode", "concurrency": "1", "protocol": "hybrid",
}  # fmt: skip


def row(**cells):
    return run_from_row({**ROW, **cells})


@pytest.fixture(scope="module")
def runs():
    return hybrid_runs()


@pytest.fixture(scope="module")
def observations(runs):
    return hybrid_observations(runs)[0]


def test_the_page_and_the_scenario_of_a_row_name_its_machine():
    source = PAGE + "DeepseekR1_V3_tutorial.md#L137"
    for scenario, name in (
        ("single socket 8 experts", "xeon-6454s-one-socket"),
        ("dual socket 8 experts", "xeon-6454s-two-sockets"),
        ("llama.cpp 8 experts", "xeon-6454s-llama.cpp"),
    ):
        systems, how = systems_of(row(source=source, scenario=scenario))
        assert ([one.name for one in systems], how) == ([name], "stated")


def test_a_page_with_two_machines_gives_both_for_an_unknown_row():
    systems, how = systems_of(row(source=PAGE + "kt-kernel/MiniMax-M2.1-Tutorial.md", model="minimax-m2.1"))
    assert len(systems) == 2
    assert how == "one of several of its page"


def test_a_row_that_names_its_cpu_is_placed_by_it():
    systems, how = systems_of(row(notes="2 x EPYC 9355, one RTX 5090"))
    assert {one.accelerator for one in systems} == {"rtx-5090"}
    assert how == "named in the row"


def test_the_less_is_stated_the_wider_the_interval():
    stated, _ = predict_hybrid(row(source=PAGE + "DeepseekR1_V3_tutorial.md", scenario="dual socket 8 experts"))
    unknown, _ = predict_hybrid(row())
    width = [math.log(one.figures["tpot"].high / one.figures["tpot"].low) for one in (stated, unknown)]
    assert width[0] < width[1]
    assert stated.out_of_domain == ""
    assert "not stated" in unknown.out_of_domain


def test_fewer_active_experts_are_taken_from_the_scenario():
    source = PAGE + "DeepseekR1_V3_tutorial.md"
    six = predict_hybrid(row(source=source, scenario="6 experts V0.2.1"))[0].figures["tpot"].value
    eight = predict_hybrid(row(source=source, scenario="8 experts V0.2.1"))[0].figures["tpot"].value
    assert 0.75 < six / eight < 1.0


def test_long_prompts_are_streamed_and_short_ones_computed_on_the_cpu():
    source, cells = PAGE + "kt-kernel/Kimi-K2-Thinking-Native.md", {"model": "kimi-k2-thinking", "weights": "int4"}
    long = hybrid_case(row(source=source, input_tokens="2048", **cells), hybrid_systems()[6])
    short = hybrid_case(row(source=source, input_tokens="300", **cells), hybrid_systems()[6])
    links = COSTS.index("links")
    for case, streamed in ((long, True), (short, False)):
        points = metrics_of(case.prompts).points
        costs = case.steps.costs(case.steps.work(points), points.prefill_tokens)
        assert bool(costs[0, links] > 0) is streamed


def test_a_model_that_is_not_known_is_said_and_not_guessed():
    with pytest.raises(UnknownName, match="no-such-model"):
        predict_hybrid(row(model="no-such-model"))


def test_a_dense_model_needs_to_be_told_which_layers_are_away():
    with pytest.raises(UnknownFact, match="no experts"):
        predict_hybrid(row(model="llama-3.1-8b"))


def test_every_row_of_the_ledger_is_answered_or_says_why(runs):
    silent = []
    for run in runs:
        try:
            answers = predict_hybrid(run)
        except GlmplanError as error:
            assert str(error)
            silent.append(run.model)
            continue
        for answer in answers:
            assert answer.figures
            assert all(one.low < one.value < one.high for one in answer.figures.values())
    assert set(silent) == {"smallthinker-21b"}


def test_reduced_runs_and_prompts_of_unknown_length_are_not_fitted(observations):
    reduced = [one for one in observations if "6 experts" in one.run.scenario]
    assert reduced
    assert not any(one.fitted for one in reduced)
    assert all(one.run.input_tokens for one in observations if one.fitted and one.kind == "prefill")


def test_the_shipped_constants_are_what_the_fit_gives(observations):
    values, half = fit_offload(observations)
    shipped = load_offload_fit()
    assert shipped.host_bandwidth == pytest.approx(values["host_bandwidth"][0], rel=1e-3)
    assert shipped.layer_seconds == pytest.approx(values["layer_seconds"][0], rel=1e-3)
    assert shipped.intervals["decode"][1] == pytest.approx(half["decode"], abs=1e-3)


def test_decode_of_left_out_cpus_is_right_within_a_quarter_for_most(observations):
    errors = [abs(math.expm1(e)) for rows in left_out(observations)["decode"].values() for o, e in rows if o.fitted]
    assert sorted(errors)[len(errors) // 2] < 0.25


def test_intervals_of_measured_machines_hold_nine_tenths_of_their_runs(observations):
    inside = []
    for one in observations:
        if one.fitted:
            figure = predict_runs([one.run])[0].figures[one.column]
            inside.append(figure.low <= one.value <= figure.high)
    assert len(inside) > 60
    assert sum(inside) / len(inside) >= 0.85


def test_a_machine_with_few_runs_is_corrected_less_than_it_differs(observations):
    # one run of llama.cpp on two sockets: predicted two and a half times too fast without a correction
    shift, low, high = load_offload_fit().of_machine("xeon-6454s-llama.cpp", "decode")
    one = next(o for o in observations if o.case.system.name == "xeon-6454s-llama.cpp" and o.kind == "decode")
    assert 0 < -shift < one.log_error(load_offload_fit())
    assert low < 0 < high
    assert load_offload_fit().of_machine("never seen", "decode")[0] == 0.0


def test_a_spread_counts_every_machine_once():
    # nine machines off by 0.1 and one with many rows off by 0.9: nine tenths lie within 0.1
    assert spread_of({**{str(n): [0.1] for n in range(9)}, "x": [0.9] * 50}) == pytest.approx(0.1)


def test_decoding_on_apple_is_answered_by_bytes_and_prompts_are_not():
    cells = {"model": "glm-5.1", "weights": "mxfp4", "accelerator": "m3-ultra", "engine": "mlx", "protocol": ""}
    answer, prompts = predict_runs([row(**cells), row(**{**cells, "phase": "prefill", "input_tokens": "1024"})])
    figure = answer.figures["output_tokens_per_s_per_request"]
    # github.com/ml-explore/mlx/issues/3402: 15-16 tok/s
    assert figure.low < 15.5 < figure.high
    assert "ttft_mean_ms" not in answer.figures
    assert prompts.figures == {} and "matrix rate" in prompts.error


def test_prompts_that_are_there_together_are_read_in_turn():
    # kimi-k2-thinking on eight L20, 37 prompts of 1,024 tokens: the mean wait is a little over half of the whole
    source = PAGE + "Kimi-K2-Thinking.md"
    cells = {"model": "kimi-k2-thinking", "weights": "int4", "phase": "prefill", "input_tokens": "1024"}
    many = row(source=source, concurrency="37", output_tokens="1", accelerator_count="8", **cells)
    one = row(source=source, concurrency="1", output_tokens="1", accelerator_count="8", **cells)
    mean, alone = (predict_hybrid(run)[0].figures["ttft"].value for run in (many, one))
    rate = predict_hybrid(many)[1].figures["prefill_rate"].value
    assert alone < mean
    assert 0.45 < mean / (37 * 1024 / rate) < 0.65


@pytest.mark.parametrize("engine", ["llama.cpp", "ktransformers"])
def test_as_many_requests_run_at_once_as_without_weights_in_host_memory(engine):
    """llama.cpp is launched with a slot for each request that a benchmark sends, up to 256; its default are four."""
    cells = {"engine": engine, "phase": "serving", "concurrency": "16", "input_tokens": "512", "output_tokens": "64"}
    # an engine that computes experts on the host needs one whose memory is known
    named = {"accelerator": "rtx-pro-6000-server", "host": "turin-2s-direct-8"}
    load = question_of(row(**cells, **named)).load
    (system, *_), _ = systems_of(row(**cells))
    assert hybrid_case(row(**cells), system).load.max_requests == load.max_requests >= 16
    # a limit that the row names holds
    assert hybrid_case(row(**cells, running_limit="8"), system).load.max_requests == 8


def test_a_row_on_a_named_host_has_its_experts_there_where_the_engine_keeps_them():
    """ktransformers computes routed experts on the processors; 671e9 weights at 4 bits are not in 96 GB."""
    machine = {"accelerator": "rtx-pro-6000-server", "host": "turin-2s-direct-8"}
    cells = {**machine, "phase": "serving", "input_tokens": "512", "output_tokens": "64"}
    hosted = question_of(row(**cells, engine="ktransformers")).deployment
    assert hosted.offload is not None and hosted.offload.placement.share == 1.0
    (answer,) = predict_runs([row(**cells, engine="ktransformers")])
    assert answer.error == "" and "hybrid" in answer.basis
    # a token visits 8 experts of 3 x 7168 x 2048 weights in 58 layers, of at least half a byte, in 2 x 614.4 GB/s
    visited = 58 * 8 * 3 * 7168 * 2048 * 0.5
    assert answer.figures["tpot_mean_ms"].value > 1e3 * visited / (2 * 614.4e9)
    assert question_of(row(**cells, engine="vllm")).deployment.offload is None


def test_a_hybrid_row_is_compared_with_its_prediction():
    run = next(run for run in hybrid_runs() if run.id == "pub-e5051753d1")
    found = reproduce(run)
    assert [one.column for one in found.compared] == ["output_tokens_per_s_per_request"]
    assert found.compared[0].predicted == predict_runs([run])[0].figures["output_tokens_per_s_per_request"]
    assert found.explanations == ()


def test_the_constants_of_machines_with_one_memory_come_from_their_runs():
    import numpy as np

    share, layer = np.exp(fit_unified(unified_rows(unified_runs()))[0])
    assert load_offload_fit().unified_bandwidth == pytest.approx(share, rel=1e-3)
    assert load_offload_fit().unified_layer_seconds == pytest.approx(layer, rel=1e-3)
