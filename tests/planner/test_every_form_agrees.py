"""Plans drawn at random say the same in text, JSON, CSV and Markdown, and their arithmetic adds up to it.

The draws are the same in every run of the tests; `GLMPLAN_PLANS` in the environment says how many plans they give
(`make agreement` asks for 500), and `GLMPLAN_SEED` draws others.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
from itertools import pairwise

import pytest

from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.errors import GlmplanError
from glmplan.planner import fit_answer
from glmplan.planner.plan import UserRow
from glmplan.present.answer_text import fit_text
from glmplan.present.first_screen import first_screen
from glmplan.present.fit_explain import arithmetic_parts, fit_csv, fit_explanation, fit_markdown
from glmplan.present.json_answers import fit_json
from glmplan.request.plan import PlanRequest
from glmplan.units import number

PLANS, SEED = int(os.environ.get("GLMPLAN_PLANS", "24")), os.environ.get("GLMPLAN_SEED", "")
USERS = (1, 3, 7, 16)
#: what a simulated row may be below one of a formula: 4 % with 8 users in 6 slots of llama.cpp (194 and 186 tok/s) [-]
SIMULATED = 0.05
#: wide enough that no line is wrapped
WIDE = 100_000


def draw(number_: int):
    """A request of any engine and layout; those of one in three have several servers."""
    chance = random.Random(f"forms {number_}{SEED}")
    model = load_model(chance.choice(sorted(model_names())))
    prompt, answer = chance.choice([(128, 128), (2048, 512), (8192, 256)])
    options: dict[str, object] = {"input": str(prompt), "output": str(answer)}
    if chance.random() < 0.4:
        options["tp"] = chance.choice((1, 2, 4))
    if chance.random() < 0.2:
        options["mtp"] = 1
    if chance.random() < 0.35:
        options["replicas"] = chance.choice((2, 3))
    if chance.random() < 0.2:
        options["power_limit"] = "300W"
    if chance.random() < 0.2:
        options["max_num_seqs"] = chance.choice((1, 4, 8))
    engine = chance.choice(("vllm", "vllm", "sglang", "trtllm", "llama.cpp", "ktransformers", "mlx"))
    on = f"{chance.choice((1, 2, 4, 6, 8))}x{chance.choice(sorted(accelerator_names()))}"
    return PlanRequest(
        model.name, on, weights=chance.choice(model.checkpoints).name, engine=engine, users=USERS, **options
    )


@pytest.fixture(scope="module")
def answers():
    found, place = [], 0
    while len(found) < PLANS:
        try:
            answer = fit_answer(draw(place), changes=False)
        except GlmplanError:
            answer = None
        if answer is not None and answer.users:
            found.append((str(draw(place)), answer))
        place += 1
    assert sum(one.holding.terms.decoding > 1 for _, one in found) >= PLANS // 8
    return found


def line_of(text: str, users: int) -> str:
    """The line of a number of users in the table of the page."""
    table = text[text.index("\nUsers,") :]
    return re.search(rf"^  +{users} +.*$", table, re.MULTILINE)[0]


def test_text_json_csv_and_markdown_give_the_same_numbers(answers):
    for told, answer in answers:
        record, text, page = json.loads(fit_json(answer)), fit_text(answer, WIDE), fit_markdown(answer)
        lines = list(csv.DictReader(io.StringIO(fit_csv(answer))))
        rows = [line for line in lines if line["users"]]
        for one, row, line in zip(answer.users, record["users"], rows, strict=True):
            in_page = re.search(rf"^\| {one.users} \| .*$", page, re.MULTILINE)[0]
            in_text = line_of(text, one.users)
            assert int(line["users"]) == row["users"] == one.users, told
            assert int(line["running"]) == row["running"] == one.running, told
            assert int(line["context_each_tokens"]) == row["context_each_tokens"], told
            for name in ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s", "output_tokens_per_s_per_request",
                         "output_tokens_per_s_per_user"):  # fmt: skip
                for cell, end in ((name, "value"), (f"{name}_low", "low"), (f"{name}_high", "high")):
                    if row[name] is None:
                        assert line[cell] == "", told
                    else:
                        assert float(line[cell]) == pytest.approx(row[name][end], rel=1e-5), (told, cell)
            shown = {"each": one.each_rate.value, "total": one.total_rate.value, "high": one.total_rate.high}
            if one.ttft is not None:
                assert f"| {number(one.ttft.value)} ({number(one.ttft.low)}-" in in_page, told
                shown["ttft"] = one.ttft.value
            for name, value in shown.items():
                assert number(value) in in_page, (told, name)
                assert number(value) in in_text, (told, name)
        pool = record["memory"]["kv_pool_tokens"]
        if pool["value"]:
            assert int(lines[0]["kv_pool_tokens"]) == pool["value"], told
            assert f"KV pool {pool['value']:,} tokens" in text, told
            assert f"KV pool {pool['value']:,} tokens" in page, told
        if answer.safe is not None:
            assert int(lines[0]["safe_users"]) == record["safe"]["users"] == answer.safe.users, told
            assert page.count(f"{answer.safe.users:,} with 95 % probability") >= 1, told
            for limit in answer.safe.limits:
                assert record["safe"]["limits"][limit.name]["users"] == limit.users, told
                assert f": {limit.users:,}; {limit.words}" in page, told
                assert f"{limit.users:,}  {limit.words}" in text, told


def test_a_limit_that_is_named_binds_and_an_answer_is_that_of_the_safe_number(answers):
    for told, answer in answers:
        safe = answer.safe
        if safe is None:
            continue
        limits = {one.name: one for one in safe.limits}
        assert limits[safe.limit].users == min(one.users for one in safe.limits) == safe.users, told
        places = answer.asked.defaults.places * answer.holding.terms.dp * answer.holding.terms.decoding
        if safe.users == places < limits["kv"].users:
            assert safe.limit == "queue" and "max_num_seqs" in limits["queue"].words, told
        assert safe.limit != "kv" or safe.chance_of(safe.users + 1) < 0.95 + 1e-9, told
        # more users than the engine runs at once wait
        assert safe.chance_of(100 * max(places, safe.users)) <= 1e-4, told
        if answer.reply.probability is not None and answer.reply.users <= safe.users:
            assert answer.reply.probability >= 0.95 - 1e-9, told


def test_the_explanation_adds_up_to_what_is_printed(answers):
    for told, answer in answers:
        if answer.deployment is None:
            continue
        parts, text = arithmetic_parts(answer), " ".join(fit_explanation(answer).split())
        assert all(one.text in text and all(term.name in text for term in one.terms) for one in parts.values()), told
        for row in (answer.users[0], answer.users[-1]):
            step = parts[f"step {row.users}"]
            assert f"tokens: {1e3 * step.seconds:.2f} ms" in step.text, told
            if row.tpot is None:
                continue
            sums = re.search(
                r": ([\d.]+) ms .*? ([+-]) ([\d.]+) ms \(.*?\) = ([\d.]+) ms", parts[f"tpot {row.users}"].text
            )
            before, sign, rest, total = float(sums[1]), sums[2], float(sums[3]), float(sums[4])
            assert before + (rest if sign == "+" else -rest) == pytest.approx(total, abs=1e-6), told
            assert total == pytest.approx(1e3 * row.tpot.value, abs=0.0051), told
            if row.users == 1 and row.tpot.value != row.tpot.best:  # nothing reads prompts beside it
                assert rest <= 0.01 * total + 0.01, told


def test_the_first_token_is_explained_by_its_prompt_and_its_wait(answers):
    seen = 0
    for told, answer in answers:
        row = answer.users[-1] if answer.users else None
        if answer.deployment is None or row is None or row.ttft is None:
            continue
        parts = arithmetic_parts(answer)
        alone = parts["ttft"].seconds
        assert f": {1e3 * alone:,.2f} ms for a prompt of {answer.asked.input_tokens:,} tokens" in parts["ttft"].text, (
            told
        )
        # the steps of the prompt are its time: a correction that would hide a missing step is a term of its own
        corrected = sum(one.seconds for one in parts["ttft"].terms if one.name.startswith("correction"))
        assert abs(corrected) <= 0.5 * alone, told
        if row.users == 1 and not answer.asked.prefill:
            assert alone == pytest.approx(row.ttft.value), told
            continue
        flat = parts[f"ttft {row.users}"].text.replace(",", "")
        before, sign, wait, total = re.search(r": ([\d.]+) ms alone ([+-]) ([\d.]+) ms .* = ([\d.]+) ms", flat).groups()
        assert float(before) == pytest.approx(1e3 * alone, abs=0.0051), told
        assert float(before) + float(f"{sign}{wait}") == pytest.approx(float(total), abs=1e-6), told
        assert float(total) == pytest.approx(1e3 * row.ttft.value, abs=0.0051), told
        seen += 1
    assert seen >= 3


def rates(row: UserRow):
    return row.total_rate.low, row.total_rate.value, row.total_rate.high


def test_servers_add_up_and_none_of_them_has_a_part_of_a_user(answers):
    """Users on several servers are the sum over servers of plans of one, each with its whole users."""
    for told, answer in answers:
        servers = answer.holding.terms.decoding
        for few, many in pairwise(answer.users):
            # a simulated row differs from a formula by its requests
            least = 1 - (SIMULATED if many.simulated else 1e-9)
            assert many.total_rate.value >= few.total_rate.value * least, told
        for row in answer.users:
            assert row.total_rate.value == pytest.approx(row.users * row.each_rate.value), told
        first = {row.users: row for row in answer.users}
        if servers >= 3:
            # three users have a server each
            assert rates(first[3]) == pytest.approx([3 * rate for rate in rates(first[1])]), told


def test_the_first_page_has_the_numbers_of_the_whole(answers):
    for told, answer in answers:
        page = " ".join(first_screen(answer, WIDE).split())
        if answer.verdict != "fits" or answer.safe is None:
            continue
        assert f"{answer.safe.users:,} with 95 % probability" in page, told
        assert f"KV pool {answer.holding.pool.tokens:,.0f} tokens" in page or answer.holding.pool.tokens <= 0, told
        assert number(answer.users[-1].total_rate.value) in page, told


def test_servers_whose_pools_are_full_add_up_as_those_that_run_all_their_users():
    """A simulated run of three servers ended with the last: seven users had less in all than three, 160 and 170."""
    words = {"weights": "q4_k_m", "engine": "vllm", "input": 8192, "output": 256}
    three = fit_answer(
        PlanRequest("mixtral-8x7b", "6xrtx-5070-ti", replicas=3, tp=2, users="3,7", **words), changes=False
    )
    alone = fit_answer(PlanRequest("mixtral-8x7b", "2xrtx-5070-ti", tp=2, users="2,3", **words), changes=False)
    few, many = three.users
    assert many.simulated and many.total_rate.value > few.total_rate.value
    sums = 2 * alone.users[0].total_rate.value + alone.users[1].total_rate.value
    assert many.total_rate.value == pytest.approx(sums)


def test_users_who_wait_on_ranks_of_one_server_are_whole_too():
    """Seven users on six ranks of one request each had the rates of seven ranks, 16 those of 5.3: 3,166 and 2,435."""
    words = {"weights": "bf16", "engine": "vllm", "input": 2048, "output": 512, "max_num_seqs": 1}
    found = fit_answer(PlanRequest("qwen3.5-2b", "6xgb200", users="6,7,12,16", **words), changes=False)
    assert found.holding.terms.dp == 6
    full, seven, twice, sixteen = (row.total_rate.value for row in found.users)
    assert full <= seven <= twice <= sixteen <= 1.02 * full
    first, waiting = found.users[0].ttft.value, found.users[2].ttft.value
    # of seven requests in the time of one, one waits for a whole answer
    assert found.users[1].ttft.value == pytest.approx((5 * first + waiting) / 6, rel=0.05)
