"""Answer records in base units, which reports turn into text and tables."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glmplan.catalog.tables import chosen_table, frame_of
from glmplan.costs.memory.pool import MemoryBudget
from glmplan.io.runs.columns import FIGURES
from glmplan.planner.capacity import Holding
from glmplan.planner.pool import memory_rows
from glmplan.planner.question import Asked
from glmplan.planner.ranking import Narrowing, shown_users
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.distribution import EXPECTED, PROBABILITIES, SURE
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.predict import Figure
from glmplan.units import Ratio, counted_unit, number

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "LEAST_GAIN",
    "AnswerRecord",
    "Change",
    "Limit",
    "Reply",
    "RunnerUp",
    "Safe",
    "TrafficRun",
    "UserRow",
    "Warn",
    "as_well_known",
    "best_changes",
    "evidence_words",
    "gain_of",
    "gain_words",
    "user_rows",
    "worth_telling",
]


@dataclass(frozen=True, slots=True, repr=False)
class UserRow:
    """Predicted metrics at one concurrency."""

    users: int  # concurrent users, each sending its next request after the last answer, [-]
    running: int  # running requests; the others wait, [-]
    ttft: Figure | None  # TTFT with waiting, [s]; None if no matrix rate of the accelerator is published
    tpot: Figure | None  # TPOT, [s]; None for answers of a single token
    user_rate: Figure | None  # decode speed of one user, 1/TPOT, [token/s]; None as above
    total_rate: Figure  # total throughput, [token/s]
    context: int  # longest request that every user may have at the same time, mean pool, [token]
    outside: str  # extrapolations beyond the measured range; empty if none
    shares: dict[str, float]  # shares of the decode step by component, [-]
    simulated: bool = False  # True if the simulator ran, because the pool does not hold so many requests
    preempted: float = 0.0  # preemptions per request in a simulated row, [-]

    def __repr__(self) -> str:
        first = "" if self.ttft is None else f", TTFT {self.ttft.value:.4g} s"
        return f"<UserRow {self.users} users: {self.total_rate.value:.4g} tok/s in all{first}>"

    @property
    def each_rate(self) -> Figure:
        """Throughput per user, prompts and waiting included, [token/s]"""
        return self.total_rate.scaled(1.0 / self.users)

    def figures(self) -> dict[str, Figure | None]:
        """Return the metrics by column of `USER_FIGURES`, in the column's unit."""
        found = {column: getattr(self, name) for column, name in USER_FIGURES.items()}
        # measured runs have no column for the throughput per user
        factors = {name: FIGURES[name].factor if name in FIGURES else 1.0 for name in found}
        return {name: one and one.scaled(1.0 / factors[name]) for name, one in found.items()}


