"""`fit` sees what the simulator sees: users whom the cache does not hold, and traffic that is named."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import glmplan
from glmplan.catalog.entries.hosts import implied_host
from glmplan.cli import main
from glmplan.costs.network.links import host_transfer_rate
from glmplan.errors import SpecError
from glmplan.planner.changes import gain_under
from glmplan.planner.plan import LEAST_GAIN, as_well_known
from glmplan.planner.simulated import beyond_steady, host_copies, read_tiers, traffic_run, why_no_copies
from glmplan.planner.traffic_search import _best, asked_under, described_under, solve_under, traffic_of
from glmplan.planner.users import solve
from glmplan.present.answer_text import NO_COPIES
from glmplan.present.first_screen import MOST_LINES, first_screen
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.settings import TransferLink
from glmplan.simulation.traffic.spec import parse_traffic


#: 20 engineers with coding agents: from 60,000 tokens to 120,000 in a session, four tokens read for each written
@pytest.mark.parametrize(
    ("engine", "spec", "fields", "splits"),
    [
        ("vllm", "closed:2", {"input": 1000, "output": 100}, True),
        ("trtllm", "closed:2", {"input": 1000, "output": 100}, False),
        ("trtllm", "poisson:1/s", {"input": 8000, "output": 192, "jitter": 0.2}, False),
        ("trtllm", "poisson:1/s", {"input": 8000, "output": 193}, True),
        ("trtllm", "poisson:1/s", {"input": 1000, "output": 100, "input_cv": 0.5}, True),
        ("trtllm", "sessions:2", {"input": 100, "output": 10}, True),
    ],
)
def test_trtllm_splits_prompts_only_where_one_may_exceed_a_step(engine, spec, fields, splits):
    """`enable_chunked_prefill` is off, and a prompt above the 8,192 tokens of a step would be refused."""
    found, _ = described_under(
        PlanRequest("llama-3.1-8b", "1xh100-sxm", engine=engine), [parse_traffic(spec, **fields)]
    )
    assert found.service.settings.chunked_prefill is splits


ENGINEERS = parse_traffic("sessions:20", start=60_000, turns=12, input=4000, output=1000)


@pytest.fixture(scope="module")
def agents():
    return glmplan.fit("glm-5.1-nvfp4", on="8xrtx-pro-6000-ws", traffic=ENGINEERS)


def test_users_whom_the_cache_does_not_hold_are_simulated():
    """GLM-5.1 on eight cards, 20 users x 90k; before 0.19 vLLM began prompts that did not fit, and preempted."""
    question = {"input": 90_000, "output": 1000, "users": (1, 4, 20)}
    old, new = (
        glmplan.fit("glm-5.1-nvfp4", on="8xrtx-pro-6000-ws", engine_version=version, **question)
        for version in ("0.18.0", "0.19.0")
    )
    for answer in (old, new):
        one, few, many = answer.users
        assert not one.simulated and not few.simulated and many.simulated
        assert beyond_steady(answer.asked, answer.holding, 20) and not beyond_steady(answer.asked, answer.holding, 4)
        # five times the users get hardly more together than four do
        assert many.total_rate.value < 1.2 * few.total_rate.value
        assert many.ttft.low <= many.ttft.value <= many.ttft.high
        assert answer.to_frame("users").simulated.tolist() == [False, False, True]
    assert old.users[-1].preempted > 0.1 and new.users[-1].preempted == 0.0


def test_a_simulated_row_is_what_simulate_says_of_the_same_plan():
    question = {"input": 2048, "output": 512}
    answer = glmplan.fit("llama-3.1-8b", on="1xrtx-4090", users=64, **question)
    [row] = answer.users
    found = glmplan.simulate(answer, "closed:64", requests=4 * 64).summary
    assert row.simulated
    # the same schedule; first tokens also come later by what the fit learnt of them
    assert row.total_rate.value == pytest.approx(found["output_tokens_per_s"], rel=1e-6)
    assert row.tpot.value == pytest.approx(found["tpot_mean_ms"] * 1e-3, rel=1e-6)
    assert row.preempted == pytest.approx(found["preemptions"] / found["requests"])


def test_named_traffic_is_answered_in_one_command_with_its_cache_hits(agents):
    plan = agents.runs[0]
    assert "20 concurrent sessions" in agents.traffic and "120,000" in agents.traffic
    assert 0.0 <= plan.cached_low <= plan.cached <= 1.0
    screen = first_screen(agents)
    assert len(screen.splitlines()) <= MOST_LINES
    assert f"prefix-cache hit rate {agents.runs[0].cached:.0%}" in screen and "end-to-end" in screen


def test_the_layout_of_conversations_is_the_one_that_serves_them_best(agents):
    """TP8 holds three of twenty conversations and TP4×PP2 seven, so that both compute nearly all of them again."""
    plan = agents.runs[0]
    others = [runner.layout for runner in agents.runners]
    assert plan.layout not in others and len(others) >= 4
    for tp, pp in ((8, 1), (4, 2), (2, 4)):
        typed = solve(agents.asked.but(tp=tp, pp=pp, dp=1))
        run = traffic_run(typed.asked, typed.ranked[0], ENGINEERS, ends=False)
        assert gain_under(plan, run) < LEAST_GAIN, run.layout
    assert not any("instead" in one.what and one.layout in others for one in agents.runs[1:])


def test_conversations_decide_for_another_layout_than_their_mean_request():
    """More stages hold more of them than the layout that serves the mean request best and computes many again."""
    traffic = parse_traffic("sessions:150")
    asked = asked_under(PlanRequest("qwen3-235b-a22b", "8xrtx-pro-6000-ws"), traffic)
    alone, under = solve(asked), solve_under(asked, traffic_of(asked, traffic))
    assert under.best.terms.name != alone.best.terms.name
    runs = [traffic_run(asked, one.ranked[0], traffic_of(asked, traffic), ends=False) for one in (alone, under)]
    assert gain_under(*runs) >= LEAST_GAIN


def test_a_session_that_outgrows_the_context_speaks_against_no_layout(agents):
    """In another layout answers come at other times, and one session more may grow too long by chance."""
    plan = agents.runs[0]
    quick = replace(plan, e2e=replace(plan.e2e, value=0.5 * plan.e2e.value))
    lost = plan.rejected - plan.too_long + plan.left
    for too_long, best in ((1, 1), (0, 0)):
        other = replace(quick, rejected=lost + 1, left=0, too_long=too_long)
        peers = [SimpleNamespace(holding=SimpleNamespace(held=1.0))] * 2
        assert _best({0: plan, 1: other}, peers) == best


def test_all_commands_take_the_layout_that_serves_the_traffic_best(agents, capsys):
    words = ["glm-5.1-nvfp4", "--on", "8xrtx-pro-6000-ws", "--start", "60000", "--turns", "12", "--input", "4000"]
    with pytest.raises(SystemExit):
        main(["simulate", *words, "--output", "1000", "--traffic", "sessions:20", "--requests", "25", "--no-ranges",
              "--format", "json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["basis"].startswith(f"nvfp4, {agents.runs[0].layout}, vllm")


def test_a_larger_cache_and_copies_in_host_memory_are_simulated_where_the_cache_is_short():
    """Sixteen conversations of 32,500 tokens need 520,000, and the card holds about 208,000."""
    traffic = parse_traffic("sessions:16", start=20_000, turns=5, input=2000, output=500)
    runs = glmplan.fit("llama-3.1-8b", on="1xl40s", traffic=traffic).runs
    plan, *others = runs
    larger, copies = (next(one for one in others if word in one.what) for word in ("twice the KV cache", "host memory"))
    for one in (larger, copies):
        assert one.cached > plan.cached and one.e2e.value < plan.e2e.value
    assert "--kv-offloading-size" in copies.what and "GB/s per accelerator" in copies.what
    # the line is one command: what it prints as a plan of its own is what it says as a change
    option, tokens = copies.ask.split()
    assert option == "--host-tokens"
    own = glmplan.fit("llama-3.1-8b", on="1xl40s", traffic=traffic, host_tokens=int(tokens))
    assert (own.runs[0].e2e.value, own.runs[0].cached) == (copies.e2e.value, copies.cached)
    assert f"KV offload of {int(tokens):,} tokens" in own.traffic
    assert not any("host memory" in one.what for one in own.runs)


@pytest.mark.parametrize(
    ("on", "model", "traffic", "why"),
    [
        ("1xl40s", "llama-3.1-8b", None, "needs --traffic"),
        ("8xrtx-pro-6000-ws", "glm-5.1-nvfp4", ENGINEERS, "vllm has no KV offload for latent attention"),
    ],
)
def test_copies_of_which_nothing_can_be_said_are_refused(on, model, traffic, why):
    with pytest.raises(SpecError, match=f"host_tokens: 1000 .*{why}"):
        glmplan.fit(model, on=on, traffic=traffic, host_tokens=1000)


@pytest.mark.parametrize(
    ("model", "on", "engine", "why"),
    [
        ("llama-3.1-8b", "1xh100-sxm", "trtllm", "no source shows KV offload with trtllm"),
        ("llama-3.1-8b", "1xh100-sxm", "llama.cpp", "llama.cpp offloads 8 GiB by default"),
        ("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", "vllm", "vllm has no KV offload for latent attention"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"host_link": TransferLink(50e9)}])
def test_the_simulator_refuses_copies_that_the_engine_keeps_none_of_as_fit_does(model, on, engine, why, more):
    scheduler = {"host_tokens": 1000, **more}
    with pytest.raises(SpecError, match=f"--host-tokens: 1000 {why}"):
        described_under(PlanRequest(model, on, engine=engine), [parse_traffic("sessions:2")], scheduler=scheduler)


def test_where_the_engine_keeps_no_copies_the_answer_says_why_and_what_another_engine_does_with_them():
    """Twenty conversations of up to 120,000 tokens on six cards that hold some 545,000."""
    traffic = parse_traffic("sessions:20", start=60_000, turns=16, input=3000, output=750)
    answer = glmplan.fit("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", traffic=traffic)
    plan, *others = answer.runs
    assert "latent attention" in plan.no_copies
    assert f"{NO_COPIES}: {plan.no_copies}" in " ".join(str(answer).split())
    copies = next(one for one in others if one.ask.startswith("--engine sglang"))
    # the line is what that plan does with as many tokens of copies
    asked = asked_under(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine="sglang"), traffic)
    solution = solve_under(asked, traffic)
    found = host_copies(solution.asked, solution.best, traffic)
    assert copies.ask == f"--engine sglang --host-tokens {found.tokens}"
    run = traffic_run(solution.asked.but(host_tokens=found.tokens), solution.ranked[0], traffic, ends=False)
    assert (copies.e2e.value, copies.cached) == (run.e2e.value, run.cached)
    assert copies.cached > 0.9 > plan.cached


def test_copies_in_host_memory_are_planned_as_far_as_engine_and_machine_allow():
    def copies(model, on, **words):
        asked = asked_under(PlanRequest(model, on, **words), ENGINEERS)
        return asked, host_copies(asked, solve(asked).best, ENGINEERS)

    # vLLM keeps no copies of latents, SGLang does; with drafts beside them a race was reported
    assert copies("glm-5.1-nvfp4", "8xrtx-pro-6000-ws")[1] is None
    assert copies("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", engine="llama.cpp", weights="q4_k_m")[1] is None
    asked = asked_under(PlanRequest("glm-5.1-nvfp4", "8xrtx-pro-6000-ws"), ENGINEERS)
    assert (
        why_no_copies(asked, solve(asked).best) == "vllm has no KV offload for latent attention (--kv-offloading-size)"
    )
    asked, found = copies("glm-5.1-nvfp4", "8xrtx-pro-6000-ws", engine="sglang")
    best = solve(asked).best
    assert 0 < found.tokens * best.terms.dp * best.terms.replicas <= 20 * 120_000
    together = host_transfer_rate(asked.machine.host, count=8) * 8
    assert found.bandwidth * best.terms.dp * best.terms.replicas == pytest.approx(together)


def test_copies_come_back_over_the_links_of_the_machine_unless_a_bandwidth_is_given():
    def described(**scheduler):
        words = PlanRequest("llama-3.1-8b", "4xl40s", tp=2)
        return described_under(words, [parse_traffic("sessions:4")], scheduler={"host_tokens": 100_000, **scheduler})[0]

    found = described()
    each = host_transfer_rate(implied_host("l40s", 4), count=4)
    assert found.service.settings.host_link.bandwidth == pytest.approx(2 * each)  # both accelerators of a rank load
    assert f"PCIe 4.0 x16 of 4xl40s, {each / 1e9:,.1f} GB/s per accelerator" in found.basis
    told = described(host_link=TransferLink(5e9))
    assert told.service.settings.host_link.bandwidth == 5e9
    assert "at 5.0 GB/s per replica, as given" in told.basis
    with pytest.raises(SpecError, match="one memory") as caught:
        described_under(
            PlanRequest("llama-3.1-8b", "dgx-spark", engine="vllm"), [parse_traffic("sessions:2")],
            scheduler={"host_tokens": 100_000},
        )  # fmt: skip
    assert caught.value.field == "--host-bandwidth"


def test_fit_takes_the_bandwidth_of_copies_as_simulate_does():
    asked = dict(engine="sglang", traffic="sessions:12", host_tokens=200_000)
    quick, slow = (
        glmplan.fit("llama-3.1-8b", on="1xrtx-4090", host_bandwidth=told, **asked) for told in ("20 GB/s", 0.2e9)
    )
    assert "a way as given, 20.0 GB/s to each rank" in quick.traffic
    assert slow.runs[0].ttft.value > 1.5 * quick.runs[0].ttft.value
    with pytest.raises(SpecError, match="host_bandwidth.*'0 GB/s' must be more than 0"):
        glmplan.fit("llama-3.1-8b", on="1xrtx-4090", host_bandwidth="0 GB/s", **asked)
    with pytest.raises(SpecError, match="host_bandwidth:? needs --traffic"):
        glmplan.fit("llama-3.1-8b", on="1xrtx-4090", host_bandwidth="20 GB/s")


def test_the_plan_of_named_traffic_is_what_simulate_runs_under_it(agents):
    planned = glmplan.simulate(agents, ENGINEERS, requests=60)
    assert planned.summary["requests"] == 60
    assert agents.asked.cached_tokens > 0.9 * agents.asked.input_tokens - 4000


def test_changes_under_traffic_gain_five_percent_and_those_on_less_evidence_come_last(agents):
    plan, *others = agents.runs
    gains = [gain_under(plan, one) for one in others]
    assert all(gain >= LEAST_GAIN for gain in gains)
    known = [as_well_known(one.knowledge, plan.knowledge) for one in others]
    assert known == sorted(known, reverse=True)
    sure = [gain for gain, good in zip(gains, known, strict=True) if good]
    assert sure == sorted(sure, reverse=True)


def test_a_change_under_traffic_is_what_fit_says_when_it_is_asked_for():
    traffic = parse_traffic("sessions:8", start=20_000, turns=6, input=2000, output=500)
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic=traffic)
    plan, *others = answer.runs
    typed = [one for one in others if one.ask.startswith("--kv")]
    for one in typed:
        again = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic=traffic, kv=one.kv).runs[0]
        assert again.e2e.value == pytest.approx(one.e2e.value, rel=1e-9)
    assert plan.requests > 0


def test_fit_takes_traffic_as_the_others_do(capsys):
    words = ["fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--traffic", "sessions:4", "--start", "8000", "--turns", "4"]
    with pytest.raises(SystemExit):
        main([*words, "--input", "1000", "--output", "100", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["traffic"].startswith("4 concurrent sessions of 4 turns, 8,000 to ")
    assert found["traffic_runs"][0]["requests"] > 0


def test_the_shape_of_traffic_needs_traffic(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--turns", "4"])
    assert caught.value.code == 2
    assert "--traffic" in capsys.readouterr().err


def test_a_length_that_is_none_is_refused_under_traffic():
    with pytest.raises(SpecError, match="input"):
        glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic="sessions:4", input="many")


def test_a_trace_is_replayed_whole(tmp_path):
    """700 requests, of which the last 100 come at once: more than the 600 that are simulated of a synthetic stream."""
    file = tmp_path / "t.csv"
    arrivals = [10.0 * one for one in range(600)] + [7000.0] * 100
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{at},500,20\n" for at in arrivals))
    traffic = parse_traffic(f"trace:{file}")
    found = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", traffic=traffic)
    calm, whole = (glmplan.simulate(found, traffic, requests=count).summary for count in (600, None))
    run = found.runs[0]
    assert run.requests == whole["requests"] == 700
    assert 1000 * run.ttft_p95 == pytest.approx(whole["ttft_p95_ms"], rel=1e-9)
    assert whole["ttft_p95_ms"] > 3 * calm["ttft_p95_ms"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '[{"conversations": [{"from": "human", "value": "%s"}, {"from": "gpt", "value": "%s"}]}]'),
        ("t.jsonl", '{"session_id": "a", "turns": [{"text": "%s", "output_length": 100}], "of": "%s"}'),
    ],
)
def test_recorded_conversations_are_planned_for_at_their_own_lengths(name, text, tmp_path):
    file = tmp_path / name
    file.write_text(text % ("x" * 4000, "y" * 400))
    asked = asked_under(PlanRequest("llama-3.1-8b", "1xh100-sxm"), parse_traffic(f"trace:{file},users=2"))
    assert (asked.input_tokens, asked.output_tokens) == (1000, 100)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a tier"),
        ("tape=9@1 GB/s", "is not a tier"),
        ("drive@1 GB/s", "needs its number of tokens"),
        ("peers=9@1 GB/s", "leave the number out"),
        ("drive=1.5@1 GB/s", "whole number"),
        ("drive=0@1 GB/s", "at least 1"),
        ("drive=-1@1 GB/s", "at least 1"),
        ("drive=nan@1 GB/s", "is not a finite number"),
        ("drive=9", "needs a rate, as in drive=9@"),
        ("drive=9@0 GB/s", "needs a rate"),
        ("drive=9@1 GB", "no unit of bytes per second"),
        ("drive=9@1 GB/s+-5 us", "must not be negative"),
        ("drive=9@1 GB/s+5", "has no unit"),
        ("drive=9@1 GB/s,", "is not a tier"),
    ],
)
def test_a_wrong_tier_names_the_option_and_what_is_wrong(text, said):
    with pytest.raises(SpecError, match=said) as caught:
        read_tiers(text, lambda kind: None)
    assert str(caught.value).startswith("--kv-tiers: ")
