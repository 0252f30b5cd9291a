"""Sweep over models, machines, formats, layouts and loads.

Each combination of the structural axes is planned once; its loads are predicted as arrays. Infeasible points keep their
rows, with the reason.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.files import parse_json, read_bytes, read_text, understood, write_atomically
from glmplan.catalog.tables import frame_of_columns, safe_cell
from glmplan.costs.memory.pool import requests_that_fit
from glmplan.costs.memory.ranks import rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.extras import check_extra
from glmplan.io.json_names import SWEEP_NAMES, renamed
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.planner.ask import Deployed, deployment
from glmplan.planner.launch import slots_on
from glmplan.planner.moved_experts import moved_words
from glmplan.planner.ranking import load_of, prompts_timed, untimed_words
from glmplan.planner.users import danger_under, places_of, verdict_under
from glmplan.prediction.load import Load
from glmplan.prediction.power import check_limit
from glmplan.purchase.axes import PROMISED, STATISTICS, Arriving, Sweep, simulated
from glmplan.purchase.cost import joules_per_token, per_million
from glmplan.purchase.money import Money, money_facts
from glmplan.purchase.step_histograms import (
    TOLERANCE,
    Columns,
    StepHistograms,
    columns_of,
    exact_columns,
    packing_key,
    step_histograms_of,
)
from glmplan.simulation.closed_loop import KnownRuns
from glmplan.units import QUANTILE_90, Watts

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FIGURES",
    "TABLES",
    "Block",
    "Checkpoints",
    "Shared",
    "Swept",
    "blocks_of",
    "check_table",
    "csv_parts",
    "read_part",
    "rows_of",
    "simulated_columns",
    "swept",
    "taken",
    "write_table",
]


#: largest chunk of CSV [B], and its most rows
_BYTES, _ROWS = 1 << 22, 65_536
#: decimal exponents of numbers that are written by table lookup; width of a number and of half of it [B]
_POWERS, _WIDTH, _HALF = range(-6, 11), 16, 8
#: factors that turn numbers of these exponents into six-digit integers; two exact powers instead of one inexact
_TIMES = np.array([10.0 ** max(5 - power, 0) for power in _POWERS])
_OVER = np.array([10.0 ** max(power - 5, 0) for power in _POWERS])
#: padding of a field: a byte that never occurs in UTF-8
_UNUSED = b"\xff"
#: distance to a rounding tie within which a number is formatted by Python [-]
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A column as few distinct values and the index of the value of each row."""

    values: Sequence[Any] | np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)


def taken(values: Sequence[Any] | np.ndarray, places: np.ndarray) -> Any:
    """Return the full column of a `Shared` one.

    The dtype is that of a frame.

    Examples
    --------
    >>> list(taken(["fits", "tight"], np.array([0, 1, 1])))
    ['fits', 'tight', 'tight']
    """
    import pandas as pd

    if isinstance(values, np.ndarray) and values.dtype != object:
        return values[places]
    each = np.empty(len(values), dtype=object)
    each[:] = list(values)
    return pd.Series(each).array.take(places)


def rows_of(column: Any, rows: np.ndarray | None = None) -> Any:
    """Return a column, or some of its rows, as a frame takes it.

    Examples
    --------
    >>> rows_of(Shared(("a", "b"), np.array([0, 1, 1])), np.array([True, False, True])).tolist()
    ['a', 'b']
    """
    if isinstance(column, Shared):
        return taken(column.values, column.places if rows is None else column.places[rows])
    return column if rows is None else column[rows]


