"""Every combination of models, machines, formats, layouts and loads: planned once each, predicted as columns.

Combinations that decide which formula applies are walked over; the loads of each are columns. What does not work keeps
its rows, with the reason.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.files import parse_json, read_bytes, read_text, understood, write_atomically
from glmplan.catalog.tables import frame_of_columns
from glmplan.costs.memory.pool import requests_that_fit
from glmplan.costs.memory.ranks import rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.extras import check_extra
from glmplan.planner.ask import Deployed, deployment
from glmplan.planner.ranking import load_of, prompts_timed, seats_of, untimed_words
from glmplan.prediction.load import Load
from glmplan.prediction.step_models import check_limit
from glmplan.purchase.axes import PROMISED, STATISTICS, Arriving, Sweep, simulated
from glmplan.purchase.cost import joules_per_token, per_million
from glmplan.purchase.money import Money, money_facts
from glmplan.purchase.step_histograms import TOLERANCE, Columns, Mixes, columns_of, mixes_of, packing_key
from glmplan.simulation.closed_loop import KnownRuns
from glmplan.units import QUANTILE_90

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FIGURES",
    "TABLES",
    "Block",
    "Kept",
    "Shared",
    "Swept",
    "blocks_of",
    "check_table",
    "csv_parts",
    "csv_text",
    "read_part",
    "rows_of",
    "simulated_columns",
    "swept",
    "taken",
    "write_table",
]


# Columns of a sweep that many rows share, and its rows as CSV: neither looks at each row by itself.

#: bytes and rows that are written at once [B] [-]
_BYTES, _ROWS = 1 << 22, 65_536
#: powers of ten that the first digit of a usual number stands for; bytes of a number and of half of it [B]
_POWERS, _WIDTH, _HALF = range(-6, 11), 16, 8
#: what numbers of these powers are multiplied with, and divided by, to be six digits
_TIMES = np.array([10.0 ** max(5 - power, 0) for power in _POWERS])
_OVER = np.array([10.0 ** max(power - 5, 0) for power in _POWERS])
#: fills what a field does not use: no byte of a text in UTF-8
_UNUSED = b"\xff"
#: how near a number may be to the middle between two of six digits before it is written by itself [-]
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A column of a few values that many rows share.

    Attributes
    ----------
    values : sequence or array
        The values.
    places : (n,) array of int
        Value of each row, [-]
    """

    values: Sequence[Any] | np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)


def taken(values: Sequence[Any] | np.ndarray, places: np.ndarray) -> Any:
    """A column of a few values that many rows share, made without looking at each row.

    - `values`: The values; those of an array keep its dtype.
    - Returns: With the dtype that a frame gives to the values themselves.

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
    """A column as a frame takes it.

    Examples
    --------
    >>> rows_of(Shared(("a", "b"), np.array([0, 1, 1])), np.array([True, False, True])).tolist()
    ['a', 'b']
    """
    if isinstance(column, Shared):
        return taken(column.values, column.places if rows is None else column.places[rows])
    return column if rows is None else column[rows]


def csv_text(columns: pd.DataFrame | Mapping[str, Any]) -> str:
    """Several columns as CSV with six digits of each number, as pandas writes a frame of them.

    Returns: A line of names, then one for each row.

    Examples
    --------
    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"name": ["a,b", None], "value": [2 / 3, float("nan")]}))
    'name,value\\n"a,b",0.666667\\n,\\n'
    """
    return b"".join(csv_parts(columns)).decode()


def csv_parts(columns: pd.DataFrame | Mapping[str, Any]) -> Iterator[bytes]:
    """What `csv_text` says, some rows after the other."""
    yield (_line(columns) + "\n").encode()
    length = max(len(columns[name]) for name in columns)
    fields = _fields([columns[name] for name in columns])
    widths = [_WIDTH if texts is None else texts.itemsize for _, texts in fields]
    ends = np.cumsum([width + 1 for width in widths])
    rows = max(min(_ROWS, _BYTES // int(ends[-1])), 1)
    for start in range(0, length, rows):
        count = min(rows, length - start)
        # every field has the width of the longest one: what is not used of it is taken out at the end
        page = np.full((count, int(ends[-1])), ord(","), dtype=np.uint8)
        for (values, texts), end, width in zip(fields, ends, widths, strict=True):
            some = values[start : start + count]
            written = _numbers(some) if texts is None else texts[some]
            page[:, end - 1 - width : end - 1] = written.view(np.uint8).reshape(count, width)
        page[:, -1] = ord("\n")
        yield page.tobytes().translate(None, _UNUSED)


def _fields(columns: Iterable[Any]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Numbers of columns; of others the places of their values, and each of these as bytes.

    Columns beside each other whose rows share values in the same way are written together.
    """
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    together: list[bytes] = []
    for column in columns:
        places, texts = _column(column)
        if texts is None:
            found.append((places, None))
            continue
        if found and found[-1][1] is not None and found[-1][0] is places:
            together = [b",".join(both) for both in zip(together, texts, strict=True)]
            found.pop()
        else:
            together = texts
        found.append((places, _padded(together)))
    return found


