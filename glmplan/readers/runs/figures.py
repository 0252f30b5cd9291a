"""The figures of a measured run: one row each, with column, unit, what a prediction calls it, and words for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glmplan.units import GIB

__all__ = ["ANSWERS", "COMPARED", "FIGURES", "INTERVAL_KINDS", "PREDICTED", "RunFigure", "compared_figures"]


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure that a run may report.

    Attributes
    ----------
    column : str
        Its column in a table of runs; the unit is part of the name.
    unit : str
        Unit of the column, as people write it.
    title : str
        A few words for a plot or a table.
    words : str
        What it means.
    factor : float
        Base units in one unit of the column, [base unit]
    rate : bool
        Whether it is something over a time; else it is itself a time or an amount.
    predicted : str
        The figure of a `Prediction` that it is compared with; empty where nothing is.
    interval : str
        Kind of interval of that prediction: ``ttft``, ``prefill`` or ``decode``.
    group : str
        Where the accuracy report counts it: ``TTFT``, ``TPOT``, ``throughput`` or ``prefill``.
    answered : bool
        Whether the table that `glmplan predict` writes has this column.
    heading : str
        Heading in a narrow table; empty where such a table leaves it out.
    aliases : tuple of str
        Other names that tables give the column.
    """

    column: str
    unit: str
    title: str
    words: str
    factor: float = 1.0
    rate: bool = False
    predicted: str = ""
    interval: str = ""
    group: str = ""
    answered: bool = False
    heading: str = ""
    aliases: tuple[str, ...] = ()


_MS = 1e-3
_ROWS = (
    RunFigure("ttft_mean_ms", "ms", "TTFT, mean", "time to first token, mean", _MS, False, "ttft", "ttft", "TTFT",
              answered=True, heading="TTFT ms", aliases=("ttft_ms",)),
    RunFigure("ttft_p50_ms", "ms", "TTFT, median", "time to first token, median", _MS, False, "ttft_p50", "ttft",
              "TTFT"),
    RunFigure("ttft_p99_ms", "ms", "TTFT, p99", "time to first token, 99th percentile", _MS),
    RunFigure("tpot_mean_ms", "ms", "TPOT, mean", "time per output token after the first, mean over requests", _MS,
              False, "tpot", "decode", "TPOT", answered=True, heading="TPOT ms", aliases=("tpot_ms",)),
    RunFigure("tpot_p50_ms", "ms", "TPOT, median", "time per output token after the first, median", _MS, False, "tpot",
              "decode", "TPOT"),
    RunFigure("tpot_p99_ms", "ms", "TPOT, p99", "time per output token after the first, 99th percentile", _MS),
    RunFigure("tpot_incl_ttft_mean_ms", "ms", "time per output token with TTFT, mean",
              "whole time over output tokens, as some tools print it; never compared with TPOT", _MS),
    RunFigure("itl_mean_ms", "ms", "ITL, mean", "gap between two chunks of a stream, mean", _MS, heading="ITL ms"),
    RunFigure("itl_p50_ms", "ms", "ITL, median", "gap between two chunks of a stream, median", _MS, False, "itl_p50",
              "decode", "TPOT"),
    RunFigure("itl_p99_ms", "ms", "ITL, p99", "gap between two chunks of a stream, 99th percentile", _MS),
    RunFigure("e2e_mean_ms", "ms", "end to end, mean", "from sending a request to its last token, mean", _MS,
              heading="E2E ms"),
    RunFigure("e2e_p99_ms", "ms", "end to end, p99", "from sending a request to its last token, 99th percentile", _MS),
    RunFigure("output_tokens_per_s", "tok/s", "output throughput", "output tokens of all requests over wall time", 1.0,
              True, "output_rate", "decode", "throughput", answered=True, heading="tok/s",
              aliases=("mlperf_tokens_per_s", "decode_tokens_per_s")),
    RunFigure("output_tokens_per_s_per_request", "tok/s", "output speed of one request",
              "decode speed that one user sees, first token left out: 1/TPOT", 1.0, True, "user_rate", "decode",
              "throughput", answered=True),
    RunFigure("total_tokens_per_s", "tok/s", "total throughput",
              "input and output tokens of all requests over wall time", 1.0, True, "total_rate", "decode",
              "throughput", answered=True),
    RunFigure("prefill_tokens_per_s", "tok/s", "prefill speed", "prompt tokens over the time to read them", 1.0, True,
              "prefill_rate", "prefill", "prefill", answered=True, heading="prefill tok/s"),
    RunFigure("kv_pool_tokens", "token", "KV cache pool", "tokens that the cache has room for",
              answered=True, heading="KV tokens"),
    RunFigure("weights_gib_per_accelerator", "GiB", "weights", "weights that the fullest accelerator holds", GIB,
              answered=True, heading="GiB/card"),
    RunFigure("wall_s", "s", "wall time", "duration of the whole run"),
    RunFigure("gpu_power_total_w", "W", "power", "power of all accelerators together, mean"),
    RunFigure("joules_per_output_token", "J/token", "energy", "energy of the accelerators for each output token"),
    RunFigure("concurrency_effective", "-", "requests in flight", "requests in flight as measured"),
)  # fmt: skip

#: column → figure, in the order of the measurement tables
FIGURES: dict[str, RunFigure] = {one.column: one for one in _ROWS}
#: column → figure, of those that are predicted
COMPARED: dict[str, RunFigure] = {one.column: one for one in _ROWS if one.predicted}
#: column of the table of predictions → figure, in the order of that table
ANSWERS: dict[str, RunFigure] = {one.column: one for one in _ROWS if one.answered}
#: figure of a `Prediction` → the column that it is written in: of several the first, a mean
PREDICTED: dict[str, RunFigure] = {one.predicted: one for one in reversed(_ROWS) if one.predicted}
#: figure of a `Prediction` → its kind of interval
INTERVAL_KINDS: dict[str, str] = {one.predicted: one.interval for one in _ROWS if one.predicted}


def compared_figures(observed: Mapping[str, float], *, tokens_per_step: float) -> Iterator[tuple[RunFigure, float]]:
    """The figures of a run that a prediction can be compared with.

    A gap between chunks is a time per token only where a chunk holds one token, and it says nothing beside a mean TPOT.

    Parameters
    ----------
    observed : mapping
        Column → value, in the unit of the column.
    tokens_per_step : float
        Tokens that a request gains in a step, [token]

    Yields
    ------
    RunFigure, float
        The figure and its value [unit of its column], in the order of the run.

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
        if one.predicted == "itl_p50" and ("tpot_mean_ms" in observed or tokens_per_step > 1):
            continue
        yield one, value
