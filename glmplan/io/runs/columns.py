"""Define the columns of a table of runs.

Reader, importers, checks and the page of columns use them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.catalog.files import data_folder, read_entries
from glmplan.errors import SpecError, nearest
from glmplan.units import GIB, Tokens

__all__ = [
    "ALIASES",
    "ANSWERS",
    "COLUMNS",
    "COMPARED",
    "FIGURES",
    "FITTED",
    "INTERVAL_KINDS",
    "PREDICTED",
    "Column",
    "RunMetric",
    "column_value",
    "compared_figures",
    "counted_label",
    "ignored_columns",
    "nearest_column",
]


#: largest number of a row, in the unit of its column: tokens and counts bound loops of a prediction
_LARGEST = 1e9


@dataclass(frozen=True, slots=True)
class RunMetric:
    """Metric that a run may report."""

    column: str  # the unit is part of the name
    unit: str  # as written for users
    title: str  # for a plot or a table
    words: str  # meaning
    factor: float = 1.0  # base units in one unit of the column
    rate: bool = False  # False: a time or an amount
    predicted: str = ""  # metric of a `Prediction` to compare with; empty: none
    interval: str = ""  # kind of prediction interval, see `glmplan.prediction.evidence.KINDS` and `LIKE`
    group: str = ""  # in the accuracy report: ``TTFT``, ``TPOT``, ``throughput``, ``prefill`` or a statistic of its own
    fitted: bool = True  # False: compared with its prediction, but no observation of the fit
    answered: bool = False  # True: column of the table of `glmplan predict`
    heading: str = ""  # in a narrow table; empty: not in it
    aliases: tuple[str, ...] = ()  # other names of the column


_MS = 1e-3
_ROWS = (
    RunMetric("ttft_mean_ms", "ms", "TTFT, mean", "time to first token, mean", _MS, False, "ttft", "ttft", "TTFT",
              answered=True, heading="TTFT ms", aliases=("ttft_ms",)),
    RunMetric("ttft_p50_ms", "ms", "TTFT, median", "time to first token, median", _MS, False, "ttft_p50", "ttft",
              "TTFT", answered=True),
    RunMetric("ttft_p99_ms", "ms", "TTFT, p99", "time to first token, 99th percentile", _MS, False, "ttft_p99",
              "ttft_p99", "TTFT p99", fitted=False, answered=True),
    RunMetric("tpot_mean_ms", "ms", "TPOT, mean", "time per output token after the first, mean over requests", _MS,
              False, "tpot", "decode", "TPOT", answered=True, heading="TPOT ms", aliases=("tpot_ms",)),
    RunMetric("tpot_p50_ms", "ms", "TPOT, median", "time per output token after the first, median", _MS, False,
              "tpot_p50", "decode", "TPOT", answered=True),
    RunMetric("tpot_p99_ms", "ms", "TPOT, p99", "time per output token after the first, 99th percentile", _MS, False,
              "tpot_p99", "tpot_p99", "TPOT p99", fitted=False, answered=True),
    RunMetric("tpot_incl_ttft_mean_ms", "ms", "time per output token with TTFT, mean",
              "whole time over output tokens, as some tools print it; never compared with TPOT", _MS),
    RunMetric("itl_mean_ms", "ms", "ITL, mean", "gap between two chunks of a stream, mean", _MS, False, "itl", "itl",
              "ITL mean", fitted=False, answered=True, heading="ITL ms"),
    RunMetric("itl_p50_ms", "ms", "ITL, median", "gap between two chunks of a stream, median", _MS, False, "itl_p50",
              "decode", "TPOT", answered=True),
    RunMetric("itl_p99_ms", "ms", "ITL, p99", "gap between two chunks of a stream, 99th percentile", _MS, False,
              "itl_p99", "itl_p99", "ITL p99", fitted=False, answered=True),
    RunMetric("e2e_mean_ms", "ms", "end to end, mean", "from sending a request to its last token, mean", _MS, False,
              "e2e", "e2e", "E2E", fitted=False, answered=True, heading="E2E ms"),
    RunMetric("e2e_p99_ms", "ms", "end to end, p99", "from sending a request to its last token, 99th percentile", _MS,
              False, "e2e_p99", "e2e", "E2E", fitted=False, answered=True),
    RunMetric("output_tokens_per_s", "tok/s", "output throughput", "output tokens of all requests over wall time", 1.0,
              True, "output_rate", "decode", "throughput", answered=True, heading="tok/s",
              aliases=("mlperf_tokens_per_s", "decode_tokens_per_s")),
    RunMetric("output_tokens_per_s_per_request", "tok/s", "output speed of one request",
              "decode speed that one user sees, first token left out: 1/TPOT", 1.0, True, "user_rate", "decode",
              "throughput", answered=True),
    RunMetric("total_tokens_per_s", "tok/s", "total throughput",
              "input and output tokens of all requests over wall time", 1.0, True, "total_rate", "decode",
              "throughput", answered=True),
    RunMetric("prefill_tokens_per_s", "tok/s", "prefill speed", "prompt tokens over the time to read them", 1.0, True,
              "prefill_rate", "prefill", "prefill", answered=True, heading="prefill tok/s"),
    RunMetric("kv_pool_tokens", "token", "KV cache pool", "tokens that the engine prints as the size of its cache",
              answered=True, heading="KV tokens"),
    RunMetric("kv_pool_tokens_usable", "token", "KV cache pool for these requests",
              "tokens that requests of the row's lengths can use of the cache", answered=True),
    RunMetric("weights_gib_per_accelerator", "GiB", "weights", "weights that the fullest accelerator holds", GIB,
              answered=True, heading="GiB/card"),
    RunMetric("wall_s", "s", "wall time", "duration of the whole run"),
    RunMetric("gpu_power_total_w", "W", "power", "power of all accelerators together, mean"),
    RunMetric("joules_per_output_token", "J/token", "energy", "energy of the accelerators for each output token"),
    RunMetric("concurrency_effective", "-", "requests in flight", "requests in flight as measured"),
)  # fmt: skip

#: column → metric, in the order of the measurement tables
FIGURES: dict[str, RunMetric] = {row.column: row for row in _ROWS}
#: column → metric, of those that are predicted
COMPARED: dict[str, RunMetric] = {row.column: row for row in _ROWS if row.predicted}
#: columns of the metrics that the step time is fitted to
FITTED: frozenset[str] = frozenset(row.column for row in _ROWS if row.predicted and row.fitted)
#: column of the table of predictions → metric, in the order of that table
ANSWERS: dict[str, RunMetric] = {row.column: row for row in _ROWS if row.answered}
#: metric of a `Prediction` → its column: of several the first, a mean
PREDICTED: dict[str, RunMetric] = {row.predicted: row for row in reversed(_ROWS) if row.predicted}
#: metric of a `Prediction` → its kind of interval
INTERVAL_KINDS: dict[str, str] = {row.predicted: row.interval for row in _ROWS if row.predicted}


def compared_figures(observed: Mapping[str, float], *, tokens_per_step: Tokens) -> Iterator[tuple[RunMetric, float]]:
    """Yield the metrics of a run that a prediction can be compared with.

    Each in the unit of its column. A gap between chunks is a time per token only where a chunk holds one token, and it
    adds nothing to a mean TPOT. `tokens_per_step`: tokens that a request gains in a step.

    Examples
    --------
    >>> [one.column for one, _ in compared_figures({"itl_p50_ms": 20.0, "wall_s": 60.0}, tokens_per_step=1.0)]
    ['itl_p50_ms']
    >>> [one.column for one, _ in compared_figures({"itl_p50_ms": 20.0}, tokens_per_step=2.5)]
    []
    """
    for column, value in observed.items():
        one = COMPARED.get(column)
        if one is None or value <= 0:
            continue
        if one.predicted.startswith("itl") and tokens_per_step > 1:
            continue
        if one.predicted == "itl_p50" and "tpot_mean_ms" in observed:
            continue
        yield one, value


_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table of runs."""

    name: str
    kind: str  # ``text``, ``count`` (integer from 1), ``amount`` (number from 0) or ``flag`` (yes or no)
    words: str  # meaning
    unit: str = "-"  # of its cells; ``-``: none
    field: str = ""  # field of `Run`, if its name differs; metrics are in `Run.observed`
    choices: tuple[str, ...] = ()  # allowed cells; empty: any
    pattern: str = ""  # regular expression of its cells
    least: float = 0.0  # smallest cell of a shipped row, in the unit of the column
    above: bool = False  # True: a shipped cell must be more than `least`
    infinite: bool = False  # True: a cell may be ``inf``
    heading: str = ""  # in a narrow table; empty: not in it
    required: bool = False  # True: a table must have it

    def number(self, text: str) -> float:
        """Return the number of a cell, in the unit of the column.

        Examples
        --------
        >>> COLUMNS["tp"].number("4.0")
        4.0
        """
        try:
            if not text.isascii():
                raise ValueError
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if value < 0 or math.isnan(value) or (math.isinf(value) and not self.infinite):
            raise ValueError(f"{text!r} is not a finite number of zero or more")
        if _LARGEST < value < math.inf:
            raise ValueError(f"{text!r} is larger than any that was measured: at most {_LARGEST:,.0f}")
        if self.kind == "count" and (value < 1 or value != int(value)):
            raise ValueError(f"{text!r} is not a whole number of one or more")
        return value

    def flag(self, text: str) -> bool | None:
        """Return the truth value of a cell, None for anything but yes or no.

        Examples
        --------
        >>> COLUMNS["shared_prompt"].flag("Yes"), COLUMNS["shared_prompt"].flag("maybe")
        (True, None)
        """
        said = text.lower()
        return True if said in _YES else False if said in _NO else None

    def fault(self, text: str) -> str:
        """Return the fault of a cell of a shipped table, or "".

        The check is stricter than the reader of other tables.

        Examples
        --------
        >>> COLUMNS["power_limit_w"].fault("0")
        "'0' is not more than 0"
        """
        if self.choices and text not in self.choices:
            return f"{text!r} is none of {', '.join(self.choices)}"
        if self.pattern and re.fullmatch(self.pattern, text) is None:
            return f"{text!r} is not of the form {self.pattern}"
        if self.kind not in ("count", "amount"):
            return ""
        try:
            value = self.number(text)
        except ValueError as error:
            return str(error)
        if value < self.least or (self.above and value == self.least):
            return f"{text!r} is {'not more' if self.above else 'less'} than {self.least:g}"
        return ""


