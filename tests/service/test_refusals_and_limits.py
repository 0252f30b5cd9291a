"""What is asked wrongly, too large or from elsewhere is refused in words; nothing that is infeasible is."""

from __future__ import annotations

import inspect
import re
import socket
import time
from contextlib import suppress
from dataclasses import fields, replace

import httpx
import pytest

from glmplan.catalog.entries.models import model_names
from glmplan.cli.fit import command as fit
from glmplan.cli.size import command as size
from glmplan.errors import SpecError
from glmplan.planner.ask import Arrivals, Question
from glmplan.purchase.axes import POINT_AXES, STRUCTURE_AXES
from glmplan.service import questions as q
from glmplan.service.guard import is_loopback
from glmplan.service.server import check_token, server

PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm"}


def wrong(answer, status=422):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("said", "field", "value", "close"),
    [
        ({"engine": "vlm"}, "engine", "vlm", "vllm"),
        ({"kv": "fp9"}, "kv", "fp9", "fp8"),
        ({"model": "lama-3.1-8b"}, "model", "lama-3.1-8b", "llama-3.1-8b"),
        ({"on": "1xh100-smx"}, "on", "h100-smx", "h100-sxm"),
        ({"user": 3}, "user", "3", "users"),
    ],
)
def test_an_error_names_the_field_the_value_and_the_nearest_choice(client, said, field, value, close):
    found = wrong(client.post("/v1/fit", json=PLAN | said))
    assert (found["field"], found["value"]) == (field, value)
    assert close in found["nearest"]
    assert close in found["message"]


@pytest.mark.parametrize(
    ("users", "field", "said"),
    [(-1, "users", "0 or more"), ("x", "users", "whole number"), ([3, True], "users.1", "true or false")],
)
def test_what_may_be_a_number_or_a_list_is_named_without_its_types(client, users, field, said):
    found = wrong(client.post("/v1/fit", json=PLAN | {"users": users}))
    assert found["field"] == field and said in found["message"] and "[" not in found["message"]


def test_what_does_not_fit_is_an_answer(client):
    small = {"model": "glm-5.1", "on": "1xh100-sxm"}
    assert client.post("/v1/fit", json=small).json()["verdict"] == "does_not_fit"
    found = client.post("/v1/predict", json=small)
    assert (found.status_code, found.json()["verdict"]) == (200, "does_not_fit")
    assert client.get("/v1/value", params=small | {"get": "tokens_per_s"}).text == "does_not_fit"


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "~/m", "a/config.json", "m.gguf", "x.TOML", "C:\\x", ".", "a/.."]
)
@pytest.mark.parametrize("field", ["model", "on"])
def test_no_file_is_opened_for_anybody(client, name, field):
    assert "names a file" in wrong(client.post("/v1/fit", json=PLAN | {field: name}))["message"]


@pytest.mark.parametrize(
    "traffic",
    ["trace:/etc/passwd", "closed:2, trace:/etc/passwd", "load.toml", "closed:2,lengths=/x", "poisson:1/s,file=a"],
)
def test_traffic_out_of_files_is_refused(client, traffic):
    assert wrong(client.post("/v1/simulate", json=PLAN | {"traffic": traffic}))["field"] == "traffic"


def test_prices_out_of_files_are_refused(client):
    assert "is not a price" in wrong(client.post("/v1/cost", json=PLAN | {"price": ["/tmp/prices.csv"]}))["message"]


def test_a_relative_name_finds_nothing_where_the_processes_run(client, tmp_path, monkeypatch):
    (tmp_path / "somewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert wrong(client.post("/v1/fit", json=PLAN | {"model": "somewhere"}))["kind"] == "UnknownName"


def test_another_host_name_is_not_answered(client):
    # a name that somebody else's DNS lets point here
    assert wrong(client.get("/health", headers={"host": "evil.example"}), 421)
    assert wrong(client.get("/health", headers={"host": "127.0.0.1.evil.example:8000"}), 421)
    assert client.get("/health", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
def test_pages_of_other_sites_may_not_ask(client, headers):
    assert wrong(client.post("/v1/fit", json=PLAN, headers=headers), 403)
    assert wrong(client.get("/v1/value", params=PLAN | {"get": "verdict"}, headers=headers), 403)


def test_a_link_on_another_site_leads_to_the_page(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert wrong(client.get("/v1/values", headers=headers), 403)


def test_no_answer_allows_other_origins_and_the_page_runs_no_foreign_script(client):
    answer = client.get("/", headers={"origin": str(client.base_url).rstrip("/")})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]


def test_the_head_of_an_answer_is_told_alone(client):
    # LibreOffice asks for options and head before the value
    found = client.head("/v1/value", params=PLAN | {"get": "verdict"})
    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["content-length"] == str(len("fits"))
    assert client.options("/v1/value").status_code == 405


def test_a_value_is_still_found_under_the_name_of_the_previous_release(client):
    old, new = (client.get("/v1/value", params=PLAN | {"get": name}) for name in ("knowledge", "evidence_level"))
    assert old.status_code == new.status_code == 200 and old.text == new.text != ""


def test_a_form_of_another_kind_is_refused(client):
    assert wrong(client.post("/v1/fit", data={"model": "x"}), 415)


def test_a_body_that_is_too_large_is_refused_also_without_its_length(client, patient):
    large = b" " * (patient.body + 1)
    headers = {"content-type": "application/json"}
    assert wrong(client.post("/v1/fit", content=large, headers=headers), 413)
    assert wrong(client.post("/v1/fit", content=iter([large[:1000], large]), headers=headers), 413)


def test_sweeps_and_simulations_are_bounded(client, patient):
    told = wrong(client.post("/v1/sweep", json=PLAN | {"users": "1..50000"}))["message"]
    assert "50,000 points" in told and "at most 20,000 here" in told and "--most" not in told
    load = {"traffic": "closed:2", "requests": patient.requests, "replications": 2}
    assert "requests" in wrong(client.post("/v1/simulate", json=PLAN | load))["message"]


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({"model": model_names()[:21]}, "model", "more than the 20 models"),
        ({"model": ["llama-3.1-8b", "../x"]}, "model.1", "names a file"),
        ({"model": ["llama-3.1-8b", "lama-3.1-8b"]}, "model", "lama-3.1-8b"),
        ({"model": [" "]}, "model", "is empty"),
        ({"model": "llama-3.1-8b,qwen3-8b", "acceptance_test": True}, "acceptance_test", "is for one model"),
    ],
)
def test_several_models_are_refused_before_a_search(client, said, field, words):
    found = wrong(client.post("/v1/size", json={"slo": "tpot p95 < 50 ms", "users": 4, **said}))
    assert found["field"] == field and words in found["message"]


