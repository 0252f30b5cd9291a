"""Rows whose requests arrive at a rate: between one user at a time and everybody at once."""

from __future__ import annotations

import pytest

from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import question_of, why_unknown
from glmplan.prediction.predict import predict
from glmplan.prediction.table import arrives_by_rate, predict_runs


def row(rate=None, **changes):
    cells = {"engine": "vllm", "tp": 1, "input_tokens": 512.0, "output_tokens": 256.0, "num_requests": 200, **changes}
    return Run("a", "llama-3.1-8b", "h100-sxm", request_rate_per_s=rate, **cells)


def answer(rate=None, **changes):
    [found] = predict_runs([row(rate, **changes)])
    assert not found.error
    return found


def value(found, name):
    return found.figures[name].value


def test_requests_that_are_rare_are_answered_as_those_of_one_user():
    rare, one = answer(0.02), answer(concurrency=1.0)
    assert value(rare, "tpot_mean_ms") == pytest.approx(value(one, "tpot_mean_ms"), rel=0.02)
    assert value(rare, "ttft_mean_ms") == pytest.approx(value(one, "ttft_mean_ms"), rel=0.1)
    assert value(rare, "output_tokens_per_s") == pytest.approx(0.02 * 256.0, rel=0.15)


def test_requests_that_all_but_come_at_once_are_answered_as_a_crowd():
    flood, crowd = answer(1e4), answer(concurrency=200.0)
    for name in ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s"):
        assert value(flood, name) == pytest.approx(value(crowd, name), rel=0.2)


def test_more_arrivals_never_speed_up_an_answer_and_what_is_served_is_what_arrives_until_the_steps_fall_behind():
    found = [answer(rate) for rate in (1.0, 4.0, 16.0, 64.0)]
    steps = [value(one, "tpot_mean_ms") for one in found]
    assert steps == sorted(steps)
    assert value(found[3], "ttft_mean_ms") > 1.5 * value(found[0], "ttft_mean_ms")
    served = [value(one, "output_tokens_per_s") / 256.0 for one in found]
    assert served[0] == pytest.approx(1.0, rel=0.15) and served[1] == pytest.approx(4.0, rel=0.15)
    assert served[3] < 64.0
    # a rate that is served is known, whatever a step takes
    sure = found[0].figures["output_tokens_per_s"]
    assert (
        sure.high / sure.low
        < 1.1
        < found[3].figures["output_tokens_per_s"].high / found[3].figures["output_tokens_per_s"].low
    )


def test_a_stated_number_in_flight_binds_where_so_many_users_send_less_than_arrives():
    # eight users send some eight requests a second; what each of them reads in tokens a second is far more
    for rate, bound in ((1.0, False), (60.0, True), (1000.0, True)):
        question = question_of(row(rate, concurrency=8.0))
        assert arrives_by_rate(question, predict(question.deployment, question.load)) is not bound
    held, users = answer(1000.0, concurrency=8.0), answer(concurrency=8.0)
    assert held.figures == users.figures
    assert "Poisson arrivals of 1/s" in answer(1.0, concurrency=8.0).basis


def test_everything_at_once_is_no_rate():
    assert answer(float("inf")).figures == answer(concurrency=200.0).figures


def test_the_fit_plays_no_open_load_and_says_so():
    assert why_unknown(question_of(row(4.0))) == "requests in flight are not stated"
    assert why_unknown(question_of(row(4.0, concurrency=8.0))) == ""


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_every_engine_packs_an_open_load_by_its_own_rules(engine):
    found = answer(8.0, engine=engine)
    assert "Poisson arrivals of 8/s" in found.basis
    assert value(found, "output_tokens_per_s") == pytest.approx(8.0 * 256.0, rel=0.2)


def test_the_same_row_gives_the_same_answer():
    assert answer(8.0).figures == answer(8.0).figures