def _text(name: str, words: str, *, choices: tuple[str, ...] = (), pattern: str = "", field: str = "",
          heading: str = "", required: bool = False) -> Column:  # fmt: skip
    return Column(name, "text", words, field=field, choices=choices, pattern=pattern, heading=heading,
                  required=required)  # fmt: skip


def _count(name: str, words: str, unit: str = "-") -> Column:
    return Column(name, "count", words, unit, least=1.0)


def _flag(name: str, words: str, field: str = "") -> Column:
    return Column(name, "flag", words, field=field, choices=("yes", "no"))


def _amount(name: str, words: str, unit: str = "-", *, least: float = 0.0, above: bool = False, field: str = "",
            infinite: bool = False, heading: str = "") -> Column:  # fmt: skip
    return Column(name, "amount", words, unit, field, least=least, above=above, infinite=infinite, heading=heading)


_ROWS_COLUMNS = (
    _text("id", "name of the row", required=True),
    _text("campaign", "rows that were measured together"),
    _text("measured_on", "date", pattern=r"\d{4}(-\d\d(-\d\d)?)?"),
    _text("source", "where the row comes from"),
    _text("trust", "A audited, B reproducible, C described, D a claim", choices=("A", "B", "C", "D")),
    _text("model", "the model, by a name of the catalogue or as its makers write it", heading="model", required=True),
    _text("checkpoint", "the published set of weights"),
    _text("weights", "format of most of the weights"),
    _amount("weights_bits", "stored bits for each weight of a mixed file", "bit", above=True),
    _text("kv_cache", "format of the cache"),
    _text("accelerator", "the part, by a name of the catalogue or as its makers write it", required=True),
    _count("accelerator_count", "accelerators in all"),
    _count("nodes", "machines"),
    _text("host", "the machine around the accelerators"),
    _count("tp", "tensor-parallel degree"),
    _count("pp", "pipeline stages"),
    _count("dp", "attention data-parallel ranks"),
    _count("ep", "expert-parallel degree"),
    _count("dcp", "decode context-parallel degree"),
    _text("engine", "the engine", heading="engine"),
    _text("engine_version", "its version"),
    _text("backend", "build of llama.cpp"),
    _text("attention_backend", "attention kernels"),
    _text("moe_backend", "expert kernels"),
    _flag("cuda_graphs", "whether decode steps ran from captured graphs", "graphs"),
    _text("speculative", "method of speculation, as the source names it; `none` without one", field="speculation"),
    _amount("acceptance_length", "tokens gained in a verified step, mean", "token", least=1.0, field="speculation"),
    _amount("power_limit_w", "power limit of each accelerator", "W", above=True),
    _text("phase", "measured phase", choices=("serving", "decode", "prefill", "memory"), heading="phase"),
    _text("protocol", "protocol of the load"),
    _text("scenario", "name of the case in the source"),
    _text("recipe", "recipe or campaign of `calibration/settings.csv` with the launch settings of the server"),
    _amount("concurrency", "requests in flight in a closed loop", above=True, heading="users"),
    _count("running_limit", "max. running requests of the server, all data-parallel ranks together"),
    _amount("memory_fraction", "share of the memory that the engine was given", above=True),
    _count("max_num_seqs", "max. running requests of one data-parallel rank, as launched"),
    _count("max_num_batched_tokens", "max. tokens per step of one data-parallel rank, as launched", "token"),
    _count("max_model_len", "longest request that the server accepted", "token"),
    _amount("request_rate_per_s", "mean arrival rate of an open load; `inf`: all at the start", "1/s", above=True,
            infinite=True),
    _count("num_requests", "requests of the whole run"),
    _amount("input_tokens", "prompt of a request, mean", "token", heading="in"),
    _amount("output_tokens", "answer of a request, mean", "token", heading="out"),
    _amount("context_depth", "tokens already in the cache before the prompt", "token"),
    _flag("context_is_label", "true if the lengths are labels of a table, not counts"),
    _flag("shared_prompt", "true if all requests sent the same prompt"),
    _flag("prefix_cached", "true if prompts were already in the cache"),
    _text("system", "the machine, by its name in `calibration/offload/systems.toml`", field="cells"),
    _amount("host_share", "amount of routed experts in host memory, in `unit`", field="cells"),
    _text("unit", "unit of `host_share`", field="cells"),
    _amount("uncertainty_pct", "half width of the error of reading that the source states", "%"),
    *(Column(one.column, "amount", one.words, one.unit, "observed", heading=one.heading) for one in FIGURES.values()),
    _text("withheld", "metrics whose meaning differs from their column, each with the reason"),
    _text("unusable", "reason why the row is not used"),
    _text("notes", "anything else"),
)  # fmt: skip

