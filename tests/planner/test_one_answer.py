"""A plan and a row that mean one deployment are answered by one model of its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.catalog.files import data_folder
from glmplan.errors import UnknownFact
from glmplan.io.runs.table import read_runs, run_from_row
from glmplan.planner import fit_answer
from glmplan.planner.ask import deployment, fit
from glmplan.planner.ask import predict as predict_plan
from glmplan.planner.question import read_words
from glmplan.planner.ranking import deployment_of, load_of, predicted
from glmplan.planner.service import serving_inputs
from glmplan.planner.users import solve
from glmplan.prediction.from_row import question_of
from glmplan.prediction.predict import predict, predict_many
from glmplan.prediction.table import predict_runs
from glmplan.request.plan import PlanRequest

HOST = """
title = "two cards on one socket"
source = "an example"
sockets = [{ name = "cpu0", cores = 64, memory_size = "768 GiB", memory_bandwidth = "460.8 GB/s" }]
roots = [{ name = "r0", socket = "cpu0" }]
[[cards]]
accelerator = "rtx-pro-6000-ws"
count = 2
parent = "r0"
link = { generation = 5, lanes = 16 }
"""


@pytest.mark.parametrize(
    ("part", "weights"), [("m4-max", "bf16"), ("m3-ultra", "q8_0"), ("ampereone-a192-32x", "bf16")]
)
def test_decoding_on_one_memory_is_the_same_in_a_plan_and_in_a_table(part, weights):
    words = PlanRequest(
        "llama-3.1-8b", f"1x{part}", weights=weights, engine="llama.cpp", input="1000", output="200", users="1"
    )
    (one,) = fit_answer(words).users
    cells = {"id": "a", "model": "llama-3.1-8b", "weights": weights, "accelerator": part, "accelerator_count": "1",
             "engine": "llama.cpp", "concurrency": "1", "input_tokens": "1000", "output_tokens": "200"}  # fmt: skip
    (row,) = predict_runs([run_from_row(cells)])
    found = row.figures["output_tokens_per_s_per_request"]
    assert one.ttft is None and "ttft_mean_ms" not in row.figures
    if weights == "bf16":  # what a word of a GGUF mixture means is another matter
        assert (one.user_rate.value, one.user_rate.low, one.user_rate.high) == pytest.approx(
            (found.value, found.low, found.high), rel=1e-9
        )
    assert one.user_rate.low < found.value < one.user_rate.high


@pytest.mark.parametrize("load", [{"concurrency": "32"}, {"concurrency": "32", "phase": "decode"},
                                  {"request_rate_per_s": "4", "num_requests": "50"}])  # fmt: skip
def test_the_speed_of_one_request_is_what_a_token_takes_turned_over_whatever_the_load(load):
    cells = {"id": "a", "model": "llama-3.1-8b", "weights": "bf16", "accelerator": "h100-sxm", "engine": "vllm",
             "accelerator_count": "1", "input_tokens": "4000", "output_tokens": "100"}  # fmt: skip
    (row,) = predict_runs([run_from_row(cells | load)])
    each, tpot = (row.figures[name] for name in ("output_tokens_per_s_per_request", "tpot_mean_ms"))
    assert (each.value, each.low, each.high) == pytest.approx(
        (1000.0 / tpot.value, 1000.0 / tpot.high, 1000.0 / tpot.low), rel=1e-9
    )


def test_a_plan_and_a_table_call_one_quantity_by_one_name():
    words = PlanRequest("llama-3.1-8b", "1xh100-sxm", engine="vllm", input="4000", output="100", users="32", tp="1")
    (told,) = fit_answer(words).users
    cells = {"id": "a", "model": "llama-3.1-8b", "weights": "bf16", "accelerator": "h100-sxm", "engine": "vllm",
             "accelerator_count": "1", "input_tokens": "4000", "output_tokens": "100", "concurrency": "32"}  # fmt: skip
    (row,) = predict_runs([run_from_row(cells)])
    for name, figure in told.figures().items():
        if name in row.figures:  # what users wait in a steady state and in a run of few rounds differs
            assert figure.value == pytest.approx(row.figures[name].value, rel=0.15), name
    # prompts and waiting are in what each user has of the total, and in nothing else
    assert told.each_rate.value < 0.95 * row.figures["output_tokens_per_s_per_request"].value


def test_a_plan_with_the_file_of_a_measured_row_is_predicted_as_the_row_is():
    """gpt-oss-20b on Strix Halo by llama.cpp: 73.05 tok/s measured (kyuz0, strix-halo-toolboxes)."""
    rows = read_runs(data_folder("calibration") / "measurements" / "llama-cpp-strix-halo.csv")
    run = next(run for run in rows if run.id == "pub-62625dd1c7")
    question = question_of(run)
    asked = read_words(
        PlanRequest("gpt-oss-20b", "strix-halo", engine="llama.cpp", engine_version="9187", users="1", kv="f16")
    )
    asked = asked.but(checkpoint=question.deployment.checkpoint)
    planned = replace(deployment_of(asked, solve(asked).best.terms), text=run.protocol)
    cases = [(one, question.load, run.measured_on) for one in (planned, question.deployment)]
    of_plan, of_row = predict_many(cases)
    # the plan states its settings, the row does not say how it was launched: the interval of the row is wider
    assert {name: one.value for name, one in of_plan.figures.items()} == {
        name: one.value for name, one in of_row.figures.items()
    }
    assert of_row.assumed and not of_plan.assumed and of_row.basis == of_plan.basis
    assert all(of_row.figures[name].low <= one.low for name, one in of_plan.figures.items())
    assert of_row.figures["user_rate"].value == pytest.approx(73.05, rel=0.1)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "machine.toml"
    path.write_text(HOST)
    return PlanRequest("glm-5.1-nvfp4", str(path), engine="ktransformers", users="1,4,8")


def test_users_of_a_plan_with_experts_on_the_host_wait_as_the_engine_lets_them(hosted):
    asked = read_words(hosted)
    best = solve(asked).best
    one, four, eight = predicted(asked, [(best, users) for users in asked.users])
    deployment = deployment_of(asked, best.terms)
    assert predict(deployment, load_of(asked, deployment, best.pool, 8)) == eight
    # a prompt is read in chunks of the engine, one user's first token is that and nothing else
    alone = predict(deployment, replace(load_of(asked, deployment, best.pool, 1), phase="prefill"))
    assert one.figures["ttft"].value == pytest.approx(alone.figures["ttft"].value, rel=1e-9)
    assert one.figures["ttft"].value < four.figures["ttft"].value < eight.figures["ttft"].value
    assert one.figures["tpot"].value < four.figures["tpot"].value < eight.figures["tpot"].value


def test_users_beyond_the_places_of_a_host_wait_for_one_and_gain_nothing(hosted):
    asked = read_words(hosted)
    best = solve(asked).best
    deployment = deployment_of(asked, best.terms)
    load = replace(load_of(asked, deployment, best.pool, 16), max_requests=4, requests=160)
    few = replace(load, concurrency=4.0, requests=160)
    waiting, running = predict(deployment, load), predict(deployment, few)
    assert waiting.running == running.running == 4
    assert waiting.figures["output_rate"].value == pytest.approx(running.figures["output_rate"].value, rel=0.05)
    assert waiting.figures["ttft"].value > 3 * running.figures["ttft"].value


def test_the_simulator_takes_the_steps_of_the_host(hosted):
    import numpy as np

    inputs, asked = serving_inputs(hosted), read_words(hosted)
    (one,) = predicted(asked, [(solve(asked).best, 1)])
    step = inputs.step_seconds(
        decode_requests=np.ones(1), decode_context=np.full(1, 2048 + 256.0), prefill_tokens=np.zeros(1),
        prefill_context=np.zeros(1),
    )  # fmt: skip
    assert step[0] == pytest.approx(one.figures["tpot"].value, rel=2e-3)
    assert "hybrid" in inputs.basis


def test_a_machine_whose_prompts_cannot_be_timed_is_not_simulated():
    with pytest.raises(UnknownFact, match="matrix rate"):
        serving_inputs(PlanRequest("llama-3.1-8b", "1xm4-max"))


@pytest.mark.parametrize(
    ("model", "on", "users", "words"),
    [
        ("llama-3.1-8b", "4xh100-sxm", 32, {"disaggregated": "1:1"}),
        ("llama-3.1-70b", "2xh100-sxm", 24, {}),  # the KV pool holds 7
    ],
)
def test_a_prediction_beyond_steady_sums_is_that_of_fit(model, on, users, words):
    (row,) = (one for one in fit(model, on, users=(users,), **words).users if one.users == users)
    figures = predict_plan(deployment(model, on=on, users=(users,), **words), users=users).figures
    assert row.simulated
    assert figures["ttft"] == row.ttft and figures["tpot"] == row.tpot and figures["output_rate"] == row.total_rate
    assert figures["total_rate"].value == pytest.approx(row.total_rate.value * 2560 / 512)
    assert figures["e2e"].value == pytest.approx(row.ttft.value + 511 * row.tpot.value)
