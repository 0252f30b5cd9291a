"""The rows collected in November 2026: what their sources state, row by row, and which of them can be asked about."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from glmplan.calibrate.step.observations import asked_of
from glmplan.catalog.engines.defaults import engine_known
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.names import refusal
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import compared_figures
from glmplan.io.runs.ledger import host_of_row, load_measurements, repeats
from glmplan.prediction.from_row import model_of, question_of, why_unknown

#: campaign → rows, rows that may be used as far as their table goes, rows that become a question of the fit
TOTALS = {
    "anl-llm-inference-bench-2024": (504, 504, 468),
    "inferencex-2026-11": (106, 106, 105),
    "lottolotto-4x3090-laguna-dflash": (80, 80, 0),
    "lottolotto-4x3090-laguna-quant-ab": (56, 56, 0),
    "lottolotto-4x3090-nvfp4-driver": (49, 21, 21),
    "lottolotto-4x3090-orchestrator": (283, 272, 261),
    "magik6k-glm47-sm120-2026-01": (18, 0, 0),
    "magik6k-kimi-sm120-2026-01": (13, 7, 5),
    "rtx6kpro-glm51-dcp-2026-05-08": (241, 241, 233),
    "rtx6kpro-glm51-v3-2026-05-23": (23, 23, 21),
    "rtx6kpro-glm51-v4-2026-05-24": (1, 1, 0),
    "rtx6kpro-glm51-v5-2026-05-26": (89, 89, 86),
    "rtx6kpro-glm51-v9-2026-06": (1, 1, 1),
    "rtx6kpro-glm52-mxfp4-2026-07-03": (7, 7, 7),
    "rtx6kpro-glm52-v11-2026-06-18": (23, 23, 19),
    "rtx6kpro-glm52-v12-2026-06-21": (111, 111, 99),
    "rtx6kpro-kimi-k26-v2-2026-05-07": (183, 183, 176),
    "rtx6kpro-wiki-2026-05-kimi-k2.6": (923, 902, 849),
    "sglang-cookbook-glm52-0.5.13.post1": (20, 11, 11),
    "sglang-cookbook-minimax-m3-2026": (11, 11, 11),
    "teo-ma-rtxpro6000-azure-2025-12": (30, 30, 30),
    "vendor-sweeps-2026-11": (65, 65, 38),
    "vilsol-glm52-8x-rtxpro6000-2026-06": (75, 75, 73),
}

#: why other rows become none
REFUSED = {
    "a KV pool of 4,578 tokens decides how many ran at once, which is not stated": 6,
    "a cold start of the first cell, as the page says": 6,
    "contradicts its table": 2,
    "gh200-96gb": 36,
    "how the accelerators were divided (TP, DP) is not printed": 9,
    "model": 133,
    "no drafted token was accepted": 6,
    "no figure is left": 11,
    "repeats …": 71,
    "requests in flight are not stated": 50,
    "the cache held fewer requests than were sent, as the page says": 3,
    "the page lists each cell twice, up to 1.9 times apart, and does not say what differed": 28,
    "the prompt is not printed, and the rates are twice what the page's latencies allow": 18,
    "weights do not fit": 13,
    "without forced copies between cards the one-shot all-reduce collapsed, as the page says": 6,
}


@pytest.fixture(scope="module")
def rows():
    found = defaultdict(list)
    for run in load_measurements():
        if run.campaign in TOTALS:
            found[run.campaign].append(run)
    return found


def test_the_totals_of_every_campaign(rows):
    counted = {name: (len(runs), sum(not run.unusable for run in runs)) for name, runs in rows.items()}
    assert counted == {name: told[:2] for name, told in TOTALS.items()}
    assert sum(told[0] for told in TOTALS.values()) == 2912


def test_what_the_fit_asks_of_each_campaign_and_why_it_refuses_the_rest(rows):
    asked, refused = asked_of(run for runs in rows.values() for run in runs)
    assert Counter(question.run.campaign for question in asked) == {
        name: told[2] for name, told in TOTALS.items() if told[2]
    }
    kinds = Counter(re.sub(r"[\d.]+ GiB|\b\w+-[0-9a-f]{10}\b", "…", why).partition(":")[0] for _, why in refused)
    assert kinds == REFUSED


def test_every_row_names_a_known_model_part_and_engine_or_is_refused_with_the_reason(rows):
    unknown = set()
    for run in (run for runs in rows.values() for run in runs):
        assert run.error is None and run.source.startswith("https://")
        assert load_accelerator(run.accelerator).name and engine_known(run.engine)
        try:
            model_of(run.model)
        except GlmplanError:
            unknown.add(run.model)
    assert unknown == {"laguna-s-2.1"} and refusal("models", "laguna-s-2.1")


def test_weights_that_do_not_fit_are_refused_by_what_they_weigh(rows):
    # thirteen rows put 235 GB on one card of 141 GB; the others of the table have two and more
    said = {run.id: why_unknown(question_of(run)) for run in rows["vendor-sweeps-2026-11"] if run.tp == 1}
    assert len(said) == 13
    assert all(re.match(r"weights do not fit: 2\d\d GiB on a h200-sxm of 1\d\d GiB", why) for why in said.values())
    assert not any(why_unknown(question_of(run)) for run in rows["vendor-sweeps-2026-11"] if run.tp > 1)


def test_a_run_that_ships_already_is_counted_once(rows):
    again = repeats(load_measurements())
    carried = [run.id for run in rows["vendor-sweeps-2026-11"] if run.model == "kimi-k2.5"]
    assert len(carried) == 14 and set(carried) <= set(again)
    assert all(again[one].startswith("ix-") for one in carried)


def test_the_pages_of_one_wiki_that_count_tokens_are_not_read_as_labels(rows):
    # the page of 7 May corrects the older one: what was called 128k held 82,845 tokens, now 128,785
    old = [run for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"] if "§ Expected Decode" in run.source]
    assert {run.context_depth for run in old} == {0.0, 10480.0, 20822.0, 41505.0, 82845.0}
    assert {run.context_depth for run in rows["rtx6kpro-kimi-k26-v2-2026-05-07"] if run.phase == "decode"} == {
        0.0, 16384.0, 32768.0, 65536.0, 131072.0,
    }  # fmt: skip
    counted = [run for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"] if run.measured_on >= "2026-04-28"]
    assert {run.context_depth for run in counted if run.phase == "decode"} >= {65536.0}
    assert not any(run.context_is_label for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"])


def test_what_a_cell_says_of_accepted_drafts_is_read(rows):
    lengths = {run.id: run.speculation for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"]}
    stated = [one.acceptance_length for one in lengths.values() if one.acceptance_length]
    # accept_rate 0.278 to 0.542 of three drafted tokens; "~50 %" of one
    assert min(stated) == 1.5 and max(stated) == pytest.approx(1 + 3 * 0.542)
    assert sum(one.acceptance_range == (2.5, 3.1) for one in lengths.values()) == 2
    assert Counter(run.unusable for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"])[
        "no drafted token was accepted: the page reproduces a defect"
    ] == 6  # fmt: skip


def test_one_prompt_of_a_cell_is_one_context_in_the_cache(rows):
    for name, runs in rows.items():
        if name.startswith(("rtx6kpro-glm", "rtx6kpro-kimi", "vilsol")):
            assert all(run.shared_prompt and run.protocol == "decode-grid" for run in runs if run.phase == "decode"
                       and run.concurrency and "smoke" not in run.notes), name  # fmt: skip


def test_a_second_host_copies_through_host_memory_and_runs_large_steps_eagerly(rows):
    runs = rows["vilsol-glm52-8x-rtxpro6000-2026-06"]
    host, assumed = host_of_row(runs[0].host, runs[0].accelerator, 8)
    assert (host.name, host.conditions.p2p, assumed) == ("turin-2s-4-switches-8", "missing", "")
    assert all("custom AR disabled" in run.notes for run in runs)
    # graphs to 16 tokens, four for each request
    baseline = [run for run in runs if run.notes.startswith("config A") and run.phase == "decode"]
    assert {(run.concurrency > 4, run.graphs) for run in baseline} == {(False, True), (True, False)}
    assert {run.speculation.acceptance_range for run in runs if run.speculation.draft_tokens == 3} == {(2.7, 3.7)}


def test_four_gaming_cards_have_their_limits_and_gaps_between_chunks(rows):
    runs = rows["lottolotto-4x3090-orchestrator"]
    assert not any("tpot_p50_ms" in run.observed for run in runs)
    # gaps between chunks of several drafted tokens say nothing of a token
    drafting = [run for run in runs if run.speculation.state == "yes"]
    assert {(run.speculation.draft_tokens, "itl_p50_ms" in run.observed) for run in drafting} == {(4, False)}
    assert all("itl_p50_ms" in run.observed for run in runs if run.speculation.state == "none")
    # prompts that were cached: what they took to read is in neither the first token nor the rate
    gemma = [run for run in runs if run.model == "gemma-4-12b" and run.speculation.state == "none"]
    assert {tuple(one.column for one, _ in compared_figures(run.observed, tokens_per_step=1.0)) for run in gemma} == {
        ("itl_p50_ms",)
    }
    assert {run.power_limit_w for run in runs} == {220.0, 250.0, 270.0, 300.0}
    assert {(run.engine, run.running_limit, run.max_num_seqs) for run in runs} == {
        ("vllm", None, 256), ("llama.cpp", 1, 1), ("llama.cpp", 8, 8),
    }  # fmt: skip
    copies = {(run.tp, run.dp, run.accelerator_count) for run in runs if "topo-" in run.source}
    assert copies == {(1, 1, 1), (1, 4, 4), (2, 2, 4), (2, 1, 2), (1, 1, 4)}
    host, _ = host_of_row(runs[0].host, "rtx-3090", 4)
    assert host.conditions.p2p == "direct" and {card.link.generation for card in host.cards} == {3}


def test_lengths_that_a_benchmark_draws_are_means_and_not_nominal(rows):
    drawn = [run for run in rows["teo-ma-rtxpro6000-azure-2025-12"] if run.engine == "sglang"]
    assert len(drawn) == 6 and {run.length_range for run in drawn} == {(0.0, 2.0)}
    # run.log: 37,688 tokens in and 3,632 out for ten prompts of "10000" and "800"
    (ten,) = (run for run in drawn if run.model == "qwen3-14b" and run.concurrency == 10)
    assert (ten.input_tokens, ten.output_tokens) == (3768.8, 363.2)
    assert float(ten.cells["output_tokens_per_s"]) == pytest.approx(193.29, abs=0.01)
    kimi = [run for run in rows["magik6k-kimi-sm120-2026-01"] if run.phase == "serving"]
    assert {(run.input_tokens, run.output_tokens, run.graphs) for run in kimi} == {(128.5, 50.5, False)}


def test_requests_that_a_client_holds_back_are_not_in_flight(rows):
    azure = rows["teo-ma-rtxpro6000-azure-2025-12"]
    runs = [run for run in azure if (run.model, run.weights) == ("qwen3-32b", "nvfp4")]
    assert {(run.concurrency, run.num_requests) for run in runs} == {(10.0, 10), (24.0, 40), (24.0, 200)}


def test_no_row_keeps_a_rate_and_a_latency_that_contradict_each_other(rows):
    checked = 0
    for run in (run for runs in rows.values() for run in runs if run.phase == "serving" and not run.unusable):
        seen = run.observed
        ttft = seen.get("ttft_mean_ms") or seen.get("ttft_p50_ms")
        tpot = seen.get("tpot_mean_ms") or seen.get("tpot_p50_ms")
        if ttft and tpot and "output_tokens_per_s" in seen:
            alone = ttft / 1e3 + (run.output_tokens - 1) * tpot / 1e3
            ratio = seen["output_tokens_per_s"] * alone / (run.concurrency * run.output_tokens)
            assert 0.7 <= ratio <= 1.3, run.id
            checked += 1
    assert checked == 199


def test_one_measured_number_is_one_observation(rows):
    # the source counts input and output together; the rate of answers is the same number
    for run in rows["anl-llm-inference-bench-2024"]:
        assert run.concurrency == run.num_requests
        assert [one.column for one, _ in compared_figures(run.observed, tokens_per_step=1.0)] == ["total_tokens_per_s"]
    for run in (*rows["sglang-cookbook-glm52-0.5.13.post1"], *rows["sglang-cookbook-minimax-m3-2026"]):
        assert "total_tokens_per_s" not in run.observed


def test_what_a_page_calls_no_result_is_not_used(rows):
    reasons = Counter(run.unusable for run in rows["rtx6kpro-wiki-2026-05-kimi-k2.6"] if run.unusable)
    assert reasons["a cold start of the first cell, as the page says"] == 6
    assert reasons["the cache held fewer requests than were sent, as the page says"] == 3


def test_launches_are_told_where_a_page_prints_them(rows):
    kimi = rows["rtx6kpro-kimi-k26-v2-2026-05-07"]
    # DCP4 and DCP8 with drafts at 0.90, all others at 0.94
    assert {(run.dcp, run.speculation.state, run.memory_fraction) for run in kimi if run.dcp != 1} == {
        (4, "yes", 0.9), (4, "none", 0.94), (8, "yes", 0.9), (8, "none", 0.94),
    }  # fmt: skip
    assert {(run.max_num_seqs, run.max_num_batched_tokens, run.max_model_len) for run in kimi} == {(128, 8192, 262144)}
    v12 = [run for run in rows["rtx6kpro-glm52-v12-2026-06-21"] if run.phase == "decode"]
    assert {(run.running_limit, run.memory_fraction) for run in v12} == {(32, 0.88)}
    # a cell of 64 requests runs 32
    (many, *_) = (run for run in v12 if run.concurrency == 64)
    assert question_of(many).load.max_requests == 32