#: name → column, in the order of the measurement tables
COLUMNS: dict[str, Column] = {rows_column.name: rows_column for rows_column in _ROWS_COLUMNS}
#: other name of a column → its name
ALIASES: dict[str, str] = {alias: figure.column for figure in FIGURES.values() for alias in figure.aliases}
#: least similarity of a suggested name
_ALIKE = 0.7


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def nearest_column(name: str, names: Iterable[str] | None = None) -> str:
    """Return the most similar column, or "".

    Case, spaces and hyphens do not count; a near spelling does.

    Examples
    --------
    >>> nearest_column("Input-Tokens"), nearest_column("ttft_s"), nearest_column("colour")
    ('input_tokens', 'ttft_ms', '')
    """
    known = (*COLUMNS, *ALIASES) if names is None else tuple(names)
    same = {_folded(item): item for item in reversed(known)}
    if _folded(name) in same:
        return same[_folded(name)]
    close = nearest(_folded(name), same, 1, alike=_ALIKE)
    return same[close[0]] if close else ""


def ignored_columns(names: Iterable[str]) -> str:
    """Return the unknown columns of a table as text.

    Each with the nearest known name and its unit.

    Examples
    --------
    >>> ignored_columns(["id", "Input Tokens", "ttft_mean_s", "mine"])
    "'Input Tokens' (nearest: input_tokens [token]), 'ttft_mean_s' (nearest: ttft_mean_ms [ms]), 'mine'"
    """
    told = []
    for name in names:
        if name in COLUMNS or name in ALIASES:
            continue
        close = nearest_column(name)
        unit = COLUMNS[ALIASES.get(close, close)].unit if close else "-"
        said = f"nearest: {close}" + (f" [{unit}]" if unit != "-" else "")
        told.append(f"{name!r} ({said})" if close else repr(name))
    return ", ".join(told)


