"""The clock of the loops: what it remembers of the last step never shows in the next."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.planner.service import serving_inputs
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_clock import StepClock
from glmplan.simulation.engine.step_table import ShortSteps, StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.spec import Traffic


def _bent(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    """Another slope in every piece of every axis."""
    return (
        1e-3 * np.sqrt(decode_requests)
        + 1e-7 * decode_requests * np.sqrt(decode_context)
        + 2e-5 * prefill_tokens**1.1
        + 1e-9 * prefill_tokens * np.sqrt(prefill_context)
    )


def _hiding(*, decode_requests, prefill_tokens, **points):
    """The same, where a step of at most 100 tokens, three of each decoding request, hides half a millisecond."""
    hidden = np.where(3 * decode_requests + prefill_tokens <= 100, 0.5e-3, 0.0)
    return _bent(decode_requests=decode_requests, prefill_tokens=prefill_tokens, **points) + 1e-3 - hidden


def _level(**points):
    return _bent(**points) + 1e-3


HIDING = StepTable.tabulate(ShortSteps(_hiding, _level, 100.0, 3), max_requests=64, max_context=4096, max_prefill=1024)
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


@pytest.mark.parametrize("table", [TABLE, HIDING], ids=["plain", "hiding"])
def test_a_clock_reads_what_the_table_says(table):
    rng, clock = np.random.default_rng(8), StepClock(table)
    for _ in range(200):
        n, p = int(rng.integers(0, 33)), int(rng.choice(PROMPTS))
        context, keys = float(rng.uniform(1, 4000)), float(rng.uniform(1, 4000))
        said = table.seconds(decode_requests=n, decode_context=context, prefill_tokens=p, prefill_context=keys)
        assert clock.mixed(n, n * context, p, p * keys) == pytest.approx(float(said), rel=1e-12)


def test_what_short_steps_hide_ends_at_its_number_of_tokens_and_nowhere_else():
    n, p = (one.ravel() for one in np.meshgrid(np.arange(65.0), np.arange(1.0, 257.0)))
    level = StepTable.tabulate(_level, max_requests=64, max_context=4096, max_prefill=1024)
    context, keys = np.full(len(n), 700.0), p / 2
    found = level.seconds_at(n, context, p, keys) - HIDING.seconds_at(n, context, p, keys)
    np.testing.assert_allclose(found, np.where(3 * n + p <= 100, 0.5e-3, 0.0), atol=1e-12)
    zero, n = np.zeros(64), np.arange(1.0, 65.0)
    found = level.seconds_at(n, 700 + zero, zero, zero) - HIDING.seconds_at(n, 700 + zero, zero, zero)
    np.testing.assert_allclose(found, np.where(3 * n <= 100, 0.5e-3, 0.0), atol=1e-12)
    slow = HIDING.scaled(2.0)
    assert slow.seconds(decode_requests=0, decode_context=0, prefill_tokens=101, prefill_context=1) == pytest.approx(
        2 * HIDING.seconds(decode_requests=0, decode_context=0, prefill_tokens=101, prefill_context=1)
    )


@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 2, "dp": 4, "ep": 8}, {"tp": 8, "mtp": 3}])
def test_steps_of_few_tokens_are_tabulated_as_the_model_times_them(layout):
    inputs = serving_inputs(
        PlanRequest("deepseek-r1", "8xb200-sxm", engine="vllm", **{k: str(v) for k, v in layout.items()})
    )
    table = StepTable.tabulate(inputs.step_seconds, max_requests=256, max_context=8192, max_prefill=8192)
    n, p = (one.ravel() for one in np.meshgrid([0.0, 4.0, 32.0], np.arange(150.0, 450.0)))
    true = inputs.step_seconds(decode_requests=n, decode_context=0 * n + 2000, prefill_tokens=p, prefill_context=p / 2)
    # 4.3 % where hiding is interpolated
    np.testing.assert_allclose(table.seconds_at(n, 0 * n + 2000, p, p / 2), true, rtol=0.008)
    assert table.hidden > 0.01 * true.min()


@pytest.mark.parametrize("most", [64, 1024, 6000])
@pytest.mark.parametrize("rows", [1, 7, 33, 100])
def test_a_table_of_few_requests_holds_the_same_times_as_the_one_of_all(rows, most):
    for step in (_bent, ShortSteps(_hiding, _level, 100.0, 3)):
        sizes = {"max_requests": most, "max_context": 4096, "max_prefill": 1024}
        whole, few = StepTable.tabulate(step, **sizes), StepTable.tabulate(step, **sizes, rows=rows)
        assert min(rows, most) <= few.max_requests <= min(2 * rows + 8, most)
        for name in ("decode", "extra"):
            np.testing.assert_allclose(getattr(few, name), getattr(whole, name)[: few.max_requests + 1], rtol=1e-13)
        np.testing.assert_allclose(few.attention, whole.attention, rtol=1e-13)
        assert (few.hidden, few.short) == pytest.approx((whole.hidden, whole.short))


def test_a_service_asks_for_the_whole_table_where_more_come_than_it_holds():
    asked = []

    def whole():
        asked.append(1)
        return StepTable.tabulate(_bent, max_requests=64, max_context=4096, max_prefill=1024)

    few = StepTable.tabulate(_bent, max_requests=64, max_context=4096, max_prefill=1024, rows=8)
    service = Service(few, KvPool(100_000), EngineSettings(max_num_seqs=64), whole=cache(whole))
    small, large = (Traffic(kind="closed", users=users, input=100, output=20) for users in (8, 40))
    assert service.under(small).table is few
    assert not asked
    twice = service.scaled(2.0)
    assert twice.under(large).table is twice.under(large).table
    assert service.under(Traffic(kind="poisson", rate=1.0)).table.max_requests == 64
    assert len(asked) == 1
    plain = Service(whole(), service.pool, service.settings)
    for traffic in (small, large):
        found, expected = (simulate(one, traffic, requests=120).summary for one in (twice, plain.scaled(2.0)))
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    with pytest.raises(SpecError, match="exceeds the 8 requests"):
        Service(few, service.pool, service.settings)
