"""Settings of inference-perf and AIPerf say the same as the options of glmplan, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmplan.errors import SpecError
from glmplan.simulation.traffic.spec import parse_traffic

TRACES = Path(__file__).parents[2] / "data" / "traces"


def test_a_file_of_inference_perf_says_the_same_as_a_flag():
    pytest.importorskip("yaml")
    found = parse_traffic(str(TRACES / "inference-perf.yaml"))
    assert found == parse_traffic("poisson:4/s", input=1000, input_cv=0.3, output=200)


def test_a_file_of_aiperf_says_the_same_as_a_flag():
    pytest.importorskip("yaml")
    found = parse_traffic(str(TRACES / "aiperf.yaml"))
    assert found == parse_traffic(
        "sessions:20", input=200, input_cv=0.25, output=300, output_cv=0.25, turns=5, tool_wait=2
    )


@pytest.mark.parametrize(
    ("words", "spec", "lengths"),
    [
        ("--concurrency 32 --isl 100 --osl=10", "closed:32", {"input": 100, "output": 10}),
        ("--request-rate 5 -m x --streaming", "poisson:5/s", {}),
        ("--request-rate 5 --arrival-pattern constant", "constant:5/s", {}),
        ("--request-rate 5 --arrival-pattern gamma --arrival-smoothness 0.04", "gamma:5/s,cv=5", {}),
        ("--concurrency 4 --isl 400 --isl-stddev 100", "closed:4", {"input": 400, "input_cv": 0.25}),
        ("--concurrency 4 --isl 50 --shared-system-prompt-length 100", "closed:4",
         {"input": 150, "shared_prefix": 100}),
        ("--concurrency 4 --conversation-turn-mean 3 --conversation-turn-delay-mean 500", "sessions:4",
         {"turns": 3, "tool_wait": 0.5}),
    ],
)  # fmt: skip
def test_a_command_of_aiperf_says_the_same_as_a_flag(words, spec, lengths):
    assert parse_traffic(f"aiperf profile {words}") == parse_traffic(spec, **lengths)


def test_options_beside_a_file_go_before_it(tmp_path):
    file = tmp_path / "load.json"
    file.write_text('{"load": {"type": "concurrent", "stages": [{"concurrency_level": 8, "num_requests": 99}]}}')
    assert parse_traffic(str(file), input=700) == parse_traffic("closed:8", input=700)


SHARED = (
    '{"load": {"type": "poisson", "stages": [{"rate": 1}]}, "data": {"type": "shared_prefix", "shared_prefix": %s}}'
)


RANDOM = '{"load": {"stages": [{"rate": 1}]}, "data": {"type": "random", %s}}'


def test_a_shared_prefix_stands_before_the_question(tmp_path):
    file = tmp_path / "load.json"
    file.write_text(SHARED % '{"num_groups": 1, "system_prompt_len": 1000, "question_len": 50, "output_len": 60}')
    assert parse_traffic(str(file)) == parse_traffic("poisson:1/s", input=1050, output=60, shared_prefix=1000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"load": {"stages": [{"rate": 1}, {"rate": 2}]}}', ["load.stages", "one stage"]),
        ('{"load": {"stages": [{"rate": 1}], "sweep": {"type": "linear"}}}', ["load.sweep.type", "linear"]),
        ('{"load": {"type": "trace_replay", "stages": [{"rate": 1}]}}', ["load.type", "trace_replay"]),
        ('{"load": {"stages": [{"rate": "many"}]}}', ["load.stages.rate", "many"]),
        ('{"load": {"stages": [{"rate": [1, 2]}]}}', ["load.stages.rate", "sweep"]),
        ('{"load": {"type": "poisson"}}', ["rate"]),
        ('{"load": {"stages": [{"rate": 1}]}, "data": {"type": "shareGPT"}}', ["data.type", "shareGPT"]),
        (RANDOM % '"input_distribution": {"mean": 0}', ["input", "at least 1"]),
        (RANDOM % '"output_distribution": {"type": "skew_normal"}', ["data.output_distribution.type", "skew_normal"]),
        (SHARED % '{"num_groups": 10}', ["num_groups"]),
        (SHARED % '{"num_groups": 1, "enable_multi_turn_chat": true}', ["enable_multi_turn_chat", "True"]),
        ('{"dataset": {}, "profiling": {"rate": 5, "concurrency": 9}}', ["concurrency", "in flight"]),
        ('{"dataset": {}, "profiling": {"type": "user_centric", "rate": 5}}', ["profiling.type", "user_centric"]),
        ('{"dataset": {"type": "file"}, "profiling": {"concurrency": 5}}', ["dataset.type", "trace:FILE"]),
        ('{"dataset": {"images": 3}, "profiling": {"concurrency": 5}}', ["dataset.images", "3"]),
        ('{"phases": []}', ["neither"]),
        ("[1]", ["table"]),
    ],
)  # fmt: skip
def test_settings_that_are_not_simulated_are_refused_by_name(tmp_path, text, words):
    file = tmp_path / "load.json"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        parse_traffic(str(file))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("words", ["--request-rate 5 --fixed-schedule", "--concurrency many", "'", "x.jsonl --foo 3"])
def test_a_command_of_aiperf_with_more_than_a_load_is_refused(words):
    with pytest.raises(SpecError, match="--traffic"):
        parse_traffic(f"aiperf profile {words}")


def test_aliases_that_repeat_each_other_are_refused_in_bounded_memory(tmp_path):
    pytest.importorskip("yaml")
    lines = ["a0: &a0 {x: 1, y: 2}"] + [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)]
    file = tmp_path / "load.yaml"
    file.write_text("\n".join([*lines, "load: *a39", ""]))
    with pytest.raises(SpecError, match="more than 10,000 values"):
        parse_traffic(str(file))
