"""Whatever the OpenAPI document allows is answered or refused, never with a fault of the service."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

#: questions made of each address
EXAMPLES = 16
#: asked through the tests of jobs: begun here, they would go on for minutes
BEGUN = "/v1/jobs"


def operations(document):
    return [
        (path, method)
        for path, methods in document["paths"].items()
        for method in methods
        if not (path == BEGUN and method == "post")
    ]


def test_every_address_is_described(client):
    document = client.get("/openapi.json").json()
    assert len(operations(document)) > 15
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            assert one.get("description") or one.get("summary"), f"{method} {path}"
            if path.startswith("/v1"):
                assert "HTTPValidationError" not in str(one["responses"].get("422")), path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_question_made_from_the_document_is_a_fault(client, serving, patient):
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    faults, asked = [], [0]

    def tried(case):
        # what takes long is bounded by the time of the test, not by its answer
        words = case.as_transport_kwargs(base_url=str(client.base_url))
        try:
            answer = client.request(
                case.method,
                words["url"],
                params=words.get("params"),
                json=words.get("json"),
                headers={name: value for name, value in (words.get("headers") or {}).items() if name.isascii()},
            )
        except (httpx.InvalidURL, UnicodeEncodeError, TypeError, ValueError):
            return
        asked[0] += 1
        if answer.status_code >= 500:
            faults.append((case.method, case.path, case.body, answer.text[:300]))

    for operation in schema.get_all_operations():
        found = operation.ok()
        if found.path == BEGUN and found.method.lower() == "post":
            continue
        checked = settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        case = found.as_strategy()
        from hypothesis import given

        checked(given(case)(tried))()
    assert asked[0] > 200
    assert faults == []


WEIRD = [None, True, -1, 0, 1e308, 10**30, "", "x" * 500, "\u0000", "١", [], {}, [[]], "1,2", "nan", "Infinity", "🙂"]


@pytest.mark.parametrize(
    "field", ["users", "tp", "input", "kv", "engine", "model", "on", "mtp", "acceptance", "context"]
)
def test_odd_values_of_known_fields_are_refused_or_answered(client, field):
    plan = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}
    for value in WEIRD:
        answer = client.post("/v1/fit", json=plan | {field: value})
        assert answer.status_code in (200, 422), (field, value, answer.text[:300])
        assert answer.status_code == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize("row", [{"model\r": "a\rb\n"}, {"": ""}, {"id": "\r"}, {"model": "x", "tp": 1e300}])
def test_odd_cells_of_a_table_are_refused_in_words(client, row):
    answer = client.post("/v1/predict-table", json={"rows": [row]})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"]
