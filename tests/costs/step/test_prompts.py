"""What a prompt costs by itself: launches, the form in which latents are attended to, and waiting for others."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.engines.kernels import latent_prompt_kernel
from glmplan.catalog.files import data_folder
from glmplan.costs.kernels.utilisation import kernel_fits
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import prompt_launches
from glmplan.costs.step.work import step_work
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import COLUMNS, LEVELS, TTFT_SCALE, keys_of, load_effects
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import Load, metrics_of
from glmplan.prediction.predict import front_end_seconds, predict
from glmplan.prediction.step_models import with_site

SERVED = Run("one", "deepseek-v3", "h200-sxm", accelerator_count=8, tp=8, engine="vllm", weights="fp8-block",
             phase="serving", concurrency=1.0, input_tokens=400.0, output_tokens=100.0)  # fmt: skip


def asked(**changes):
    return question_of(replace(SERVED, **changes))


def ttft(**changes):
    question = asked(**changes)
    return predict(question.deployment, question.load).figures["ttft"].value


def prompt_seconds(tokens=8192.0, **changes):
    """Attention of a prompt in one step, [s]"""
    deployment = asked(**changes).deployment
    points = StepPoints(np.zeros(1), np.zeros(1), np.array([tokens]), np.array([tokens / 2]))
    return float(step_work(deployment.structure, layout=deployment.layout, points=points)["prefill_attention"][0])


#: engine, release, layout and tokens of a prompt that the last layers of DeepSeek-V4.1 compute
DECODER = [
    ("vllm", (0, 31, 0), {}, np.inf),
    ("vllm", (0, 32, 0), {}, 128.0),
    ("vllm", None, {}, 128.0),
    ("vllm", None, {"tp": 4, "dp": 2, "ep": 8}, np.inf),
    ("vllm", None, {"accelerator": "mi355x"}, np.inf),
    ("sglang", (0, 5, 22), {}, np.inf),
    ("sglang", (0, 5, 23), {}, 128.0),
    ("trtllm", None, {}, np.inf),
]


@pytest.mark.parametrize(("engine", "release", "changes", "tail"), DECODER)
def test_layers_without_a_cache_source_compute_the_end_of_a_prompt_where_a_release_does(engine, release, changes, tail):
    one = asked(model="deepseek-v4.1-flash", weights="fp8", engine=engine, **changes).deployment
    assert replace(one, release=release).structure.prompt_tail == tail


def test_the_end_of_a_prompt_is_computed_in_all_layers_and_its_rest_in_the_first():
    tail = asked(model="deepseek-v4.1-flash", weights="fp8").deployment
    tokens = np.array([128.0, 4096.0])
    points = StepPoints(np.zeros(2), np.zeros(2), tokens, tokens / 2)
    some, everything = (
        step_work(one.structure, layout=one.layout, points=points)["activation"]
        for one in (tail, replace(tail, release=(0, 31, 0)))
    )
    assert some[0] == everything[0]
    # 21 of 40 layers write all of a prompt, the others its last 128 tokens
    assert some[1] / everything[1] == pytest.approx((21 + 19 * 128 / 4096) / 40)


def test_layers_with_a_cache_of_their_own_compute_all_of_a_prompt():
    assert asked(model="glm-5.3", weights="fp8").deployment.structure.prompt_tail == np.inf


def test_piecewise_graphs_leave_attention_to_the_host():
    structure = asked().deployment.structure
    assert prompt_launches(structure, replayed=True) == 61.0 < prompt_launches(structure) == 61 + 58 + 61.0


def test_short_prompts_of_vllm_are_replayed_and_others_launched():
    captured, eager = asked().deployment, asked(graphs=False).deployment
    assert (captured.graph_tokens, eager.graph_tokens, asked(engine="sglang").deployment.graph_tokens) == (512, 0, 0)
    # what a 513th token adds is two launches for each layer, not a token
    one = front_end_seconds(captured, 512.0) - front_end_seconds(captured, 511.0)
    assert front_end_seconds(captured, 513.0) - front_end_seconds(captured, 512.0) > 100 * max(one, 1e-9)
    assert ttft(input_tokens=512.0) < ttft(input_tokens=513.0)


def test_the_pass_before_a_first_token_holds_all_that_comes_with_it():
    together = Load(8, 1000, 200, phase="decode")
    assert together.pass_tokens == 1000 * 4.5
    assert replace(together, max_requests=1).pass_tokens == 1000
    assert replace(together, prefix_cached=True, cached_rest=64.0).pass_tokens == 64 * 4.5
    assert replace(together, input_tokens=0).pass_tokens == 32 * 4.5
    assert metrics_of(together).prefill_tokens.sum() == 1000 * 4.5
    assert (
        Load(4, 1000, 1, phase="prefill").pass_tokens == 4000
        and Load(8, 1000, 200, phase="serving").pass_tokens == 1000
    )


def test_a_request_alone_waits_for_nobody_and_the_factor_on_first_tokens_grows_with_the_crowd():
    waits = [Load(users, 1000, 200, phase="serving").waiting for users in (1, 2, 4, 16, 256)]
    assert waits == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert Load(64, 1000, 200, phase="decode").waiting == Load(64, 1000, 1, phase="prefill").waiting == 0.0
    planted = np.zeros(len(COLUMNS))
    planted[TTFT_SCALE] = 0.5
    for users, grown in ((1.0, 0.0), (4.0, 0.25), (64.0, 0.5)):
        question = asked(concurrency=users)
        key = keys_of(question.deployment)[LEVELS.index("configuration")]
        before = load_effects("vllm")
        after = with_site(before, {"configuration": {key: planted}})
        first, then = (predict(question.deployment, question.load, effects=one).figures for one in (before, after))
        assert np.log(then["ttft"].value / first["ttft"].value) == pytest.approx(grown)
        assert then["tpot"].value == pytest.approx(first["tpot"].value)


def test_latents_of_a_prompt_become_keys_and_values_where_the_engine_does_that():
    rules = tomllib.loads((data_folder("hardware_db") / "kernels.toml").read_text(encoding="utf-8"))["latent_prompts"]
    measured = {fit.kernel for part in ("h200-sxm", "b200-sxm") for fit in kernel_fits(part)}
    assert rules and all(one["source"].startswith("https://") and one["runs_as"] in measured for one in rules)
    assert latent_prompt_kernel("trtllm", "9") == latent_prompt_kernel("sglang", "10") == "latent-prefill"
    # SGLang's table on Hopper holds the latents as they are: 512 + 576 numbers where keys and values have 192 + 128
    found = {(fit.kernel, fit.backend): fit.params.flop for fit in kernel_fits("h200-sxm")
             if fit.engine.startswith("sglang") and fit.precision == "bf16" and "prefill" in fit.kernel}  # fmt: skip
    latents = found["latent-prefill", "flash_attention"]
    assert latents * (512 + 576) / (192 + 128) == pytest.approx(found["prefill-attention", "fa3"], rel=0.1)
    # a rank's heads of DeepSeek-V3: 16 heads, 8192 queries that see half of the keys, 320 numbers, 61 layers
    flop = 2.0 * 16 * 8192 * 4096 * 320 * 61
    for engine in ("vllm", "sglang"):
        rate = flop / prompt_seconds(engine=engine) / 989e12
        assert 0.4 < rate < 0.8, engine


def test_sparse_attention_reads_latents_as_they_are():
    sparse = asked(model="deepseek-v3.2").deployment
    assert sparse.structure.sparse
    dense = replace(sparse.structure, sparse=False)
    # 2,048 keys are fewer than the sparse kernels attend to: the same work but for the form and the indexer
    points = StepPoints(np.zeros(1), np.zeros(1), np.array([2048.0]), np.array([1024.0]))
    seconds = [
        float(step_work(one, layout=sparse.layout, points=points)["prefill_attention"][0])
        for one in (sparse.structure, dense)
    ]
    assert seconds[0] > 2 * seconds[1]
