"""The answer to a question, as records of numbers in base units; the reports turn it into text, JSON or tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.catalog.tables import chosen_table, frame_of
from glmplan.costs.memory.pool import MemoryBudget
from glmplan.io.runs.columns import FIGURES
from glmplan.planner.capacity import Holding, memory_rows
from glmplan.planner.question import Asked
from glmplan.planner.ranking import Narrowing, shown_users
from glmplan.prediction.deployment import Deployment
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
    """What users see when a number of them work at once.

    Attributes
    ----------
    users : int
        Users, each sending the next request when the last is answered, [-]
    running : int
        Requests that run at once; the others wait, [-]
    ttft : Figure or None
        Time to the first token, waiting included, [s]; None when no matrix rate of the part is published
    tpot : Figure or None
        Time for each further token, [s]; None of answers of a single token
    user_rate : Figure or None
        Decode speed of one user: tokens per second after the first token, 1/TPOT, [token/s]; None as above
    total_rate : Figure
        Tokens per second of all users together, [token/s]
    each_rate : Figure
        What each user has of them, prompts and waiting included: `total_rate` over `users`, [token/s]
    context : int
        Longest request that each may have at once, mean pool, [token]
    outside : str
        What lies outside of what was measured; empty if nothing.
    shares : dict of str to float
        Shares of the decode step by component, [-]
    simulated : bool
        Whether the simulator answers, because the cache does not hold so many requests.
    preempted : float
        Preemptions for each request, of a simulated row, [-]
    """

    users: int
    running: int
    ttft: Figure | None
    tpot: Figure | None
    user_rate: Figure | None
    total_rate: Figure
    context: int
    outside: str
    shares: dict[str, float]
    simulated: bool = False
    preempted: float = 0.0

    def __repr__(self) -> str:
        first = "" if self.ttft is None else f", TTFT {self.ttft.value:.4g} s"
        return f"<UserRow {self.users} users: {self.total_rate.value:.4g} tok/s in all{first}>"

    @property
    def each_rate(self) -> Figure:
        """What each user has of the tokens of all, prompts and waiting included, [token/s]"""
        return self.total_rate.scaled(1.0 / self.users)

    def figures(self) -> dict[str, Figure | None]:
        """Return the figures as tables write them.

        Returns: Column of `USER_FIGURES` → figure in the unit of the column; None for what is not known.
        """
        found = {column: getattr(self, name) for column, name in USER_FIGURES.items()}
        # what each has of the whole is no column of measured runs, whose tables have the whole
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
    """One limit on the number of users.

    Attributes
    ----------
    name : str
        ``kv``, ``tpot``, ``queue`` or ``hazard``.
    users : int
        Users that it allows, [-]
    words : str
        What it is.
    """

    name: str
    users: int
    words: str


@dataclass(frozen=True, slots=True, repr=False)
class Safe:
    """Number of users that are safe.

    Attributes
    ----------
    users : int
        Users for whom every limit holds at the bad end of its 90 % interval, [-]
    expected : int
        The same in the mean, [-]
    limit : str
        Name of the limit that binds first.
    limits : tuple of Limit
        Every limit at the bad end.
    target_tpot : float
        Longest time for a token that counts as usable, [s]
    """

    users: int
    expected: int
    limit: str
    limits: tuple[Limit, ...]
    target_tpot: float

    def __repr__(self) -> str:
        return f"<Safe {self.users} users, {self.expected} expected; limit {self.limit}>"


@dataclass(frozen=True, slots=True, repr=False)
class RunnerUp:
    """A layout that was not chosen.

    Attributes
    ----------
    layout : str
        Its name.
    accelerators : int
        Accelerators it uses, [-]
    verdict : str
        ``fits``, ``tight`` or ``does_not_fit``.
    pool_tokens : float
        Cache pool, [token]
    user_rate, total_rate : float
        Tokens per second of one user, and of the typical number together, [token/s]; 0 when not computed
    why : str
        Why it lost.
    """

    layout: str
    accelerators: int
    verdict: str
    pool_tokens: float
    user_rate: float
    total_rate: float
    why: str

    def __repr__(self) -> str:
        return f"<RunnerUp {self.layout}: {self.verdict}, {self.total_rate:.4g} tok/s in all>"


@dataclass(frozen=True, slots=True, repr=False)
class Change:
    """What would be with something else; computed, not guessed.

    Attributes
    ----------
    name : str
        ``kv``, ``accelerators``, ``fewer``, ``checkpoint``, ``model``, ``context``, ``mtp``, ``kernels``, ``layout`` or
        ``engine``.
    what : str
        The change in words.
    verdict : str
        Verdict with it.
    layout : str
        The best layout with it.
    pool_tokens, pool_low : float
        Cache pool and its low end, [token]
    held : float
        Requests of the asked length that the pool holds at the low end, [-]
    user_rate, total_rate : float
        Tokens per second of one user, and of the typical number together, [token/s]; 0 when not computed
    note : str
        What else to know.
    ask : str
        The words that ask for it: options to put in the question, or the model to name instead; empty where the
        question has no words for it.
    knowledge : str
        Class of what its speeds rest on; empty when they are not computed.
    safe : int or None
        Users who are safe with it, where nobody is with the plan; None where that was not counted, [-]
    """

    name: str
    what: str
    verdict: str
    layout: str
    pool_tokens: float
    pool_low: float
    held: float
    user_rate: float
    total_rate: float
    note: str = ""
    ask: str = ""
    knowledge: str = ""
    safe: int | None = None

    def __repr__(self) -> str:
        return f"<Change {self.name}: {self.verdict}, {self.total_rate:.4g} tok/s in all>"


@dataclass(frozen=True, slots=True)
class TrafficRun:
    """What a plan, or a change of it, does under named traffic, by the simulator.

    Attributes
    ----------
    what, ask : str
        What is otherwise than in the plan, and the words that ask for it; empty for the plan itself.
    layout, kv : str
        Layout and format of the cache.
    requests, rejected, left : int
        Requests that were counted, that were turned away, and whose clients left before their first token, [-]
    ttft, tpot, e2e : Figure
        Means with their ends, [s]
    ttft_p95 : float
        [s]
    total_rate : Figure
        Tokens per second of all together, [token/s]
    cached : float or None
        Share of the prompt tokens that were found in the cache; None where nothing is kept, [-]
    cached_low : float
        The smaller of the shares at both ends, [-]
    preempted : float
        Preemptions for each request, [-]
    full : float
        Largest share of the cache in use, [-]
    knowledge : str
        Class of what its step times rest on.
    no_copies : str
        Of the plan, where its cache is short: why no copies in host memory are among the changes; else empty.
    most_rate : float or None
        Requests, or sessions, that are served in a second at most, where more arrive: then its times grow as long as
        they come; else None, [1/s]
    """

    what: str
    ask: str
    layout: str
    kv: str
    requests: int
    rejected: int
    ttft: Figure
    ttft_p95: float
    tpot: Figure
    e2e: Figure
    total_rate: Figure
    cached: float | None
    cached_low: float
    preempted: float
    full: float
    knowledge: str = ""
    left: int = 0
    no_copies: str = ""
    most_rate: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Warn:
    """Something to know before buying or starting.

    Attributes
    ----------
    kind : str
        ``wall``, ``hazard``, or ``model``: what was left out of account of it.
    severity : str
        Of a wall ``error``, ``fallback``, ``quality``, ``memory`` or ``slow``; of a hazard ``danger``, ``warning`` or
        ``note``.
    name : str
        Identifier.
    title : str
        What it is.
    effect : str
        What happens.
    do : str
        What to do.
    source : str
        Where it is from.
    applied : str
        How the prediction takes it into account; empty if it does not.
    """

    kind: str
    severity: str
    name: str
    title: str
    effect: str = ""
    do: str = ""
    source: str = ""
    applied: str = ""

    def __repr__(self) -> str:
        return f"<Warn {self.severity}: {self.name}>"


@dataclass(frozen=True, repr=False)
class AnswerRecord:
    """The whole answer.

    Attributes
    ----------
    asked : Asked
        The question.
    verdict : str
        ``fits``, ``tight``, ``does_not_fit``, or ``unknown`` when the memory of the part is not published.
    headline : str
        The verdict in one sentence.
    reasons : tuple of str
        What it rests on, in words.
    unknown : tuple of str
        Facts of the part that nobody published.
    deployment : Deployment or None
        The chosen layout; None when nothing is known or nothing can be predicted.
    holding : Holding or None
        Its memory.
    ranks : tuple of MemoryBudget
        Memory of every rank.
    kv_why : str
        Why the cache has its format: asked for, said by the checkpoint, the engine's default, the only one that fits.
    printed : tuple of float
        Tokens that the engine prints as the size of its cache, of one data-parallel rank, with the 90 % interval; empty
        when there is nothing to start or the engine measures no pool, [token]
    context, context_low : int
        Longest request alone, mean and low end, the model's limit applied, [token]
    launch_context : int
        Longest sequence that the engine is told, [token]
    users : tuple of UserRow
        The table over users.
    user_rate, total_rate : float
        Tokens per second of one user, and of the typical number together, which changes are compared with, [token/s];
        0 when not computed
    one_user : UserRow or None
        The row of one user, also where the table has none; None when no speed is known.
    safe : Safe or None
        Safe number of users; None when no speed is known.
    binding : str
        What binds the step for one user and for many.
    runners : tuple of RunnerUp
        Layouts that lost, the best first.
    left_out : tuple of str
        Layouts that were not looked at.
    others : int
        Layouts that lost and are not in `runners`, [-]
    changes : tuple of Change
        What would change the answer.
    warnings : tuple of Warn
        Walls, hazards, and what is outside of the measured.
    command : tuple of str
        Words of the command that starts the engine; empty when there is nothing to start.
    command_notes : tuple of str
        What to know about it.
    basis : str
        What the speeds rest on.
    knowledge : str
        Class of what was measured.
    evidence : str
        Whether the model was served on the part by the engine; begins with one of `glmplan.planner.evidence.EVIDENCE`.
    fits : tuple of str
        Files of fits that were used.
    traffic : str
        Named traffic in words; empty where none was named.
    runs : tuple of TrafficRun
        The plan under named traffic, then what would change it most; empty where none was named or nothing can be
        simulated.
    narrowing : Narrowing or None
        The run that would narrow the intervals most; None where the configuration was measured or nothing can be.
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

    @property
    def may_start(self) -> bool:
        """Whether it does not fit in the mean, but would at the favourable end of the interval of memory."""
        return self.verdict == "does_not_fit" and self.holding is not None and self.holding.may_start

    def to_frame(self, table: str = "users") -> pd.DataFrame:
        """A table of the answer: ``users``, ``memory``, ``layouts``, ``changes`` or ``warnings``.

        Returns: One row for each number of users, rank, layout, change or warning; units stand in the names of
          columns.
        """
        rows = chosen_table(
            table,
            {
                "users": lambda: user_rows(self.users),
                "memory": lambda: memory_rows(self.ranks),
                "layouts": self._layouts,
                "changes": self._changes,
                "warnings": lambda: [_plain(one) for one in self.warnings],
            },
        )
        return frame_of(rows())

    def _layouts(self) -> list[dict[str, Any]]:
        return [
            {
                "layout": one.layout,
                "accelerators": one.accelerators,
                "verdict": one.verdict,
                "kv_pool_tokens": one.pool_tokens,
                "one_user_tokens_per_s": one.user_rate,
                "total_tokens_per_s": one.total_rate,
                "why": one.why,
            }
            for one in self.runners
        ]

    def _changes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "what": one.what,
                "verdict": one.verdict,
                "layout": one.layout,
                "kv_pool_tokens": one.pool_tokens,
                "kv_pool_tokens_low": one.pool_low,
                "requests_held_low": one.held,
                "one_user_tokens_per_s": one.user_rate,
                "total_tokens_per_s": one.total_rate,
                "note": one.note,
                "ask": one.ask,
                "knowledge": one.knowledge,
            }
            for one in self.changes
        ]


