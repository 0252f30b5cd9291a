"""Servers of their own for prompts, where that serves a question better: which numbers of them are worth trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.errors import GlmplanError
from glmplan.facts.engines.walls import load_engine
from glmplan.plan.capacity import Holding
from glmplan.plan.disaggregation import check_apart
from glmplan.plan.ranking import deployment_of, load_of
from glmplan.prediction.predict import predict_many

if TYPE_CHECKING:
    from glmplan.plan.question import Asked
    from glmplan.plan.search import Solution
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load

__all__ = ["Split", "splits_of"]

#: layouts that are looked at, the best of the plan first; splits that are tried, those that may gain the most [-]
_LAYOUTS, _TRIED = 8, 2


@dataclass(frozen=True, slots=True)
class Split:
    """Servers of one layout, some for prompts and some for decoding.

    Attributes
    ----------
    holding : Holding
        The layout of each server.
    prefill, decode : int
        Servers of each kind, [-]
    answer : float
        How soon a whole answer may come at best: decoding beside no prompt, waiting left out, [s]
    """

    holding: Holding
    prefill: int
    decode: int
    answer: float

    def asked(self, asked: Asked) -> Asked:
        """The question with these servers.

        Parameters
        ----------
        asked : Asked
            The question.

        Returns
        -------
        Asked
            As the words of `ask` say it.
        """
        terms = self.holding.terms
        degrees = {name: getattr(terms, name) for name in ("tp", "pp", "dp")}
        more = {name: getattr(terms, name) if getattr(terms, name) > 1 else None for name in ("ep", "dcp")}
        return asked.but(**degrees, **more, replicas=self.prefill + self.decode, prefill=self.prefill)

    @property
    def ask(self) -> str:
        """The words that ask for it."""
        terms = self.holding.terms
        words = [f"--tp {terms.tp} --pp {terms.pp} --dp {terms.dp}"]
        words += [f"--{name} {getattr(terms, name)}" for name in ("ep", "dcp") if getattr(terms, name) > 1]
        return " ".join([*words, f"--disaggregated {self.prefill}:{self.decode}"])

    @property
    def what(self) -> str:
        """The change in words."""
        servers = f"{self.prefill} of {self.prefill + self.decode} servers for prompts alone"
        return f"{servers}, the others decode (not measured together)"


def splits_of(solution: Solution, users: float) -> list[Split]:
    """Numbers of servers for prompts and for decoding that may serve better, the soonest answers first.

    Parameters
    ----------
    solution : Solution
        The plan.
    users : float
        Requests in flight, [-]

    Returns
    -------
    list of Split
        Few; empty where the engine has no such servers, prompts and decoding have them already, or a machine has room
        for one server only.

    Notes
    -----
    Of each layout that fits as many servers as fill the machine are taken. Prompts get the share of the servers that
    they have of the time of a request: that of one prompt beside that of its further tokens in a step with as many
    others as the server has, both of the function that times every step. Servers of both kinds have the same layout,
    without pipeline stages: of those no source that was read says how they are handed over.
    """
    asked = solution.asked
    running = load_engine(asked.engine).running
    fixed = any(getattr(asked, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas"))
    if running is None or running.apart is None or fixed or asked.machine.count < 2 or asked.output_tokens < 2:
        return []
    try:
        check_apart(asked.but(prefill=1, replicas=2))
        found = _splits(asked, list(_candidates(solution)), users)
    except GlmplanError:
        return []
    return sorted(found, key=lambda one: one.answer)[:_TRIED]


def _candidates(solution: Solution) -> Iterator[tuple[Holding, int]]:
    """Layouts that fit, each once, with the servers that fill the machine."""
    asked = solution.asked
    seen: set[tuple[int, ...]] = set()
    for one in solution.ranked:
        terms = one.holding.terms
        if not one.alone or one.holding.verdict != "fits" or terms.layout in seen or terms.pp > 1:
            continue
        seen.add(terms.layout)
        domain = min(asked.machine.per_node, asked.machine.count)
        if terms.server > domain or domain % terms.server or asked.machine.count % domain:
            continue  # cards would stay idle, or a server span two machines
        servers = asked.machine.count // terms.server
        if servers >= 2:
            yield one.holding, servers
        if len(seen) == _LAYOUTS:
            return


def _splits(asked: Asked, candidates: list[tuple[Holding, int]], users: float) -> list[Split]:
    """How many of the servers of each layout are for prompts, and what that may come to."""

    def decoding(place: int, servers: int) -> tuple[Deployment, Load, None]:
        each = max(round(users / servers), 1)
        return deployments[place], load_of(asked, deployments[place], pools[place], each).decoding(), None

    if not candidates:
        return []
    deployments = [deployment_of(asked, one.terms) for one, _ in candidates]
    pools = [one.pool / one.terms.decoding for one, _ in candidates]
    rows = [(one, load_of(asked, one, pool, 1), None) for one, pool in zip(deployments, pools, strict=True)]
    both = predict_many([*rows, *(decoding(place, servers) for place, (_, servers) in enumerate(candidates))])
    kept: list[tuple[int, int, int, float]] = []
    for place, (holding, servers) in enumerate(candidates):
        first, later = both[place].figures.get("ttft"), both[len(candidates) + place].figures.get("tpot")
        if first is None or later is None:
            continue
        further = (asked.output_tokens - 1) * later.value / max(users / servers, 1.0)
        prefill = min(max(round(servers * first.value / (first.value + further)), 1), servers - 1)
        held = holding.held_low / holding.terms.decoding * (servers - prefill)
        # the servers that decode must hold them
        if held * asked.user_tokens / asked.request_tokens >= users:
            kept.append((place, prefill, servers - prefill, first.value))
    times = predict_many([decoding(place, decode) for place, _, decode, _ in kept]) if kept else []
    return [
        Split(candidates[place][0], prefill, decode, prompt + (asked.output_tokens - 1) * one.figures["tpot"].value)
        for (place, prefill, decode, prompt), one in zip(kept, times, strict=True)
    ]