#: column of a table of runs → field of a row over users
USER_FIGURES: dict[str, str] = {
    "ttft_mean_ms": "ttft",
    "tpot_mean_ms": "tpot",
    "output_tokens_per_s_per_request": "user_rate",
    "output_tokens_per_s": "total_rate",
    "output_tokens_per_s_per_user": "each_rate",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on the number of users."""

    name: str  # ``kv``, ``tpot``, ``queue`` or ``hazard``
    users: int  # users that it allows, [-]
    words: str  # the limit as text


@dataclass(frozen=True, slots=True, repr=False)
class Safe:
    """Safe number of users and its limits."""

    users: int  # users within every limit with the probability, [-]
    expected: int  # users within every limit in the mean, [-]
    limit: str  # name of the smallest limit
    limits: tuple[Limit, ...]  # every limit at the quantile of the probability
    target_tpot: float  # longest usable TPOT, [s]
    probability: float = SURE  # probability of meeting every limit with `users`, [-]
    #: users by that probability, the largest first: those asked for, and of 95, 80 and 50 %
    at: tuple[tuple[float, int], ...] = ()
    #: users that were predicted, and the probability that they meet every limit, [-]
    curve: tuple[tuple[int, float], ...] = ()
    target_ttft: float | None = None  # longest usable TTFT; None if prompts cannot be timed, [s]

    def chance_of(self, users: int) -> Ratio:
        """Return the probability that so many users meet every limit, [-]

        Interpolated between the users that were predicted; that of the largest beyond.

        Examples
        --------
        >>> round(Safe(5, 30, "tpot", (), 0.1, curve=((4, 0.96), (16, 0.8))).chance_of(8), 2)
        0.88
        """
        place = bisect_left(self.curve, (users, 0.0))
        if place == len(self.curve) or self.curve[place][0] == users or not place:
            return self.curve[min(place, len(self.curve) - 1)][1] if self.curve else 0.0
        (few, before), (many, after) = self.curve[place - 1 : place + 1]
        return before + (after - before) * math.log(users / few) / math.log(many / few)

    def __repr__(self) -> str:
        return f"<Safe {self.users} users, {self.expected} expected; limit {self.limit}>"


#: answer to the question of a request → its words
REPLIES = {
    "yes": "Yes", "likely": "Likely", "unlikely": "Unlikely", "not_safe": "Not safe", "does_not_load": "Does not load",
    "engine_cannot": "The engine cannot", "unknown": "Unknown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a request: are the users served within the SLO?"""

    #: a key of `REPLIES`: ``yes`` at the asked probability or more, ``likely`` from a half, ``unlikely`` below;
    #: ``not_safe`` with a hazard that stops the service, or may; ``does_not_load`` without enough memory;
    #: ``engine_cannot`` if a limitation has no workaround; ``unknown`` without speeds
    name: str
    users: int  # users of the question, the largest number that was typed; one if none was, [-]
    probability: float | None = None  # probability that they meet the SLO of `fit`, [-]
    instead: str = ""  # the command that answers where this one does not

    @property
    def words(self) -> str:
        """The answer as text.

        Examples
        --------
        >>> Reply("likely", 8, 0.913).words
        'Likely: 8 users meet the SLO with 91 % probability'
        """
        if self.probability is None:
            return REPLIES[self.name] + (f": {self.instead}" if self.instead else "")
        # errors say nothing beyond 99 %
        sure = min(math.floor(100 * self.probability + 1e-9), 99)
        meet = "user meets" if self.users == 1 else "users meet"
        more = " or more" * (self.probability >= PROBABILITIES[-1])
        return f"{REPLIES[self.name]}: {self.users:,} {meet} the SLO with {sure} %{more} probability"


@dataclass(frozen=True, slots=True, repr=False)
class RunnerUp:
    """A layout that was not chosen."""

    layout: str  # its name
    accelerators: int  # accelerators it uses, [-]
    verdict: str  # ``fits``, ``tight`` or ``does_not_fit``
    pool_tokens: float  # KV pool, [token]
    #: `user_rate`, `total_rate`: single-user rate, and total rate at the reference concurrency, [token/s]; 0 if not
    #: computed
    user_rate: float
    total_rate: float
    why: str  # reason why it was not chosen

    def __repr__(self) -> str:
        return f"<RunnerUp {self.layout}: {self.verdict}, {self.total_rate:.4g} tok/s in all>"


@dataclass(frozen=True, slots=True, repr=False)
class Change:
    """A change of the plan and its computed effect."""

    #: ``kv``, ``accelerators``, ``fewer``, ``checkpoint``, ``model``, ``context``, ``mtp``, ``kernels``, ``layout`` or
    #: ``engine``
    name: str
    what: str  # the change as text
    verdict: str  # verdict with the change
    layout: str  # best layout with the change
    #: `pool_tokens`, `pool_low`: KV pool and its lower bound, [token]
    pool_tokens: float
    pool_low: float
    held: float  # requests of the requested length that the pool holds at its lower bound, [-]
    #: `user_rate`, `total_rate`: single-user rate, and total rate at the reference concurrency, [token/s]; 0 if not
    #: computed
    user_rate: float
    total_rate: float
    note: str = ""  # a remark
    ask: str = ""  # options that request the change, or the model to name instead; empty if there are none
    knowledge: str = ""  # evidence level of its speeds; empty if not computed
    safe: int | None = None  # safe users with the change; None if not counted, [-]
    chance: Ratio | None = None  # probability that the users asked for meet the SLO; None as above, [-]

    def __repr__(self) -> str:
        return f"<Change {self.name}: {self.verdict}, {self.total_rate:.4g} tok/s in all>"


@dataclass(frozen=True, slots=True)
class TrafficRun:
    """Simulated metrics of a plan, or of a change of it, under traffic."""

    #: `what`, `ask`: the change and the options that request it; empty for the plan itself
    what: str
    ask: str
    #: `layout`, `kv`: layout and KV cache format
    layout: str
    kv: str
    #: `requests`, `rejected`, `left`: requests that were counted, rejected, and cancelled by the client before the
    #: first token, [-]
    requests: int
    rejected: int
    #: `ttft`, `tpot`, `e2e`: means with their bounds, [s]
    ttft: Figure
    ttft_p95: float  # [s]
    tpot: Figure
    e2e: Figure
    total_rate: Figure  # total throughput, [token/s]
    cached: float | None  # prefix-cache hit rate of prompt tokens; None without prefix caching, [-]
    cached_low: float  # the smaller hit rate of both bounds, [-]
    preempted: float  # preemptions per request, [-]
    full: float  # largest KV pool usage, [-]
    knowledge: str = ""  # evidence level of its step times
    left: int = 0
    too_long: int = 0  # of those rejected, the ones longer than the context, whatever the layout, [-]
    no_copies: str = ""  # reason why KV offload is not among the changes of a plan short of cache; else empty
    #: maximum service rate (requests or sessions) if more arrive and latencies grow without limit; else None, [1/s]
    most_rate: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Warn:
    """A limitation, hazard or gap to know before buying or starting."""

    kind: str  # ``limitation``, ``hazard``, or ``model`` for something that is not modelled
    #: ``error``, ``fallback``, ``quality``, ``memory`` or ``slow`` for a limitation; ``danger``, ``warning`` or
    #: ``note`` for a hazard
    severity: str
    name: str  # identifier
    title: str  # summary
    effect: str = ""  # consequence
    do: str = ""  # advice
    source: str = ""
    applied: str = ""  # how the prediction includes it; empty if it does not

    def __repr__(self) -> str:
        return f"<Warn {self.severity}: {self.name}>"


@dataclass(frozen=True, repr=False)
class AnswerRecord:
    """The whole answer.

    Attributes
    ----------
    asked : Asked
        The request.
    verdict : str
        ``fits``, ``tight``, ``does_not_fit``, or ``unknown`` if the memory of the accelerator is not published.
    headline : str
        The verdict in one sentence.
    reasons : tuple of str
        Its reasons.
    unknown : tuple of str
        Unpublished facts of the accelerator.
    deployment : Deployment or None
        The chosen layout; None if nothing can be predicted.
    holding : Holding or None
        Its memory.
    ranks : tuple of MemoryBudget
        Memory of every rank.
    kv_why : str
        Reason for the KV cache format: requested, set by the checkpoint, engine default, the only one that fits.
    printed : tuple of float
        KV cache size that the engine prints at startup for one data-parallel rank, with the 90 % interval; empty if the
        engine prints none, [token]
    context, context_low : int
        Longest single request, mean and lower bound, within the limit of the model, [token]
    launch_context : int
        Longest sequence in the launch command, [token]
    users : tuple of UserRow
        Metrics at each concurrency.
    user_rate, total_rate : float
        Single-user rate, and total rate at the reference concurrency, [token/s]; 0 if not computed
    one_user : UserRow or None
        The single-user row, even if the table has none; None if no speed is known.
    safe : Safe or None
        Safe number of users; None if no speed is known.
    binding : str
        Largest components of the step at the lowest and the highest concurrency.
    runners : tuple of RunnerUp
        Layouts that were not chosen, the best first.
    left_out : tuple of str
        Layouts that were not evaluated.
    others : int
        Further layouts that are not in `runners`, [-]
    changes : tuple of Change
        Changes of the plan with their effect.
    warnings : tuple of Warn
        Limitations, hazards and gaps.
    command : tuple of str
        Launch command; empty if nothing can be started.
    command_notes : tuple of str
        Remarks on the command.
    basis : str
        Evidence of the speeds.
    knowledge : str
        Evidence level.
    evidence : str
        Evidence of model, accelerator and engine together; begins with one of `glmplan.planner.evidence.EVIDENCE`.
    fits : tuple of str
        Calibration files that were used.
    traffic : str
        The traffic as text; empty if none was named.
    runs : tuple of TrafficRun
        The plan under the traffic, then its best changes; empty without traffic or if nothing can be simulated.
    narrowing : Narrowing or None
        The benchmark that would shrink the intervals most; None if the configuration was measured or none would.
    stating : mapping of str to mapping
        Upper over lower bound of one user with a setting stated, see `glmplan.prediction.evidence.stated_ratios`; empty
        if the launch command states all.
    """

    asked: Asked
    verdict: str
    headline: str
    reasons: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    deployment: Deployment | None = None
    holding: Holding | None = None
    ranks: tuple[MemoryBudget, ...] = ()
    kv_why: str = ""
    printed: tuple[float, ...] = ()
    context: int = 0
    context_low: int = 0
    launch_context: int = 0
    users: tuple[UserRow, ...] = ()
    user_rate: float = 0.0
    total_rate: float = 0.0
    one_user: UserRow | None = None
    safe: Safe | None = None
    binding: str = ""
    runners: tuple[RunnerUp, ...] = ()
    left_out: tuple[str, ...] = ()
    others: int = 0
    changes: tuple[Change, ...] = ()
    warnings: tuple[Warn, ...] = ()
    command: tuple[str, ...] = ()
    command_notes: tuple[str, ...] = ()
    basis: str = ""
    knowledge: str = ""
    evidence: str = ""
    fits: tuple[str, ...] = ()
    traffic: str = ""
    runs: tuple[TrafficRun, ...] = ()
    narrowing: Narrowing | None = None
    stating: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def users_asked(self) -> int:
        """Users of the question, one where no number was given, [-]"""
        return self.asked.users[-1] if self.asked.users_given else 1

    @property
    def reply(self) -> Reply:
        """The answer to the question, with its probability."""
        users = self.users_asked
        if self.holding is not None and self.holding.terms.blocked is not None:
            return Reply("engine_cannot", users)
        if self.verdict == "does_not_fit":
            return Reply("does_not_load", users)
        if self.safe is None:
            apart = bool(self.users and self.asked.prefill)
            return Reply("unknown", users, instead="glmplan safe --slo simulates separate prefill servers" * apart)
        if self.safe.limit == "hazard":
            return Reply("not_safe", users)
        chance = self.safe.chance_of(users)
        name = "yes" if chance >= self.safe.probability else "likely" if chance >= EXPECTED else "unlikely"
        return Reply(name, users, chance)

    @property
    def may_start(self) -> bool:
        """True if only the favourable end of the interval of memory fits."""
        return self.verdict == "does_not_fit" and self.holding is not None and self.holding.may_start

    def to_frame(self, table: str = "users") -> pd.DataFrame:
        """Return a table of the answer, with units in the column names.

        ``users``, ``memory``, ``layouts``, ``changes`` or ``warnings``: one row per concurrency, rank, layout, change
        or warning.
        """
        rows = chosen_table(
            table,
            {
                "users": lambda: user_rows(self.users),
                "memory": lambda: memory_rows(self.ranks),
                "layouts": self._layouts,
                "changes": self._changes,
                "warnings": lambda: [_plain(warning) for warning in self.warnings],
            },
        )
        return frame_of(rows())

    def _layouts(self) -> list[dict[str, Any]]:
        return [
            {
                "layout": runner.layout,
                "accelerators": runner.accelerators,
                "verdict": runner.verdict,
                "kv_pool_tokens": runner.pool_tokens,
                "one_user_tokens_per_s": runner.user_rate,
                "total_tokens_per_s": runner.total_rate,
                "why": runner.why,
            }
            for runner in self.runners
        ]

    def _changes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": change.name,
                "what": change.what,
                "verdict": change.verdict,
                "layout": change.layout,
                "kv_pool_tokens": change.pool_tokens,
                "kv_pool_tokens_low": change.pool_low,
                "requests_held_low": change.held,
                "one_user_tokens_per_s": change.user_rate,
                "total_tokens_per_s": change.total_rate,
                "note": change.note,
                "ask": change.ask,
                "knowledge": change.knowledge,
            }
            for change in self.changes
        ]


