"""Servers of their own for prompts: what a plan with them holds, how sure it is, and when it is proposed."""

from __future__ import annotations

import re
import shlex

import pytest

import glmplan
from glmplan.errors import SpecError
from glmplan.planner import fit_answer
from glmplan.planner.changes import gain_under
from glmplan.planner.layouts import APART, transfer_link
from glmplan.planner.plan import LEAST_GAIN
from glmplan.planner.question import read_words
from glmplan.planner.service import serving_inputs
from glmplan.planner.users import solve
from glmplan.present.fit_explain import arithmetic_parts
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.spec import parse_traffic

EIGHT = {"model": "llama-3.1-8b", "on": "8xh100-sxm", "tp": 1, "pp": 1, "dp": 1, "input": 8192, "output": 256}


@pytest.fixture(scope="module")
def apart():
    return fit_answer(PlanRequest(**EIGHT, disaggregated="2:6", users=(1, 8)))


@pytest.fixture(scope="module")
def together():
    return fit_answer(PlanRequest(**EIGHT, replicas=8, users=(1, 8)))


def test_only_servers_that_decode_hold_conversations(apart, together):
    assert apart.holding.terms.name == "2 prefill + 6 decode × TP1×PP1"
    assert apart.holding.pool.tokens == pytest.approx(together.holding.pool.tokens * 6 / 8)
    assert apart.holding.held_low == pytest.approx(together.holding.held_low * 6 / 8)
    assert apart.holding.context == together.holding.context


def test_the_first_token_is_a_prompt_on_a_prefill_server_and_its_transfer(apart, together):
    parts = arithmetic_parts(apart)
    alone = parts["ttft"].seconds
    assert alone == pytest.approx(together.one_user.ttft.value, rel=0.01)
    for row in apart.users:
        rest, total = re.search(
            r" alone \+ ([\d.]+) ms .* = ([\d.]+) ms", parts[f"ttft {row.users}"].text.replace(",", "")
        ).groups()
        assert float(total) == pytest.approx(1e3 * row.ttft.value, abs=0.0051)
        assert float(rest) == pytest.approx(1e3 * (row.ttft.value - alone), abs=0.011)
        assert float(rest) > 0


def test_it_is_said_that_such_servers_were_not_measured_together_and_the_interval_is_wider(apart, together):
    assert "never measured together" in apart.basis and "never measured together" not in together.basis
    assert apart.knowledge == APART != together.knowledge
    one, other = apart.one_user, together.one_user
    assert one.tpot.high / one.tpot.low > 1.1 * other.tpot.high / other.tpot.low
    assert one.tpot.low / one.tpot.value < other.tpot.low / other.tpot.value
    # both slow ends may be that of the widest class
    assert one.tpot.high / one.tpot.value > 0.99 * other.tpot.high / other.tpot.value
    assert one.tpot.value == pytest.approx(other.tpot.value, rel=0.02)  # the same server decodes


def test_users_are_not_called_safe_by_sums_that_know_no_such_servers(apart):
    assert apart.safe is None and all(row.simulated for row in apart.users)


def test_keys_and_values_cross_the_named_link_once():
    words = EIGHT | {"tp": 2}
    asked = read_words(PlanRequest(**words, disaggregated="1:3"))
    link = transfer_link(asked, solve(asked).best.terms)
    inputs = serving_inputs(PlanRequest(**words, disaggregated="1:3"))
    assert inputs.settings.link == link
    assert (inputs.settings.replicas, inputs.settings.prefill_replicas) == (4, 1)
    # two ranks of H100 send at once, each no faster than NVLink's 450 GB/s one way
    assert 0.5 * 2 * 450e9 < link.bandwidth <= 2 * 450e9
    # 32 layers, 8 heads of 128 keys and values in two bytes
    assert inputs.pool.bytes_per_token == pytest.approx(32 * 2 * 8 * 128 * 2, rel=1e-3)


def test_a_first_token_waits_for_the_prompt_the_link_and_a_step():
    plan = glmplan.fit(EIGHT["model"], **{name: value for name, value in EIGHT.items() if name != "model"},
                       disaggregated="2:6", users=1)  # fmt: skip
    inputs = serving_inputs(PlanRequest(**EIGHT, disaggregated="2:6"))
    prompt = float(inputs.step_seconds(decode_requests=[0], decode_context=[0], prefill_tokens=[8192],
                                       prefill_context=[0])[0])  # fmt: skip
    over = 8192 * inputs.pool.bytes_per_token / inputs.settings.link.bandwidth
    assert over > 1e-3
    assert plan.users[0].ttft.value > prompt + over


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"disaggregated": "2"}, "as in 1:3"),
        ({"disaggregated": "0:2"}, "at least 1"),
        ({"disaggregated": "1:1", "replicas": 3}, "2 servers of --disaggregated 1:1"),
        ({"disaggregated": "1:1", "engine": "llama.cpp"}, "no source shows"),
        ({"disaggregated": "1:1", "engine_version": "0.11.0"}, "0.18.0 or newer"),
        ({"disaggregated": "8:8"}, "takes 16 accelerators"),
    ],
)
def test_what_no_source_shows_is_refused_in_words(words, said):
    with pytest.raises(SpecError, match=said):
        fit_answer(PlanRequest("llama-3.1-8b", "8xh100-sxm", **words))


def test_under_traffic_it_is_proposed_where_answers_come_sooner_and_its_words_print_the_same():
    traffic = parse_traffic("poisson:1/s", input=8192, output=512)
    question = PlanRequest("llama-3.1-70b-fp8", "8xh100-sxm")
    plan, *others = fit_answer(question, traffic).runs
    [line] = [one for one in others if "--disaggregated" in one.ask]
    assert gain_under(plan, line) >= LEAST_GAIN and "never measured together" in line.what
    options = shlex.split(line.ask)
    typed = {name[2:]: value for name, value in zip(options[::2], options[1::2], strict=True)}
    again = fit_answer(PlanRequest("llama-3.1-70b-fp8", "8xh100-sxm", **typed), traffic)
    assert again.runs[0].e2e.value == pytest.approx(line.e2e.value)
    assert again.runs[0].total_rate.value == pytest.approx(line.total_rate.value)
    assert again.runs[0].layout == line.layout
    # the launch says what each kind of server is told, and how fast keys and values go over
    notes = " ".join(again.command_notes)
    assert "kv_producer" in notes and "kv_consumer" in notes and "GB/s" in notes


def test_one_card_and_engines_without_such_servers_are_proposed_none():
    traffic = parse_traffic("poisson:1/s", input=8192, output=512)
    for words in (
        PlanRequest("llama-3.1-8b", "1xh100-sxm"),
        PlanRequest("qwen3-30b-a3b", "2xrtx-4090", engine="llama.cpp"),
    ):
        assert not any("--disaggregated" in one.ask for one in fit_answer(words, traffic).runs)
