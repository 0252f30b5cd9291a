"""A closed loop obeys Little's law: users are the rate of requests times the time that each takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.prediction.load import Load, LoadMetrics, metrics_of


def seconds(found: LoadMetrics, name: str, step: float, front: float) -> float:
    """A figure where every step takes the same time, and the front end its own [s]; rates by their scale."""
    figure = found.figures[name]
    each = np.append(np.full(len(figure.weights) - 1, step), front)
    total = float(figure.weights @ each)
    return figure.scale / total if figure.rate else total * figure.scale


@pytest.mark.parametrize("front", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("tokens", [1, 2, 100])
def test_one_user_asks_again_when_the_answer_is_there(front, tokens):
    found = metrics_of(Load(1, 500, tokens, phase="serving"))
    ttft = seconds(found, "ttft", 0.02, front)
    each = ttft + (seconds(found, "tpot", 0.02, front) * (tokens - 1) if tokens > 1 else 0.0)
    assert seconds(found, "output_rate", 0.02, front) == pytest.approx(tokens / each, rel=1e-3)


@pytest.mark.parametrize("users", [4, 32])
@pytest.mark.parametrize("front", [0.0, 0.2])
def test_many_users_are_the_rate_times_the_time_of_each(users, front):
    found = metrics_of(Load(users, 500, 200, requests=40 * users, phase="serving"))
    each = seconds(found, "ttft", 0.02, front) + 199 * seconds(found, "tpot", 0.02, front)
    rate = seconds(found, "output_rate", 0.02, front) / 200
    assert rate * each == pytest.approx(users, rel=0.05)  # the last requests find fewer beside them


@pytest.mark.parametrize("tokens", [1, 200])
@pytest.mark.parametrize("settled", [False, True])
def test_means_alone_are_those_of_all_statistics(tokens, settled):
    every = Load(16, 500, tokens, requests=400, phase="serving", settled=settled)
    found, means = metrics_of(every), metrics_of(replace(every, means=True))
    assert means.figures.keys() == {"ttft", "output_rate"} | ({"tpot"} if tokens > 1 else set())
    for name, one in means.figures.items():
        assert one.scale == found.figures[name].scale
        np.testing.assert_array_equal(one.weights, found.figures[name].weights)
