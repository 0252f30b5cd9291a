"""Traffic: specs, lengths, traces in every published form, sessions; errors name the field."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.simulation.traffic.conversations import conversation_form
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import Traffic, parse_traffic
from glmplan.simulation.traffic.traces import read_trace

DATA = Path(__file__).parents[2] / "data"


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
    file.write_text('kind = "gamma"\nrate = "2.5/s"\ncv = 3\npatience = "500 ms"\n')
    assert parse_traffic(str(file), input=100) == parse_traffic("gamma:2.5/s,cv=3,patience=0.5", input=100)


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


# two conversations: the first of two turns, with 1.5 s between the first answer and the second prompt
CONVERSATIONS = {
    "own.csv": "session,arrival_s,wait_s,input_tokens,output_tokens\na,0,0,100,10\nb,2,0,50,5\na,,1.5,130,12\n",
    "mooncake.jsonl": '{"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 10}\n'
    '{"session_id": "b", "timestamp": 2000, "input_length": 50, "output_length": 5}\n'
    '{"session_id": "a", "delay": 1500, "input_length": 130, "output_length": 12}\n',
    "export.jsonl": "".join(
        json.dumps(
            {
                "metadata": {
                    "conversation_id": who,
                    "request_start_ns": int(start * 1e9),
                    "request_end_ns": int(end * 1e9),
                },
                "metrics": {"usage_prompt_tokens": {"value": inputs}, "usage_completion_tokens": {"value": outputs}},
            }
        )
        + "\n"
        for who, start, end, inputs, outputs in (("a", 10, 11, 100, 10), ("b", 12, 13, 50, 5), ("a", 12.5, 14, 130, 12))
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_turn_begins_when_the_answer_before_has_ended_and_its_pause_is_over(tmp_path, name):
    file = tmp_path / name
    file.write_text(CONVERSATIONS[name])
    source = request_source(parse_traffic(f"trace:{file}"), 10, np.random.default_rng(0))
    first, other = source.arrivals
    assert [(r.arrival, r.input, r.output) for r in (first, other)] == [(0, 100, 10), (2, 50, 5)]
    first.finish = 7.0  # however long it takes here
    follow = source.after(first, 7.0)
    assert (follow.arrival, follow.input, follow.output, follow.turn) == (8.5, 130, 12, 1)
    assert follow.runs[0][0] == first.runs[0][0]
    other.finish = 9.0
    assert source.after(other, 9.0) is None


def test_conversations_of_share_gpt_need_users_or_a_rate_and_count_four_characters_a_token(tmp_path):
    parts = (("human", 400), ("gpt", 40), ("human", 80), ("gpt", 20))
    said = [{"from": who, "value": "x" * length} for who, length in parts]
    file = tmp_path / "share.json"
    file.write_text(json.dumps([{"id": "a", "conversations": said}, {"id": "b", "conversations": said[:2]}]))
    with pytest.raises(SpecError, match="users or a rate"):
        _requests(parse_traffic(f"trace:{file}"), 5)
    source = request_source(parse_traffic(f"trace:{file},users=1"), 5, np.random.default_rng(0))
    (first,) = source.arrivals
    assert (first.input, first.output) == (100, 10)
    first.finish = 1.0
    second = source.after(first, 1.0)
    assert (second.arrival, second.input, second.output) == (1.0, 130, 5)
    second.finish = 2.0
    assert source.after(second, 2.0).session == 1


def test_turns_of_aiperf_hold_their_pauses_in_milliseconds(tmp_path):
    file = tmp_path / "turns.jsonl"
    turns = [{"text": "a" * 40, "timestamp": 500}, {"text": "b" * 8, "delay": 250, "output_length": 9}]
    file.write_text(json.dumps({"session_id": "a", "turns": turns}))
    source = request_source(parse_traffic(f"trace:{file}", output=20), 5, np.random.default_rng(0))
    (first,) = source.arrivals
    assert (first.arrival, first.input, first.output) == (0.5, 10, 20)
    first.finish = 3.0
    second = source.after(first, 3.0)
    assert (second.arrival, second.input, second.output) == (3.25, 32, 9)


def test_a_run_that_aiperf_measured_is_replayed():
    file = DATA / "clients" / "aiperf__llamacpp" / "profile_export.jsonl"
    made = _requests(parse_traffic(f"trace:{file}"), 50)
    assert len(made) == 12 and made[0].arrival == 0.0
    assert {(r.input > 32, r.output) for r in made} == {(True, 32)}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"arrival_s,input_tokens,output_tokens\n0,5,5\n1,\xff\xfe,5\n", ["line 3", "UTF-8"]),
        ("t.jsonl", b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n\xff\n', ["line 2", "UTF-8"]),
        ("t.jsonl", b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n[1]\n', ["line 2", "object"]),
        ("t.jsonl", b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n{\n', ["line 2", "JSON"]),
        ("t.json", b'[{"id": 1, "conversations": [{"from": "human"}]}]', ["line 1", "value", "expected"]),
        ("t.json", b'[{"id": 1, "conversations": 3}]', ["line 1", "conversations", "expected"]),
        ("t.json", b'{\n  "data": []\n}\n', ["line 1", "one JSON object over many lines"]),
        ("t.jsonl", b'{"session_id": "a", "turns": [{"txt": 1}]}', ["line 1", "text", "expected"]),
        ("t.jsonl", b'{"metadata": {}, "metrics": {}}', ["line 1", "seconds"]),
        ("t.json", b"[", ["line 1", "JSON"]),
    ],
)
def test_a_broken_file_is_told_with_its_line_and_what_was_expected(tmp_path, name, content, words):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(SpecError) as error:
        _requests(parse_traffic(f"trace:{file}" + ",users=2" * (b"input" not in content)), 9)
    for word in [name, *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("spec", ["closed:1000000000", "sessions:1000000000"])
def test_more_users_than_can_be_simulated_are_refused_with_the_count(spec):
    with pytest.raises(SpecError, match="1000000000"):
        parse_traffic(spec)


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


@pytest.mark.parametrize(
    ("row", "words"),
    [('{"input_length": 5, "output_length": 6}', "it has no timestamp"),
     ('{"timestamp": 1, "input_length": 5, "output_length": 6, "hash_ids": 7}', "not of that kind")],
)  # fmt: skip
def test_a_row_that_is_no_mooncake_row_is_told_in_words(tmp_path, row, words):
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    with pytest.raises(SpecError, match=f"line 1: .*{words}"):
        list(request_source(parse_traffic(f"trace:{tmp_path / 'rows.jsonl'}"), 5, np.random.default_rng(0)).arrivals)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{"conversation": []}', "ShareGPT has"),
        ('{"session_id": "a", "turn": []}', "AIPerf multi-turn has"),
        ('{"x": 1}', "Mooncake has"),
    ],
)
def test_an_entry_of_no_form_is_told_what_the_nearest_form_holds(entry, expected, tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(entry)
    with pytest.raises(SpecError, match=expected) as caught:
        conversation_form(file)
    assert caught.value.field == "line 1"
    assert ("Mooncake" in str(caught.value)) == (expected == "Mooncake has")


@pytest.mark.parametrize(
    ("name", "count", "last", "inputs", "outputs"),
    [
        ("azure-2023-conv.csv", 100, 42.685223, 80_197, 17_052),
        ("azure-2023-code.csv", 100, 192.162141, 227_562, 2_348),
        ("mooncake-conversation.jsonl", 75, 24.0, 920_761, 26_570),
    ],
)
def test_excerpts_of_published_traces_are_read_to_their_last_row(name, count, last, inputs, outputs):
    """Sums are those of the columns, by hand."""
    found = list(read_trace(DATA / "traces" / name))
    assert len(found) == count
    assert found[-1].arrival == pytest.approx(last, abs=1e-6)
    assert (sum(r.input for r in found), sum(r.output for r in found)) == (inputs, outputs)


def test_every_conversation_of_the_mooncake_excerpt_shares_its_first_block():
    found = list(read_trace(DATA / "traces" / "mooncake-conversation.jsonl"))
    assert {r.runs[0] for r in found} == {(("block", 0), 512)}
