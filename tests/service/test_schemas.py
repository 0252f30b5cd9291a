"""Real answers are what the OpenAPI document says, over HTTP and from the command line."""

from __future__ import annotations

import json
import random

import pytest

from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.hosts import host_names
from glmplan.catalog.entries.models import model_names
from glmplan.cli import main
from glmplan.service.answer_schemas import ANSWER_SCHEMAS
from glmplan.service.answers import QUESTIONS
from glmplan.service.application import EXAMPLES, openapi_document

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

PLAN = ("llama-3.1-8b", "--on", "1xh100-sxm")


def closed(schema):
    """The schema without room for fields that it does not describe."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@pytest.fixture(scope="module")
def check():
    components = {"schemas": closed(openapi_document()["components"]["schemas"])}

    def checked(record, *names):
        schema = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names], "components": components}
        if len(names) == 1:
            schema = {"$ref": f"#/components/schemas/{names[0]}", "components": components}
        jsonschema.Draft202012Validator(schema).validate(record)

    return checked


@pytest.fixture(scope="module")
def operations():
    return openapi_document()["paths"]


def test_every_question_has_an_example_and_an_answer_in_the_document(operations):
    assert set(EXAMPLES) == {*ANSWER_SCHEMAS, "jobs"} - {"catalogue"}
    assert set(ANSWER_SCHEMAS) == set(QUESTIONS) - {"values"}
    for path, methods in operations.items():
        for one in methods.values():
            good = next(answer for status, answer in one["responses"].items() if status.startswith("2"))
            kind = next(iter(good["content"]))
            assert kind != "application/json" or good["content"][kind]["schema"] is not None, path
            assert path == "/health" or "429" in one["responses"]


def test_a_token_is_in_the_document():
    schemes = openapi_document()["components"]["securitySchemes"]
    assert {one["type"] for one in schemes.values()} == {"http", "apiKey"}
    assert {} in openapi_document()["security"]
    assert {} not in openapi_document(token=True)["security"]


@pytest.mark.parametrize("ask", [*ANSWER_SCHEMAS])
def test_the_answer_to_each_example_is_what_the_document_says(client, check, ask):
    if ask == "catalogue":
        answer = client.get("/v1/catalogue")
    else:
        QUESTIONS[ask].model_validate(EXAMPLES[ask])
        answer = client.post(f"/v1/{ask}", json=EXAMPLES[ask])
    assert answer.status_code == 200, answer.text
    check(answer.json(), ANSWER_SCHEMAS[ask].__name__)


def test_refusals_jobs_and_infeasible_plans_are_what_the_document_says(client, check):
    small = {"model": "glm-5.1", "on": "1xh100-sxm"}
    check(client.post("/v1/predict", json=small).json(), "Infeasible")
    check(client.post("/v1/fit", json=small).json(), "FitAnswer")
    check(client.post("/v1/fit", json=small | {"engine": "vlm"}).json(), "Refusal")
    check(client.put("/v1/fit").json(), "Refusal")
    begun = client.post("/v1/jobs", json=EXAMPLES["jobs"])
    check(begun.json(), "JobState")
    check(client.delete(begun.headers["location"]).json(), "JobState")


def random_plans(count):
    rng = random.Random(20261128)
    hosts = host_names()
    parts = accelerator_names()
    for _ in range(count):
        on = rng.choice(hosts) if rng.random() < 0.3 else f"{rng.choice((1, 2, 4, 8))}x{rng.choice(parts)}"
        words = ["fit", rng.choice(model_names()), "--on", on, "--format", "json"]
        if rng.random() < 0.5:
            words += ["--users", rng.choice(("4", "1,64", "200"))]
        if rng.random() < 0.2:
            words += ["--traffic", rng.choice(("closed:2", "poisson:0.5/s"))]
        yield words


@pytest.mark.parametrize("words", [*random_plans(40)], ids=" ".join)
def test_the_json_of_a_random_plan_is_what_the_document_says(check, capsys, words):
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:  # refused in one line: nothing is printed as an answer
            assert capsys.readouterr().out == ""
            return
    check(json.loads(capsys.readouterr().out), "FitAnswer")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["compare", "llama-3.1-8b@1xh100-sxm", "llama-3.1-8b@2xl40s", "--users", "4"], "CompareAnswer"),
        (["simulate", *PLAN, "--traffic", "closed:2", "--requests", "20", "--replications", "2"], "SimulateAnswer"),
        (["safe", *PLAN, "--slo", "tpot p95 < 50 ms", "--traffic", "closed:1", "--output", "32"], "SafeAnswer"),
        (["size", "--model", "llama-3.1-8b", "--users", "8", "--slo", "tpot p95 < 50 ms", "--only", "h100-sxm"],
         "SizeAnswer"),
        (["size", "--model", "llama-3.1-8b,qwen3-8b", "--users", "8", "--slo", "tpot p95 < 50 ms", "--only", "l40s"],
         "SizedModels"),
    ],
)  # fmt: skip
def test_the_json_of_the_command_line_is_what_the_document_says(check, capsys, words, name):
    try:
        main([*words, "--format", "json"])
    except SystemExit as ended:
        assert not ended.code, capsys.readouterr().err
    check(json.loads(capsys.readouterr().out), name)
