"""Seeds of one question share no random stream with those of another."""

from __future__ import annotations

from glmplan.simulation import safe_load as ranges
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.load_search import BORDER, LoadSearch
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

SERVICE = Service(StepTable.affine(base=0.01), KvPool(10**6), EngineSettings())


def test_no_two_seeds_share_an_arrival_sample():
    """129 samples of the service at the 95 % level and 3 of each of 20 others, of neighbouring seeds."""
    wanted = [(BORDER, draw) for draw in range(129)] + [(which, draw) for which in range(20) for draw in range(3)]
    found = []
    for seed in (0, 1, 2, 1000):
        search = LoadSearch([SERVICE], parse_traffic("poisson:1/s"), parse_slo("ttft p95 < 1 s"), 1.0, seed)
        found += [search._seed(which, draw) for which, draw in wanted]
    assert len(set(found)) == len(found) == 4 * len(wanted)


def test_ranges_of_far_seeds_share_no_sample(monkeypatch):
    taken: list[int] = []

    def noted(*args, seed: int, **more):
        taken.append(seed)
        return simulate(*args, seed=seed, **more)

    traffic = parse_traffic("closed:1", input=10, output=5)
    summary = simulate(SERVICE, traffic, requests=2).summary
    monkeypatch.setattr(ranges, "simulate", noted)
    for seed in (0, 1, 7919, 15838):
        ranges.outcome_range(SERVICE, traffic, summary, ranges.Uncertainty(), ranges.RunSize(2, seed=seed))
    assert len(set(taken)) == len(taken) == 76
