"""What `glmplan fit` prints: 100 columns, the same numbers in every form, a schema that does not move."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from glmplan.planner import fit_answer
from glmplan.planner.pool import MEMORY_COLUMNS
from glmplan.present.answer_text import fit_text
from glmplan.present.fit_explain import CSV_COLUMNS, fit_csv, fit_explanation, fit_markdown
from glmplan.present.json_answers import SCHEMA, fit_json
from glmplan.present.text import WIDTH
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.spec import parse_traffic
from glmplan.units import number

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/fit-json.md"
QUESTIONS = {
    "six cards": PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"),
    "four cards": PlanRequest("glm-5.1-nvfp4", "4xrtx-pro-6000-ws"),
    "short of cache": PlanRequest("glm-5.1-fp8", "8xh200-sxm", users="64", input="8192", output="1024"),
    "a rack": PlanRequest("kimi-k2.5", "gb200-nvl72"),
    "no figures": PlanRequest("glm-5.1-int4", "nizwo-a1"),
    "decode only": PlanRequest("qwen3-30b-a3b", "mac-studio-m3-ultra"),
    "gguf": PlanRequest("llama-3.1-70b-q4_k_m", "4xrtx-3090"),
    "windows": PlanRequest("gpt-oss-120b", "dgx-spark"),
    "far too large": PlanRequest("glm-5.1", "dgx-spark"),
    "a long command": PlanRequest("nemotron-3-nano-30b-a3b", "8xb200-sxm", engine="mlx"),
    "a host": PlanRequest("glm-5.1-nvfp4", "six-cards-and-display-gpu", mtp="2"),
}


@pytest.fixture(scope="module")
def answers():
    found = {name: fit_answer(words) for name, words in QUESTIONS.items()}
    traffic = parse_traffic("sessions:4", input=1000, output=100, start=8000, turns=4)
    return found | {"sessions": fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm"), traffic)}


@pytest.mark.parametrize("name", QUESTIONS)
def test_text_and_arithmetic_fit_100_columns(answers, name):
    answer = answers[name]
    text = fit_text(answer) + fit_explanation(answer)
    long = [line for line in text.splitlines() if len(line) > WIDTH]
    assert not long
    assert not re.search(r"\bnan\b|\binf\b", text)


@pytest.mark.parametrize("name", QUESTIONS)
def test_json_is_json_with_the_verdict_on_top(answers, name):
    answer = answers[name]
    record = json.loads(fit_json(answer))
    assert record["schema"] == SCHEMA == "glmplan.fit/2"
    assert record["verdict"] == answer.verdict
    assert record["verdict"] in ("fits", "tight", "does_not_fit", "unknown")


def paths(value, head=""):
    """Every path of a record; rows of lists are one path."""
    if isinstance(value, dict):
        for name, one in value.items():
            # tensor classes, components and limits are open sets
            if head in (".memory.ranks[].weights_gib", ".users[].step_time_breakdown"):
                name = "*"
            yield from paths(one, f"{head}.{name}")
    elif isinstance(value, list):
        yield f"{head}[]"
        for one in value:
            yield from paths(one, f"{head}[]")
    else:
        yield head


def described_part():
    """Return the reference without its tables of old names."""
    return PAGE.read_text(encoding="utf-8").split("## Names of")[0]


def test_every_field_of_the_json_is_described_in_the_reference(answers):
    described = set(re.findall(r"^\| `([^`]+)`", described_part(), re.MULTILINE))
    missing = set()
    for answer in answers.values():
        for path in paths(json.loads(fit_json(answer))):
            plain = path.removeprefix(".")
            parents = {plain, plain.removesuffix("[]"), re.sub(r"\.(value|low|high|inner_low|inner_high)$", "", plain)}
            if not parents & described:
                missing.add(plain)
    assert not missing


def test_every_described_field_exists(answers):
    described = set(re.findall(r"^\| `([^`]+)`", described_part(), re.MULTILINE))
    seen = set()
    for answer in answers.values():
        for path in paths(json.loads(fit_json(answer))):
            plain = path.removeprefix(".")
            seen |= {plain, plain.removesuffix("[]"), re.sub(r"\.(value|low|high|inner_low|inner_high)$", "", plain)}
    assert not described - seen


def test_the_schema_has_these_fields_at_the_top(answers):
    assert list(json.loads(fit_json(answers["six cards"]))) == [
        "schema", "verdict", "answer", "may_start", "headline", "reasons", "unknown", "question", "plan", "memory",
        "context",
        "users", "traffic", "traffic_runs", "safe", "bottleneck", "alternative_layouts", "skipped_layouts", "changes",
        "warnings", "command",
        "command_notes", "assumed", "unstated", "stating", "basis", "evidence_level", "evidence",
        "recommended_benchmark", "fits",
    ]  # fmt: skip


def test_all_forms_have_the_same_numbers(answers):
    answer = answers["six cards"]
    record = json.loads(fit_json(answer))
    table = list(csv.DictReader(io.StringIO(fit_csv(answer))))
    text, page = fit_text(answer), fit_markdown(answer)
    users = [line for line in table if line["users"]]
    for row, line in zip(record["users"], users, strict=True):
        assert float(line["output_tokens_per_s"]) == pytest.approx(row["output_tokens_per_s"]["value"])
        assert float(line["ttft_mean_ms"]) == pytest.approx(row["ttft_mean_ms"]["value"])
        assert number(row["output_tokens_per_s"]["value"]) in text
        assert number(row["output_tokens_per_s"]["value"]) in page
    assert f"{record['memory']['kv_pool_tokens']['value']:,.0f}" in text
    assert str(record["safe"]["users"]) == table[0]["safe_users"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_form_gives_every_term_of_each_ranks_memory(answers, name):
    answer = answers[name]
    ranks = (json.loads(fit_json(answer))["memory"] or {"ranks": []})["ranks"]
    lines = [line for line in csv.DictReader(io.StringIO(fit_csv(answer))) if line["rank"]]
    assert [line["rank"] for line in lines] == [row["label"] for row in ranks] == [row.label for row in answer.ranks]
    for row, line, budget in zip(ranks, lines, answer.ranks, strict=True):
        terms = {column: row[column] for column in MEMORY_COLUMNS if column in row and column != "weights_gib"}
        assert len(terms) > 8
        for column, value in terms.items():
            assert float(line[column]) == pytest.approx(value, rel=1e-4, abs=1e-4)
        assert float(line["weights_gib"]) == pytest.approx(row["weights_total_gib"], rel=1e-4)
        assert {part.rpartition(" ")[0] for part in line["weights_by_class_gib"].split("; ")} == set(row["weights_gib"])
        # what is used is what the terms sum to
        used = sum(terms[f"{term}_gib"] for term in ("activation", "graphs", "communication", "reserve", "cache"))
        assert row["weights_total_gib"] + used == pytest.approx(row["total_gib"], rel=1e-4)
        assert budget.label in fit_markdown(answer)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_format_of_the_cache_and_its_reason_stand_in_the_first_lines(answers, name):
    answer = answers[name]
    if answer.holding is None:
        return
    assert answer.kv_why
    head = fit_text(answer).split("\nMemory of each card")[0]
    assert f"KV cache      {answer.holding.terms.kv.upper()}: {answer.kv_why[:20]}" in head


@pytest.mark.parametrize("name", QUESTIONS)
def test_csv_has_its_columns_and_at_least_one_line(answers, name):
    rows = list(csv.reader(io.StringIO(fit_csv(answers[name]))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) >= 2 and all(len(row) == len(CSV_COLUMNS) for row in rows)
    assert rows[1][CSV_COLUMNS.index("verdict")] == answers[name].verdict


@pytest.mark.parametrize("name", QUESTIONS)
def test_markdown_has_a_title_and_closes_its_code(answers, name):
    page = fit_markdown(answers[name])
    assert page.startswith("# ") and page.count("```") % 2 == 0


def test_the_parts_of_a_rank_add_up_to_its_total(answers):
    for rank in json.loads(fit_json(answers["six cards"]))["memory"]["ranks"]:
        parts = ("weights_total", "activation", "graphs", "communication", "reserve", "cache")
        assert sum(rank[f"{name}_gib"] for name in parts) == pytest.approx(rank["total_gib"], abs=0.01)


def test_the_arithmetic_names_each_step_and_adds_up(answers):
    answer = answers["six cards"]
    text = fit_explanation(answer)
    for step in (
        "1. parameters",
        "2. weights",
        "3. cache",
        "4. pool",
        "5. decode step",
        "6. first token",
        "7. 90 % interval",
    ):
        assert step in text
    assert "743.91 billion" in text  # GLM-5.1 without its MTP layer, models of the catalogue
    first = text.split("5. decode step")[1]
    total = float(re.search(r"([\d.]+) ms for", first)[1])
    rows = [float(row) for row in re.findall(r"(\d+\.\d\d) +\d+%$", first, re.MULTILINE)]
    assert sum(rows) == pytest.approx(total, rel=0.06)
