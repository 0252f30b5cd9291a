"""One question has one plan: whichever command asks it, and whichever users a table is asked for."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import glmplan
from glmplan.cli import main
from glmplan.errors import GlmplanError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.planner import fit_answer
from glmplan.planner.ask import Deployed
from glmplan.planner.question import read_words, usual_users
from glmplan.planner.ranking import Speed, _is_near, deployment_of, predicted, typical_users
from glmplan.planner.service import kept_of, loads_at, serving_inputs
from glmplan.planner.traffic_search import asked_under, described_under, mean_request, traffic_of
from glmplan.planner.users import predictions_of, safe_number, solve, usual_promise
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

#: questions that are drawn, and of how many of them the safe number is computed too [-]
QUESTIONS, SAFE = 100, 20
_MODELS = {
    "llama-3.1-8b": (None, "fp8", "awq"), "llama-3.1-70b": ("fp8", "int4"), "qwen3-30b-a3b": (None, "fp8"),
    "gpt-oss-120b": (None,), "glm-4.5-air": ("bf16", "fp8"), "glm-5.1": ("fp8", "nvfp4"),
    "deepseek-r1": ("fp8", "nvfp4"), "gemma-3-27b": (None, "fp8"), "qwen3-235b-a22b": ("fp8",),
}  # fmt: skip
_PARTS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-80gb-sxm", "rtx-pro-6000-ws", "l40s", "rtx-4090", "mi300x")
_COUNTS = (1, 2, 4, 6, 8, 8, 16)


def drawn() -> list[PlanRequest]:
    generator = np.random.default_rng(20261122)

    def one(choices):
        return choices[int(generator.integers(len(choices)))]

    found: list[PlanRequest] = []
    while len(found) < QUESTIONS:
        model = one(tuple(_MODELS))
        count, part = one(_COUNTS), one(_PARTS)
        words = PlanRequest(
            model,
            f"{count}x{part}",
            weights=one(_MODELS[model]),
            engine=one(("vllm", "vllm", "sglang", "trtllm")),
            input=int(generator.integers(64, 12_000)),
            output=int(generator.integers(2, 2_000)),
            context=one((None, None, 16_384)),
        )
        try:
            fits = solve(read_words(words), quick=True).best.verdict != "does_not_fit"
        except GlmplanError:
            continue
        # few of those that do not fit: they have no plan that could differ
        if fits or len(found) % 10 == 0:
            found.append(words)
    return found


@pytest.fixture(scope="module")
def questions():
    return drawn()


def test_the_plan_is_the_same_for_all_rows_of_users_and_all_commands(questions):
    """Of `fit` with any users, and of `simulate` and `safe` whose traffic has any users or rate."""
    simulated = 0
    for words in questions:
        plan = solve(read_words(words))
        terms = plan.best.terms
        for users in ("16", "1,300"):
            assert solve(read_words(words.but(users=users))).best.terms == terms, (words, users)
        for spec in ("closed:77", "poisson:3/s")[len(words.model) % 2 :][:1]:
            plain = parse_traffic(spec, input=words.input, output=words.output)
            asked = asked_under(words.but(input=None, output=None), plain)
            assert solve(asked).best.terms == terms, (words, spec)
        if terms.blocked is None and plan.ranked[0].alone and plan.best.verdict != "does_not_fit":
            simulated += 1
            inputs = serving_inputs(words)
            assert f", {terms.name}, {words.engine}, KV cache {terms.kv};" in inputs.basis, words
    assert simulated > QUESTIONS / 2


def test_the_safe_number_is_the_same_for_all_rows_of_users(questions):
    counted = 0
    for words in questions:
        numbers = set()
        for users in (None, "16", "1,5,33,64"):
            asked = read_words(words.but(users=users))
            best, first = (found := solve(asked)).best, found.ranked[0]
            if best.terms.blocked is not None or not first.alone:
                break
            # the users of the rows are further points of the curve
            numbers.add(replace(safe_number(asked, best)[0], curve=()))
        else:
            counted += 1
            assert len(numbers) == 1, words
        if counted == SAFE:
            return
    pytest.fail("too few questions have a safe number")


def test_fit_safe_and_size_say_the_same_number_of_safe_users(questions):
    """The number of `fit`, of `safe` by default and with the promise typed, and where `size` stops being sure."""
    counted = limits = 0
    seen = set()
    for words in questions:
        asked = read_words(words)
        best, first = (found := solve(asked)).best, found.ranked[0]
        if best.terms.blocked is not None or not first.alone:
            continue
        number = (said := safe_number(asked, best)[0]).users
        plan = Deployed(asked, best, deployment_of(asked, best.terms))
        promise = usual_promise(predicted(asked, [(best, 1)])[0])
        for slo in ("", promise):
            assert glmplan.safe(plan, slo).load == number, words
        assert glmplan.safe(plan, most=max(number // 2, 1)).load == min(max(number // 2, 1), number)
        sure = [glmplan.kept(plan, promise, f"closed:{users}").probability for users in (max(number, 1), number + 1)]
        assert (sure[0] >= 0.95) == (number > 0) and sure[1] < 0.95, words
        counted, limits = counted + 1, limits + (said.limit != "queue")
        seen.add(said.limit)
        if counted == SAFE:
            assert len(seen) > 1 and 0 < limits < SAFE
            return
    pytest.fail("too few questions have a safe number")


@pytest.mark.parametrize(
    ("words", "users", "over"),
    [
        # above the 1,024 requests that run, users wait within the stated TTFT
        (PlanRequest("gemma-3-27b", "4xh200-sxm", weights="bf16", engine="vllm", input=256, output=256), 1200, 1024),
        # the pool holds 94 to 98 requests
        (PlanRequest("llama-3.1-70b", "2xh100-sxm", weights="fp8", engine="vllm", input=4096, output=512), 103, 98),
    ],
    ids=["max_num_seqs", "KV pool"],
)
def test_fit_and_safe_let_users_wait_within_stated_limits(words, users, over):
    """`fit` ended at the requests that run: 1,200 users were "unlikely" that `safe` gave more than 50 %."""
    limits = {"ttft_limit": "20 s", "tpot_limit": "150 ms"}
    answer = fit_answer(words.but(users=str(users), **limits))
    slo = "ttft mean < 20 s, tpot mean < 150 ms"
    described, [traffic] = described_under(words, [Traffic(kind="closed", users=1)], usual=True, slo=slo)
    found = loads_at(described, traffic, parse_slo(slo))
    assert dict(answer.safe.at) == {share: int(load) for share, load in found.at}
    assert answer.safe.limit != "kv" and answer.safe.at[-1][1] > over
    kept = kept_of(described, traffic.at_load(users), parse_slo(slo)).probability
    assert answer.safe.chance_of(users) == pytest.approx(kept, abs=0.02) and kept > 0.5


def test_a_stricter_promise_allows_no_more_users():
    plan = glmplan.deployment("llama-3.1-8b", on="1xl40s", input=900, output=32)
    promises = [
        f"ttft {what} < {wait} s, tpot {what} < 100 ms" for what in ("p95", "mean") for wait in (1, 3, 9, 10, 14)
    ]
    loads = [glmplan.safe(plan, one).load for one in promises]
    assert loads[:5] == sorted(loads[:5]) and loads[5:] == sorted(loads[5:])
    assert all(tail <= mean for tail, mean in zip(loads[:4], loads[5:9], strict=True))
    assert loads[8] == glmplan.fit("llama-3.1-8b", on="1xl40s", input=900, output=32).safe.users > 0


def test_the_command_line_says_the_safe_number_of_fit(capsys):
    words = ["llama-3.1-8b", "--on", "1xh100-sxm", "--input", "512", "--output", "64", "--format", "json"]
    for command in ("fit", "safe"):
        with pytest.raises(SystemExit):
            main([command, *words, *(["--traffic", "closed"] if command == "safe" else [])])
    fit, safe = capsys.readouterr().out.replace("}\n{", "}\x00{").split("\x00")
    assert json.loads(fit)["safe"]["users"] == json.loads(safe)["safe_users"]


def test_conversations_have_no_safe_number_by_steady_sums():
    """How many are safe hangs on what the cache keeps of them, which `safe --traffic sessions` simulates."""
    traffic = parse_traffic("sessions:2", input=500, output=50, turns=3)
    assert glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic=traffic).safe is None
    assert glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic="closed:2").safe is not None


def test_the_question_that_had_three_plans_has_one():
    """GLM-5.1 FP8 on eight H200, 8k in and 1k out: `--users 16` gave 17 safe users, 32 gave 18 and 64 gave 12."""
    question = {"input": 8192, "output": 1024}
    answers = [glmplan.fit("glm-5.1-fp8", on="8xh200-sxm", users=users, **question) for users in (None, 16, 32, 64)]
    assert len({(one.holding.terms, one.safe.users, one.safe.expected) for one in answers}) == 1
    planned = glmplan.deployment("glm-5.1-fp8", on="8xh200-sxm", **question)
    assert planned.holding.terms == answers[0].holding.terms


def test_the_commands_take_the_same_lengths_when_none_are_typed(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", "closed:2", "--requests", "4",
              "--format", "json"])  # fmt: skip
    simulated = json.loads(capsys.readouterr().out)
    asked = fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm")).asked
    tokens = simulated["total_tokens_per_s"] / simulated["requests_per_s"]
    assert tokens == pytest.approx(asked.input_tokens + asked.output_tokens)


def test_layouts_are_compared_for_users_of_the_machine_and_not_of_the_table():
    for machine, users in (("1xrtx-4090", 32), ("8xh200-sxm", 32), ("16xh200-sxm", 64), ("gb200-nvl72", 256)):
        assert usual_users(resolve_machine(machine)) == users
        assert typical_users(read_words(PlanRequest("llama-3.1-8b", machine, users="3"))) == users


def test_two_machines_are_both_used_and_idle_cards_stand_in_the_headline():
    """16 x H200: two servers of eight; 7 cards of which a power of two is used say that three are idle."""
    both = fit_answer(PlanRequest("glm-5.1-fp8", "16xh200-sxm", input=8192, output=1024))
    assert both.holding.terms.replicas == 2
    assert both.holding.terms.accelerators == 16 and "idle" not in both.headline
    assert "start 2 servers" in both.command_notes[0]
    seven = fit_answer(PlanRequest("gpt-oss-120b", "7xh100-sxm", tp="4"))
    assert "3 of 7 accelerators idle" in seven.headline


def test_no_stages_are_planned_inside_a_domain_of_nvlink_where_the_model_fits_without():
    """TP4 x PP18 over an NVL72 is no plan; where the number of accelerators does not divide, stages are."""
    for model in ("glm-5.1-fp8", "llama-3.1-70b-fp8", "deepseek-r1"):
        assert solve(read_words(PlanRequest(model, "gb200-nvl72"))).best.terms.pp == 1


def test_servers_of_one_layout_share_users_and_their_rates_and_pools_add_up():
    two, one = (
        solve(read_words(PlanRequest("qwen3-30b-a3b", on, tp=2, pp=1, dp=1))).best
        for on in ("4xh100-sxm", "2xh100-sxm")
    )
    assert two.terms.replicas == 2 and two.pool.tokens == 2 * one.pool.tokens and two.held == 2 * one.held
    assert two.context == one.context
    four = read_words(PlanRequest("qwen3-30b-a3b", "4xh100-sxm", tp=2, pp=1, dp=1))
    half = read_words(PlanRequest("qwen3-30b-a3b", "2xh100-sxm", tp=2, pp=1, dp=1))
    found, alone = predictions_of(four, two, (1, 16)), predictions_of(half, one, (1, 8))
    assert found[1].figures == alone[1].figures
    assert found[16].figures["tpot"] == alone[8].figures["tpot"]
    rate, other = found[16].figures["output_rate"].value, alone[8].figures["output_rate"].value
    assert rate == pytest.approx(2 * other)


def test_the_mean_request_of_sessions_is_that_of_the_requests_that_they_send():
    """Against a hundred thousand turns of the simulator's own source."""
    from glmplan.simulation.traffic.sources import request_source

    traffic = parse_traffic("sessions:50", input=1000, output=200, turns=6, start=8000, shared_prefix=500)
    source = request_source(traffic, 40_000, np.random.default_rng(3))
    waiting, lengths = list(source.arrivals), []
    while waiting:
        request = waiting.pop()
        request.finish = request.arrival + 1.0
        lengths.append(request.input)
        follow = source.after(request, request.finish)
        waiting += [follow] if follow is not None else []
    inputs, outputs, before = mean_request(traffic)
    assert np.mean(lengths) == pytest.approx(inputs, rel=0.02)
    assert (outputs, inputs - before) == (200, 1000)


