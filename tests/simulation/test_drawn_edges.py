"""How many are in flight by chance of the arrivals: foreseen, usual, and taken out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.load_trial import MEANS, PERCENTILES, POOL, DrawnEdges, InFlight, enough
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.sources import CHUNK, arrival_times, dispersion
from glmplan.simulation.traffic.spec import Traffic

STREAMS = [
    Traffic(kind="poisson", rate=2.0),
    Traffic(kind="gamma", rate=2.0, cv=2.0),
    Traffic(kind="onoff", rate=2.0, on=5.0, off=10.0),
]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.kind)
@pytest.mark.parametrize("engine", ["plain", "full"])
def test_the_crowd_of_a_simulation_is_known_before_it_is_run(stream, engine):
    traffic = stream.model_copy(update={"input": 16, "output": 50, "jitter": 0.4})
    settings = EngineSettings(prefix_caching=engine == "full")
    if engine == "full":
        traffic = traffic.model_copy(update={"shared_prefix": 8})
    service = Service(StepTable.affine(base=0.1), KvPool(10**6), settings)
    outcome = simulate(service, traffic, requests=6000, seed=5, options=SimulationOptions(keep=True))
    rows = outcome.requests
    order = np.argsort(rows["arrival"])
    arrival, output = rows["arrival"][order], rows["output_tokens"][order]
    # steps that take as long whoever is there: each stays as long as its answer is long, the mean one 4 s
    there = [int(np.sum((arrival[:i] + 4.0 * output[:i] / output.mean()) > arrival[i])) for i in range(500, 6000)]
    mean, crest, pressed = np.exp(InFlight(traffic, 2.0, 4.0, 6000, 500, 700.0, 10).foreseen(5))
    assert mean * 2.0 * 4.0 == pytest.approx(np.mean(there), rel=1e-3)
    # whoever is there beside a request at some time of its stay, for as long as they are there together
    stays = 4.0 * output / output.mean()
    ends, beside = arrival + stays, []
    for start, end, stay in zip(arrival[500:], ends[500:], stays[500:], strict=True):
        together = np.minimum(ends, end) - np.maximum(arrival, start)
        beside.append(together[together > 0].sum() / stay)
    assert crest * 2.0 * 4.0 == pytest.approx(np.sort(beside)[int(0.95 * len(beside))], rel=1e-3)
    # prompts and what was written of all who are there when one ends, itself among them
    prompts, held = rows["input_tokens"][order], []
    for end in ends[500:]:
        here = (arrival < end) & (ends >= end)
        held.append(np.sum(prompts[here] + output.mean() / 4.0 * (end - arrival[here])))
    assert pressed == pytest.approx(np.mean(np.exp(np.minimum((np.array(held) / 700.0 - 1.0) / 0.1, 0.0))), rel=1e-3)
    assert 0.01 < pressed < 0.99


def test_as_many_are_there_as_littles_law_says_and_more_in_bursts():
    usual = [np.exp(InFlight(stream, 2.0, 5.0, 8000, 500).usual) for stream in STREAMS]
    assert usual[0][0] == pytest.approx(1.0, rel=0.01)
    assert usual[2][0] > usual[1][0] > 1.05
    # of Poisson's streams ten are there in the mean, and one in 20 finds 14 beside it over its stay
    assert usual[2][1] > usual[1][1] > 1.1 * usual[0][1] > 1.1 * usual[0][0]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.kind)
def test_counts_scatter_as_the_index_of_dispersion_says(stream):
    counts = []
    for seed in range(60):
        times = arrival_times(stream, np.random.default_rng(seed))(12_000)
        counts += np.histogram(times, np.arange(0.0, times[-1] - 400.0, 400.0))[0].tolist()
    # variance over mean of how many come in 400 s, of some hundred such times
    assert np.var(counts) / np.mean(counts) == pytest.approx(dispersion(stream), rel=0.2)


def test_more_is_judged_of_bursts_but_no_more_than_is_drawn_at_once():
    judged = [enough(stream, 2.0) for stream in STREAMS]
    assert judged[0] == 1500 and judged[1] == 3000 and judged[2] > judged[1]
    wild = enough(Traffic(kind="onoff", rate=1.0, on=10.0, off=300.0), 50.0)
    assert wild < CHUNK < 1.2 * wild
    assert enough(Traffic(kind="closed", users=4), 2.0) == 1500


def test_what_is_over_the_usual_is_told_as_the_load_at_which_it_is_usual():
    stream = Traffic(kind="poisson", rate=1.0, input=300, output=100)
    here, more = (InFlight(stream, rate, 5.0, 4000, 500, 6000.0) for rate in (2.0, 2.1))
    # under 5 % more load the same arrivals come sooner by as much
    assert (here.usual - more.usual)[2] < -0.1
    over = np.array([here.over(seed) for seed in range(40)])
    assert np.abs(over.mean(axis=0)).max() < 0.02
    assert np.corrcoef(over[:, 1], over[:, 2])[0, 1] > 0.5
    np.testing.assert_allclose(np.cov(over, rowvar=False), here.spread, rtol=1.0)
    risen = (more.usual[2] - here.usual[2]) / np.log(2.1 / 2.0)
    assert here.rise[0] == pytest.approx(1.0, abs=0.05)
    assert here.rise[2] == pytest.approx(risen, rel=0.1)


@pytest.mark.parametrize("weights", [(-1.0, 0.0), (-0.3, -0.7)])
@pytest.mark.parametrize("crowds", [0.03, 0.12, 0.3])
@pytest.mark.parametrize("breaks", [MEANS, PERCENTILES, POOL])
def test_chance_that_is_known_is_taken_out_and_counted_as_chance(weights, crowds, breaks):
    generator, told = np.random.default_rng(3), list(breaks.statistics)
    spread = crowds**2 * np.array([[1.0, 0.8, 0.6], [0.8, 1.5, 0.8], [0.6, 0.8, 1.0]])
    means, plain, chances, errors = [], [], [], []
    for _ in range(300):
        edges = DrawnEdges(spread, breaks)
        for _ in range(12):
            over = generator.multivariate_normal(np.zeros(3), spread)
            edges.add(5.0 * math.exp(weights @ over[told] + generator.normal(0.0, 0.02)), over)
        means.append(edges.mean)
        plain.append(np.mean(edges.logs))
        chances.append(edges.chance)
        errors.append(edges.error)
    assert np.mean(means) == pytest.approx(math.log(5.0), abs=0.002)
    assert np.std(means) < 0.8 * np.std(plain)
    # the error that ends a search is the one that seeds differ by
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.25)
    known = np.array(weights) @ spread[np.ix_(told, told)] @ weights
    assert np.mean(chances) == pytest.approx(0.02**2 + known, rel=0.25)


def test_a_draw_breaks_where_the_others_say_of_as_many():
    edges = DrawnEdges(0.01 * np.eye(3))
    for over in (-0.2, -0.1, 0.1, 0.2):
        edges.add(math.exp(-over), np.full(3, over))
    assert edges.guess(np.full(3, 0.15)) == pytest.approx(math.exp(-0.15), rel=1e-9)
