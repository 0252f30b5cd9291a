"""Where one service breaks: curves whose end is known by arithmetic, and how few loads are tried."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from glmplan.simulation.load_search import EdgeSearch
from glmplan.simulation.load_trial import Trial


class Service:
    """Answers with a worst statistic over its bound that is a function of the load."""

    def __init__(
        self,
        value: Callable[[float], float],
        jump: float = math.inf,
        full: float = math.inf,
        target: str = "tpot mean < 1 s",
    ) -> None:
        self.value, self.jump, self.full, self.target = value, jump, full, target
        self.tried: list[float] = []

    def __call__(self, load: float) -> Trial:
        self.tried.append(load)
        if load >= self.full:
            return Trial(load, math.log(load / self.full) + 0.01, "overload", {})
        if load > self.jump:
            return Trial(load, 0.5, "kv thrash", {})
        margin = math.log(self.value(load))
        broken = self.target if margin > 0 else ""
        return Trial(load, margin, broken, {}, self.target, {self.target: margin})

    def search(self, whole: bool = False, limit: float = 1e6) -> EdgeSearch:
        return EdgeSearch(self, limit, whole, self.full)


@pytest.mark.parametrize("guess", [0.01, 1.0, 30.0, 4000.0])
@pytest.mark.parametrize(
    ("value", "end"),
    [
        (lambda load: 0.3 + 0.02 * load, 35.0),
        (lambda load: 0.1 * math.exp(0.05 * load) if load < 400 else 1e8, 20 * math.log(10)),
        (lambda load: 0.2 / max(1 - load / 100, 1e-6), 80.0),
        (lambda load: 0.9 + 0.001 * load**2, 10.0),
    ],
)
def test_a_smooth_curve_is_followed_to_its_end_in_few_steps(value, end, guess):
    service = Service(value)
    assert service.search().find(guess) == pytest.approx(end, rel=0.006)
    assert len(service.tried) <= 16


def test_a_line_from_a_good_guess_needs_one_load_where_its_slope_is_foretold():
    service = Service(lambda load: math.exp(0.02 * (load - 35.0)))
    search = service.search()
    search.rise, search.near = {service.target: 0.02}, 0.03
    assert search.find(34.5) == pytest.approx(35.0)
    assert service.tried == [34.5]


@pytest.mark.parametrize("guess", [50.0, 70.0, 95.0])
def test_a_queue_whose_capacity_is_known_is_found_with_two_loads(guess):
    # M/M/1: all times are those of one alone over the share of the capacity that is left
    service = Service(lambda load: 0.2 / (1 - load / 100), full=100.0, target="ttft p95 < 1 s")
    assert service.search().find(guess) == pytest.approx(80.0, rel=1e-3)
    # four times the bound tells of no other load but through the capacity
    assert len(service.tried) == (2 if guess < 90 else 3)


@pytest.mark.parametrize("onset", [4.02, 4.11, 4.19])
def test_no_line_is_believed_to_where_a_queue_begins_to_grow(onset):
    """Waits grow slowly until then and at once many times over: the load is bracketed, and lies midway in the mean."""
    service = Service(lambda load: 0.75 + 0.1 * (load - 3.5) if load < onset else 8.0, target="ttft p95 < 1 s")
    search = service.search()
    # a line through loads on both sides, as another draw has seen it, would end just above the first try
    search.rise, search.near, search.close, search.stride = {"ttft p95 < 1 s": 15.0}, 0.08, 0.041, 1.04
    assert search.find(4.0) == pytest.approx(onset, rel=0.03)
    low, high = search.low, search.high
    assert low is not None and high is not None and low.load < onset < high.load


@pytest.mark.parametrize("whole", [False, True])
def test_what_breaks_at_once_is_bracketed(whole):
    service = Service(lambda load: 0.1, jump=77.7)
    found = service.search(whole).find(5.0)
    assert 77.0 <= found <= 78.0 if whole else found == pytest.approx(77.7, rel=0.01)
    assert any(load <= 77.7 for load in service.tried) and any(load > 77.7 for load in service.tried)


def test_users_are_whole_and_the_last_who_is_kept_stands_beside_the_first_who_is_not():
    service = Service(lambda load: 0.3 + 0.02 * load)
    found = service.search(whole=True).find(1.0)
    assert 35.0 <= found < 36.0
    assert {35.0, 36.0} <= set(service.tried) and all(load == round(load) for load in service.tried)


def test_what_is_served_at_most_ends_a_search_whose_promise_never_breaks():
    service = Service(lambda load: 0.1, full=12.0)
    assert service.search().find(3.0) == pytest.approx(12.0, rel=0.01)
    # no load above it is looked at but the one that says so
    assert [load for load in service.tried if load >= 12.0] == [12.0]


@pytest.mark.parametrize("whole", [False, True])
def test_a_promise_that_no_load_keeps_is_seen_at_the_least(whole):
    service = Service(lambda load: 1.2 + 0.1 * load)
    assert service.search(whole).find(64.0) == 0.0
    assert len(service.tried) <= 4


@pytest.mark.parametrize("whole", [False, True])
def test_a_limit_that_is_kept_is_the_answer(whole):
    service = Service(lambda load: 0.001 * load)
    assert service.search(whole, limit=50.0).find(1.0) == 50.0


def test_preemptions_tell_of_loads_nearby_as_long_as_there_are_some():
    """Ten per cent more load, ten times more preemptions: a logarithm is straight, a share is not."""
    tried: list[float] = []

    def at(load: float) -> Trial:
        tried.append(load)
        thrash = math.log(10) * (load - 50.0) / 5.0
        margins = {"kv thrash": thrash, "tpot mean < 1 s": math.log(0.5)}
        nearest = max(margins, key=lambda name: margins[name])
        return Trial(load, margins[nearest], "kv thrash" if thrash > 0 else "", {}, nearest, margins)

    search = EdgeSearch(at, 1e6, False)
    assert search.find(20.0) == pytest.approx(50.0, rel=0.006)
    again = EdgeSearch(at, 1e6, False, rise=search.slopes(), near=0.03)
    before = len(tried)
    assert again.find(49.0) == pytest.approx(50.0, rel=0.002) and len(tried) == before + 1
    # a slope of the promise says nothing of preemptions: the load is bracketed
    other = EdgeSearch(at, 1e6, False, rise={"tpot mean < 1 s": 0.02}, near=0.03)
    assert other.find(49.0) == pytest.approx(50.0, rel=0.01) and len(tried) > before + 2


def test_what_breaks_first_may_be_another_target_than_the_one_that_comes_nearest():
    """First tokens grow slowly and then at once: at a load that both keep, the slower one is nearer to its bound."""
    tried: list[float] = []

    def at(load: float) -> Trial:
        tried.append(load)
        margins = {"tpot mean < 1 s": 0.02 * (load - 40.0), "ttft mean < 1 s": 0.5 * (load - 35.5)}
        nearest = max(margins, key=lambda name: margins[name])
        margin = margins[nearest]
        return Trial(load, margin, nearest if margin > 0 else "", {}, nearest, margins)

    search = EdgeSearch(at, 1e6, False)
    assert search.find(20.0) == pytest.approx(35.5, rel=0.006)
    slopes = search.slopes()
    assert slopes["ttft mean < 1 s"] == pytest.approx(0.5) and slopes["tpot mean < 1 s"] == pytest.approx(0.02)
    # near the bound, and once some draws have told how it rises there, a line is believed
    others = [[at(34.0), at(35.6)] for _ in range(6)]
    again = EdgeSearch(at, 1e6, False, rise=slopes, others=others, near=0.03)
    before = len(tried)
    assert again.find(35.42) == pytest.approx(35.5) and len(tried) == before + 1
    unknown = EdgeSearch(at, 1e6, False, rise=slopes, others=others[:2], near=0.03)
    assert unknown.find(35.42) == pytest.approx(35.5, rel=1e-3) and len(tried) > before + 2


def test_a_load_that_is_known_to_be_near_is_not_looked_for_at_the_least():
    """Chance may give a line so flat that no load at all seems to be kept."""
    tried: list[float] = []

    def at(load: float) -> Trial:
        tried.append(load)
        margin = 0.01 * (load - 9.5) if load > 9.5 else -0.3
        return Trial(
            load, margin, "tpot mean < 1 s" if margin > 0 else "", {}, "tpot mean < 1 s", {"tpot mean < 1 s": margin}
        )

    search = EdgeSearch(at, 1e6, False, full=20.0, rise={"tpot mean < 1 s": 1e-4}, close=0.041, stride=1.04)
    assert search.find(10.0) == pytest.approx(9.5, rel=0.05)
    assert min(tried) > 5.0


def test_where_other_draws_ran_out_of_room_no_line_of_another_target_is_believed_from_afar():
    """Preemptions come at once: a time that is still kept says nothing of them."""

    def at(load: float) -> Trial:
        margin = 0.02 * (load - 50.0)
        if load > 46.0:
            return Trial(load, 2.0, "kv thrash", {}, "kv thrash", {"tpot mean < 1 s": margin, "kv thrash": 2.0})
        return Trial(load, margin, "", {}, "tpot mean < 1 s", {"tpot mean < 1 s": margin})

    alone = EdgeSearch(at, 1e6, False, rise={"tpot mean < 1 s": 0.02}, near=0.1, close=0.041, stride=1.04)
    assert alone.find(45.5) == pytest.approx(50.0)
    told = EdgeSearch(at, 1e6, False, rise=alone.rise, others=[[at(47.0)]], near=0.1, close=0.041, stride=1.04)
    assert told.find(45.5) == pytest.approx(46.0, rel=0.03) and told.breaks == "kv thrash"
