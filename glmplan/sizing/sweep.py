"""Every combination of models, machines, formats, layouts and loads: planned once each, predicted as columns.

Combinations that decide which formula applies are walked over; the loads of each are columns. What does not work keeps
its rows, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import GlmplanError, UnknownFact
from glmplan.facts.tables import frame_of_columns
from glmplan.physics.memory.pool import requests_that_fit
from glmplan.physics.memory.ranks import rank_memory
from glmplan.physics.points import Layout
from glmplan.plan.ask import Deployed, deployment
from glmplan.plan.ranking import load_of, prompts_timed, seats_of, untimed_words
from glmplan.prediction.load import Load
from glmplan.prediction.power import check_limit
from glmplan.serving.many_loops import KnownRuns
from glmplan.sizing.axes import Sweep
from glmplan.sizing.cost import joules_per_token, per_million
from glmplan.sizing.mixes import Mixes, mixes_of, packing_key
from glmplan.sizing.money import Money, money_facts
from glmplan.sizing.points import TOLERANCE, Columns, columns_of
from glmplan.sizing.simulated import PROMISED, STATISTICS, Arriving, simulated
from glmplan.sizing.sweep_rows import Shared, rows_of
from glmplan.units import QUANTILE_90

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURES", "Block", "Swept", "blocks_of", "simulated_columns", "swept"]

#: columns of figures: in base units
FIGURES: tuple[str, ...] = (
    *("ttft", "ttft_low", "ttft_high", "tpot", "tpot_low", "tpot_high"),
    *("output_rate", "output_rate_low", "output_rate_high"),
)
#: figure → its column, and what base units are multiplied by
_TITLES = {
    "ttft": ("ttft_mean_ms", 1000.0),
    "tpot": ("tpot_mean_ms", 1000.0),
    "output_rate": ("output_tokens_per_s", 1.0),
}
#: verdicts of a point
_FITS, _TIGHT, _POOL, _PLACES, _LENGTH, _NOT = range(6)
_VERDICTS = ("fits", "tight", "does_not_fit", "does_not_fit", "does_not_fit", "not_possible")


@dataclass(frozen=True)
class Block:
    """One combination of the axes and its loads.

    Attributes
    ----------
    number : int
        Its place in the sweep, [-]
    said : dict
        Values of the axes.
    facts : dict
        What the plan chose and what it rests on: layout, formats, counts, money [USD], power [W].
    verdict : (n,) array of int
        Verdict of each load.
    held : (n,) array
        Requests of each length that the cache pool holds, [-]
    figures : dict of str to (n,) array
        `FIGURES`, and those of `simulated_columns`; NaN where a load is not possible.
    reason : str
        Why nothing works, or why figures are left out; else empty.
    """

    number: int
    said: dict[str, Any]
    facts: dict[str, Any]
    verdict: np.ndarray
    held: np.ndarray
    figures: dict[str, np.ndarray]
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Swept:
    """A sweep and what came out.

    Attributes
    ----------
    sweep : Sweep
        The question.
    blocks : tuple of Block
        One for each combination that was reached, in the order of the question.
    """

    sweep: Sweep
    blocks: tuple[Block, ...]

    @property
    def whole(self) -> bool:
        """Whether every combination was reached."""
        return len(self.blocks) == self.sweep.structures

    @property
    def possible(self) -> np.ndarray:
        """Which rows of `to_frame` work, also those whose cache pool may be short at its low end."""
        return self._joined(lambda one: one.verdict) <= _TIGHT

    def __repr__(self) -> str:
        return f"<Swept {len(self.blocks)} of {self.sweep.structures} combinations × {len(self.sweep.users)} loads>"

    def to_frame(self) -> pd.DataFrame:
        """One row for each combination and load; times in ms, rates in token/s, money in USD, watts in W.

        Returns
        -------
        pandas.DataFrame
            The rows, in the order of the question.
        """
        return frame_of_columns({name: rows_of(column) for name, column in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray | Shared]:
        """The columns of `to_frame`, of which those of a few values are not written out.

        Returns
        -------
        dict of str to array or Shared
            Column → its rows.
        """
        loads = len(self.sweep.users)
        said = {name: values for name, values in self.sweep.axes.items() if values != (None,) and name != "load"}
        names = list(dict.fromkeys(name for one in self.blocks for name in one.facts))
        blocks = np.repeat(np.arange(len(self.blocks)), loads)
        columns: dict[str, Any] = {name: Shared([one.said[name] for one in self.blocks], blocks) for name in said}
        columns |= self._loads()
        verdicts = self._joined(lambda one: one.verdict)
        columns["verdict"] = Shared(_VERDICTS, verdicts.astype(int))
        for name, (title, factor) in _TITLES.items():
            for end in ("", "_low", "_high"):
                columns[title + end] = self._joined(_figure(name + end)) * factor
        columns["user_tokens_per_s"] = 1.0 / self._joined(lambda one: one.figures["tpot"])
        columns["requests_held"] = self._joined(lambda one: one.held)
        for name in simulated_columns(self.sweep):
            columns[name] = self._joined(_figure(name))
        for name in names:
            if name not in columns:
                columns[name] = Shared([one.facts.get(name) for one in self.blocks], blocks)
        columns |= self._costs()
        columns["reason"] = self._reasons(verdicts)
        return columns

    def _loads(self) -> dict[str, np.ndarray | Shared]:
        """The load of each row."""
        sweep, count = self.sweep, len(self.blocks)
        if sweep.simulation is None:
            places = np.tile(np.arange(len(sweep.users)), count)
            lengths = {"input_tokens": sweep.inputs, "output_tokens": sweep.outputs}
            return {name: Shared(values, places) for name, values in ({"users": sweep.users} | lengths).items()}
        loads = [Arriving(*one.said["load"]) for one in self.blocks]
        users = [sweep.simulation.traffic(one).users for one in loads]
        return {
            "traffic": np.array([one.traffic for one in loads], dtype=object),
            "users": np.array([np.nan if one is None else one for one in users]),
            "input_tokens": np.array([one.input for one in loads], dtype=int),
            "output_tokens": np.array([one.output for one in loads], dtype=int),
        }

    def _joined(self, of: Callable[[Block], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(one) for one in self.blocks]) if self.blocks else np.empty(0)

    def _costs(self) -> dict[str, np.ndarray]:
        """Money and energy of a token at each load."""
        loads = len(self.sweep.users)
        rate = self._joined(lambda one: one.figures["output_rate"])

        def each(name: str) -> np.ndarray:
            return np.repeat(np.array([one.facts.get(name) or np.nan for one in self.blocks], dtype=float), loads)

        return {
            "usd_per_million_output_tokens": per_million(each("usd_month"), rate, each("utilisation")),
            "joules_per_output_token": joules_per_token(each("accelerator_w"), rate),
        }

    def _reasons(self, verdicts: np.ndarray) -> Shared:
        loads = len(self.sweep.users)
        texts, places = [""], np.zeros(len(verdicts), dtype=np.int64)
        for number, block in enumerate(self.blocks):
            some = places[number * loads : (number + 1) * loads]
            if block.reason:
                some[(block.verdict == _NOT) | (block.verdict <= _TIGHT)] = len(texts)
                texts.append(block.reason)
            short = np.flatnonzero((block.verdict > _FITS) & (block.verdict < _NOT))
            some[short] = len(texts) + np.arange(len(short))
            texts += [_reason(block, int(block.verdict[load]), load, self.sweep) for load in short.tolist()]
        return Shared(texts, places)


def simulated_columns(sweep: Sweep) -> tuple[str, ...]:
    """Columns that a sweep has because its loads are simulated.

    Parameters
    ----------
    sweep : Sweep
        The question.

    Returns
    -------
    tuple of str
        None where loads are predicted; with a promise also how surely it is kept.

    Examples
    --------
    >>> from glmplan.sizing.axes import read_sweep
    >>> sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "traffic": "poisson:1/s", "slo": "ttft < 1 s"})
    >>> simulated_columns(sweep)[-2:]
    ('goodput_share', 'probability')
    """
    if sweep.simulation is None:
        return ()
    return (*STATISTICS, *PROMISED) if sweep.simulation.slo else STATISTICS


def _figure(name: str) -> Callable[[Block], np.ndarray]:
    return lambda block: block.figures[name]


def _reason(block: Block, verdict: int, load: int, sweep: Sweep) -> str:
    users, held = int(sweep.users[load]), block.held[load]
    length = int(sweep.inputs[load] + sweep.outputs[load])
    if verdict == _LENGTH:
        return f"{length:,} tokens are beyond the {block.facts['longest']:,} that the model can read"
    if verdict == _PLACES:
        return f"the engine runs {block.facts['places']} requests at once, {users} are asked for"
    if sweep.simulation is not None:
        return f"the cache pool holds {held:,.1f} such requests in the mean, fewer at its low end"
    many = f"the cache pool holds {held:,.1f} of {users} requests of {length:,} tokens"
    return f"{many} in the mean, fewer at its low end" if verdict == _TIGHT else many


@dataclass
class _Shared:
    """What blocks of a sweep have in common."""

    sweep: Sweep
    money: Money | None
    exact: bool = False
    mixes: dict[Load, Mixes] = field(default_factory=dict)
    runs: KnownRuns = field(default_factory=KnownRuns)
    planned: dict[tuple[Any, ...], Deployed | str] = field(default_factory=dict)

    def plan(self, said: dict[str, Any]) -> Deployed | str:
        """The plan of a combination, or why there is none; combinations that differ in power alone share it."""
        key = tuple(value for name, value in said.items() if name != "power_limit")
        if key not in self.planned:
            if len(self.planned) > 1:
                self.planned.clear()
            self.planned[key] = self._plan({name: value for name, value in said.items() if name != "power_limit"})
        return self.planned[key]

    def _plan(self, said: dict[str, Any]) -> Deployed | str:
        words: Any = {name: value for name, value in said.items() if value is not None and name not in ("model", "on")}
        lengths = self.sweep.inputs + self.sweep.outputs
        wrong = ""
        # the longest request decides the layout; where it does not fit, the shortest
        for place in dict.fromkeys((int(np.argmax(lengths)), int(np.argmin(lengths)))):
            words |= {"input": int(self.sweep.inputs[place]), "output": int(self.sweep.outputs[place])}
            words["users"] = (int(self.sweep.users.max()),)
            try:
                found = deployment(said["model"], said["on"], **words)
                blocked = found.holding.terms.blocked
                return found if blocked is None else f"does not run: {blocked.title}"
            except GlmplanError as error:
                wrong = wrong or str(error)
        return wrong


def blocks_of(
    sweep: Sweep,
    numbers: Iterable[int] | None = None,
    *,
    money: Money | None = None,
    exact: bool = False,
) -> Generator[Block, None, None]:
    """Compute combinations of a sweep, one after the other.

    Parameters
    ----------
    sweep : Sweep
        The question.
    numbers : iterable of int, optional
        Places of the combinations; all by default, [-]
    money : Money, optional
        Prices and terms; without them money is left out.
    exact : bool, optional
        Time every step instead of reading tables.

    Yields
    ------
    Block
        Each combination.
    """
    shared = _Shared(sweep, money, exact)
    wanted = None if numbers is None else set(numbers)
    for number, said in enumerate(sweep.combinations()):
        if wanted is None or number in wanted:
            yield _block(shared, number, said)


def swept(
    sweep: Sweep,
    *,
    money: Money | None = None,
    exact: bool = False,
    done: Sequence[Block] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    keep: Callable[[Block], None] = lambda block: None,
    blocks: Callable[..., Generator[Block, None, None]] = blocks_of,
) -> Swept:
    """Compute a sweep.

    Parameters
    ----------
    sweep : Sweep
        The question.
    money : Money, optional
        Prices and terms; without them money is left out.
    exact : bool, optional
        Time every step instead of reading tables.
    done : sequence of Block, optional
        Combinations that an earlier run computed.
    progress : callable, optional
        Called with combinations done and in all, [-]
    keep : callable, optional
        Called with each new block.
    blocks : callable, optional
        What computes combinations: `blocks_of`, here, or what `glmplan.sizing.cluster.blocks_on` returns.

    Returns
    -------
    Swept
        What came out.

    Examples
    --------
    >>> from glmplan.sizing.axes import read_sweep
    >>> found = swept(read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "users": "1,8", "input": 1000}))
    >>> frame = found.to_frame()
    >>> len(frame), frame["verdict"].tolist()
    (2, ['fits', 'fits'])
    """
    reached = {one.number: one for one in done}
    left = [number for number in range(sweep.structures) if number not in reached]
    progress(len(reached), sweep.structures)
    # closed at once when somebody interrupts: a cluster does not wait for the collector
    with closing(blocks(sweep, left, money=money, exact=exact)) as coming:
        for block in coming:
            reached[block.number] = block
            keep(block)
            progress(len(reached), sweep.structures)
    return Swept(sweep, tuple(reached[number] for number in sorted(reached)))


def _block(shared: _Shared, number: int, said: dict[str, Any]) -> Block:
    sweep = shared.sweep
    if sweep.simulation is not None:
        return _simulated_block(shared, number, said)
    found = shared.plan(said)
    if isinstance(found, str):
        return _nothing(sweep, number, said, found)
    try:
        found = _limited(found, said["power_limit"])
    except GlmplanError as error:
        return _nothing(sweep, number, said, str(error))
    verdict, held = _verdicts(found, sweep)
    figures = {name: np.full(len(sweep.users), np.nan) for name in FIGURES}
    facts = _facts(found, said)
    possible = np.flatnonzero(verdict <= _TIGHT)
    if len(possible):
        try:
            columns = _columns(shared, found, possible)
        except UnknownFact as error:
            return _nothing(sweep, number, said, str(error))
        for name, values in columns.figures.items():
            figures[name][possible] = values
        facts |= {"knowledge": columns.knowledge, "within": 0.0 if columns.exact else TOLERANCE}
    if shared.money is not None:
        facts |= money_facts(found.asked.machine, shared.money, said["power_limit"])
    left_out = "" if prompts_timed(found.asked) else f"{untimed_words(found.asked)}, and rates are left out"
    return Block(number, said, facts, verdict, held, figures, left_out)


def _simulated_block(shared: _Shared, number: int, said: dict[str, Any]) -> Block:
    """One combination with one load that is simulated."""
    sweep, load = shared.sweep, Arriving(*said["load"])
    words = {name: value for name, value in said.items() if value is not None and name not in ("model", "on", "load")}
    assert sweep.simulation is not None
    try:
        found = simulated(said["model"], said["on"], words, load, sweep.simulation)
    except GlmplanError as error:
        return _nothing(sweep, number, said, str(error))
    planned = found.planned
    facts = _facts(planned, said)
    if shared.money is not None:
        facts |= money_facts(planned.asked.machine, shared.money, said["power_limit"])
    verdict = np.array([_FITS if planned.holding.verdict == "fits" else _TIGHT])
    figures = {name: np.array([value]) for name, value in found.figures.items()}
    return Block(number, said, facts, verdict, np.array([planned.holding.held]), figures)


def _limited(found: Deployed, limit: float | None) -> Deployed:
    """The plan with its accelerators under a power limit: the layout is that of the rating."""
    if limit is None:
        return found
    check_limit(found.asked.machine.accelerator, limit)
    asked, deployed = found.asked.but(power_limit=limit), replace(found.deployment, power_limit=limit)
    return replace(found, asked=asked, deployment=deployed)


def _nothing(sweep: Sweep, number: int, said: dict[str, Any], reason: str) -> Block:
    empty = np.full(len(sweep.users), np.nan)
    figures = {name: empty.copy() for name in (*FIGURES, *simulated_columns(sweep))}
    return Block(number, said, {}, np.full(len(sweep.users), _NOT), empty, figures, reason)


def _verdicts(found: Deployed, sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    asked, terms, part = found.asked, found.holding.terms, found.holding.part
    memory = rank_memory(
        asked.model, asked.checkpoint, layout=Layout(terms.tp, terms.pp, terms.dp, terms.ep, terms.dcp), kv=terms.kv,
        settings=found.holding.memory.settings, mtp=terms.mtp > 0, memory=asked.machine.accelerator.memory,
    )  # fmt: skip
    lengths, places = np.unique(sweep.inputs + sweep.outputs, return_inverse=True)
    ends = [requests_that_fit(memory, part, lengths.astype(float), quantile=end)[places] for end in (0.0, -QUANTILE_90)]
    held, low = (terms.replicas * one for one in ends)
    seats = seats_of(found.asked, terms.dp) * terms.replicas
    verdict = np.select(
        [lengths[places] > found.asked.model.max_context, held < sweep.users, sweep.users > seats, low < sweep.users],
        [_LENGTH, _POOL, _PLACES, _TIGHT],
        _FITS,
    )
    return verdict, held


def _columns(shared: _Shared, found: Deployed, possible: np.ndarray) -> Columns:
    sweep, deployed = shared.sweep, found.deployment
    packing, ranks, gain = deployed.defaults, deployed.dp, deployed.tokens_per_step
    timed = prompts_timed(found.asked)
    if deployed.accelerator.runs_on_one_memory or deployed.offload is not None or not timed:
        from glmplan.sizing.points import exact_columns

        loads = [
            load_of(found.asked.but(input_tokens=int(sweep.inputs[n]), output_tokens=int(sweep.outputs[n])), deployed,
                    found.holding.pool, int(sweep.users[n]), found.holding.terms.replicas)
            for n in possible
        ]  # fmt: skip
        return exact_columns(deployed, loads, timed=timed)
    key = packing_key(packing, ranks=ranks, tokens_per_step=gain, servers=found.holding.terms.replicas)
    if key not in shared.mixes:
        shared.mixes[key] = mixes_of(sweep.users, sweep.inputs, sweep.outputs, key, runs=shared.runs)
    return columns_of(deployed, shared.mixes[key].at(possible), exact=shared.exact)


def _facts(found: Deployed, said: dict[str, Any]) -> dict[str, Any]:
    terms, asked = found.holding.terms, found.asked
    return {
        "accelerators": asked.machine.count,
        "accelerators_used": terms.accelerators,
        "checkpoint": asked.checkpoint.name,
        "engine_chosen": asked.engine,
        "layout": terms.name,
        "cache": terms.kv,
        "places": seats_of(asked, terms.dp) * terms.replicas,
        "longest": asked.model.max_context,
    }
