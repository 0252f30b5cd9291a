"""Traffic: specs, lengths, traces in every published form, sessions; errors name the field."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.serving.traffic.sources import request_source
from glmplan.serving.traffic.spec import Traffic, parse_traffic
from glmplan.serving.traffic.traces import read_trace


def _requests(traffic, count, seed=0):
    return list(request_source(traffic, count, np.random.default_rng(seed)).arrivals)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("closed:32", {"kind": "closed", "users": 32}),
        ("poisson:2.5/s", {"kind": "poisson", "rate": 2.5}),
        ("gamma:2.5/s,cv=3", {"kind": "gamma", "cv": 3.0}),
        ("onoff:5/s,on=10,off=500 ms", {"on": 10.0, "off": 0.5}),
        ("sessions:0.5/s,turns=4", {"rate": 0.5, "turns": 4}),
        ("trace:a,b.csv".replace(",", "-"), {"file": "a-b.csv"}),
    ],
)
def test_a_flag_says_what_arrives(spec, fields):
    traffic = parse_traffic(spec)
    for name, value in fields.items():
        assert getattr(traffic, name) == value


def test_a_file_says_the_same_as_a_flag(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('kind = "gamma"\nrate = "2.5/s"\ncv = 3\nthink = "500 ms"\n')
    assert parse_traffic(str(file), input=100) == parse_traffic("gamma:2.5/s,cv=3,think=0.5", input=100)


def test_agents_read_four_tokens_for_each_they_write():
    assert parse_traffic("sessions:4", input=1000).output == 250
    assert parse_traffic("sessions:4", input=1000, output=7).output == 7


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("closd:3", ["--traffic", "closd", "closed"]),
        ("closed:0", ["users", "0"]),
        ("closed:2.5", ["users", "2.5"]),
        ("closed", ["users"]),
        ("poisson:3", ["rate", "2.5/s"]),
        ("poisson:-1/s", ["rate", "-1"]),
        ("poisson:nan/s", ["rate"]),
        ("poisson:x/s", ["rate", "x"]),
        ("gamma:1/s,cw=3", ["cw", "cv"]),
        ("onoff:1/s,on=3 parsecs", ["parsecs"]),
        ("trace:", ["file"]),
        ("sessions:", ["users"]),
        ("closed:3,jitter=0.2,input_cv=1", ["jitter"]),
        ("closed:3,jitter=1.2", ["jitter", "1.2"]),
        ("closed:3,input=0", ["input", "0"]),
        ("closed:3,shared_prefix=5000", ["shared_prefix"]),
    ],
)
def test_a_wrong_spec_is_told_with_its_field(spec, words):
    with pytest.raises(SpecError) as error:
        parse_traffic(spec)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_field_of_a_file_is_told_with_the_file(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('kind = "closed"\nuser = 3\n')
    with pytest.raises(SpecError, match="t.toml.*user") as error:
        parse_traffic(str(file))
    assert "users" in str(error.value)


def test_lengths_keep_their_mean_and_spread():
    traffic = parse_traffic("poisson:1/s", input=1000, output=400, input_cv=0.5, output_cv=2.0)
    made = _requests(traffic, 50_000)
    inputs, outputs = np.array([r.input for r in made]), np.array([r.output for r in made])
    assert inputs.mean() == pytest.approx(1000, rel=0.02)
    assert inputs.std() / inputs.mean() == pytest.approx(0.5, rel=0.05)
    assert outputs.mean() == pytest.approx(400, rel=0.05)
    assert outputs.min() >= 1


def test_lengths_of_a_file_are_drawn_together(tmp_path):
    file = tmp_path / "l.csv"
    file.write_text("input_tokens,output_tokens\n100,10\n200,20\n")
    made = _requests(parse_traffic("poisson:1/s", lengths=str(file)), 500)
    assert {(r.input, r.output) for r in made} == {(100, 10), (200, 20)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("input_tokens,output_tokens\n", ["no requests"]),
        ("input_tokens\n5\n", ["output_tokens"]),
        ("input_tokens,output_tokens\n5,nan\n", ["line 2"]),
        ("input_tokens,output_tokens\n5,6\n5,0\n", ["line 3"]),
        ("input_tokens,output_tokens\n5,x\n", ["number"]),
    ],
)
def test_a_bad_file_of_lengths_is_told(tmp_path, text, words):
    file = tmp_path / "l.csv"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        _requests(parse_traffic("poisson:1/s", lengths=str(file)), 5)
    for word in ["l.csv", *words]:
        assert word in str(error.value)


# three rows in the form of each published trace
FORMS = {
    "own.csv": "arrival_s,input_tokens,output_tokens\n10,100,5\n10.5,200,6\n12,300,7\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,100,5\n"
    "2023-11-16 18:15:47.0000000,200,6\n2023-11-16 18:15:48.5000000,300,7\n",
    "azure-2024.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,100,5\n"
    "2024-05-10 00:00:00.509930+00:00,200,6\n2024-05-10 00:00:02.009930+00:00,300,7\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,100,5,105,Conversation log\n5.5,GPT-4,200,6,206,API log\n"
    "6,GPT-4,300,0,300,API log\n7,GPT-4,300,7,307,API log\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n'
    '{"timestamp": 500, "input_length": 200, "output_length": 6, "hash_ids": [2]}\n'
    '{"timestamp": 2000, "input_length": 300, "output_length": 7, "hash_ids": [3]}\n',
}


@pytest.mark.parametrize("name", FORMS)
def test_every_published_form_reads_the_same(tmp_path, name):
    file = tmp_path / name
    file.write_text(FORMS[name])
    made = list(read_trace(file))
    assert [(round(r.arrival, 6), r.input, r.output) for r in made] == [(0, 100, 5), (0.5, 200, 6), (2, 300, 7)]
    assert [r.arrival for r in read_trace(file, speed=2)] == pytest.approx([0, 0.25, 1])


def test_block_hashes_of_mooncake_are_content(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n')
    (request,) = read_trace(file)
    assert request.runs == ((("block", 7), 512), (("block", 8), 512), (("block", 9), 76))


def test_sessions_of_a_trace_share_their_prefix_up_to_the_recorded_length(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,input_tokens,output_tokens,session,prefix_tokens\n0,100,5,a,0\n9,200,5,a,64\n")
    first, second = read_trace(file)
    assert first.runs[0][0] == second.runs[0][0]
    assert second.shareable == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["columns"]),
        ("arrival_s,input_tokens,output_tokens\n", ["no requests"]),
        ("a,b\n1,2\n", ["a,b", "TIMESTAMP"]),
        ("arrival_s,input_tokens,output_tokens\n0,nan,5\n", ["line 2", "input_tokens", "nan"]),
        ("arrival_s,input_tokens,output_tokens\n0,5,2.5\n", ["line 2", "output_tokens"]),
        ("arrival_s,input_tokens,output_tokens\n3,5,5\n2,5,5\n", ["line 3", "earlier"]),
        ("arrival_s,input_tokens,output_tokens\nsoon,5,5\n", ["line 2", "soon"]),
        ("arrival_s,input_tokens,output_tokens\n0,5\n", ["line 2", "output_tokens"]),
    ],
)
def test_a_bad_trace_is_told_with_line_and_column(tmp_path, text, words):
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        list(read_trace(file))
    for word in ["t.csv", *words]:
        assert word in str(error.value)


def test_a_line_that_is_not_a_mooncake_row_is_told(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"time": 1}\n')
    with pytest.raises(SpecError, match="line 2"):
        list(read_trace(file))


def test_a_session_sends_the_conversation_so_far():
    source = request_source(
        parse_traffic("sessions:1,turns=50,tool_wait=3", input=100, shared_prefix=1000), 20, np.random.default_rng(0)
    )
    request = next(source.arrivals)
    assert request.runs == (("system", 1000), (("session", 0), 100))
    for _ in range(3):
        request.finish = request.arrival + 1
        follow = source.after(request, request.finish)
        assert follow.input == request.input + request.output + 100
        assert follow.session == request.session
        assert follow.arrival > request.finish
        request = follow


def test_users_start_together_or_along_a_ramp():
    assert [r.arrival for r in _requests(parse_traffic("closed:4"), 9)] == [0, 0, 0, 0]
    assert [r.arrival for r in _requests(parse_traffic("closed:4,ramp=8"), 9)] == [0, 2, 4, 6]


def test_the_load_of_any_traffic_can_be_varied():
    assert Traffic(kind="closed", users=3).at_load(7).users == 7
    assert Traffic(kind="poisson", rate=3).at_load(7).rate == 7
    assert Traffic(kind="trace", file="x").at_load(7).speed == 7
