"""Closed loops that are run together make the engine do what each of them does alone."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.simulation.closed_loop import KnownRuns, closed_loop_mix, many_mixes
from glmplan.simulation.closed_run import ClosedLoop

#: users, prompt, answer: one token, one user, prompts over several steps, more users than a step holds
RUNS = np.array([(1, 1, 1), (3, 40, 1), (1, 5000, 200), (7, 5000, 2), (90, 30, 60), (30, 700, 45), (120, 3, 90),
                 (5, 64, 64), (64, 129, 33)])  # fmt: skip
PACKINGS = [
    {"budget": 2048},
    {"budget": 512, "late": 1},
    {"budget": 8192, "late": 2, "tokens_per_step": 2.37},
    {"budget": 512, "prefill_first": True},
    {"budget": 4096, "prefill_first": True, "late": 2, "tokens_per_step": 1.6},
    {"budget": 8192, "whole_prompts": True, "late": 1},
    {"budget": 64, "late": 2},
]
NAMES = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context", "ttft", "tpot", "counted")


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_each_run_has_the_kinds_of_step_that_it_has_alone(packing):
    users, inputs, outputs = RUNS.T
    requests = np.maximum(4 * users, 8)
    together = many_mixes(users, inputs, outputs, requests, **packing)
    for number, (count, prompt, answer) in enumerate(RUNS.tolist()):
        alone = closed_loop_mix(ClosedLoop(count, prompt, answer, int(requests[number]), **packing))
        here = together.run == number
        for name in NAMES:
            expected = getattr(alone, name)
            # sums of changes leave what rounding leaves where nothing waits
            assert getattr(together, name)[here] == pytest.approx(
                expected, rel=1e-9, abs=1e-12 * expected.max() + 1e-12
            )


#: for each of `PACKINGS` and `RUNS`: steps that requests without a first token wait for, and steps, as a second
#: statement of the schedule counted them (one array entry for each run, in version 877fcaa8)
COUNTED = [
    ([8, 12, 24, 410, 383, 290, 480, 20, 362], [8, 4, 1616, 70, 241, 191, 360, 256, 136]),
    ([8, 33, 80, 1691, 939, 974, 959, 39, 1076], [8, 12, 1672, 275, 249, 230, 364, 260, 154]),
    ([8, 33, 8, 96, 988, 354, 1318, 53, 702], [8, 12, 680, 20, 111, 89, 163, 119, 67]),
    ([8, 12, 80, 1108, 1140, 2604, 480, 20, 2240], [8, 4, 1672, 280, 260, 344, 360, 256, 196]),
    ([8, 33, 16, 167, 985, 565, 1315, 50, 827], [8, 12, 1016, 43, 159, 139, 235, 171, 95]),
    ([8, 33, 8, 154, 719, 264, 959, 39, 511], [8, 12, 1600, 29, 244, 186, 364, 260, 136]),
    ([8, 33, 632, 13657, 21818, 32798, 35387, 79, 29808], [8, 12, 2224, 2189, 540, 1438, 736, 270, 673]),
]


@pytest.mark.parametrize(("packing", "counted"), [*zip(PACKINGS, COUNTED, strict=True)], ids=str)
def test_steps_and_waiting_are_those_of_an_independent_schedule(packing, counted):
    users, inputs, outputs = RUNS.T
    requests = np.maximum(4 * users, 8)
    mix = many_mixes(users, inputs, outputs, requests, **packing)
    waits = np.bincount(mix.run, weights=mix.ttft) * requests
    assert waits == pytest.approx(counted[0], rel=1e-12)
    assert np.bincount(mix.run, weights=mix.counted) == pytest.approx(counted[1], rel=1e-12)


def test_every_prompt_and_answer_token_is_counted_once():
    users, inputs, outputs = RUNS.T
    requests = np.maximum(4 * users, 8)
    found = many_mixes(users, inputs, outputs, requests, budget=512)
    prompts = np.bincount(found.run, weights=found.prefill_tokens * found.counted)
    answers = np.bincount(found.run, weights=found.decode_requests * found.counted)
    assert prompts == pytest.approx(requests * inputs)
    # the first token of an answer comes out of the prompt
    assert answers == pytest.approx(requests * (outputs - 1))


def test_the_order_of_the_runs_does_not_matter():
    users, inputs, outputs = RUNS.T
    requests = np.maximum(4 * users, 8)
    one = many_mixes(users, inputs, outputs, requests, budget=2048, late=1)
    other = many_mixes(users[::-1], inputs[::-1], outputs[::-1], requests[::-1], budget=2048, late=1)
    for number in range(len(users)):
        there = len(users) - 1 - number
        assert one.ttft[one.run == number].tolist() == other.ttft[other.run == there].tolist()


def test_runs_that_are_asked_for_again_and_others_beside_them_are_those_that_are_counted_at_once():
    known, users = KnownRuns(), RUNS[:, 0]
    for places in ([4, 0, 4, 2], [2, 8, 1, 4], [0, 1], [7, 7, 3]):
        for packing in ({"budget": 512, "late": 1}, {"budget": 2048}):
            found = known.of(*RUNS[places].T, **packing)
            expected = many_mixes(*RUNS[places].T, np.maximum(4 * users[places], 8), **packing)
            for name in ("requests", "run", *NAMES):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
