"""Hazards: each rule with the numbers of its case, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.hosts import load_host, load_machine
from glmplan.catalog.entries.prices import load_prices
from glmplan.catalog.schema.host import Device, Power
from glmplan.cli import main
from glmplan.io.machines.resolve import resolve_machine
from glmplan.planner import fit_answer
from glmplan.planner.hazards import PlanFacts, hazard_rules, hazards_for, is_safe, machine_power
from glmplan.planner.question import read_words
from glmplan.purchase.cost import read_terms
from glmplan.purchase.money import wall_watts
from glmplan.request.plan import PlanRequest

SEED = load_host("six-cards-and-display-gpu")
FOUR = (0, 1, 2, 3)


def found(host, **facts):
    return {one.id: one for one in hazards_for(host, PlanFacts(**{"members": FOUR, "tp": 4, **facts}))}


def with_power(host, **power):
    return host.model_copy(update={"power": Power(**power)})


def test_every_rule_has_a_case_a_source_and_something_to_change():
    rules = hazard_rules()
    assert len(rules) >= 9
    for rule in rules.values():
        assert rule.case.strip() and rule.source.strip() and rule.change.strip()
        assert not rule.thresholds or rule.thresholds_from


def test_streaming_experts_past_the_display_is_a_danger():
    # the seed report: TP4 and 160 GB of experts in pinned memory froze the desktop after 20 minutes
    hazard = found(SEED, host_transfer=23e9, pinned=160e9)["display-starved"]
    assert (hazard.severity, hazard.certain) == ("danger", True)
    assert "root1" in hazard.numbers
    assert not is_safe((hazard,))


def test_the_same_machine_without_transfers_is_not_in_that_danger():
    assert "display-starved" not in found(SEED)


def test_cards_on_another_root_complex_leave_the_display_alone():
    assert "display-starved" not in found(SEED, members=(0, 1, 2), host_transfer=23e9)


def test_a_display_nobody_placed_is_a_warning_and_not_certain():
    hazard = found(load_machine("4xrtx-pro-6000-ws"), host_transfer=50e9)["display-starved"]
    assert (hazard.severity, hazard.certain) == ("warning", False)


def test_a_display_below_a_switch_counts_for_the_root_complex_above():
    host = load_host("wrx90-2-switches-8")
    switch = host.switches[0]
    host = host.model_copy(update={"devices": (Device(name="screen", kind="display", parent=switch.name),)})
    assert found(host, host_transfer=20e9)["display-starved"].severity == "danger"


@given(low=st.floats(0.0, 60e9), more=st.floats(0.0, 60e9))
def test_more_transfer_is_never_less_dangerous(low, more):
    order = ("danger", "warning", "note")

    def worst(rate):
        hazard = found(SEED, host_transfer=rate).get("display-starved")
        return order.index(hazard.severity) if hazard else len(order)

    assert worst(low + more) <= worst(low)


def test_more_pinned_memory_than_there_is_is_a_danger():
    host = load_host("turin-1s-4-switches-16")
    sockets = tuple(one.model_copy(update={"memory_size": 256e9}) for one in host.sockets)
    host = host.model_copy(update={"sockets": sockets})
    assert found(host, pinned=300e9)["host-memory-overcommit"].severity == "danger"
    assert found(host, pinned=160e9, host_used=60e9)["host-memory-overcommit"].severity == "warning"
    assert "host-memory-overcommit" not in found(host, pinned=100e9)


def test_unknown_host_memory_is_not_taken_as_enough():
    hazard = found(SEED, pinned=160e9)["host-memory-overcommit"]
    assert (hazard.severity, hazard.certain) == ("warning", False)


def test_four_cards_of_300_w_are_too_close_for_one_supply_of_1600_w():
    # Puget Systems: 1,580 of 1,600 W behind the supply with four RTX 3090 held at 300 W
    host = with_power(load_host("quad-rtx-3090"), supply="1600 W", supplies=1)
    hazards = found(host, power_limit=300.0, rest_power=380.0)
    assert hazards["power-supply"].severity == "warning"
    assert hazards["single-supply"].severity == "warning"
    assert found(host, power_limit=350.0, rest_power=380.0)["power-supply"].severity == "danger"


def test_one_supply_of_a_redundant_pair_has_to_carry_the_machine():
    host = load_host("quad-rtx-3090")
    pair, both = (with_power(host, supply="1600 W", supplies=2, redundant=red) for red in (True, False))
    assert found(pair, rest_power=400.0)["power-supply"].severity == "danger"
    assert "power-supply" not in found(both, rest_power=400.0)


def test_a_circuit_carries_four_fifths_of_its_rating_for_hours():
    # 15 A at 120 V: 1,440 W for hours; 1,200 W behind the supply are 1,304 W at the wall, 1,400 W are 1,522 W
    host = with_power(load_machine("2xrtx-pro-6000-ws"), supply="2000 W", circuit="1800 W")
    assert "circuit" not in found(host, members=(0, 1), power_limit=400.0, rest_power=400.0)
    assert found(host, members=(0, 1), power_limit=500.0, rest_power=400.0)["circuit"].severity == "warning"
    assert found(host, members=(0, 1), power_limit=600.0, rest_power=500.0)["circuit"].severity == "danger"


def test_an_unknown_circuit_is_named_by_what_would_carry_the_machine():
    hazard = found(load_machine("4xrtx-pro-6000-ws"), rest_power=400.0)["circuit"]
    assert (hazard.severity, hazard.certain) == ("note", False)
    assert "32 A at 230 V" in hazard.numbers


def test_a_power_limit_counts_instead_of_the_rating():
    host = load_machine("4xrtx-pro-6000-ws")
    total, words = machine_power(host, PlanFacts(members=FOUR, power_limit=300.0, rest_power=0.0))
    assert total == 1200.0
    assert words.startswith("4 x 300 W")


def test_each_host_of_a_machine_has_a_rest_of_its_own_as_in_its_cost():
    """`fit` said 4,348 W at the outlet and `compare` 4,783 W for six cards in two hosts."""
    machine = resolve_machine("3xrtx-pro-6000-ws")
    pair = replace(machine, host=machine.host.model_copy(update={"nodes": 2}), count=6)
    total, words = machine_power(pair.host, PlanFacts(members=tuple(range(6)), rest_power=400.0))
    assert (total, words) == (4400.0, "6 x 600 W + 2 x 400 W for the rest")
    terms = read_terms({"power_share": 1.0, "rest_watts": 400}, prices=load_prices(), today=date(2026, 11, 22))
    assert wall_watts(pair, terms=terms) == pytest.approx(total / terms.supply_efficiency)


def test_open_fans_side_by_side_are_a_warning_until_limited_or_cooled():
    host = load_machine("4xrtx-5090")
    assert "thermal-stack" in found(host)
    assert "thermal-stack" not in found(host, power_limit=300.0)
    assert "thermal-stack" not in found(with_power(host, cooling="water"))
    assert "thermal-stack" not in found(load_machine("4xrtx-pro-6000-maxq"))


def test_blackwell_behind_switches_may_drop_off_the_bus():
    assert "pcie-retrain" in found(load_host("wrx90-2-switches-8"))
    assert "pcie-retrain" not in found(load_machine("4xrtx-pro-6000-ws"))
    assert "pcie-retrain" not in found(load_host("hgx-b200-8"))


@pytest.mark.parametrize(
    ("longest", "users", "severity"), [(90_000, 8, "warning"), (50_000, 8, None), (120_000, 1, "danger")]
)
def test_a_pool_that_one_long_request_fills_evicts_the_others(longest, users, severity):
    beside = (100_000.0 - longest) / 4000.0
    facts = {"longest_held": 100_000.0, "longest_tokens": float(longest), "beside": beside, "users": users}
    hazard = found(load_host("hgx-b200-8"), **facts).get("kv-pool-tight")
    assert (hazard.severity if hazard else None) == severity


def test_missing_peer_to_peer_is_a_warning_with_its_measured_cost():
    # voipmonitor/rtx6kpro: 28.9 instead of 121.6 tok/s
    hazard = found(load_machine("4xrtx-5090"))["slow-links"]
    assert "28.9" in hazard.numbers
    assert "slow-links" not in found(load_machine("4xrtx-5090"), tp=1)
    assert "slow-links" not in found(load_host("hgx-b200-8"))


def test_the_worst_comes_first():
    hazards = hazards_for(SEED, PlanFacts(members=FOUR, tp=4, host_transfer=50e9, pinned=160e9))
    ranks = [("danger", "warning", "note").index(one.severity) for one in hazards]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0


def test_a_machine_with_one_memory_has_few_hazards():
    assert not hazards_for(load_host("dgx-spark"), PlanFacts(members=(0,)))


@pytest.mark.parametrize(
    ("model", "machine", "engine"),
    [
        ("gemma-4-12b", "4xrtx-4090", "vllm"),  # sliding windows
        ("gpt-oss-20b", "1xrtx-4090", "vllm"),
        ("qwen3.5-27b", "2xh100-sxm", "sglang"),  # recurrent states, in pools of their own
        ("llama-3.1-8b", "1xrtx-4090", "vllm"),  # every token takes the same
    ],
)
def test_a_pool_is_compared_with_requests_of_its_own_length(model, machine, engine):
    safe = {}
    for prompt in ("500", "1700", "8000"):
        answer = fit_answer(PlanRequest(model, machine, engine=engine, input=prompt, output="300"), changes=False)
        held, longest = answer.holding, answer.launch_context
        # what the launch command asks for is what the pool holds of one such request
        assert longest <= held.context
        assert not [one for one in answer.warnings if (one.name, one.severity) == ("kv-pool-tight", "danger")]
        ranks = held.terms.dp * held.terms.decoding
        assert 0.0 <= held.beside(longest) <= held.held / ranks
        assert held.beside(int(held.context) + 1) == 0.0
        safe[int(prompt)] = answer.safe.users
    assert safe[500] >= safe[1700] >= safe[8000]
    assert safe[500] > 0


def test_beside_a_long_request_the_rest_of_a_uniform_pool_is_left():
    held = fit_answer(
        PlanRequest("llama-3.1-8b", "1xrtx-4090", engine="vllm", input="500", output="300"), changes=False
    ).holding
    assert held.beside(16_384) == pytest.approx((held.pool.tokens - 16_384) / 800, abs=1.0)


@pytest.mark.parametrize(("model", "on"), [("gpt-oss-20b", "dgx-spark"), ("qwen3-235b-a22b-awq-int4", "2xdgx-spark")])
def test_a_plan_takes_no_more_memory_than_a_started_system_leaves_free(model, on):
    """Two DGX Spark had 101.3 of 121.69 GiB free after every start: vLLM's default of 0.92 stops there."""

    def answer(**words):
        return fit_answer(PlanRequest(model, on, users=(1,), **{"engine": "vllm", **words}), changes=False)

    plain, asked = answer(), answer(memory_fraction=0.9)
    assert plain.verdict == "fits" and "--gpu-memory-utilization 0.83" in " ".join(plain.command)
    assert any("0.83" in line for line in plain.asked.assumed)
    assert asked.verdict == "tight" and "free for the engine to start" in asked.headline
    # engines whose share is one of the free memory start with any
    other = answer(engine="sglang")
    assert other.asked.settings.memory_fraction is None and other.verdict == "fits"
    assert plain.asked.but(engine="sglang", engine_version=None).settings.memory_fraction is None
    assert asked.asked.but(engine="sglang", engine_version=None).settings.memory_fraction == 0.9