def test_a_job_tells_how_far_it_is_and_gives_its_answer(client):
    question = PLAN | {"traffic": "closed:2", "requests": 20, "input": 256, "output": 32, "ranges": False}
    begun = client.post("/v1/jobs", json={"ask": "simulate", "question": question})
    assert begun.status_code == 202
    where = begun.headers["location"]
    while (found := client.get(where).json())["state"] in ("waiting", "running"):
        time.sleep(0.05)
    assert found["state"] == "done"
    assert client.get(f"{where}/answer").json() == client.post("/v1/simulate", json=question).json()


def test_a_job_is_stopped_and_its_process_serves_the_next(client):
    long = PLAN | {"traffic": "poisson:5/s", "requests": 50_000}
    where = client.post("/v1/jobs", json={"ask": "simulate", "question": long}).headers["location"]
    while 'glmplan_questions_running{kind="job"} 1' not in client.get("/metrics").text:
        time.sleep(0.05)
    # also before the first part of it is done
    assert client.get(where).json()["state"] == "running"
    assert wrong(client.get(f"{where}/answer"), 409)["kind"] == "NotDone"
    assert client.delete(where).json()["state"] == "cancelled"
    short = PLAN | {"traffic": "closed:2", "requests": 10, "input": 64, "output": 8, "ranges": False}
    assert client.post("/v1/simulate", json=short).status_code == 200


def test_a_job_that_is_not_there_is_not_found(client):
    assert wrong(client.get("/v1/jobs/none"), 404)
    assert wrong(client.post("/v1/jobs", json={"ask": "sweep", "question": {"modl": "x"}}))["field"]


def test_a_slow_question_is_ended_and_the_others_are_answered_meanwhile(serving, patient):
    limits = replace(patient, long_seconds=0.1)
    with serving(limits) as address, httpx.Client(base_url=address, timeout=600, trust_env=False) as client:
        found = wrong(client.post("/v1/simulate", json=PLAN | {"traffic": "sessions:20", "requests": 50_000}))
        assert found["kind"] == "TooLong"
        assert client.post("/v1/fit", json=PLAN).status_code == 200
        assert 'glmplan_processes_ended{kind="long"} 1' in client.get("/metrics").text


def test_a_token_is_needed_where_one_is_set_and_stands_in_no_log(serving, caplog):
    token = "correct-horse-battery"
    caplog.set_level("INFO", "glmplan.service")
    with serving(token=token) as address, httpx.Client(base_url=address, timeout=600, trust_env=False) as client:
        assert client.get("/").status_code == 200
        assert wrong(client.get("/v1/values"), 401)
        assert wrong(client.get("/metrics"), 401)
        assert wrong(client.get("/v1/values", headers={"authorization": "Bearer wrong"}), 401)
        assert client.get("/v1/values", headers={"authorization": f"Bearer {token}"}).status_code == 200
        found = client.get("/v1/value", params=PLAN | {"get": "verdict", "token": token})
        assert found.text == "fits"
        # with a token the name does not matter: it may stand behind a proxy
        named = {"authorization": f"Bearer {token}", "host": "plans.example"}
        assert client.get("/v1/values", headers=named).status_code == 200
    assert "/v1/value" in caplog.text
    assert token not in caplog.text
    assert "llama" not in caplog.text


def test_a_service_for_others_needs_a_token():
    with pytest.raises(SpecError, match="token is needed"):
        server("0.0.0.0", ready=lambda: None)
    with pytest.raises(SpecError, match="at least"):
        check_token("short")
    assert [is_loopback(one) for one in ("127.9.9.9", "[::1]", "localhost.", "10.0.0.1", "")] == [True] * 3 + [
        False
    ] * 2