def test_traffic_that_states_lengths_decides_the_question():
    words = PlanRequest("llama-3.1-8b", "1xh100-sxm", input=4096)
    asked = asked_under(words, parse_traffic("closed:4", input=100, output=10))
    assert (asked.input_tokens, asked.output_tokens) == (100, 10)
    open_ended = parse_traffic("closed:4")
    asked = asked_under(words, open_ended)
    assert asked.input_tokens == 4096
    assert traffic_of(asked, open_ended).input == 4096


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {}),
        ("glm-5.1-fp8", "8xh200-sxm", {"context": 131_072}),
        ("gpt-oss-120b", "3xl40s", {"engine": "sglang"}),
        ("llama-3.1-70b", "4xa100-80gb-sxm", {"pp": 2}),
        ("llama-3.1-8b", "16xh100-sxm", {}),
        ("llama-3.1-70b", "1xrtx-5090", {}),
        ("glm-5.1", "1xm3-ultra", {"weights": "mxfp4"}),
    ],
)
def test_the_best_layout_is_the_same_where_only_the_best_is_looked_for(model, on, words):
    asked = read_words(PlanRequest(model, on, **words))
    [first, *others], sole = solve(asked).ranked, solve(asked, sole=True).ranked
    assert (first.holding.terms, first.alone, first.many) == (sole[0].holding.terms, sole[0].alone, sole[0].many)
    assert (first.unknown, first.knowledge) == (sole[0].unknown, sole[0].knowledge)
    assert len(sole) <= 1 + len(others)


