"""The search of `size` covers racks, several nodes and GGUF files, and counts what it leaves out."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan import kept, safe
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.errors import SpecError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.present.size_text import size_content
from glmplan.purchase.money import money_of, ways_of
from glmplan.purchase.size import boards_left_out, candidates, sized
from glmplan.purchase.size_answer import share_of
from glmplan.purchase.size_question import read_size

MONEY = money_of(today=date(2026, 11, 22))
SLO = "ttft p95 < 20 s, tpot p95 < 100 ms"


def test_every_machine_of_the_catalogue_is_a_candidate_unpriced_or_left_out_by_name():
    asked = read_size("llama-3.1-8b", SLO, users=4)
    priced, without = candidates(asked, MONEY)
    tried = {one.machine.text for one in priced}
    known = tried | set(without) | set(boards_left_out())
    assert set(host_names()) <= known
    assert {"gb200-nvl72", "gb300-nvl72", "16xh200-sxm", "32xb200-sxm", "6xrtx-pro-6000-ws"} <= tried
    # a number of accelerators stands for each host that is left out
    sizes = {name: load_host(name).nodes * load_host(name).accelerators_per_node for name in boards_left_out()}
    assert max(sizes.values()) <= 8


def test_modules_of_a_baseboard_are_tried_in_the_numbers_that_are_offered():
    """A server with seven H200 was the cheapest answer: the baseboard has eight, and clouds share it by halves."""
    asked = read_size("llama-3.1-8b", SLO, users=4, only="h200-sxm,gb200,rtx-pro-6000-ws")
    priced, _ = candidates(asked, MONEY)
    tried = {part: {one.machine.count for one in priced if one.machine.accelerator.name == part} for part in asked.only}
    assert tried == {"h200-sxm": {1, 2, 4, 8, 16, 32}, "gb200": {1, 2, 4}, "rtx-pro-6000-ws": set(range(1, 9))}
    typed = read_size("llama-3.1-8b", SLO, users=4, only="7xh200-sxm")
    assert [one.machine.count for one in candidates(typed, MONEY)[0]] == [7]
    few = [size_content(sized(read_size("llama-3.1-8b", SLO, users=1, only=only), MONEY, answers=1))
           for only in ("h200-sxm", "1xh200-sxm", "rtx-5090")]  # fmt: skip
    assert [any("modules" in kind for kind in one["not_looked_at"]) for one in few] == [True, False, False]


def test_a_host_without_a_price_has_a_default_that_is_marked_and_a_given_price_replaces_it():
    asked = read_size("llama-3.1-8b", SLO, users=4, only="8xh200-sxm", kind="buy")
    (one,), _ = candidates(asked, MONEY)
    purchase = one.ways[0].purchase
    # eight H200 at 35,000; HGX H100 at 250,000 to 400,000, median 325,000, less eight H100 at 30,000
    assert purchase.value == 8 * 35_000 + 85_000
    assert (purchase.low, purchase.high) == (8 * 35_000 + 10_000, 8 * 35_000 + 160_000)
    assert len(purchase.assumed) == 1 and "--price 8xh200-sxm=NUMBER" in purchase.assumed[0]
    given = money_of(["8xh200-sxm=310000"], today=date(2026, 11, 22))
    (way,) = ways_of(resolve_machine("8xh200-sxm"), given, kinds=("buy",))
    assert way.purchase.value == 310_000 and not way.purchase.assumed


def test_cards_beyond_the_slots_of_one_host_take_two():
    (way,) = ways_of(resolve_machine("8xrtx-pro-6000-ws"), MONEY, kinds=("buy",))
    cards, host = way.purchase.lines
    assert host.assumed and host.count * host.quotation.value == 2 * 10_000
    (way,) = ways_of(resolve_machine("2xrtx-3090"), MONEY, kinds=("buy",))
    assert way.purchase.lines[1].name == "workstation-host"


def test_a_hobbyist_finds_a_file_that_only_llama_cpp_reads():
    asked = read_size("qwen3.5-122b-a10b", SLO, users=1, input=4000, output=500, only="dgx-spark", kind="buy",
                      budget="10k", machines=1)  # fmt: skip
    assert asked.files == ("q5_k_xl",) and "q5_k_xl" not in asked.weights
    found = sized(asked, MONEY)
    engines = {one.planned.asked.checkpoint.name: one.planned.asked.engine for one in found.options}
    assert engines["q5_k_xl"] == "llama.cpp"
    assert all(engine == "vllm" for name, engine in engines.items() if name != "q5_k_xl")


@pytest.mark.parametrize(
    ("said", "weights", "files"),
    [
        ({}, ("fp8", "nvfp4"), ("q4_k_m", "q8_0")),
        ({"engine": "vllm"}, ("fp8", "nvfp4"), ()),
        ({"engine": "llama.cpp"}, ("q4_k_m", "q8_0"), ()),
        ({"weights": "fp8"}, ("fp8",), ()),
    ],
)
def test_each_format_goes_with_an_engine_that_reads_it(said, weights, files):
    asked = read_size("deepseek-r1", SLO, users=4, **said)
    assert (asked.weights, asked.files) == (weights, files)


def test_what_is_left_out_is_counted_by_kind():
    asked = read_size("qwen3.5-122b-a10b", "tpot p95 < 1 ms", users=1, budget="5k", kind="buy", machines=1)
    content = size_content(sized(asked, MONEY, answers=1))
    kinds = content["no_price_by_kind"]
    assert {"nizwo-a1", "mi455x-72"} <= set(kinds["hosts"]) and "b300-sxm" in kinds["accelerators"]
    assert not set(kinds["accelerators"]) & set(kinds["hosts"])
    assert len(boards_left_out()) in content["not_looked_at"].values()
    dense = size_content(sized(read_size("llama-3.1-8b", "tpot p95 < 1 ms", users=1, only="1xl40s"), MONEY))
    assert [any("experts" in text for text in one["not_looked_at"]) for one in (content, dense)] == [True, False]
    # a workstation host alone is dearer than this budget, the card is not
    assert any("workstation-host" in reason for reason in content["skipped"])


def test_disaggregated_servers_are_searched_when_asked_for():
    """Times are simulated as in `safe`; the evidence is that of servers without a common measurement."""
    slo = "ttft p95 < 3 s, tpot p95 < 40 ms"
    words = {"input": 1000, "output": 200, "disaggregated": "1:1"}
    asked = read_size("llama-3.1-8b-fp8", slo, users=8, only="1xh100-sxm,2xh100-sxm", machines=1, **words)
    (option,) = sized(asked, MONEY).options
    planned = option.planned
    assert planned.asked.machine.text == "2xh100-sxm" and planned.asked.prefill == 1
    assert option.prediction.knowledge == "apart"
    summary = option.attainment.summary
    assert option.prediction.figures["ttft"].value * 1e3 == pytest.approx(summary["ttft_mean_ms"])
    assert option.prediction.figures["output_rate"].value == pytest.approx(summary["output_tokens_per_s"])
    alone = kept(planned, asked.slo, share_of(asked.traffic, 1))
    assert alone.probability == pytest.approx(option.attainment.probability, abs=0.01)
    load = safe(planned, slo, traffic="closed:1", input=1000, output=200).load
    assert dict(option.at)[0.95] == min(load, 4 * asked.load)


@pytest.mark.parametrize(("only", "said"), [("2x8xh200-sxm", "--machines"), ("1xrtx-5090+2xrtx-3090", "compare")])
def test_a_machine_that_no_search_takes_is_refused_with_the_command_that_does(only, said):
    with pytest.raises(SpecError, match=said):
        read_size("qwen3-32b", "tpot p95 < 50 ms", users=4, only=only)


def test_the_smallest_checkpoint_of_a_format_is_tried_where_the_first_does_not_meet_the_question():
    """Eight users on six RTX PRO 6000 are `fit`'s Yes with 441 GB of NVFP4, and not with the usual 466 GB."""
    found = sized(
        read_size("glm-5.1", "tpot mean < 100 ms, ttft mean < 10 s", users=8, only="6xrtx-pro-6000-ws"),
        MONEY,
        answers=1,
    )
    assert found.options[0].planned.asked.checkpoint.name == "nvfp4-cortexlm"


def test_other_checkpoints_of_a_format_are_said_to_be_left_out():
    said = {"users": 4, "only": "8xh200-sxm", "input": 1000, "output": 200}
    for more, named in (({}, True), ({"weights": "nvfp4,nvfp4-cortexlm"}, False)):
        content = size_content(sized(read_size("glm-5.1", "tpot mean < 100 ms", **said, **more), MONEY, answers=1))
        assert any("nvfp4-lukealonso" in text for text in content["not_looked_at"]) is named
