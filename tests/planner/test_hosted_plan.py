"""Plans with experts in host memory keep the laws of queues, whatever their step takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.planner import fit_answer
from glmplan.planner.question import read_words
from glmplan.planner.ranking import deployment_of, load_of
from glmplan.planner.users import solve
from glmplan.prediction.predict import predict
from glmplan.request.plan import PlanRequest

#: a prompt fills one step of the engine, so that no two share one [token]
INPUT, OUTPUT = 8192, 64
HOST = """
title = "eight cards on one socket"
source = "an example"
sockets = [{ name = "cpu0", cores = 64, memory_size = "1536 GiB", memory_bandwidth = "460.8 GB/s" }]
roots = [{ name = "r0", socket = "cpu0" }]
[[cards]]
accelerator = "rtx-pro-6000-ws"
count = 8
parent = "r0"
link = { generation = 5, lanes = 16 }
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "machine.toml"
    path.write_text(HOST)
    asked = read_words(
        PlanRequest("deepseek-v3", str(path), engine="ktransformers", users="1", input=str(INPUT), output=str(OUTPUT))
    )
    best = solve(asked).best
    assert asked.defaults.budget == INPUT and best.held > 32
    return asked, best, deployment_of(asked, best.terms)


def answer(plan, users, places=None, **changes):
    """Mean figures of users [s, token/s], with as many places in the cache pool as are said."""
    asked, best, deployment = plan
    pool = best.pool if places is None else replace(best.pool, tokens=places * float(asked.request_tokens))
    load = replace(load_of(asked, deployment, pool, users), **changes)
    return {name: figure.value for name, figure in predict(deployment, load).figures.items()}


def steady(plan, users, places=None):
    return answer(plan, users, places, staggered=True, requests=max(8 * users, 64))


@pytest.mark.parametrize(("users", "places"), [(1, None), (8, None), (32, None), (32, 8), (256, None)])
def test_users_are_the_rate_of_answers_times_what_each_takes(plan, users, places):
    """Little's law; nobody pauses between an answer and the next prompt."""
    found = steady(plan, users, places)
    takes = found["ttft"] + (OUTPUT - 1) * found["tpot"]
    assert found["output_rate"] / OUTPUT * takes == pytest.approx(users, rel=5e-3)


def test_a_user_who_finds_no_place_waits_for_one(plan):
    """The answers that come while a user waits are those of all who stood before it, and nobody gains by the queue."""
    few, many = steady(plan, 8, places=8), steady(plan, 32, places=8)
    assert many["output_rate"] == pytest.approx(few["output_rate"], rel=0.01)
    assert many["ttft"] - few["ttft"] == pytest.approx((32 - 8) / (many["output_rate"] / OUTPUT), rel=0.01)
    # of one who has a place the answer takes no longer
    assert many["tpot"] == pytest.approx(few["tpot"], rel=0.01)


@pytest.mark.parametrize("users", [2, 8, 32])
def test_prompts_are_read_one_after_the_other(plan, users):
    """Of prompts that are sent at once the first is read after one reading, the last after as many as there are."""
    reading = answer(plan, 1)["ttft"]
    assert answer(plan, users, requests=users)["ttft"] == pytest.approx(reading * (users + 1) / 2, rel=1e-6)
    # utilisation: reading takes no more than all the time
    assert 0.9 < steady(plan, users)["output_rate"] / OUTPUT * reading <= 1.0


@pytest.mark.parametrize("users", [2, 8, 32])
def test_answers_wait_while_the_prompts_of_others_are_read(plan, users):
    """From one answer to the next every user has its prompt read once, and this one gets its tokens."""
    reading = answer(plan, 1)["ttft"]
    step = answer(plan, users, phase="decode")["tpot"]
    found = steady(plan, users)
    assert found["tpot"] == pytest.approx(step + (users - 1) * reading / (OUTPUT - 1), rel=0.02)
    takes = found["ttft"] + (OUTPUT - 1) * found["tpot"]
    assert takes == pytest.approx(users * reading + (OUTPUT - 1) * step, rel=2e-3)


def test_the_processors_time_prompts_though_no_matrix_rate_of_the_cards_is_published():
    """ktransformers read 88 tokens of a prompt a second on 64 cores (pub-13fde327cf); so it is said, not left out."""
    words = PlanRequest(
        "deepseek-v3", "genoa-2s-direct-8", engine="ktransformers", users="1", input="2048", output="256"
    )
    (one,) = fit_answer(words).users
    assert 2048 / one.ttft.value == pytest.approx(88, rel=0.15)
    assert "its FLOP are at the rates of rtx-pro-6000-ws" in one.outside


def test_users_without_a_place_gain_nothing_where_prompts_cannot_be_timed():
    """Of this card no matrix rate is published: decoding alone is answered, of those who have a place."""
    words = PlanRequest("llama-3.1-70b", "2xl20", weights="fp8", engine="vllm", users="1,512,900",
                  input=str(INPUT), output=str(OUTPUT))  # fmt: skip
    _, many, more = fit_answer(words).users
    assert many.ttft is None and many.running == more.running < 512
    assert more.total_rate.value == pytest.approx(many.total_rate.value, rel=1e-9)
    assert more.tpot.value == pytest.approx(many.tpot.value, rel=1e-9)
    # places of whole requests, or of as much of them as the engine asks for before it admits one
    assert many.total_rate.value * many.tpot.value == pytest.approx(many.running, abs=1.0 + 0.01 * many.running)


def test_prompts_have_no_time_without_the_cores_that_compute_them():
    """Without cores their rate was infinite: 2.9 s for a prompt that takes 22 s on 64 cores."""
    words = PlanRequest("deepseek-r1-nvfp4", "1xrtx-4090", engine="ktransformers", users=(1,),
                        host_memory="512GB", host_memory_bandwidth="400GB/s")  # fmt: skip
    without, given = fit_answer(words, changes=False), fit_answer(words.but(host_cores=64), changes=False)
    assert without.users[0].ttft is None and "--host-cores" in without.unknown[0]
    assert given.unknown == () and given.asked.machine.host.cores == 64
    assert without.users[0].tpot.value == pytest.approx(given.users[0].tpot.value)
    # 2,048 tokens, 8 of 256 experts of 58 layers with three matrices of 7,168 x 2,048 values, 61 GFLOP/s for each core
    flop = 2 * 2048 * 58 * 8 * 3 * 7168 * 2048
    assert given.users[0].ttft.value == pytest.approx(flop / (64 * 61.08e9), rel=0.1)