def csv_parts(columns: pd.DataFrame | Mapping[str, Any]) -> Iterator[bytes]:
    """Yield columns as CSV in chunks of rows.

    Byte for byte as pandas writes them; numbers have six significant digits.

    Examples
    --------
    >>> import pandas as pd
    >>> b"".join(csv_parts(pd.DataFrame({"name": ["a,b", None], "value": [2 / 3, float("nan")]})))
    b'name,value\\n"a,b",0.666667\\n,\\n'
    """
    yield (_line(columns) + "\n").encode()
    length = max(len(columns[name]) for name in columns)
    fields = _fields([columns[name] for name in columns])
    widths = [_WIDTH if texts is None else texts.itemsize for _, texts in fields]
    ends = np.cumsum([width + 1 for width in widths])
    rows = max(min(_ROWS, _BYTES // int(ends[-1])), 1)
    for start in range(0, length, rows):
        count = min(rows, length - start)
        # all rows of a field have the width of the longest; the padding is removed at the end
        chunk = np.full((count, int(ends[-1])), ord(","), dtype=np.uint8)
        for (values, texts), end, width in zip(fields, ends, widths, strict=True):
            part = values[start : start + count]
            field = _numbers(part) if texts is None else texts[part]
            chunk[:, end - 1 - width : end - 1] = field.view(np.uint8).reshape(count, width)
        chunk[:, -1] = ord("\n")
        yield chunk.tobytes().translate(None, _UNUSED)


def _fields(columns: Iterable[Any]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return numbers of numeric columns, indices and texts of others.

    Missing numbers are None; texts are padded. Neighbouring columns with the same indices are joined to one field.
    """
    fields: list[tuple[np.ndarray, np.ndarray | None]] = []
    joined: list[bytes] = []
    for column in columns:
        places, texts = _column(column)
        if texts is None:
            fields.append((places, None))
            continue
        if fields and fields[-1][1] is not None and fields[-1][0] is places:
            joined = [b",".join(pair) for pair in zip(joined, texts, strict=True)]
            fields.pop()
        else:
            joined = texts
        fields.append((places, _padded(joined)))
    return fields


def _column(column: Any) -> tuple[np.ndarray, list[bytes] | None]:
    """Return the numbers of a column, or indices and distinct texts."""
    import pandas as pd

    if isinstance(column, Shared):
        values = column.values
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            return values[column.places], None
        return column.places, [_text(value) for value in values]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        return np.asarray(column, dtype=float), None
    places, values = pd.factorize(column, use_na_sentinel=True)
    # the last text stands for missing values
    return np.where(places < 0, len(values), places), [*(_text(value) for value in values), b""]


def _text(value: Any) -> bytes:
    return b"" if value is None or value != value else _line([value]).encode()


def _padded(texts: Sequence[bytes]) -> np.ndarray:
    """Return texts as an array of bytes of equal width."""
    width = max(map(len, texts), default=1) or 1
    return np.array([text.ljust(width, _UNUSED) for text in texts], dtype=f"S{width}")


def _numbers(values: np.ndarray) -> np.ndarray:
    """Return numbers as ``%.6g`` writes them, and empty texts for NaN.

    Six digits are an integer times a power of ten; the texts of both halves of the integer are looked up.
    """
    usual = (values >= 10.0 ** _POWERS[0]) & (values < 10.0 ** _POWERS[-1])
    size = np.where(usual, values, 1.0)
    power = np.maximum(np.floor(np.log10(size)).astype(np.int64), _POWERS[0])
    row = power - _POWERS[0]
    # these powers of ten are exact, so that a product or quotient is off by its last bit at most
    digits = size * _TIMES[row] / _OVER[row]
    integer = np.rint(digits).astype(np.int64)
    usual &= (np.abs(np.abs(digits - integer) - 0.5) > _NEAR) & (integer >= 100_000)
    # rounded up to a power of ten, or the logarithm came out a little low
    overflow = integer >= 1_000_000
    integer, power = np.where(overflow, 100_000, integer), power + overflow
    high = integer // 1000
    low = integer - 1000 * high
    left, right = _halves()
    row = np.minimum(power - _POWERS[0], len(_POWERS) - 1)
    result = np.empty(len(values), dtype=f"S{_WIDTH}")
    halves = result.view(f"S{_HALF}").reshape(-1, 2)
    halves[:, 0] = left[(row * 2 + (low == 0)) * 1000 + high]
    halves[:, 1] = right[row * 1000 + low]
    odd = np.flatnonzero(~usual)
    # compared by bits: -0.0 and 0.0 have different texts
    bits, places = np.unique(values[odd].view(np.int64), return_inverse=True)
    texts = ["" if np.isnan(value) else f"{value:.6g}" for value in bits.view(float).tolist()]
    result[odd] = np.array([text.encode().ljust(_WIDTH, _UNUSED) for text in texts], dtype=result.dtype)[places]
    return result


@lru_cache(maxsize=1)
def _halves() -> tuple[np.ndarray, np.ndarray]:
    """Return the texts of both halves of six digits for each power of ten.

    The first half exists twice: followed by other digits, and without trailing zeros.
    """
    left, right = [], []
    for power in _POWERS:
        point = power + 1
        exponent = "" if -4 <= power < 6 else f"e{power:+03d}"
        point = 1 if exponent else point
        for last in (False, True):
            for high in range(1000):
                digits = f"{high:03d}"
                text = f"0.{'0' * -point}{digits}" if point < 1 else f"{digits[:point]}.{digits[point:]}"
                text = text.removesuffix(".") if point > 2 else text
                left.append(text.rstrip("0").rstrip(".") if last and point < 3 else text)
        for low in range(1000):
            before, after = f"{low:03d}"[: max(point - 3, 0)], f"{low:03d}"[max(point - 3, 0) :].rstrip("0")
            right.append(before + ("." if point > 2 and after else "") + after + exponent)
    first, second = (_padded([text.encode().ljust(_HALF, _UNUSED) for text in texts]) for texts in (left, right))
    return first, second


def _line(values: Iterable[Any]) -> str:
    """Return values as a line of CSV."""
    stream = io.StringIO()
    # an extra empty field: csv.writer quotes a single empty one
    csv.writer(stream, lineterminator="\n").writerow([*map(safe_cell, values), ""])
    return stream.getvalue()[:-2]


#: metrics in base units, with the bounds of their 90 % intervals
FIGURES: tuple[str, ...] = (
    *("ttft", "ttft_low", "ttft_high", "tpot", "tpot_low", "tpot_high"),
    *("output_rate", "output_rate_low", "output_rate_high"),
)
#: metric → column and factor from base units
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
    """One combination of the structural axes with all its loads."""

    #: index in the sweep
    number: int
    #: value of each axis
    said: dict[str, Any]
    #: columns that are equal for all loads: layout, formats, cost, power
    facts: dict[str, Any]
    #: index in `_VERDICTS` of each load
    verdict: np.ndarray
    #: requests of each load that the KV pool holds
    held: np.ndarray
    #: `FIGURES` and `simulated_columns` of each load; NaN if infeasible
    figures: dict[str, np.ndarray]
    #: reason why no load is feasible, or why rates are missing
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Swept:
    """Result of a sweep, complete or interrupted."""

    sweep: Sweep
    #: in the order of the sweep
    blocks: tuple[Block, ...]

    @property
    def whole(self) -> bool:
        """Return True if every combination was computed."""
        return len(self.blocks) == self.sweep.structures

    @property
    def possible(self) -> np.ndarray:
        """Return True for each feasible row, including tight ones.

        A plan with a hazard that is a danger is not.
        """
        return self._joined(lambda block: block.verdict + _NOT * ("danger" in block.facts)) <= _TIGHT

    def __repr__(self) -> str:
        return f"<Swept {len(self.blocks)} of {self.sweep.structures} combinations × {len(self.sweep.users)} loads>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each combination and load.

        Times in ms, rates in token/s, money in USD, power in W.
        """
        return frame_of_columns({name: rows_of(column) for name, column in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray | Shared]:
        """Return the columns of `to_frame`, `Shared` for few distinct values."""
        loads = len(self.sweep.users)
        axes = [name for name, values in self.sweep.axes.items() if values != (None,) and name != "load"]
        names = list(dict.fromkeys(name for block in self.blocks for name in block.facts))
        blocks = np.repeat(np.arange(len(self.blocks)), loads)
        columns: dict[str, Any] = {name: Shared([block.said[name] for block in self.blocks], blocks) for name in axes}
        columns |= self._loads()
        verdicts = self._joined(lambda block: block.verdict)
        columns["verdict"] = Shared(_VERDICTS, verdicts.astype(int))
        for name, (title, factor) in _TITLES.items():
            for end in ("", "_low", "_high"):
                columns[title + end] = self._joined(_figure(name + end)) * factor
        columns["user_tokens_per_s"] = 1.0 / self._joined(lambda block: block.figures["tpot"])
        columns["requests_held"] = self._joined(lambda block: block.held)
        for name in simulated_columns(self.sweep):
            columns[name] = self._joined(_figure(name))
        for name in names:
            if name not in columns:
                columns[name] = Shared([block.facts.get(name) for block in self.blocks], blocks)
        columns |= self._costs()
        columns["reason"] = self._reasons(verdicts)
        return columns

    def _loads(self) -> dict[str, np.ndarray | Shared]:
        """Return the columns of the load."""
        sweep, count = self.sweep, len(self.blocks)
        if sweep.simulation is None:
            places = np.tile(np.arange(len(sweep.users)), count)
            lengths = {"input_tokens": sweep.inputs, "output_tokens": sweep.outputs}
            return {name: Shared(values, places) for name, values in ({"users": sweep.users} | lengths).items()}
        loads = [Arriving(*block.said["load"]) for block in self.blocks]
        users = [sweep.simulation.traffic(load).users for load in loads]
        return {
            "traffic": np.array([load.traffic for load in loads], dtype=object),
            "users": np.array([np.nan if count is None else count for count in users]),
            "input_tokens": np.array([load.input for load in loads], dtype=int),
            "output_tokens": np.array([load.output for load in loads], dtype=int),
        }

    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the prompt and output tokens of each point."""
        if self.sweep.simulation is None:
            lengths = np.array([self.sweep.inputs, self.sweep.outputs], dtype=float)
            prompts, answers = np.tile(lengths, len(self.blocks))
        else:
            loads = [Arriving(*block.said["load"]) for block in self.blocks]
            prompts, answers = np.array([(load.input, load.output) for load in loads], dtype=float).reshape(-1, 2).T
        return prompts, answers

    def _joined(self, of: Callable[[Block], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(block) for block in self.blocks]) if self.blocks else np.empty(0)

    def _costs(self) -> dict[str, np.ndarray]:
        """Return cost and energy per token."""
        loads = len(self.sweep.users)
        rate = self._joined(lambda block: block.figures["output_rate"])

        def each(name: str) -> np.ndarray:
            return np.repeat(np.array([block.facts.get(name) or np.nan for block in self.blocks], dtype=float), loads)

        prompts, answers = self._lengths()
        both = 1.0 + prompts / answers
        month, busy = each("usd_month"), each("utilisation")
        return {
            "usd_per_million_output_tokens": per_million(month, rate, busy),
            "usd_per_million_tokens": per_million(month, rate * both, busy),
            "joules_per_output_token": joules_per_token(each("accelerator_w"), rate),
        }

    def _reasons(self, verdicts: np.ndarray) -> Shared:
        loads = len(self.sweep.users)
        texts, places = [""], np.zeros(len(verdicts), dtype=np.int64)
        for number, block in enumerate(self.blocks):
            own = places[number * loads : (number + 1) * loads]
            if block.reason:
                own[(block.verdict == _NOT) | (block.verdict <= _TIGHT)] = len(texts)
                texts.append(block.reason)
            short = np.flatnonzero((block.verdict > _FITS) & (block.verdict < _NOT))
            own[short] = len(texts) + np.arange(len(short))
            texts += [_reason(block, int(block.verdict[load]), load, self.sweep) for load in short.tolist()]
        return Shared(texts, places)


def simulated_columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the columns that only simulated loads have.

    An SLO adds its attainment.

    Examples
    --------
    >>> from glmplan.purchase.axes import read_sweep
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
    if verdict == _TIGHT and "danger" in block.facts:
        return str(block.facts["danger"])
    if verdict == _LENGTH:
        return f"{length:,} tokens exceed the context of the model ({block.facts['longest']:,})"
    if verdict == _PLACES:
        if users <= block.facts["places"]:
            return f"the lower bound of the KV pool holds fewer than {users} slots of {length:,} tokens"
        return f"the engine runs at most {block.facts['places']} requests at once, not {users}"
    if sweep.simulation is not None:
        return f"KV pool holds {held:,.1f} such requests expected, fewer in the pessimistic case"
    if verdict == _TIGHT:
        return f"KV pool holds {held:,.1f} of {users} requests of {length:,} tokens, fewer in the pessimistic case"
    return f"KV pool holds only {held:,.1f} of {users} requests of {length:,} tokens"


@dataclass
class _Context:
    """Inputs and caches that all blocks of a sweep share."""

    sweep: Sweep
    money: Money | None
    exact: bool = False
    mixes: dict[Load, StepHistograms] = field(default_factory=dict)
    runs: KnownRuns = field(default_factory=KnownRuns)
    planned: dict[tuple[Any, ...], Deployed | str] = field(default_factory=dict)

    def plan(self, said: dict[str, Any]) -> Deployed | str:
        """Return the plan of a combination, or the reason for none.

        Power limits share a plan.
        """
        structure = {name: value for name, value in said.items() if name != "power_limit"}
        key = tuple(structure.values())
        if key not in self.planned:
            if len(self.planned) > 1:
                self.planned.clear()
            self.planned[key] = self._plan(structure)
        return self.planned[key]

    def _plan(self, said: dict[str, Any]) -> Deployed | str:
        options: Any = {name: value for name, value in said.items() if value is not None}
        model, on = options.pop("model"), options.pop("on")
        lengths = self.sweep.inputs + self.sweep.outputs
        reason = ""
        # the longest request decides the layout; if it does not fit, the shortest
        for index in dict.fromkeys((int(np.argmax(lengths)), int(np.argmin(lengths)))):
            options |= {"input": int(self.sweep.inputs[index]), "output": int(self.sweep.outputs[index])}
            options["users"] = (int(self.sweep.users.max()),)
            try:
                plan = deployment(model, on, **options)
                blocked = plan.holding.terms.blocked
                return plan if blocked is None else f"does not run: {blocked.title}"
            except GlmplanError as error:
                reason = reason or str(error)
        return reason


def blocks_of(
    sweep: Sweep,
    numbers: Iterable[int] | None = None,
    *,
    money: Money | None = None,
    exact: bool = False,
) -> Generator[Block, None, None]:
    """Yield the blocks of a sweep; without `money`, without costs."""
    context = _Context(sweep, money, exact)
    wanted = None if numbers is None else set(numbers)
    for number, said in enumerate(sweep.combinations()):
        if wanted is None or number in wanted:
            yield _block(context, number, said)


def _machines(sweep: Sweep) -> Iterator[Machine]:
    """Yield the machines of a sweep that exist."""
    for on in sweep.axes["on"]:
        with suppress(GlmplanError):
            yield resolve_machine(on)


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
    """Compute a sweep; without `money`, without costs.

    All rents are at one term: that of `money`, else one that is offered for every machine.

    `blocks`: `blocks_of` for this process, or the result of `glmplan.purchase.cluster.blocks_on`.

    Examples
    --------
    >>> from glmplan.purchase.axes import read_sweep
    >>> sweep = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "users": "1,8", "input": 1000})
    >>> swept(sweep).to_frame()["verdict"].tolist()
    ['fits', 'fits']
    """
    if money is not None:
        money = money.at_one_term(_machines(sweep))
    reached = {block.number: block for block in done}
    remaining = [number for number in range(sweep.structures) if number not in reached]
    progress(len(reached), sweep.structures)
    # closed at once on Ctrl-C, so that a cluster does not wait for the garbage collector
    with closing(blocks(sweep, remaining, money=money, exact=exact)) as coming:
        for block in coming:
            reached[block.number] = block
            keep(block)
            progress(len(reached), sweep.structures)
    return Swept(sweep, tuple(reached[number] for number in sorted(reached)))


def _block(context: _Context, number: int, said: dict[str, Any]) -> Block:
    sweep = context.sweep
    if sweep.simulation is not None:
        return _simulated_block(context, number, said)
    plan = context.plan(said)
    if isinstance(plan, str):
        return _infeasible(sweep, number, said, plan)
    try:
        plan = _limited(plan, said["power_limit"])
    except GlmplanError as error:
        return _infeasible(sweep, number, said, str(error))
    verdict, held = _verdicts(plan, sweep)
    figures = {name: np.full(len(sweep.users), np.nan) for name in FIGURES}
    facts = _facts(plan)
    possible = np.flatnonzero(verdict <= _TIGHT)
    if len(possible):
        try:
            columns = _columns(context, plan, possible)
        except UnknownFact as error:
            return _infeasible(sweep, number, said, str(error))
        for name, values in columns.figures.items():
            figures[name][possible] = values
        facts |= {"evidence": columns.knowledge, "within": 0.0 if columns.exact else TOLERANCE}
    if context.money is not None:
        facts |= money_facts(plan.asked.machine, context.money, said["power_limit"])
    left_out = "" if prompts_timed(plan.asked) else f"{untimed_words(plan.asked)}, and rates are left out"
    return Block(number, said, facts, verdict, held, figures, left_out)


def _simulated_block(context: _Context, number: int, said: dict[str, Any]) -> Block:
    """Return one combination with its one simulated load."""
    sweep, load = context.sweep, Arriving(*said["load"])
    options = {name: value for name, value in said.items() if value is not None and name not in ("model", "on", "load")}
    assert sweep.simulation is not None
    try:
        result = simulated(said["model"], said["on"], options, load, sweep.simulation)
    except GlmplanError as error:
        return _infeasible(sweep, number, said, str(error))
    planned = result.planned
    facts = _facts(planned)
    if context.money is not None:
        facts |= money_facts(planned.asked.machine, context.money, said["power_limit"])
    verdict = np.array([_FITS if verdict_under(planned.asked, planned.holding) == "fits" else _TIGHT])
    figures = {name: np.array([value]) for name, value in result.figures.items()}
    return Block(number, said, facts, verdict, np.array([planned.holding.held]), figures)


def _limited(plan: Deployed, limit: Watts | None) -> Deployed:
    """Return the plan under a power limit, with its unlimited layout."""
    if limit is None:
        return plan
    machine = plan.asked.machine
    check_limit(machine.accelerator, limit)
    asked, deployed = plan.asked.but(power_limit=limit), replace(plan.deployment, power_limit=machine.limit_of(limit))
    return replace(plan, asked=asked, deployment=deployed)


def _infeasible(sweep: Sweep, number: int, said: dict[str, Any], reason: str) -> Block:
    empty = np.full(len(sweep.users), np.nan)
    figures = {name: empty.copy() for name in (*FIGURES, *simulated_columns(sweep))}
    return Block(number, said, {}, np.full(len(sweep.users), _NOT), empty, figures, reason)


def _verdicts(plan: Deployed, sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Return verdict and requests in the KV pool of each load."""
    asked, terms, part = plan.asked, plan.holding.terms, plan.holding.part
    memory = rank_memory(
        asked.model, asked.checkpoint, layout=Layout(terms.tp, terms.pp, terms.dp, terms.ep, terms.dcp), kv=terms.kv,
        settings=plan.holding.memory.settings, mtp=terms.mtp > 0, memory=asked.machine.accelerator.memory,
    )  # fmt: skip
    lengths, places = np.unique(sweep.inputs + sweep.outputs, return_inverse=True)
    held, low = (
        terms.replicas * requests_that_fit(memory, part, lengths.astype(float), quantile=quantile)[places]
        for quantile in (0.0, -QUANTILE_90)
    )
    seats = terms.replicas * slots_on(asked, terms, low)
    verdict = np.select(
        [lengths[places] > asked.model.max_context, held < sweep.users, sweep.users > seats, low < sweep.users],
        [_LENGTH, _POOL, _PLACES, _TIGHT],
        _FITS if danger_under(asked, plan.holding) is None else _TIGHT,
    )
    return verdict, held


def _columns(context: _Context, plan: Deployed, possible: np.ndarray) -> Columns:
    """Predict the feasible loads.

    One by one where step tables do not apply, else from shared step histograms.
    """
    sweep, deployed, replicas = context.sweep, plan.deployment, plan.holding.terms.replicas
    timed = prompts_timed(plan.asked)
    if deployed.accelerator.runs_on_one_memory or deployed.offload is not None or not timed:
        loads = [
            load_of(plan.asked.but(input_tokens=int(sweep.inputs[n]), output_tokens=int(sweep.outputs[n])), deployed,
                    plan.holding.pool_for(int(sweep.inputs[n] + sweep.outputs[n])), int(sweep.users[n]), replicas)
            for n in possible
        ]  # fmt: skip
        return exact_columns(deployed, loads, timed=timed)
    key = packing_key(
        deployed.defaults, ranks=deployed.dp, tokens_per_step=deployed.tokens_per_step,
        draft_tokens=deployed.draft_chain, servers=replicas,
    )  # fmt: skip
    if key not in context.mixes:
        context.mixes[key] = step_histograms_of(sweep.users, sweep.inputs, sweep.outputs, key, runs=context.runs)
    return columns_of(deployed, context.mixes[key].at(possible), exact=context.exact)


def _facts(plan: Deployed) -> dict[str, Any]:
    terms, asked = plan.holding.terms, plan.asked
    danger = danger_under(asked, plan.holding)
    return {
        "accelerators": asked.machine.count,
        "accelerators_used": terms.accelerators,
        "checkpoint": asked.checkpoint.name,
        "engine_chosen": asked.engine,
        "layout": terms.name,
        "cache": terms.kv,
        "host_weights": moved_words(asked, plan.holding),
        "places": places_of(asked, plan.holding),
        "longest": asked.model.max_context,
        **({} if danger is None else {"danger": f"not safe: {danger.words}"}),
    }


#: suffixes of tables
TABLES: tuple[str, ...] = (".csv", ".parquet", ".json")
_FILE = "question.json"


def write_table(columns: pd.DataFrame | Mapping[str, Any], path: str | Path) -> None:
    """Write columns to a CSV, Parquet or JSON file."""
    path = Path(path)
    check_table(path)
    if path.suffix == ".csv":
        write_atomically(path, csv_parts(columns))
        return
    frame = frame_of_columns({name: rows_of(columns[name]) for name in columns})
    if path.suffix == ".json":
        write_atomically(path, frame.to_json(orient="records", double_precision=6, indent=1))
    else:
        stream = io.BytesIO()
        frame.to_parquet(stream, index=False)
        write_atomically(path, stream.getvalue())


def check_table(path: Path) -> None:
    """Raise SpecError for an unknown suffix, before the sweep is computed."""
    if path.suffix not in TABLES:
        raise SpecError("is no kind of table", field="--out", value=path.suffix or path.name, choices=TABLES)
    if path.suffix == ".parquet":
        check_extra("pyarrow", field="--out")


class Checkpoints:
    """Checkpoints of a sweep: a folder with one file for each block.

    It lies beside the table. The sweep, its files and `words` (prices and terms) must be equal for a checkpoint to be
    read.
    """

    def __init__(self, path: str | Path, sweep: Sweep, words: dict[str, Any]) -> None:
        self.folder = Path(f"{path}.parts")
        axes = {name: list(values) for name, values in sweep.axes.items()}
        loads = hashlib.sha256(np.stack([sweep.users, sweep.inputs, sweep.outputs]).tobytes()).hexdigest()
        simulation: dict[str, Any] = {}
        if sweep.simulation is not None:
            files = sweep.simulation.files(Arriving(*load) for load in sweep.axes["load"])
            hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            simulation = {"simulation": asdict(sweep.simulation), "files": hashes}
        self._question = json.dumps({"axes": axes, "loads": loads, **simulation, **words}, sort_keys=True, default=str)

    def read(self) -> list[Block]:
        """Return the blocks of an interrupted run of the same sweep."""
        file = self.folder / _FILE
        if not os.path.exists(file):
            return []
        if read_text(file) != self._question:
            message = "holds parts of another sweep: delete it, or write to another file"
            raise SpecError(message, file=self.folder, field="--resume")
        return [read_part(path) for path in sorted(self.folder.glob("*.npz"))]

    def start(self) -> None:
        """Delete all checkpoints and write the question."""
        shutil.rmtree(self.folder, ignore_errors=True)
        write_atomically(self.folder / _FILE, self._question)

    def keep(self, block: Block) -> None:
        """Write the checkpoint of a block."""
        said = json.dumps({"number": block.number, "said": block.said, "facts": block.facts, "reason": block.reason})
        stream = io.BytesIO()
        arrays: Any = {"said": np.array(said), "verdict": block.verdict, "held": block.held, **block.figures}
        np.savez(stream, **arrays)
        write_atomically(self.folder / f"{block.number:08d}.npz", stream.getvalue())

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read_part(path: str | Path) -> Block:
    """Return the block of a checkpoint."""
    with understood(path, "part of a sweep"):
        data = read_bytes(path)
        try:
            # checkpoints are not compressed, so that no file can expand to more than its size
            members = zipfile.ZipFile(io.BytesIO(data)).infolist()
            if any(member.compress_type or member.flag_bits & 1 for member in members):
                raise SpecError("is no checkpoint of a sweep: delete the folder and start again", file=path)
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise ValueError(str(error)) from error
        said = parse_json(str(arrays.pop("said")), file=path)
        verdict, held = arrays.pop("verdict"), arrays.pop("held")
        columns = (held, *arrays.values())
        if not isinstance(said["number"], int) or any(column.shape != verdict.shape for column in columns):
            raise ValueError("its columns differ in length")
        facts = renamed(said["facts"], SWEEP_NAMES)
        return Block(said["number"], said["said"], facts, verdict, held, arrays, said["reason"])
