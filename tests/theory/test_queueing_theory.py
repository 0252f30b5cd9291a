"""The simulator against queueing theory where a step time makes theory exact; bounds are statistical."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import Traffic
from tests.theory.queueing import erlang_c, mean_wait, processor_sharing_time, wait_quantile

# One token of the answer takes a fiftieth of a second whatever else runs: as many servers as max_num_seqs, and the
# service time is the length of the answer. The prompt is one token, so the first step is like the others.
STEP = 0.02
SERVERS_TABLE = StepTable.affine(base=STEP)


def _run(table, seqs, rate, outputs, seed):
    generator = np.random.default_rng(seed)
    arrivals = generator.exponential(1 / rate, len(outputs)).cumsum()
    made = [Request(i, float(a), 1, int(o)) for i, (a, o) in enumerate(zip(arrivals, outputs, strict=True))]
    settings = EngineSettings(max_num_seqs=seqs, max_num_batched_tokens=8192)
    done = sorted(Cluster(table, KvPool(10**8), settings).run(made), key=lambda r: r.number)
    return done[len(done) // 10 :]


def _mean_and_error(values, batches=30):
    """Mean, and its standard error from batch means: neighbours in a queue are not independent."""
    means = np.array([part.mean() for part in np.array_split(np.array(values), batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)


def _agrees(values, expected, extra=0.0):
    mean, error = _mean_and_error(values)
    assert abs(mean - expected) < 4 * error + extra, (mean, expected, error)
    assert error < 0.1 * expected


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_with_exponential_service_waits_as_in_m_m_1(load):
    steps = 100
    outputs = np.random.default_rng(1).geometric(1 / steps, 60_000)
    done = _run(SERVERS_TABLE, 1, load / (steps * STEP), outputs, 2)
    # geometric answers: cv² = 1 − 1/steps. An arrival waits up to one step for the step under way (half on average).
    service, cv = steps * STEP, np.sqrt(1 - 1 / steps)
    expected = mean_wait(rate=load / service, service=service, service_cv=cv)
    _agrees([r.started - r.arrival for r in done], float(expected), extra=STEP)


@pytest.mark.parametrize("load", [0.5, 0.85])
def test_one_server_with_equal_service_waits_as_in_m_d_1(load):
    done = _run(SERVERS_TABLE, 1, load / (100 * STEP), np.full(40_000, 100), 3)
    expected = mean_wait(rate=load / (100 * STEP), service=100 * STEP, service_cv=0.0)
    assert expected == pytest.approx(load * 2.0 / (2 * (1 - load)))
    _agrees([r.started - r.arrival for r in done], float(expected), extra=STEP)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.8), (16, 0.9)])
def test_many_servers_wait_as_erlang_c_says(servers, load):
    steps = 100
    outputs = np.random.default_rng(4).geometric(1 / steps, 120_000)
    service = steps * STEP
    rate = load * servers / service
    done = _run(SERVERS_TABLE, servers, rate, outputs, 5)
    waits = np.array([r.started - r.arrival for r in done])
    _agrees(waits, float(mean_wait(rate=rate, service=service, servers=servers)), extra=STEP)
    # who waits longer than a step found all servers busy
    late, error = _mean_and_error(waits > STEP)
    assert abs(late - float(erlang_c(load=rate * service, servers=servers))) < 4 * error + 0.03


def test_a_step_time_proportional_to_the_batch_is_processor_sharing():
    # each step gives one token to each of n requests and takes n times as long: capacity is shared equally
    token, steps, load = 1e-3, 200, 0.7
    table = StepTable.affine(base=0.0, per_request=token, per_prefill_token=token, max_requests=512)
    generator = np.random.default_rng(6)
    for outputs in (generator.geometric(1 / steps, 60_000), np.full(60_000, steps)):
        rate = load / (steps * token)
        done = _run(table, 512, rate, outputs, 7)
        expected = processor_sharing_time(rate=np.array(rate), service=np.array(steps * token))
        # the mean does not depend on the distribution of the service time; tokens are whole, hence the margin
        _agrees([r.finish - r.arrival for r in done], float(expected), extra=0.02 * float(expected))


@pytest.mark.parametrize("kind", ["poisson", "gamma", "onoff"])
def test_littles_law_holds(kind):
    service = Service(
        StepTable.affine(base=0.01, per_request=1e-4, per_prefill_token=1e-5), KvPool(10**6), EngineSettings()
    )
    traffic = Traffic(kind=kind, rate=6.0, input=300, output=200, output_cv=1.0)
    outcome = simulate(service, traffic, requests=20_000, options=SimulationOptions(timeline=True))
    # requests in the batch, averaged over the whole time, against throughput times time spent decoding
    _, steps, seconds, slope, n, *_ = outcome.timeline
    span = steps * (seconds + slope * (steps - 1) / 2)
    decoding = (outcome.summary["e2e_mean_ms"] - outcome.summary["ttft_mean_ms"]) / 1000
    expected = outcome.summary["requests_per_s"] * decoding
    assert float(n @ span) / outcome.summary["duration_s"] == pytest.approx(expected, rel=1e-6)


def test_erlang_c_has_its_textbook_values():
    # Kleinrock, vol. 1: one server waits with probability rho; two servers 2 rho² / (1 + rho)
    loads = np.array([0.2, 0.5, 0.9])
    np.testing.assert_allclose(erlang_c(load=loads, servers=np.array(1)), loads)
    np.testing.assert_allclose(erlang_c(load=2 * loads, servers=np.array(2)), 2 * loads**2 / (1 + loads))
    assert erlang_c(load=np.array(3.0), servers=np.array(2)) == 1


def test_the_quantile_of_the_wait_inverts_the_tail():
    rate, service = np.array(0.8), np.array(1.0)
    quantile = wait_quantile(rate=rate, service=service, percent=95)
    assert 0.8 * np.exp(-(1 - 0.8) * quantile) == pytest.approx(0.05)
    assert wait_quantile(rate=np.array(2.0), service=service, percent=95) == np.inf


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma", 3.0)])
def test_gaps_between_arrivals_have_the_variation_asked_for(kind, cv):
    traffic = Traffic(kind=kind, rate=2.0, cv=cv)
    arrivals = [r.arrival for r in request_source(traffic, 100_000, np.random.default_rng(0)).arrivals]
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(0.5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_bursts_and_days_keep_their_mean_rate():
    for traffic in (
        Traffic(kind="onoff", rate=2.0, on=5, off=15),
        Traffic(kind="daily", rate=2.0),
    ):
        arrivals = [r.arrival for r in request_source(traffic, 400_000, np.random.default_rng(0)).arrivals]
        assert len(arrivals) / arrivals[-1] == pytest.approx(2.0, rel=0.06)
        assert arrivals == sorted(arrivals)
    two_days = np.array(arrivals)[np.array(arrivals) < 2 * 86_400]
    hours = np.bincount((two_days % 86_400 // 3600).astype(int), minlength=24)
    assert np.corrcoef(hours, traffic.profile)[0, 1] > 0.99