def column_value(text: str) -> tuple[str, str]:
    """Return column and text of an option such as ``--set tp=8``.

    Examples
    --------
    >>> column_value("tp=8")
    ('tp', '8')
    """
    name, equals, value = text.partition("=")
    if not equals or name not in COLUMNS:
        close = nearest_column(name)
        raise SpecError("is not column=value", field="--set", value=name, choices=[close] if close else COLUMNS)
    return name, value


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    return read_entries(data_folder("calibration") / "labels.toml", "labels", {"noted_as", "model", "tokens"})


def counted_label(length: Tokens, *, model: str, notes: str) -> tuple[float, bool]:
    """Return a stated length in counted tokens; True if still a label.

    Some tools count four characters as a token; the notes of a row tell if its lengths are such labels.

    Examples
    --------
    >>> counted_label(8192.0, model="kimi-k2.6", notes="see models/kimi-k26.md")
    (5312.0, False)
    >>> counted_label(8192.0, model="glm-5.1", notes="a count")
    (8192.0, False)
    """
    noted = any(word in notes for entry in _entries() for word in entry.get("noted_as", ()))
    if not noted:
        return length, False
    for entry in _entries():
        for label, tokens in entry.get("tokens", ()):
            if model.startswith(entry["model"]) and label == int(length):
                return float(tokens), False
    return length, True