def _plain(one: Warn) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Warn.__slots__}


def user_rows(users: tuple[UserRow, ...]) -> list[dict[str, Any]]:
    """Return the metrics at each concurrency as rows, [ms] and [token/s].

    Every metric has three columns: value, lower and upper bound.
    """
    rows = []
    for one in users:
        row: dict[str, Any] = {"users": one.users, "running": one.running}
        for name, figure in one.figures().items():
            for end, value in (("", "value"), ("_low", "low"), ("_high", "high")):
                row[f"{name}{end}"] = None if figure is None else getattr(figure, value)
        row |= {"context_each_tokens": one.context, "out_of_domain": one.outside, "simulated": one.simulated}
        row["preemptions_per_request"] = one.preempted
        rows.append(row)
    return rows


#: smallest gain that is worth a change of the plan: repeated runs differ by less [-]
LEAST_GAIN = 0.05
_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}


def gain_of(answer: AnswerRecord, change: Change) -> Ratio:
    """Return the relative gain of a change.

    Infinite if the verdict improves or the users asked for become safe. If the KV pool limits the users: the gain in
    requests that it holds at its lower bound, except of layouts. Else the larger gain of single-user and total rate.
    Negative if the verdict gets worse, or if one rate loses as much as the other gains.
    """
    if _CLASS[change.verdict] != _CLASS[answer.verdict]:
        return math.inf if _CLASS[change.verdict] < _CLASS[answer.verdict] else -1.0
    safe = 0 if answer.safe is None else answer.safe.users
    if change.safe and safe < answer.users_asked and (not safe or change.safe >= answer.users_asked):
        return math.inf
    # the layout of a plan has the most safe users: another one may be faster
    full = answer.safe is not None and answer.safe.limit == "kv" and change.name != "layout"
    if answer.verdict == "tight" or full:
        assert answer.holding is not None
        return _share(change.held, answer.holding.held_low)
    pair = _share(change.user_rate, answer.user_rate), _share(change.total_rate, answer.total_rate)
    return max(pair) if max(pair) + min(*pair, 0.0) > 0 else min(pair)


