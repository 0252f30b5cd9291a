"""Data-parallel ranks: a lone request costs the same in closed and in open traffic; loads between against theory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import FewRanks, Service, busy_ranks, simulate
from glmplan.simulation.traffic.spec import parse_traffic

RANKS = 8
FEW = FewRanks(RANKS, lambda busy: StepTable.affine(base=0.010 + 0.001 * busy, per_prefill_token=1e-5 * busy))


def _service(servers: int = 1) -> Service:
    return Service(FEW.at(RANKS), KvPool(10**6), EngineSettings(replicas=servers * RANKS), few=FEW)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "text",
    ["poisson:1e-4/s", "gamma:1e-4/s,cv=0.5", "sessions:1,turns=2,tool_wait=900 s", "closed:1,think=900 s", "trace"],
)
def test_a_lone_request_costs_the_same_in_every_kind_of_traffic(text, servers, tmp_path):
    """One rank computes a prompt of 1000 tokens in 11 + 10 ms, and a token in 11 ms; eight need 18 + 80 and 18 ms."""
    if text == "trace":
        (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1000,101\n500,1000,101\n")
        text = f"trace:{tmp_path / 't.csv'}"
    traffic = parse_traffic(text, **({} if text.startswith("trace") else {"input": 1000, "output": 101}))
    found = simulate(_service(servers), traffic, requests=20).summary
    alone = simulate(_service(servers), parse_traffic("closed:1", input=1000, output=101), requests=20).summary
    assert alone["tpot_mean_ms"] == pytest.approx(11.0)
    assert found["tpot_mean_ms"] == pytest.approx(alone["tpot_mean_ms"], rel=2e-3)
    if not text.startswith("sessions"):  # whose later turns have longer prompts
        assert found["ttft_mean_ms"] == pytest.approx(alone["ttft_mean_ms"], rel=5e-3)


@pytest.mark.parametrize("rate", [0.5, 1.5, 3.0])
def test_ranks_at_work_follow_littles_law(rate):
    """A request finds λT others in flight, and stays as long as a step of so many ranks takes, 100 times."""
    busy = busy_ranks(_service(), parse_traffic(f"poisson:{rate}/s", input=1, output=101))
    # busy = 1 + rate * 100 * (0.010 + 0.001 busy), of Poisson arrivals hardly ever all eight
    expected = (1 + rate) / (1 - 0.1 * rate)
    assert busy == pytest.approx(expected, rel=0.1)


def test_all_ranks_work_where_more_requests_than_ranks_are_in_flight():
    traffic = parse_traffic("poisson:40/s", input=1, output=101)
    assert busy_ranks(_service(), traffic) > 0.97 * RANKS
    assert simulate(_service(), traffic, requests=400).summary["tpot_mean_ms"] == pytest.approx(18.0, rel=0.02)


@pytest.mark.parametrize("output", [256, 100, 31])
def test_a_lone_session_has_no_less_than_its_own_rank_at_work(output):
    """The difference of long sums was 1 - 4e-13 ranks: the time of a step of no rank is not a number."""
    service = Service(FEW.at(RANKS), KvPool(10**7), EngineSettings(replicas=RANKS), few=FEW)
    few = replace(FEW, table=lambda busy: FEW.table(busy) if busy >= 1 else pytest.fail("no rank is at work"))
    traffic = parse_traffic("sessions:1,start=1000,turns=30", input=1024, output=output)
    assert busy_ranks(replace(service, few=few), traffic) == pytest.approx(1.0, abs=1e-9)