def _column(column: Any) -> tuple[np.ndarray, list[bytes] | None]:
    """The numbers of a column; of others the places of their values, and each different one as bytes."""
    import pandas as pd

    if isinstance(column, Shared):
        values = column.values
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            return values[column.places], None
        return column.places, [_text(one) for one in values]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        return np.asarray(column, dtype=float), None
    places, values = pd.factorize(column, use_na_sentinel=True)
    # the last one is what is missing
    return np.where(places < 0, len(values), places), [*(_text(one) for one in values), b""]


def _text(value: Any) -> bytes:
    return b"" if value is None or value != value else _line([value]).encode()


def _padded(texts: Sequence[bytes]) -> np.ndarray:
    """Texts as an array of bytes of one width."""
    width = max(map(len, texts), default=1) or 1
    return np.array([one.ljust(width, _UNUSED) for one in texts], dtype=f"S{width}")


def _numbers(values: np.ndarray) -> np.ndarray:
    """Numbers as ``%.6g`` writes them, and nothing for what is none.

    Six digits are a whole number times a power of ten, of which both halves are looked up.
    """
    usual = (values >= 10.0 ** _POWERS[0]) & (values < 10.0 ** _POWERS[-1])
    size = np.where(usual, values, 1.0)
    power = np.maximum(np.floor(np.log10(size)).astype(np.int64), _POWERS[0])
    row = power - _POWERS[0]
    # powers of ten are exact, so that a product or quotient is right but for its last bit
    digits = size * _TIMES[row] / _OVER[row]
    whole = np.rint(digits).astype(np.int64)
    usual &= (np.abs(np.abs(digits - whole) - 0.5) > _NEAR) & (whole >= 100_000)
    # what is rounded up to a power of ten, or whose logarithm came out a little low
    beyond = whole >= 1_000_000
    whole, power = np.where(beyond, 100_000, whole), power + beyond
    high = whole // 1000
    low = whole - 1000 * high
    left, right = _halves()
    row = np.minimum(power - _POWERS[0], len(_POWERS) - 1)
    found = np.empty(len(values), dtype=f"S{_WIDTH}")
    halves = found.view(f"S{_HALF}").reshape(-1, 2)
    halves[:, 0] = left[(row * 2 + (low == 0)) * 1000 + high]
    halves[:, 1] = right[row * 1000 + low]
    odd = np.flatnonzero(~usual)
    # by their bits: zero has a sign
    bits, places = np.unique(values[odd].view(np.int64), return_inverse=True)
    texts = ["" if np.isnan(one) else f"{one:.6g}" for one in bits.view(float).tolist()]
    found[odd] = np.array([one.encode().ljust(_WIDTH, _UNUSED) for one in texts], dtype=found.dtype)[places]
    return found


@lru_cache(maxsize=1)
def _halves() -> tuple[np.ndarray, np.ndarray]:
    """Both halves of six digits for each power of ten: three digits with and without others behind them, the others."""
    left, right = [], []
    for power in _POWERS:
        point = power + 1
        exponent = "" if -4 <= power < 6 else f"e{power:+03d}"
        point = 1 if exponent else point
        for alone in (False, True):
            for high in range(1000):
                digits = f"{high:03d}"
                text = f"0.{'0' * -point}{digits}" if point < 1 else f"{digits[:point]}.{digits[point:]}"
                text = text.removesuffix(".") if point > 2 else text
                left.append(text.rstrip("0").rstrip(".") if alone and point < 3 else text)
        for low in range(1000):
            before, after = f"{low:03d}"[: max(point - 3, 0)], f"{low:03d}"[max(point - 3, 0) :].rstrip("0")
            right.append(before + ("." if point > 2 and after else "") + after + exponent)
    one, other = (_padded([text.encode().ljust(_HALF, _UNUSED) for text in texts]) for texts in (left, right))
    return one, other