def _share(after: float, before: float) -> float:
    return after / before - 1.0 if before > 0 else 0.0


def as_well_known(change: str, plan: str) -> bool:
    """Return True if a change has at least the evidence level of the plan.

    Levels are those of `glmplan.prediction.effects.KNOWN_AS`, the best first.
    """
    order = list(KNOWN_AS)
    return change == plan or (change in order and plan in order and order.index(change) <= order.index(plan))


def best_changes(answer: AnswerRecord, most: int = 3) -> tuple[Change, ...]:
    """Return the changes with the largest gain.

    Only gains of `LEAST_GAIN` or more at the same evidence level as the plan, or a better one. A better verdict depends
    on memory and needs no evidence, nor does a change that makes users safe. If the plan does not fit: the changes that
    fit, in the order of their computation.
    """
    if answer.verdict == "does_not_fit":
        works = [change for change in answer.changes if change.verdict != "does_not_fit"]
        return tuple(sorted(works, key=lambda one: _CLASS[one.verdict])[:most])
    gains = [(gain_of(answer, change), change) for change in answer.changes]
    found = [
        (gain, one)
        for gain, one in gains
        if gain >= LEAST_GAIN and (gain == math.inf or as_well_known(one.knowledge, answer.knowledge))
    ]
    return tuple(one for _, one in sorted(found, key=lambda pair: -pair[0])[:most])


