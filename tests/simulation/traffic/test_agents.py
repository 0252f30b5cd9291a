"""Recorded agents: a request begins when all that it waits for have ended and its pause is over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.settings import KvPool, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic import conversations
from glmplan.simulation.traffic.conversations import conversation_form, read_conversations
from glmplan.simulation.traffic.request import Request, linked, together
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import parse_traffic

TRACES = Path(__file__).parents[2] / "data" / "traces"


def _turns(name):
    return [
        [(round(turn.wait, 9), turn.input_tokens, turn.output_tokens, turn.after) for turn in one.turns]
        for one in read_conversations(TRACES / name)
    ]


def test_subagents_of_weka_wait_for_their_parent_and_the_parent_for_those_that_ended():
    """By hand: the first request ends at 2 s, the subagents begin at 3 and 3.5 s and end at 6 and 7.5 s."""
    assert conversation_form(TRACES / "weka-subagents.json") == "WEKA"
    (turns,) = _turns("weka-subagents.json")
    assert turns == [
        (0.0, 1000, 80, ()),
        (1.0, 800, 40, (0,)),
        (1.5, 700, 300, (0,)),
        (1.0, 1200, 40, (1,)),
        (2.5, 1500, 120, (0, 3, 2)),
        (1.0, 640, 20, (4,)),
        (2.0, 1800, 60, (4,)),  # not for the third subagent, which ends at 22 s
    ]


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_times_of_a_subagent_count_from_its_start_or_from_that_of_the_trace(tmp_path, shift):
    inner = {"t": shift, "in": 10, "out": 5, "api_time": 1.0}
    entries = [{"t": 0, "in": 9, "out": 5, "api_time": 1}, {"t": 3.0, "type": "subagent", "requests": [inner]}]
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"block_size": 64, "requests": entries}, indent=1))
    (one,) = read_conversations(file)
    assert (one.turns[1].wait, one.turns[1].after) == (2.0, (0,))


def test_blocks_with_consecutive_numbers_are_one_part_of_a_prompt():
    first, _, other, *_ = read_conversations(TRACES / "weka-subagents.json")[0].turns
    assert [tokens for _, tokens in first.content] == [15 * 64, 40]
    assert first.content[0][0] == other.content[0][0] and other.content[0][1] == 10 * 64


def test_the_context_of_applied_compute_grows_by_answer_and_tool_output():
    one, other = _turns("applied-compute.jsonl")
    assert one == [(0.0, 900, 40, None), (0.5, 1240, 25, None), (1.25, 2465, 200, None)]
    assert other == [(0.0, 500, 80, None)]


def test_sessions_of_dynamo_are_chains_and_children_are_joined():
    """By hand: r1 ends at 2 s, its child runs from 2.5 to 3.5 s, r3 begins at 4 s; r4 has a session of its own."""
    main, other = read_conversations(TRACES / "dynamo-request-trace.jsonl")
    found = [(turn.input_tokens, turn.wait, turn.after) for turn in main.turns]
    assert found == [(130, 0.0, ()), (64, pytest.approx(0.5), (0,)), (192, pytest.approx(0.5), (0, 1))]
    assert (main.start, other.start) == (0.0, 6.0)
    assert main.turns[0].content == ((("block", 11), 130),)
    assert main.turns[2].content == ((("block", 11), 128), (("block", 14), 64))


def test_agentic_mooncake_waits_for_the_latest_and_its_tools():
    plan, other = read_conversations(TRACES / "agentic-mooncake.jsonl")
    assert [(turn.wait, turn.after) for turn in plan.turns] == [
        (0.0, ()), (1.0, (0,)), (0.2, (0,)), (0.25, (1, 2))
    ]  # fmt: skip
    assert (plan.start, other.start) == (0.5, 2.0)


def test_a_fan_out_runs_beside_each_other_and_joins_at_the_slowest():
    """Steps of 10 ms, each for one token of every request: plan ends after 50 of them."""
    table, pool = StepTable.affine(base=0.01), KvPool(1_000_000, 16)
    source = request_source(parse_traffic(f"trace:{TRACES / 'agentic-mooncake.jsonl'}"), 99, np.random.default_rng(0))
    cluster = Cluster(table, pool, scheduler_settings("vllm", max_num_batched_tokens=8192))
    ended = {(one.session, one.turn): one for one in cluster.run(source.arrivals, source.after)}
    assert len(ended) == 5
    plan, search, read, answer = (ended[0, turn] for turn in range(4))
    assert plan.arrival == 0.5
    assert search.arrival == pytest.approx(plan.finish + 1.0) and read.arrival == pytest.approx(plan.finish + 0.2)
    assert read.first < search.finish < read.finish  # both at once
    assert answer.arrival == pytest.approx(max(search.finish, read.finish) + 0.25)
    assert plan.finish == pytest.approx(0.5 + 50 * 0.01)


def test_version_2_of_agentic_mooncake_counts_from_sending_or_end_and_not_before_a_time():
    """Steps of 10 ms. By hand: `side` begins 250 ms after `plan` is sent, at 0.75 s, and ends at 2.75 s."""
    table, pool = StepTable.affine(base=0.01), KvPool(1_000_000, 16)
    source = request_source(parse_traffic(f"trace:{TRACES / 'agentic-mooncake-2.jsonl'}"), 99, np.random.default_rng(0))
    cluster = Cluster(table, pool, scheduler_settings("vllm", async_scheduling=False))
    ended = {(one.session, one.turn): one for one in cluster.run(source.arrivals, source.after)}
    plan, side, answer, late, other = (ended[key] for key in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0)))
    assert (plan.arrival, side.arrival) == (0.5, 0.75)
    assert plan.finish == pytest.approx(1.0) and side.finish == pytest.approx(2.75)
    assert answer.arrival == pytest.approx(plan.finish + 4.0)  # later than 10 ms after `side`
    assert late.arrival == 60.0  # not as `answer` ends
    assert (answer.cached, late.cached) == (240, 304)  # the prompt before and whole blocks of its answer
    assert other.arrival == 90.0 and other.cached == 0  # block names hold within a play


@pytest.mark.parametrize("name", ["weka-subagents.json", "applied-compute.jsonl"])
def test_agents_without_times_need_users_and_each_user_runs_one_at_a_time(name):
    service = Service(StepTable.affine(base=0.01), KvPool(1_000_000, 16), scheduler_settings("vllm"), front_end=0.01)
    with pytest.raises(SpecError, match="users or a rate"):
        simulate(service, parse_traffic(f"trace:{TRACES / name}"), requests=99)
    outcome = simulate(service, parse_traffic(f"trace:{TRACES / name},users=1,urgent=0.5"), requests=99, warmup=0)
    assert outcome.summary["requests"] == sum(map(len, _turns(name)))


def test_requests_that_one_end_releases_are_linked_once():
    some = [Request(i, 0.0, 1, 1) for i in range(3)]
    assert together(linked(some)) == some
    assert together(some[0]) == some[:1] and linked([]) is None


WEKA = '{"block_size": 64, "requests": [%s]}'
APPLIED = {"num_turns": 1, "input_prompt_length": 9, "assistant_response_length": [1], "tool_call_output_length": [1],
           "tool_call_latency": [0.1], "final_assistant_response_length": 5}  # fmt: skip
HEADER = '{"schema": "dynamo.agentic_mooncake", "version": %d, "block_size": 64}\n'
ROW_2 = (
    '{"request_id": "a", "play_id": "p", "input_length": 5, "output_length": 5, "hash_ids": [1], "not_before_ms": 0, '
    '"dependencies": [%s]}'
)
ROW = '{"request_id": "a", "input_length": 5, "output_length": 5, "hash_ids": [1], "wait_for": [%s]}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WEKA % '{"t": "soon", "in": 5, "out": 5}', ["line 1: t", "soon"]),
        (WEKA % '{"t": 0, "in": -5, "out": 5}', ["line 1: in", "-5"]),
        (WEKA % "7", ["line 1: requests", "{...}"]),
        (WEKA % '{"t": 0, "in": 5, "out": 5, "hash_ids": 3}', ["line 1: hash_ids", "block names"]),
        (WEKA % '{"t": 0, "type": "subagent"}', ["line 1: requests", "subagent"]),
        ('{"block_size": 0, "requests": []}', ["line 1: block_size", "at least 1"]),
        (WEKA % "", ["no requests"]),
        (json.dumps(APPLIED | {"num_turns": 2}), ["line 1: assistant_response_length", "1 entries for 2 turns"]),
        (json.dumps(APPLIED | {"tool_call_latency": 3}), ["line 1: tool_call_latency", "expected"]),
        (json.dumps(APPLIED | {"input_prompt_length": None}), ["line 1: input_prompt_length"]),
        ('{"event_type": "request_end"}', ["line 1: request", "expected"]),
        (ROW % '"b"', ["line 1: wait_for", "b"]),
        (ROW % '"a"', ["wait_for", "each other"]),
        (ROW % "" * 2, ["line 2: request_id", "two requests"]),
        (HEADER % 3, ["line 1: version", "3"]),
        (HEADER % 2 + ROW_2 % '{"request_id": "a", "trigger": "end", "delay_ms": 0}', ["line 2: trigger", "end"]),
        (
            HEADER % 2 + ROW_2 % '{"request_id": "b", "trigger": "dispatch", "delay_ms": 0}',
            ["line 2: dependencies", "b"],
        ),
        (HEADER % 2 + ROW % "", ["line 2: play_id"]),
    ],
)
def test_a_broken_recording_of_agents_is_told_with_line_and_field(tmp_path, text, words):
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        read_conversations(file)
    for word in ["t.jsonl", *words]:
        assert word in str(error.value)


def test_more_than_can_be_kept_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("glmplan.simulation.traffic.conversations._MOST_PARTS", 5)
    conversations._conversations_of.cache_clear()  # other tests read the same files
    for name in ("weka-subagents.json", "dynamo-request-trace.jsonl", "agentic-mooncake.jsonl"):
        with pytest.raises(SpecError, match="more than 5 turns and parts of prompts"):
            read_conversations(TRACES / name)