def test_questions_have_the_fields_of_the_library():
    said = set(q.PlanQuestion.model_fields) - {"model", "on"}
    # users stand in the questions that take them; a calibration is a file
    assert said == set(Question.__annotations__) - {"users", "calibration"}
    arriving = set(q.SimulateQuestion.model_fields) - set(q.PlanQuestion.model_fields)
    # the service has no scheduler options, without which priorities and images have no effect
    assert arriving >= set(Arrivals.__annotations__) - {"input", "output", "lengths", "ramp", "urgent", "images"}
    assert set(q.SweepQuestion.model_fields) >= {*STRUCTURE_AXES, *POINT_AXES}


@pytest.mark.parametrize(("command", "question"), [(fit, q.FitQuestion), (size, q.SizeQuestion)])
def test_each_option_is_a_field_or_the_guide_says_why_not(pytestconfig, command, question):
    guide = (pytestconfig.rootpath / "docs/guide/service.md").read_text(encoding="utf-8")
    said = guide.partition("Fields are the options")[2].partition("```")[0]
    names = {"form": "format"}
    left = {names.get(name, name) for name in inspect.signature(command).parameters} - set(question.model_fields)
    assert {name for name in left if not re.search(rf"--{name.replace('_', '-')}[ `]", said)} == set()


def test_metrics_count_requests_by_route_and_never_by_what_was_asked(client, patient):
    client.get("/v1/value", params=PLAN | {"get": "verdict"})
    client.get("/secret-address")
    text = client.get("/metrics").text
    assert 'glmplan_requests_total{method="GET",route="/v1/value",status="200"}' in text
    assert "secret-address" not in text
    assert "llama" not in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0
    assert {one.name for one in fields(patient)} >= {"body", "points", "requests", "jobs", "waiting"}


def test_an_address_of_many_fields_is_refused_where_a_token_is_looked_for(serving):
    with serving(token="a-token-of-letters") as address:
        query = "&".join("a=1" for _ in range(300))
        answer = httpx.get(f"{address}/v1/values?{query}", trust_env=False, timeout=600)
    assert answer.status_code == 422 and "200 fields" in answer.json()["error"]["message"]


def test_connections_that_ask_nothing_keep_nobody_out(serving, monkeypatch):
    from glmplan.service import server as connections

    monkeypatch.setattr(connections, "ARRIVAL", 3600.0)
    with serving() as address:
        host, _, port = address.removeprefix("http://").partition(":")
        held = []
        try:
            for _ in range(connections.CONNECTIONS + 20):
                held.append(socket.create_connection((host, int(port)), timeout=600))
                held[-1].sendall(b"GET /health HTTP/1.1\r\nX-")
            assert httpx.get(f"{address}/health", trust_env=False, timeout=600).status_code == 200
        finally:
            for one in held:
                one.close()


def test_a_request_that_does_not_come_whole_is_given_up(serving, monkeypatch):
    from glmplan.service import server as connections

    monkeypatch.setattr(connections, "ARRIVAL", 0.5)
    asking = (
        b"POST /v1/fit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    with serving() as address:
        host, _, port = address.removeprefix("http://").partition(":")
        for begun in (b"", b"GET /health HTTP/1.1\r\nX-", asking):
            with socket.create_connection((host, int(port)), timeout=600) as one:
                one.sendall(begun)
                # the connection is ended: an end, or a reset
                with suppress(ConnectionError):
                    while one.recv(4096):
                        pass


def test_a_wrong_method_is_told_with_the_right_one(client):
    for method, path, right in (("PUT", "/v1/fit", "POST"), ("POST", "/v1/values", "GET"), ("DELETE", "/", "GET")):
        answer = client.request(method, path, content=b"x")
        assert answer.status_code == 405 and right in answer.headers["allow"], (method, path)
    client.request("BREW", "/v1/fit")
    assert 'method="BREW"' not in client.get("/metrics").text


def test_a_body_with_two_lengths_ends_the_connection(client):
    """RFC 9112, 6.1: a proxy may read the one where the server reads the other."""
    host = client.base_url.host, client.base_url.port
    with socket.create_connection(host, timeout=600) as line:
        line.sendall(
            b"POST /v1/fit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        said = b""
        while part := line.recv(65536):
            said += part
    assert said.startswith(b"HTTP/1.1 400") and said.count(b"HTTP/1.1") == 1


def test_an_error_names_the_fields_of_http_also_in_its_words(client):
    found = wrong(client.post("/v1/fit", json=PLAN | {"engine": "vllm", "tp": 3}))
    assert "--" not in found["message"]


def test_the_arithmetic_takes_no_deployment_files_which_it_would_not_write(client):
    found = client.post("/v1/explain", json=PLAN | {"deploy": ["compose"]})
    assert (found.status_code, found.json()["error"]["field"]) == (422, "deploy")
    assert set(found.json()["error"]["nearest"]) <= set(q.ExplainQuestion.model_fields)