def worth_telling(answer: AnswerRecord) -> tuple[Change, ...]:
    """Return the changes worth showing, the largest gain first.

    Gains of `LEAST_GAIN` or more, then fewer accelerators, which save money. If the plan does not fit: the changes that
    fit, in the order of their computation.
    """
    if answer.verdict == "does_not_fit":
        return tuple(change for change in answer.changes if change.verdict != "does_not_fit")
    if answer.holding is None or not answer.user_rate:
        return answer.changes
    gains = [(gain_of(answer, change), change) for change in answer.changes if change.name != "fewer"]
    found = sorted((pair for pair in gains if pair[0] >= LEAST_GAIN), key=lambda pair: -pair[0])
    return (*(one for _, one in found), *(change for change in answer.changes if change.name == "fewer"))


def evidence_words(answer: AnswerRecord, change: Change) -> str:
    """Return the evidence of a change if its level differs from the plan's."""
    if not change.knowledge or change.knowledge == answer.knowledge:
        return ""
    return KNOWN_AS.get(change.knowledge, "")


def gain_words(answer: AnswerRecord, change: Change) -> str:
    """Return the effect of a change: verdict, layout, rates, KV pool.

    Notes
    -----
    Shares are of means. Requests are those of the requested length that the lower bound of the KV pool holds.
    """
    users = shown_users(answer.asked)
    assert answer.holding is not None
    words = [change.verdict] * (change.verdict != answer.verdict)
    if answer.safe is not None and change.chance is not None:
        most = answer.users_asked
        now, then = (f"{100 * min(chance, 0.99):.0f}" for chance in (answer.safe.chance_of(most), change.chance))
        if most > 1 and now != then:
            words.append(f"{most} users with {then} % probability instead of {now}")
        elif change.safe:
            words.append(f"{counted_unit(change.safe, 'safe users')} instead of {answer.safe.users}")
    words += [change.layout] * (change.layout != answer.holding.terms.name and change.name != "layout")
    pairs = [("one user", change.user_rate, answer.user_rate)]
    pairs += [(f"{users} users", change.total_rate, answer.total_rate)] * (users > 1)
    for name, after, before in pairs:
        if after and before:
            words.append(f"{name} {number(after)} tok/s ({_share(after, before):+.0%})")
    held = _share(change.held, answer.holding.held_low)
    if abs(held) >= LEAST_GAIN and math.isfinite(change.held):
        words.append(f"KV pool for {change.held:,.0f} requests ({held:+.0%})")
    evidence = evidence_words(answer, change)
    return ", ".join(words) + f"; {evidence}" * bool(evidence)
