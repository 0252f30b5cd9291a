"""Statistics gathered while a simulation runs, in room that does not grow with its length."""

from __future__ import annotations

import numpy as np

from glmplan.serving.traffic.promises import Target

__all__ = ["Distribution", "Meter"]

#: Values kept one by one; beyond that a histogram with bins of 0.1 % takes over.
_KEPT = 2_000_000
_FIRST, _LAST, _PER_E = 1e-7, 1e6, 1000.0
_BINS = int(np.log(_LAST / _FIRST) * _PER_E) + 2
_MIDDLES = np.r_[0.0, _FIRST * np.exp((np.arange(1, _BINS) - 0.5) / _PER_E)]
_PIECES = 8
_PERCENTS = (50, 90, 95, 99)


class Distribution:
    """Mean and percentiles of many values with weights.

    Parameters
    ----------
    exact : bool, optional
        Whether to keep values one by one while they are few.

    Examples
    --------
    >>> times = Distribution()
    >>> times.add(np.array([1.0, 2.0, 3.0]))
    >>> times.mean, times.percentiles((50,))
    (2.0, [2.0])
    """

    def __init__(self, exact: bool = True) -> None:
        self._values: list[np.ndarray] = []
        self._exact = exact
        self._count = self._sum = 0.0
        self._bins: np.ndarray | None = None

    def add(self, values: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Take values in.

        Parameters
        ----------
        values : ndarray
            Values of at least zero, [any unit]
        weights : ndarray, optional
            How often each occurs, [-]
        """
        if weights is None:
            self._count += len(values)
            self._sum += float(values.sum())
        else:
            self._count += float(weights.sum())
            self._sum += float((values * weights).sum())
        if self._exact and weights is None:
            self._values.append(values)
            if self._count <= _KEPT:
                return
            self._exact, values, self._values = False, np.concatenate(self._values), []
        where = (np.log(np.maximum(values, _FIRST * 0.99) / _FIRST) * _PER_E + 1).astype(np.int64)
        bins = np.bincount(np.clip(where, 0, _BINS - 1), weights=weights, minlength=_BINS)
        if self._bins is None:
            self._bins = bins.astype(float, copy=False)
        else:
            self._bins += bins

    @property
    def mean(self) -> float:
        """Mean of all values; not a number without any."""
        return self._sum / self._count if self._count else float("nan")

    def percentiles(self, percents: tuple[float, ...]) -> list[float]:
        """Values below which shares of all lie.

        Parameters
        ----------
        percents : tuple of float
            The shares, [%]

        Returns
        -------
        list of float
            The values, [unit of what was added]; not a number without any.
        """
        if not self._count:
            return [float("nan")] * len(percents)
        if self._bins is None:
            # as `np.percentile` does, which imports the masked arrays of numpy, and that takes longer than all of this
            ordered = np.sort(np.concatenate(self._values))
            places = np.array(percents) / 100 * (len(ordered) - 1)
            self._values, values = [ordered], np.interp(places, np.arange(len(ordered)), ordered)
            found: list[float] = values.tolist()
            return found
        reached = self._bins.cumsum()
        shares = np.array(percents) / 100 * reached[-1] * (1 - 1e-12)
        middles: list[float] = _MIDDLES[np.searchsorted(reached, shares)].tolist()
        return middles


class Meter:
    """Everything that a summary needs.

    Parameters
    ----------
    targets : tuple of Target
        The promise that goodput is counted under.
    kv_tokens : int
        Room of all pools together, [token]
    block_size : int
        Tokens of a block, [token]
    engines : int, optional
        Replicas, [-]
    accepted : float, optional
        Tokens that a decode step yields for each request in the mean, [token]
    warmup : int, optional
        Requests at the start that are served but not counted, [-]
    """

    def __init__(
        self,
        targets: tuple[Target, ...],
        kv_tokens: int,
        block_size: int,
        engines: int = 1,
        accepted: float = 1.0,
        warmup: int = 0,
    ) -> None:
        self._targets, self._warmup = targets, warmup
        self._kv, self._block, self._engines, self._accepted = kv_tokens, block_size, engines, accepted
        self.times = {name: Distribution() for name in ("ttft", "tpot", "e2e", "queue")}
        self.times["itl"] = Distribution(exact=False)
        self.urgent = {"ttft": Distribution(), "e2e": Distribution()}
        self._counts = dict.fromkeys(("requests", "input", "output", "good", "preemptions", "cached"), 0)
        self._start, self._end = np.inf, 0.0
        self._busy = self._batch = self._full = 0.0
        self._largest = self._fullest = 0.0

    def records(self, columns: dict[str, np.ndarray], late: np.ndarray | float = 0.0) -> None:
        """Count finished requests.

        Parameters
        ----------
        columns : dict of ndarray
            Columns of the records, times in [s]
        late : ndarray or float, optional
            What users see first tokens come later by than the records say, and so whole answers; rates are those of
            the records, [s]
        """
        if self._warmup:
            counted = columns["number"] >= self._warmup
            columns = {name: column[counted] for name, column in columns.items()}
            late = late[counted] if isinstance(late, np.ndarray) else late
        if not len(columns["finish"]):
            return
        arrival, first, finish = columns["arrival"], columns["first"], columns["finish"]
        outputs = columns["output_tokens"]
        ttft, e2e = first - arrival, finish - arrival
        if isinstance(late, np.ndarray) or late:
            ttft, e2e = ttft + late, e2e + late
        several = outputs > 1
        more = slice(None) if several.all() else several  # looks instead of copies
        tpot = (finish - first)[more] / (outputs[more] - 1)
        queue = np.maximum(columns["started"] - arrival, 0.0)
        good = np.ones(len(ttft), dtype=bool)
        for target in self._targets:
            if target.metric in ("tpot", "itl"):
                good[more] &= tpot <= target.bound
            else:
                good &= {"ttft": ttft, "e2e": e2e, "queue": queue}[target.metric] <= target.bound
        for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e), ("queue", queue)):
            self.times[name].add(values)
        if columns["priority"].any():
            hasty = columns["priority"] == 0
            for name, values in (("ttft", ttft), ("e2e", e2e)):
                self.urgent[name].add(values[hasty])
        counts = self._counts
        counts["requests"] += len(ttft)
        counts["good"] += int(good.sum())
        for name, column in (("input", "input_tokens"), ("output", "output_tokens")):
            counts[name] += int(columns[column].sum())
        counts["preemptions"] += int(columns["preemptions"].sum())
        counts["cached"] += int(columns["cached"].sum())
        self._start = min(self._start, float(arrival.min()))
        self._end = max(self._end, float(finish.max()))

    def segments(self, columns: np.ndarray) -> None:
        """Count runs of equal steps.

        Parameters
        ----------
        columns : ndarray
            Start [s], steps, seconds of the first [s], growth [s], decoding requests, their contexts [token],
            prompt tokens, blocks in use (−1: estimate them from the contexts).
        """
        if not columns.shape[1]:
            return
        _, steps, seconds, slope, n, total, tokens, blocks = columns
        made = n * steps
        drift = slope * (steps - 1)
        span = steps * (seconds + drift / 2)
        self._busy += float(span.sum())
        self._batch += float((n * span).sum())
        self._largest = max(self._largest, float(n.max()))
        used = blocks * self._block
        if blocks[0] < 0:
            used = total + made * (self._accepted / 2) + n * ((self._block - 1) / 2) + tokens
        self._full += float((used * span).sum())
        self._fullest = max(self._fullest, float(used.max()))
        itl = self.times["itl"]
        flat = drift < 1e-3 * seconds
        if flat.all():
            itl.add(seconds + drift / 2, made)
        else:
            itl.add((seconds + drift / 2)[flat], made[flat])
            part = (np.arange(_PIECES) + 0.5) / _PIECES
            values = seconds[~flat, None] + drift[~flat, None] * part
            itl.add(values.ravel(), np.repeat(made[~flat] / _PIECES, _PIECES))
        if self._accepted > 1:
            itl.add(np.zeros(len(made)), made * (self._accepted - 1))

    def stalls(self, columns: np.ndarray) -> None:
        """Count gaps between tokens that are longer than a step: prompts of others ran between, or a preemption did.

        Parameters
        ----------
        columns : ndarray
            Length [s], and how many; a negative number takes back what runs of equal steps have counted, [-]
        """
        if columns.shape[1]:
            self.times["itl"].add(columns[0], columns[1])

    @property
    def counted(self) -> int:
        """Requests that were counted, [-]"""
        return self._counts["requests"]

    def summary(
        self, rejected: int = 0, found: bool = False, aside: float = 0.0, left: int | None = None
    ) -> dict[str, float]:
        """All statistics by name.

        Parameters
        ----------
        rejected : int, optional
            Requests that could never be served, [-]
        found : bool, optional
            Whether to report the share of prompt tokens found in the prefix cache.
        aside : float, optional
            Time that passed beside the clock of the records, [s]
        left : int, optional
            Requests whose clients left before their first token; goodput is a share of them too, [-]

        Returns
        -------
        dict
            Statistics; times in ms, as the names say.
        """
        counts = self._counts
        span = self._end - self._start + aside if counts["requests"] else float("nan")
        summary: dict[str, float] = {"requests": counts["requests"], "rejected": rejected, "duration_s": span}
        for name in ("ttft", "tpot", "itl", "e2e", "queue"):
            times = self.times[name]
            summary[f"{name}_mean_ms"] = times.mean * 1000
            for percent, value in zip(_PERCENTS, times.percentiles(_PERCENTS), strict=True):
                summary[f"{name}_p{percent}_ms"] = value * 1000
        summary["requests_per_s"] = counts["requests"] / span if span else float("nan")
        summary["output_tokens_per_s"] = counts["output"] / span if span else float("nan")
        summary["total_tokens_per_s"] = (counts["input"] + counts["output"]) / span if span else float("nan")
        if self._targets:
            summary["goodput_requests_per_s"] = counts["good"] / span if span else float("nan")
            all_of_them = counts["requests"] + (left or 0)
            summary["goodput_share"] = counts["good"] / all_of_them if all_of_them else float("nan")
        capacity = span * self._engines
        summary["utilisation"] = min(1.0, self._busy / capacity) if capacity else float("nan")
        summary["batch_mean"] = self._batch / self._busy if self._busy else 0.0
        summary["batch_max"] = self._largest
        summary["kv_occupancy_mean"] = self._full / (capacity * self._kv / self._engines) if capacity else 0.0
        summary["kv_occupancy_max"] = min(1.0, self._fullest / (self._kv / self._engines))
        summary["preemptions"] = counts["preemptions"]
        if left is not None:
            summary["left"] = left
        for name, times in self.urgent.items():
            if times.mean == times.mean:  # there are any
                summary[f"urgent_{name}_mean_ms"] = times.mean * 1000
                summary[f"urgent_{name}_p95_ms"] = times.percentiles((95,))[0] * 1000
        if found:
            summary["cached_share"] = counts["cached"] / counts["input"] if counts["input"] else 0.0
        return summary