def _line(values: Iterable[Any]) -> str:
    """Values between commas, quoted where they have to be."""
    stream = io.StringIO()
    # an empty field behind them: a single one that is empty would be quoted
    csv.writer(stream, lineterminator="\n").writerow([*values, ""])
    return stream.getvalue()[:-2]


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

        Returns: The rows, in the order of the question.
        """
        return frame_of_columns({name: rows_of(column) for name, column in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray | Shared]:
        """The columns of `to_frame`, of which those of a few values are not written out."""
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

    Returns: None where loads are predicted; with a promise also how surely it is kept.

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

    `money`: Prices and terms; without them money is left out.
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

    - `money`: Prices and terms; without them money is left out.
    - `blocks`: What computes combinations: `blocks_of`, here, or what `glmplan.purchase.cluster.blocks_on` returns.

    Examples
    --------
    >>> from glmplan.purchase.axes import read_sweep
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
        from glmplan.purchase.step_histograms import exact_columns

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


# Files of a sweep: the table, and what is kept of one that was stopped.

#: endings of files that a table is written to
TABLES: tuple[str, ...] = (".csv", ".parquet", ".json")
_FILE = "question.json"


def write_table(columns: pd.DataFrame | Mapping[str, Any], path: str | Path) -> None:
    """Write a table."""
    path = Path(path)
    check_table(path)
    if path.suffix == ".csv":
        write_atomically(path, csv_parts(columns))
        return
    frame = frame_of_columns({name: rows_of(columns[name]) for name in columns})
    if path.suffix == ".json":
        write_atomically(path, frame.to_json(orient="records", double_precision=6, indent=1))
    else:
        import io

        stream = io.BytesIO()
        frame.to_parquet(stream, index=False)
        write_atomically(path, stream.getvalue())


def check_table(path: Path) -> None:
    """Refuse a file that no table is written to, before anything is computed."""
    if path.suffix not in TABLES:
        raise SpecError("is no kind of table", field="--out", value=path.suffix or path.name, choices=TABLES)
    if path.suffix == ".parquet":
        check_extra("pyarrow", field="--out")


class Kept:
    """A folder beside the table in which each combination is kept until all are there.

    Parameters
    ----------
    path : path
        The table.
    sweep : Sweep
        The question.
    words : mapping
        What else decides the answer: prices and terms as they were given.
    """

    def __init__(self, path: str | Path, sweep: Sweep, words: dict[str, Any]) -> None:
        self.folder = Path(f"{path}.parts")
        axes = {name: list(values) for name, values in sweep.axes.items()}
        loads = hashlib.sha256(np.stack([sweep.users, sweep.inputs, sweep.outputs]).tobytes()).hexdigest()
        how: dict[str, Any] = {}
        if sweep.simulation is not None:
            files = sweep.simulation.files(Arriving(*one) for one in sweep.axes["load"])
            read = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            how = {"simulation": asdict(sweep.simulation), "files": read}
        self._question = json.dumps({"axes": axes, "loads": loads, **how, **words}, sort_keys=True, default=str)

    def read(self) -> list[Block]:
        """Combinations of an earlier run of the same question."""
        file = self.folder / _FILE
        if not file.exists():
            return []
        if read_text(file) != self._question:
            message = "holds parts of another sweep: delete it, or write to another file"
            raise SpecError(message, file=self.folder, field="--resume")
        return [read_part(one) for one in sorted(self.folder.glob("*.npz"))]

    def start(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        write_atomically(self.folder / _FILE, self._question)

    def keep(self, block: Block) -> None:
        """Keep a combination."""
        import io

        said = json.dumps({"number": block.number, "said": block.said, "facts": block.facts, "reason": block.reason})
        stream = io.BytesIO()
        arrays: Any = {"said": np.array(said), "verdict": block.verdict, "held": block.held, **block.figures}
        np.savez(stream, **arrays)
        write_atomically(self.folder / f"{block.number:08d}.npz", stream.getvalue())

    def close(self) -> None:
        """Delete the folder: the table holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read_part(path: str | Path) -> Block:
    """Read one combination that was kept."""
    import io
    import zipfile

    with understood(path, "part of a sweep"):
        data = read_bytes(path)
        try:
            # what `Kept.keep` writes is not packed: nothing can unpack to more than the file
            if any(one.compress_type or one.flag_bits & 1 for one in zipfile.ZipFile(io.BytesIO(data)).infolist()):
                raise SpecError("is no part of a sweep: delete the folder and begin anew", file=path)
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise ValueError(str(error)) from error
        said = parse_json(str(arrays.pop("said")), file=path)
        verdict, held = arrays.pop("verdict"), arrays.pop("held")
        if not isinstance(said["number"], int) or any(one.shape != verdict.shape for one in (held, *arrays.values())):
            raise ValueError("its columns differ in length")
        return Block(said["number"], said["said"], said["facts"], verdict, held, arrays, said["reason"])
