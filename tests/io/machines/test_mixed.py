"""Machines with accelerators of several kinds: which counts, and all of them one after the other."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.errors import SpecError
from glmplan.io.machines.mixed import in_sequence
from glmplan.io.machines.resolve import resolve_machine
from glmplan.planner.make_plan import fit_answer
from glmplan.request.plan import PlanRequest

HOST = """
title = "a desktop"
source = "made up for this test"
[[sockets]]
name = "cpu0"
cpu = "made up"
[[roots]]
name = "root0"
socket = "cpu0"
"""
CARD = '[[cards]]\naccelerator = "{}"\ncount = {}\nparent = "root0"\nlink = {{ generation = 5, lanes = 8 }}\n'


@pytest.fixture
def host(tmp_path):
    def made(*cards):
        file = tmp_path / ("-".join(name for name, _ in cards) + ".toml")
        file.write_text(HOST + "".join(CARD.format(*card) for card in cards))
        return str(file)

    return made


def answer(on, engine="llama.cpp", **more):
    words = PlanRequest("qwen3-30b-a3b-2507", on, weights="q4_k_m", engine=engine, **more)
    return fit_answer(words, changes=False)


def test_the_order_of_cards_decides_nothing(host):
    first, second = (
        answer(host(*cards)) for cards in ((("rtx-5090", 1), ("rtx-5080", 1)), (("rtx-5080", 1), ("rtx-5090", 1)))
    )
    assert (first.verdict, first.holding.pool, first.user_rate) == (
        second.verdict,
        second.holding.pool,
        second.user_rate,
    )
    assert first.command == second.command
    assert "--tensor-split 68,32" in first.command


def test_layers_on_both_cards_hold_more_and_decode_slower_than_the_faster_card_alone(host):
    both, alone = answer(host(("rtx-5090", 1), ("rtx-5080", 1))), answer("1xrtx-5090")
    assert both.holding.pool.tokens > alone.holding.pool.tokens
    assert alone.user_rate > both.user_rate


def test_the_times_of_shares_add():
    parts = [load_accelerator(name) for name in ("rtx-pro-6000-ws", "rtx-4090", "rtx-4090")]
    one, shares = in_sequence(parts, 1.5 * 2**30)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[1] == shares[2] < shares[0]
    read = 40e9
    seconds = sum(share * read / part.memory_bandwidth for share, part in zip(shares, parts, strict=True))
    assert read / one.memory_bandwidth == pytest.approx(seconds)
    usable = sum(part.memory_usable or part.memory for part in parts)
    assert one.memory_usable <= usable - 3 * 2**30


def test_most_memory_counts_not_most_cards(host):
    machine = resolve_machine(host(("rtx-4090", 2), ("rtx-pro-6000-ws", 1)))
    assert (machine.accelerator.name, machine.count, machine.left_out) == ("rtx-pro-6000-ws", 1, "2 × rtx-4090")
    assert machine.host.accelerator_names == ("rtx-pro-6000-ws",)


def test_a_layout_over_both_kinds_is_refused_with_their_numbers(host):
    both = host(("rtx-5080", 1), ("rtx-5090", 1))
    with pytest.raises(SpecError, match=r"1 × rtx-5090 beside 1 × rtx-5080 .* --on 2xrtx-5080 "):
        fit_answer(PlanRequest("qwen3-8b", both, pp=2, engine="trtllm"))
    with pytest.raises(SpecError, match=r"1 × rtx-5090 beside 1 × rtx-5080 .* --pp 2 puts a stage"):
        fit_answer(PlanRequest("qwen3-8b", both, tp=2, engine="vllm"))
    with pytest.raises(SpecError, match="lower --tp"):
        fit_answer(PlanRequest("qwen3-8b", both, pp=3, engine="vllm"))


def test_a_stage_on_each_of_several_kinds_is_layers_dealt_to_all(host):
    both = host(("rtx-5080", 1), ("rtx-5090", 1))
    words = {"weights": "q4_k_m", "engine": "llama.cpp", "users": (1,)}
    degrees = ({}, {"pp": 2}, {"pp": 2, "tp": 1}, {"pp": 2, "replicas": 1, "ep": 1})
    dealt, *staged = (fit_answer(PlanRequest("qwen3-8b", both, **one, **words), changes=False) for one in degrees)
    assert "--tensor-split" in " ".join(dealt.command)
    assert {one.command for one in staged} == {dealt.command}


def test_a_stage_on_each_of_several_kinds_is_not_dropped_beside_other_degrees(host):
    both = host(("rtx-5080", 1), ("rtx-5090", 1))
    for more in ({"tp": 2}, {"replicas": 2}):
        with pytest.raises(SpecError, match="takes 4 accelerators"):
            fit_answer(PlanRequest("qwen3-8b", both, weights="q4_k_m", engine="llama.cpp", pp=2, **more))


def test_other_engines_take_one_kind_and_say_so(host):
    found = fit_answer(PlanRequest("qwen3-8b", host(("rtx-5080", 1), ("rtx-5090", 1)), engine="vllm"), changes=False)
    assert found.asked.machine.accelerator.name == "rtx-5090"
    assert any("1 × rtx-5080 left out" in line for line in found.asked.assumed)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_two_servers_of_several_kinds_are_refused_with_their_numbers(host, engine):
    """llama.cpp said that no layout of 1 accelerator is valid."""
    both = host(("rtx-5080", 1), ("rtx-5090", 1))
    with pytest.raises(SpecError, match=r"takes 2 accelerators and .* has 1 × rtx-5090 beside 1 × rtx-5080"):
        fit_answer(PlanRequest("qwen3-8b", both, weights="q4_k_m", engine=engine, replicas=2))
    more = fit_answer(PlanRequest("qwen3-8b", host(("rtx-5090", 2), ("rtx-5080", 1)), weights="q4_k_m",
                                  engine="llama.cpp", users=(2,), replicas=2), changes=False)  # fmt: skip
    assert more.holding.terms.replicas == 2 and more.asked.machine.left_out == "1 × rtx-5080"


@pytest.mark.parametrize("on", ["rtx-5080+rtx-3060-12gb", "2xrtx-3060-12gb+rtx-4060-ti-8gb"])
def test_memory_that_is_short_is_that_of_all_cards_together(on):
    words = PlanRequest("llama-3.1-70b", on, weights="q4_k_m", engine="llama.cpp", users=(1,))
    answer = fit_answer(words, changes=False)
    cards = resolve_machine(on).kinds
    assert answer.verdict == "does_not_fit"
    assert f"short on all {sum(count for _, count in cards)} GPUs together" in answer.headline
