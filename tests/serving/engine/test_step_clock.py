"""The clock of the loops: what it remembers of the last step never shows in the next."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.serving.engine.step_clock import StepClock
from glmplan.serving.engine.step_table import StepTable


def _bent(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    """Another slope in every piece of every axis."""
    return (
        1e-3 * np.sqrt(decode_requests)
        + 1e-7 * decode_requests * np.sqrt(decode_context)
        + 2e-5 * prefill_tokens**1.1
        + 1e-9 * prefill_tokens * np.sqrt(prefill_context)
    )


TABLE = StepTable.tabulate(_bent, max_requests=32, max_context=4096, max_prefill=1024)
#: the ends of all pieces, what lies between them, and what lies beyond the table
CONTEXTS = [0.5, *TABLE.context.tolist(), *((TABLE.context[1:] + TABLE.context[:-1]) / 2).tolist(), 1e7]
PROMPTS = [1, *(int(x) for x in TABLE.prefill if x >= 1), 700, 5000]
KEYS = [0.5, *TABLE.keys.tolist(), *((TABLE.keys[1:] + TABLE.keys[:-1]) / 2).tolist(), 1e7]


@pytest.mark.parametrize("stages", [1, 3])
def test_a_clock_answers_alike_whatever_it_was_asked_before(stages):
    rng, used = np.random.default_rng(7), StepClock(TABLE, stages)
    for _ in range(400):
        n, p = int(rng.integers(1, 33)), int(rng.choice(PROMPTS))
        total, weight = n * float(rng.choice(CONTEXTS)), p * float(rng.choice(KEYS))
        fresh = StepClock(TABLE, stages)
        assert used.decode(n, total) == fresh.decode(n, total)
        assert used.mixed(n, total, p, weight) == fresh.mixed(n, total, p, weight)


def test_a_clock_reads_what_the_table_says():
    rng, clock = np.random.default_rng(8), StepClock(TABLE)
    for _ in range(200):
        n, p = int(rng.integers(0, 33)), int(rng.choice(PROMPTS))
        context, keys = float(rng.uniform(1, 4000)), float(rng.uniform(1, 4000))
        said = TABLE.seconds(decode_requests=n, decode_context=context, prefill_tokens=p, prefill_context=keys)
        assert clock.mixed(n, n * context, p, p * keys) == pytest.approx(float(said), rel=1e-12)
