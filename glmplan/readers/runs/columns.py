"""The columns of a table of runs: one row each. Reader, importers, checks and the page of columns are made from it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from glmplan.errors import SpecError, nearest
from glmplan.readers.runs.figures import FIGURES

__all__ = ["ALIASES", "COLUMNS", "Column", "column_value", "columns_table", "ignored_columns", "nearest_column"]

_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of runs.

    Attributes
    ----------
    name : str
        Its name.
    kind : str
        ``text``, ``count`` (a whole number of one or more), ``amount`` (a number of zero or more) or ``flag`` (yes or
        no).
    words : str
        What it means.
    unit : str
        Unit of its cells; ``-`` without one.
    field : str
        Field of `Run` where it is kept, as far as that has another name; figures are in `Run.observed`.
    choices : tuple of str
        The only cells there are; empty where any will do.
    pattern : str
        Regular expression of its cells.
    least : float
        Smallest cell of a shipped row, [unit of the column]
    above : bool
        Whether a shipped cell must be more than `least`.
    infinite : bool
        Whether a cell may be ``inf``.
    heading : str
        Heading in a narrow table; empty where such a table leaves it out.
    required : bool
        Whether a table must have it.
    """

    name: str
    kind: str
    words: str
    unit: str = "-"
    field: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    least: float = 0.0
    above: bool = False
    infinite: bool = False
    heading: str = ""
    required: bool = False

    def number(self, text: str) -> float:
        """Read a cell of a count or an amount.

        Parameters
        ----------
        text : str
            The cell.

        Returns
        -------
        float
            Its number, [unit of the column]

        Raises
        ------
        ValueError
            If it is no such number; the text says what it is not.

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
        if self.kind == "count" and (value < 1 or value != int(value)):
            raise ValueError(f"{text!r} is not a whole number of one or more")
        return value

    def flag(self, text: str) -> bool | None:
        """Read a cell of a flag.

        Parameters
        ----------
        text : str
            The cell.

        Returns
        -------
        bool or None
            None for what is neither yes nor no.

        Examples
        --------
        >>> COLUMNS["shared_prompt"].flag("Yes"), COLUMNS["shared_prompt"].flag("maybe")
        (True, None)
        """
        said = text.lower()
        return True if said in _YES else False if said in _NO else None

    def fault(self, text: str) -> str:
        """Say what is wrong with a cell of a table that ships; a reader of other tables is not so strict.

        Parameters
        ----------
        text : str
            The cell, not empty.

        Returns
        -------
        str
            What is wrong; empty where nothing is.

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


_ROWS = (
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
    _text("speculative", "how it drafted, in the words of the source; `none` if it did not", field="speculation"),
    _amount("acceptance_length", "tokens gained in a verified step, mean", "token", least=1.0, field="speculation"),
    _amount("power_limit_w", "power limit of each accelerator", "W", above=True),
    _text("phase", "what was measured", choices=("serving", "decode", "prefill", "memory"), heading="phase"),
    _text("protocol", "how the load was made"),
    _text("scenario", "the word of the source for the case"),
    _text("recipe", "the recipe or campaign of `calibration/settings.csv` by which the server was launched"),
    _amount("concurrency", "requests in flight in a closed loop", above=True, heading="users"),
    _count("running_limit", "requests that the server ran at once, all its data-parallel ranks together"),
    _amount("memory_fraction", "share of the memory that the engine was given", above=True),
    _count("max_num_seqs", "requests that one data-parallel rank was told to run at once"),
    _count("max_num_batched_tokens", "tokens that a step of one data-parallel rank was told to hold", "token"),
    _count("max_model_len", "longest request that the server accepted", "token"),
    _amount("request_rate_per_s", "mean arrivals of an open load; `inf` for all at once", "1/s", above=True,
            infinite=True),
    _count("num_requests", "requests of the whole run"),
    _amount("input_tokens", "prompt of a request, mean", "token", heading="in"),
    _amount("output_tokens", "answer of a request, mean", "token", heading="out"),
    _amount("context_depth", "tokens already in the cache before the prompt", "token"),
    _flag("context_is_label", "whether the lengths are what a table calls them and no counts"),
    _flag("shared_prompt", "whether all requests sent the same prompt"),
    _flag("prefix_cached", "whether prompts were in the cache already"),
    _text("system", "the machine, by its name in `calibration/offload/systems.toml`", field="cells"),
    _amount("host_share", "how much of the routed experts is in host memory, counted in `unit`", field="cells"),
    _text("unit", "what `host_share` counts", field="cells"),
    _amount("uncertainty_pct", "half width of the error of reading that the source states", "%"),
    *(Column(one.column, "amount", one.words, one.unit, "observed", heading=one.heading) for one in FIGURES.values()),
    _text("withheld", "figures that do not mean what their column says, each with the reason"),
    _text("unusable", "why the row is not used at all"),
    _text("notes", "anything else"),
)  # fmt: skip

#: name → column, in the order of the measurement tables
COLUMNS: dict[str, Column] = {one.name: one for one in _ROWS}
#: other name of a column → its name
ALIASES: dict[str, str] = {alias: one.column for one in FIGURES.values() for alias in one.aliases}
#: how alike a name must be to be suggested for another one [-]
_ALIKE = 0.7


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def nearest_column(name: str, names: Iterable[str] | None = None) -> str:
    """Return the column that is most like a name: the same but for case, spaces and hyphens, or spelled nearly so.

    Parameters
    ----------
    name : str
        What was written.
    names : iterable of str, optional
        The names that there are; those of `COLUMNS` and `ALIASES` by default.

    Returns
    -------
    str
        The nearest; empty where nothing is alike.

    Examples
    --------
    >>> nearest_column("Input-Tokens"), nearest_column("ttft_s"), nearest_column("colour")
    ('input_tokens', 'ttft_ms', '')
    """
    known = (*COLUMNS, *ALIASES) if names is None else tuple(names)
    same = {_folded(one): one for one in reversed(known)}
    if _folded(name) in same:
        return same[_folded(name)]
    close = nearest(_folded(name), same, 1, alike=_ALIKE)
    return same[close[0]] if close else ""


def ignored_columns(names: Iterable[str]) -> str:
    """Name the columns of a table that are ignored because they are not known.

    Parameters
    ----------
    names : iterable of str
        Its header.

    Returns
    -------
    str
        Each with the nearest known name and its unit; empty where all are known.

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
    """Read what somebody knows of a run, as in the option ``--set``.

    Parameters
    ----------
    text : str
        Column and cell, as ``tp=8``.

    Returns
    -------
    str, str
        The two.

    Raises
    ------
    SpecError
        If it has another form or the column is not known; names the nearest.

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


def columns_table() -> str:
    """Write the columns as a table in Markdown.

    Returns
    -------
    str
        One line for each column.

    Examples
    --------
    >>> columns_table().splitlines()[2]
    '| `id` | text | - | name of the row (required) |'
    """
    lines = ["| column | kind | unit | meaning |", "|---|---|---|---|"]
    others: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        others.setdefault(name, []).append(f"`{alias}`")
    for one in COLUMNS.values():
        more = ["required"] if one.required else []
        more += [f"one of {', '.join(f'`{choice}`' for choice in one.choices)}"] if one.choices else []
        more += [f"also read as {', '.join(others[one.name])}"] if one.name in others else []
        words = one.words + (f" ({'; '.join(more)})" if more else "")
        lines.append(f"| `{one.name}` | {one.kind} | {one.unit} | {words} |")
    return "\n".join(lines) + "\n"
