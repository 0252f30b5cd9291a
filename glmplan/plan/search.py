"""The search: layouts, walls, memory, speed, and the cache format where it was left open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glmplan.facts.engines.walls import load_engine
from glmplan.facts.formats import kv_format
from glmplan.plan.capacity import Holding, Ranks
from glmplan.plan.engine_limits import Obstacles, Terms
from glmplan.plan.layouts import layouts, servers_of
from glmplan.plan.question import Asked
from glmplan.plan.ranking import Scored, rank_layouts, speed_known
from glmplan.plan.safe_number import safe_number
from glmplan.prediction.deployment import cache_choice

__all__ = ["Solution", "solve"]


@dataclass(frozen=True, slots=True)
class Solution:
    """All layouts of a question, the best first.

    Attributes
    ----------
    asked : Asked
        The question.
    ranked : tuple of Scored
        Layouts, the chosen one first.
    left_out : tuple of str
        Layouts that were not looked at, and why.
    kv_why : str
        Why the cache has its format.
    options : frozenset of str
        What is switched on or patched.
    """

    asked: Asked
    ranked: tuple[Scored, ...]
    left_out: tuple[str, ...]
    kv_why: str
    options: frozenset[str] = frozenset()

    @property
    def best(self) -> Holding:
        """The chosen layout."""
        return self.ranked[0].holding

    @property
    def speed_known(self) -> bool:
        """Whether the bandwidth of the part is published and its speed can be computed."""
        return speed_known(self.asked)


def solve(asked: Asked, *, options: frozenset[str] = frozenset(), quick: bool = False, sole: bool = False) -> Solution:
    """Find the best layout.

    Parameters
    ----------
    asked : Asked
        The question.
    options : frozenset of str, optional
        Keys of `glmplan.facts.engines.options.OPTIONS` that hold.
    quick : bool, optional
        Leave out layouts that do not fit as long as any does.
    sole : bool, optional
        Leave out layouts that cannot be the best.

    Returns
    -------
    Solution
        All layouts, ranked.

    Raises
    ------
    UnknownFact
        If the memory of the part is not published.

    Examples
    --------
    >>> from glmplan.plan.question import Words, read_words
    >>> solve(read_words(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))).best.terms.name
    'TP2×PP3'
    """
    obstacles = Obstacles(asked, options)
    found, left_out = layouts(asked)
    ranks = Ranks(asked, found)
    chosen = cache_choice(asked.checkpoint, asked.engine, model=asked.model, accelerator=asked.machine.accelerator)
    preferred, kv_why = (asked.kv, "asked for") if asked.kv else chosen
    ranked = _ranked(asked, obstacles, ranks, preferred, quick, sole)
    smaller = load_engine(asked.engine).small_cache(asked.machine.accelerator)
    saves = smaller and kv_format(smaller).bytes < kv_format(preferred).bytes
    if asked.kv is None and saves and ranked[0].holding.verdict != "fits":
        other = _ranked(asked, obstacles, ranks, smaller, quick, sole)
        if _is_better(other[0], ranked[0]):
            ranked, kv_why, preferred = other, f"{preferred.upper()} does not hold what was asked", smaller
    if (terms := ranked[0].holding.terms).kv != preferred:
        forced = next((wall.title for wall in terms.walls if wall.instead.kv == terms.kv), "a limit of the engine")
        kv_why = f"{preferred.upper()} does not run here: {forced}"
    return Solution(asked, tuple(ranked), tuple(left_out), kv_why, options)


def _ranked(asked: Asked, obstacles: Obstacles, ranks: Ranks, kv: str, quick: bool, sole: bool) -> list[Scored]:
    wanted = [obstacles.wanted(layout, kv, servers_of(asked, layout)) for layout in ranks.found]
    if quick:
        # graphs and draft layers take memory: looked at without them, no layout is lost that fits in the end
        light = [ranks.hold(replace(terms, graphs=False, mtp=0)) for terms in wanted]
        wanted = [terms for terms, one in zip(wanted, light, strict=True) if one.lacking <= 0] or wanted[:1]
    settled: dict[str, Terms] = {}
    for terms in wanted:
        terms = obstacles.settle(terms, mtp_given=asked.mtp > 0, ep_given=asked.ep is not None)
        settled.setdefault(terms.name, terms)
    holdings = [ranks.hold(terms) for terms in settled.values()]
    return rank_layouts(asked, holdings, sole=sole, safe=lambda one: safe_number(asked, one)[0].users)


def _is_better(other: Scored, first: Scored) -> bool:
    classes = {"fits": 0, "tight": 1, "does_not_fit": 2}
    before, after = classes[first.holding.verdict], classes[other.holding.verdict]
    return after < before or (after == before < 2 and other.holding.held_low > first.holding.held_low)
