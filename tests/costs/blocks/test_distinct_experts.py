"""Experts that a batch visits: the coupon collector's formula, and routing as uneven as it was published."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.models import load_model
from glmplan.catalog.schema.model import ExpertsFfn
from glmplan.costs.blocks.feed_forward import busiest_rank, distinct_experts

TOKENS = np.array([0.5, 1.0, 2.0, 7.0, 16.0, 64.0, 300.0, 5000.0])


def block(experts, topk, busiest_fifth):
    return ExpertsFfn(experts=experts, topk=topk, inner=64, busiest_fifth=busiest_fifth)


def summed(experts, topk, busiest_fifth):
    """The same expert by expert."""
    exponent = 1.0 - np.log(busiest_fifth) / np.log(0.2)
    chance = (np.arange(1, experts + 1) - 0.5) ** -exponent
    chance *= topk / chance.sum()
    while chance.max() > 1.0 + 1e-12:
        chance, free = np.minimum(chance, 1.0), chance < 1.0
        chance[free] *= (topk - (~free).sum()) / chance[free].sum()
    missed = np.power(1.0 - np.minimum(chance, 1.0)[None, :], TOKENS[:, None])
    return (1.0 - missed).sum(1)


@pytest.mark.parametrize(("experts", "topk"), [(256, 8), (512, 10), (128, 4), (8, 2), (1, 1)])
def test_even_routing_is_the_coupon_collector(experts, topk):
    even = experts * (1.0 - (1.0 - topk / experts) ** TOKENS)
    assert distinct_experts(block(experts, topk, 0.2), TOKENS) == pytest.approx(even, rel=1e-6)


@pytest.mark.parametrize(("experts", "topk"), [(256, 8), (512, 10), (384, 8), (128, 4)])
@pytest.mark.parametrize("busiest", [0.35, 0.5, 0.65])
def test_a_few_points_stand_for_all_experts(experts, topk, busiest):
    found = distinct_experts(block(experts, topk, busiest), TOKENS[1:])
    assert found == pytest.approx(summed(experts, topk, busiest)[1:], rel=0.04)


@given(
    experts=st.integers(1, 512), share=st.floats(0.001, 1.0), busiest=st.floats(0.2, 0.95), more=st.floats(0.0, 0.04)
)
def test_a_token_visits_its_own_experts_and_a_crowd_no_more_than_there_are(experts, share, busiest, more):
    topk = max(1, round(share * experts))
    found = distinct_experts(block(experts, topk, busiest), TOKENS)
    assert found[1] == pytest.approx(topk, rel=1e-6)
    assert (np.diff(found) >= -1e-9).all()
    assert (found <= np.minimum(experts, np.maximum(TOKENS, 1.0) * topk) * (1 + 1e-9)).all()
    less_even = distinct_experts(block(experts, topk, busiest + more), TOKENS)
    assert (less_even[1:] <= found[1:] * (1.0 + 1e-2)).all()


def test_models_whose_routing_was_published_have_its_share():
    def shares(name):
        kinds = load_model(name).layers.values()
        return {ffn.busiest_fifth for kind in kinds for ffn in kind.ffn if isinstance(ffn, ExpertsFfn)}

    assert shares("deepseek-r1") == {0.35}
    assert shares("qwen3-235b-a22b") == {0.65}
    # balanced in the same way as these
    assert shares("glm-5.1") == shares("kimi-k2.5") == {0.35}
    assert shares("qwen3.5-397b-a17b") == {0.65}
    assert shares("gpt-oss-120b") == {0.5}


def test_one_rank_does_everything():
    touched, pairs = busiest_rank(block(256, 8, 0.5), TOKENS, 1)
    np.testing.assert_allclose(touched, distinct_experts(block(256, 8, 0.5), TOKENS))
    np.testing.assert_allclose(pairs, TOKENS * 8)


@given(
    experts=st.sampled_from([16, 128, 256, 512]), topk=st.integers(1, 10), busiest=st.floats(0.2, 0.8),
    ranks=st.sampled_from([2, 4, 8, 16])
)  # fmt: skip
def test_the_busiest_rank_has_at_least_the_mean_and_no_more_than_all(experts, topk, busiest, ranks):
    shape = block(experts, topk, busiest)
    touched, pairs = busiest_rank(shape, TOKENS[1:], ranks)
    visited = distinct_experts(shape, TOKENS[1:])
    assert (touched >= visited / ranks * (1 - 1e-9)).all()
    assert (touched <= np.minimum(visited, experts / ranks) * (1 + 1e-9)).all()
    assert (pairs >= TOKENS[1:] * topk / ranks * (1 - 1e-9)).all()
    assert (pairs <= TOKENS[1:] * topk * (1 + 1e-9)).all()


def test_the_busiest_of_eight_ranks_is_that_of_a_simulation():
    shape, rng = block(256, 8, 0.5), np.random.default_rng(1)
    chance = (np.arange(1, 257) - 0.5) ** -(1.0 - np.log(0.5) / np.log(0.2))
    most_touched, most_pairs = [], []
    for _ in range(300):
        placed = rng.permutation(256) % 8
        drawn = rng.random((64, 256)) ** (1.0 / chance[None, :])  # weighted choice without replacement
        chosen = np.argsort(-drawn, axis=1)[:, :8]
        counts = np.bincount(chosen.ravel(), minlength=256)
        most_touched.append(np.bincount(placed, counts > 0, 8).max())
        most_pairs.append(np.bincount(placed, counts, 8).max())
    touched, pairs = busiest_rank(shape, np.array([64.0]), 8)
    assert touched[0] == pytest.approx(np.mean(most_touched), rel=0.1)
    assert pairs[0] == pytest.approx(np.mean(most_pairs), rel=0.15)
