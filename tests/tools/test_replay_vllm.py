"""What a real vLLM on an H100 took for three published traces, beside what is said with the names alone."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from glmplan.facts.catalogue.models import load_model
from glmplan.readers.models.hf_config import model_from_config
from glmplan.serving.traffic.traces import read_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
replay = pytest.importorskip("replay_vllm")

DATA = Path(__file__).parents[1] / "data"
FOLDERS = sorted((DATA / "replays").glob("*/"))


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def held(request):
    return request.param.name, replay.held(request.param)


def test_measured_means_lie_in_the_ranges_that_were_promised(held):
    _, found = held
    for what, ours in found.items():
        for one in ours if what != "pool" else ():
            assert one.low <= one.measured <= one.high, (what, one)


def test_means_of_llama_come_within_a_tenth_where_the_part_is_named(held):
    """Of Llama-3.1-8B; prompts of Qwen3-14B are known from one site, which computed them at half the speed."""
    name, found = held
    assert abs(found["pool"][0].apart) < 0.02
    for what, ours in found.items():
        for one in ours if name.startswith("llama") else ():
            assert abs(one.apart) < 0.1, (what, one)


def test_prompts_have_the_lengths_of_the_trace_and_share_its_blocks():
    trace = DATA / "traces" / "mooncake-conversation.jsonl"
    made = replay.prompts_of(trace, 32_000, random.Random(0))
    recorded = list(read_trace(trace))
    assert [(at, len(prompt), answer) for at, prompt, answer in made] == [
        (one.arrival, one.input, one.output) for one in recorded
    ]
    named = [json.loads(line)["hash_ids"] for line in trace.read_text().splitlines()]
    assert named[0][0] == named[1][0] and named[0][1] != named[1][1]
    (_, first, _), (_, second, _) = made[:2]
    assert first[:512] == second[:512]
    assert first[512:1024] != second[512:1024]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-14b"])
def test_the_server_is_given_the_shapes_of_the_catalogue(name):
    config = replay.config_of(name) | {"vocab_size": load_model(name).vocabulary}
    theirs, ours = model_from_config(config, name=name), load_model(name)
    assert list(theirs.layers.values()) == list(ours.layers.values())
    assert (theirs.hidden, theirs.vocabulary, theirs.max_context) == (ours.hidden, ours.vocabulary, ours.max_context)