def test_throughputs_of_equal_evidence_are_near_by_their_expected_values():
    most = Speed(alone=20.0, alone_low=11.0, many=260.0, many_low=100.0, knowledge="group_release")
    wide = Speed(alone=30.0, alone_low=12.0, many=275.0, many_low=87.0, knowledge="group_release")
    assert _is_near(wide, most)
    assert not _is_near(replace(wide, knowledge="pair"), most)
    assert not _is_near(replace(wide, many=230.0), most)
    assert _is_near(replace(wide, knowledge="pair", many_low=91.0), most)


@pytest.mark.parametrize(("input_tokens", "told"), [(2048, None), (1000, None), (2048, 4)])
def test_slots_of_equal_context_are_simulated_as_they_are_started_and_hold_the_request(input_tokens, told):
    """All 256 that the engine could have were simulated: every request was longer than the context of its slot."""
    words = PlanRequest(
        "llama-3.1-8b", "1xrtx-4090", engine="llama.cpp", input=input_tokens, output=512, max_num_seqs=told
    )
    inputs = serving_inputs(words)
    slots = inputs.settings.max_num_seqs
    assert f"--parallel {slots}" in fit_answer(words).command and slots == (told or slots) > 1
    assert inputs.pool.tokens // slots >= input_tokens + 512
    planned = glmplan.fit("llama-3.1-8b", on="1xrtx-4090", engine="llama.cpp", input=input_tokens, output=512,
                          max_num_seqs=told)  # fmt: skip
    assert glmplan.safe(planned, "ttft mean < 10 s, tpot mean < 100 ms", traffic="poisson:1/s").load > 0


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("qwen3-8b-q4_k_m", "1xrtx-4090", {"input": 2000, "output": 300, "users": 100}),
        ("qwen3-8b-q4_k_m", "2xrtx-4090", {"input": 2000, "output": 300, "users": 100, "replicas": 2}),
        ("llama-3.1-8b", "3xrtx-4090", {"input": 9000, "output": 500, "users": 50, "replicas": 3}),
        ("qwen3-8b-q4_k_m", "1xrtx-4090", {"input": 2000, "output": 300, "users": 100, "context": 9000}),
    ],
)
def test_the_slots_that_are_started_are_those_of_the_users_of_the_table_and_of_a_simulation(model, on, words):
    """`fit` started 46 slots beside 54 users at 50 %, and two servers started a slot more than were simulated."""
    request = PlanRequest(model, on, engine="llama.cpp", **words)
    answer, inputs = fit_answer(request, changes=False), serving_inputs(request)
    servers = answer.holding.terms.decoding
    slots = int(re.search(r"--parallel (\d+)", " ".join(answer.command))[1])
    assert slots == inputs.settings.max_num_seqs > 1 and inputs.settings.replicas == servers
    users = servers * slots
    assert users < words["users"] and answer.users[-1].running == users
    assert max(number for _, number in answer.safe.at) <= users
    assert dict(answer.safe.curve).get(users + 1, 0.0) == 0.0
    simulated = glmplan.simulate(glmplan.fit(model, on=on, engine="llama.cpp", **words), f"closed:{words['users']}")
    assert simulated.summary["batch_max"] == slots