def test_a_start_that_failed_on_two_dgx_spark_is_not_said_to_fit():
    """MiniMax-M2.7 AWQ, vLLM 0.29.1rc1 at 0.80: 22.5 GiB, where one request of 196,608 tokens needs 23.25."""
    words = {"engine": "vllm", "engine_version": "0.29.0", "tp": 2, "kv": "bf16", "users": (1,)}
    request = PlanRequest("minimax-m2.7-awq-int4", "2xdgx-spark", memory_fraction=0.8, context=196608, **words)
    answer = fit_answer(request, changes=False)
    assert answer.verdict == "tight" and answer.holding.context > 196608 > answer.holding.context_low


def test_drafting_on_shared_memory_leaves_the_estimate_of_graphs_out():
    """vLLM logged estimates of -4.7 to -36 GiB with MTP on DGX Spark, by which its pool grew."""
    words = {"weights": "nvfp4", "engine": "vllm", "users": (1,)}
    for mtp, told in ((1, True), (0, False)):
        answer = fit_answer(PlanRequest("qwen3.6-35b-a3b", "dgx-spark", mtp=mtp, **words), changes=False)
        assert ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0" in " ".join(answer.command)) == told


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "gpt-oss-20b", "--on", "dgx-spark"),
        ("safe", "gpt-oss-20b", "--on", "dgx-spark", "--traffic", "closed"),
        ("simulate", "gpt-oss-20b", "--on", "dgx-spark", "--traffic", "closed:2", "--no-ranges"),
        ("sweep", "--model", "gpt-oss-20b", "--on", "dgx-spark", "--users", "1"),
        ("size", "--model", "gpt-oss-20b", "--only", "dgx-spark", "--users", "1", "--slo", "tpot p95 < 1 s",
         "--machines", "1", "--weights", "mxfp4", "--engine", "vllm"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_every_command_says_that_a_danger_cannot_be_ruled_out(words, capsys):
    """`fit` stated 0 %, a sweep called the point Pareto-optimal, and a simulation was silent."""
    with pytest.raises(SystemExit):
        main([*words, "--memory-fraction", "0.9"])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "too little memory free for the engine to start (cannot be ruled out)" in said
    assert "ot safe" in said and " 0 % probability" not in said
    assert words[0] != "sweep" or "0 feasible; 0 Pareto-optimal" in said


def test_the_fraction_that_is_assumed_for_an_engine_is_stated_once_and_goes_with_it():
    def stated(asked):
        return [one for one in asked.assumed if "leave no more memory free" in one]

    first = read_words(PlanRequest("gpt-oss-20b", "dgx-spark", engine="vllm"))
    other = first.but(engine="llama.cpp", engine_version=None)
    assert len(stated(first)) == 1 and first.settings.memory_fraction == 0.83
    assert stated(other) == [] and other.settings.memory_fraction is None
    assert stated(other.but(engine="vllm")) == stated(first.but(engine="vllm")) == stated(first)
    given = read_words(PlanRequest("gpt-oss-20b", "dgx-spark", engine="vllm", memory_fraction=0.83))
    assert stated(given) == [] and given.but(engine="vllm").settings.memory_fraction == 0.83
