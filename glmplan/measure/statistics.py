"""Statistics of many requests in little memory: exact means, percentiles of request figures, a histogram of gaps."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from glmplan.measure.request_result import Outcome, RequestRecord

__all__ = ["Tally", "batch_error", "mean_error"]

#: Gaps fall into bins 1 % wide from a microsecond up, so that 10,000 requests of 1,000 tokens need a few kB.
_BIN = math.log(1.01)
_SHORTEST = 1e-6
_BINS = 2200
#: percentiles that a promise may bound
_PERCENTS = (50, 90, 95, 99)


class Tally:
    """Figures of a set of requests, each by its definition in `vllm bench serve`.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(RequestRecord(0.0, Outcome.DONE, ttft=0.1, e2e=1.1, input_tokens=8, output_tokens=11))
    >>> tally.figures()["tpot_mean_ms"]
    100.0
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.counted_by: Counter[str] = Counter()
        self.retries = self.throttled = self.doubtful = 0
        self.doubt = ""
        self.input_tokens = self.output_tokens = self.cached_tokens = self.chunks = 0
        self._ttft, self._tpot, self._e2e, self._late = array("d"), array("d"), array("d"), array("d")
        self._gaps = np.zeros(_BINS, dtype=np.int64)
        self._gap_sum, self._gap_count = 0.0, 0

    @property
    def done(self) -> int:
        """Requests that ended well, [-]"""
        return self.outcomes[Outcome.DONE]

    @property
    def faults(self) -> int:
        """Requests that ended in a fault, [-]"""
        return sum(count for name, count in self.outcomes.items() if Outcome(name).is_fault)

    def add(self, record: RequestRecord) -> None:
        """Take one request; times count only of requests that ended well.

        Parameters
        ----------
        record : RequestRecord
            The request.
        """
        self.outcomes[str(record.outcome)] += 1
        self.retries += record.retries
        self.throttled += record.throttled
        if record.outcome is not Outcome.DONE:
            return
        self.counted_by[record.counted_by] += 1
        if record.doubt:
            self.doubtful += 1
            self.doubt = self.doubt or record.doubt
        self.input_tokens += record.input_tokens
        self.output_tokens += record.output_tokens
        self.cached_tokens += record.cached_tokens
        self.chunks += record.chunks
        self._ttft.append(record.ttft)
        self._e2e.append(record.e2e)
        self._late.append(record.late)
        if record.tpot is not None:
            self._tpot.append(record.tpot)
        if record.gaps:
            gaps = np.asarray(record.gaps)
            places = (np.log(np.maximum(gaps, _SHORTEST) / _SHORTEST) / _BIN).astype(np.int64)
            np.add.at(self._gaps, np.minimum(places, _BINS - 1), 1)
            self._gap_sum += float(gaps.sum())
            self._gap_count += len(gaps)

    def figures(self) -> dict[str, float]:
        """Return the latency figures in the columns of the measurement tables.

        Returns
        -------
        dict
            `ttft_mean_ms` and so on, `input_tokens` and `output_tokens` for each request.
        """
        found: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                p50, p99 = np.percentile(values, [50, 99])
                found[f"{name}_mean_ms"] = float(np.mean(values)) * 1e3
                if name != "e2e":
                    found[f"{name}_p50_ms"] = float(p50) * 1e3
                found[f"{name}_p99_ms"] = float(p99) * 1e3
        if self._gap_count:
            found["itl_mean_ms"] = self._gap_sum / self._gap_count * 1e3
            found["itl_p50_ms"], found["itl_p99_ms"] = self._gap_quantile(0.5) * 1e3, self._gap_quantile(0.99) * 1e3
        if self.done:
            found["input_tokens"] = self.input_tokens / self.done
            found["output_tokens"] = self.output_tokens / self.done
        return found

    def quantiles(self) -> dict[str, float]:
        """Return every percentile that a promise may bound.

        Returns
        -------
        dict
            `ttft_p95_ms` and so on for TTFT, TPOT, ITL and whole answers, [ms]
        """
        found: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                for share, value in zip(_PERCENTS, np.percentile(values, _PERCENTS), strict=True):
                    found[f"{name}_p{share}_ms"] = float(value) * 1e3
        if self._gap_count:
            found |= {f"itl_p{share}_ms": self._gap_quantile(share / 100) * 1e3 for share in _PERCENTS}
        return found

    def errors(self) -> dict[str, float]:
        """Return the standard errors of the means of TTFT and TPOT, [ms]

        Requests of one moment share what disturbs the machine, so the error is also taken over batches in time and
        the larger one counts.
        """
        pairs = (("ttft_mean_ms", self._ttft), ("tpot_mean_ms", self._tpot))
        return {n: max(mean_error(v), batch_error(v)) * 1e3 for n, v in pairs if len(v) > 1}

    def late_p99(self) -> float:
        """Return how late the client sent at the 99th percentile, [s]"""
        return float(np.percentile(self._late, 99)) if self._late else 0.0

    def faults_by_name(self) -> dict[str, Any]:
        """Return the count of each outcome that occurred."""
        return dict(sorted(self.outcomes.items()))

    def _gap_quantile(self, share: float) -> float:
        place = int(np.searchsorted(np.cumsum(self._gaps), share * self._gap_count))
        return _SHORTEST * math.exp((place + 0.5) * _BIN)


def mean_error(values: Iterable[float]) -> float:
    """Return the standard error of a mean, s / sqrt(n).

    Parameters
    ----------
    values : iterable of float
        Observations, shape (n,), [any unit]

    Returns
    -------
    float
        Standard error, [unit of the values]; infinite for fewer than two.

    Examples
    --------
    >>> mean_error([1.0, 3.0])
    1.0
    """
    kept = np.asarray(list(values), dtype=float)
    return float(np.std(kept, ddof=1) / math.sqrt(kept.size)) if kept.size > 1 else math.inf


def batch_error(values: Iterable[float], *, batches: int = 5) -> float:
    """Return the standard error of the mean of a series whose neighbours are alike, by batch means.

    Parameters
    ----------
    values : iterable of float
        Observations in time order, shape (n,), in one unit [-]
    batches : int, optional
        Batches, [-]

    Returns
    -------
    float
        Standard error, in the unit of the values [-]; zero for fewer than two observations in a batch.

    Examples
    --------
    >>> batch_error([1.0, 1.0, 3.0, 3.0], batches=2)
    1.0
    """
    kept = np.asarray(list(values), dtype=float)
    length = kept.size // batches
    if length < 2:
        return 0.0
    return mean_error(kept[: length * batches].reshape(batches, length).mean(axis=1).tolist())