def _plain(one: Warn) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Warn.__slots__}


def user_rows(users: tuple[UserRow, ...]) -> list[dict[str, Any]]:
    """The table over users in the units that its names say.

    Returns: Column → value: users and requests [-], times [ms], rates [token/s], each figure with its interval.
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


# Which changes of a plan gain the most, on evidence that can be compared.

if TYPE_CHECKING:
    pass


#: smallest gain that is worth a change of the plan: less is within what a repeated run differs by [-]
LEAST_GAIN = 0.05
_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}


def gain_of(answer: AnswerRecord, change: Change) -> Ratio:
    """How much better a plan gets by a change.

    Returns: Infinite where the verdict gets better, or where users are safe and none was; else the share by which the
      requests grow that the cache surely holds, where the cache limits the users; else the share by which one user or
      all of the typical number get faster, whichever grows more. Below zero where the verdict gets worse, or where
      one of the two loses as much as the other gains.
    """
    if _CLASS[change.verdict] != _CLASS[answer.verdict]:
        return math.inf if _CLASS[change.verdict] < _CLASS[answer.verdict] else -1.0
    if change.safe and answer.safe is not None and not answer.safe.users:
        return math.inf
    if answer.verdict == "tight" or (answer.safe is not None and answer.safe.limit == "kv"):
        assert answer.holding is not None
        return _share(change.held, answer.holding.held_low)
    pair = _share(change.user_rate, answer.user_rate), _share(change.total_rate, answer.total_rate)
    return max(pair) if max(pair) + min(*pair, 0.0) > 0 else min(pair)


def _share(after: float, before: float) -> float:
    return after / before - 1.0 if before > 0 else 0.0


def as_well_known(change: str, plan: str) -> bool:
    """Whether the speeds of a change rest on as much as those of the plan.

    - `change`, `plan`: Classes of what is known, of `glmplan.prediction.effects.KNOWN_AS`, which writes them from
      most to least.
    - Returns: Whether they are of the same class, or the change's of a better one.
    """
    order = list(KNOWN_AS)
    return change == plan or (change in order and plan in order and order.index(change) <= order.index(plan))


def best_changes(answer: AnswerRecord, most: int = 3) -> tuple[Change, ...]:
    """Choose the changes that gain the most.

    Returns: The largest gain first, none under `LEAST_GAIN`, and only those whose speeds rest on evidence of the same
      class as those of the plan, or of a better one; a better verdict rests on memory and needs none, and where
      nobody is safe a change with which somebody is says on what it rests. Where the plan does not fit, the changes
      that do, in the order in which they were computed: nearest first.
    """
    if answer.verdict == "does_not_fit":
        works = [one for one in answer.changes if one.verdict != "does_not_fit"]
        return tuple(sorted(works, key=lambda one: _CLASS[one.verdict])[:most])
    gains = [(gain_of(answer, one), one) for one in answer.changes]
    found = [
        (gain, one)
        for gain, one in gains
        if gain >= LEAST_GAIN and (gain == math.inf or as_well_known(one.knowledge, answer.knowledge))
    ]
    return tuple(one for _, one in sorted(found, key=lambda pair: -pair[0])[:most])


def worth_telling(answer: AnswerRecord) -> tuple[Change, ...]:
    """The changes of a plan that are worth their words, the largest gain first.

    - `answer`: The plan as asked, with all changes that were computed.
    - Returns: Those that gain `LEAST_GAIN` at least, the largest gain first; fewer accelerators, which save, after
      them. Where the plan does not fit, the changes with which it does, in the order in which they were computed.
    """
    if answer.verdict == "does_not_fit":
        return tuple(one for one in answer.changes if one.verdict != "does_not_fit")
    if answer.holding is None or not answer.user_rate:
        return answer.changes
    gains = [(gain_of(answer, one), one) for one in answer.changes if one.name != "fewer"]
    found = sorted((pair for pair in gains if pair[0] >= LEAST_GAIN), key=lambda pair: -pair[0])
    return (*(one for _, one in found), *(one for one in answer.changes if one.name == "fewer"))


def evidence_words(answer: AnswerRecord, change: Change) -> str:
    """Say what the speeds of a change rest on, where that is something else than for the plan.

    Returns: The class of what was measured; empty where it is the plan's.
    """
    if not change.knowledge or change.knowledge == answer.knowledge:
        return ""
    return KNOWN_AS.get(change.knowledge, "")


def gain_words(answer: AnswerRecord, change: Change) -> str:
    """Say what a change gains and what it costs.

    Returns: Verdict and layout where they are others, speeds with the change and shares against the plan as asked,
      then the cache.

    Notes
    -----
    Shares are of means. Requests are those of the asked length that the low end of the cache pool holds.
    """
    users = shown_users(answer.asked)
    assert answer.holding is not None
    words = [change.verdict] * (change.verdict != answer.verdict)
    if change.safe:
        words.append(f"{counted_unit(change.safe, 'safe users')} instead of 0")
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
