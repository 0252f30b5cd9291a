"""Statistics gathered during a simulation, in constant memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.files import temporary_beside
from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.simulation.traffic.request import Request
from glmplan.simulation.traffic.slo import Target
from glmplan.units import Seconds, SecondsArray

if TYPE_CHECKING:
    from glmplan.simulation.traffic.slo import Target

__all__ = [
    "COLUMNS",
    "Distribution",
    "Meter",
    "RecordWriter",
    "RequestRows",
    "interrupts_held",
    "record_columns",
    "request_columns",
]


#: Values kept one by one; beyond that a histogram with bins of 0.1 % takes over.
_KEPT = 2_000_000
_FIRST, _LAST, _PER_E = 1e-7, 1e6, 1000.0
_BINS = int(np.log(_LAST / _FIRST) * _PER_E) + 2
_MIDDLES = np.r_[0.0, _FIRST * np.exp((np.arange(1, _BINS) - 0.5) / _PER_E)]
_PIECES = 8
_PERCENTS = (50, 90, 95, 99)


class Distribution:
    """Mean and percentiles of many values with weights.

    - `exact`: Keep values one by one while they are few.

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

        `values`: Values of at least zero, [any unit].
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

        - `percents`: The shares, [%].
        - Returns: The values, [unit of what was added]; not a number without any.
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

    - `targets`: SLO that goodput is counted under.
    - `kv_tokens`: Capacity of all pools together, [token]
    - `block_size`: Tokens of a block, [token]
    - `engines`: Replicas, [-]
    - `accepted`: Tokens that a decode step yields for each request in the mean, [token]
    - `warmup`: Requests at the start that are served but not counted, [-]
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

    def records(self, columns: dict[str, np.ndarray], late: SecondsArray | Seconds = 0.0) -> None:
        """Count finished requests.

        - `columns`: Columns of the records, times in [s].
        - `late`: Delay of first tokens, and so of whole answers, after the times of the records; rates are those of the
            records.
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

        `columns`: Start [s], steps, seconds of the first [s], growth [s], decoding requests, their contexts [token],
          prompt tokens, blocks in use.
        """
        if not columns.shape[1]:
            return
        _, steps, seconds, slope, n, _, _, blocks = columns
        made = n * steps
        drift = slope * (steps - 1)
        span = steps * (seconds + drift / 2)
        self._busy += float(span.sum())
        self._batch += float((n * span).sum())
        self._largest = max(self._largest, float(n.max()))
        used = blocks * self._block
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
        """Count gaps between tokens that are longer than a step.

        Prompts of other requests ran between, or a preemption did.

        `columns`: Length [s], and how many; a negative number takes back what runs of equal steps have counted, [-].
        """
        if columns.shape[1]:
            self.times["itl"].add(columns[0], columns[1])

    @property
    def has_targets(self) -> bool:
        """Return True if goodput is counted."""
        return bool(self._targets)

    @property
    def good(self) -> int:
        """Requests within every target, [-]"""
        return self._counts["good"]

    @property
    def counted(self) -> int:
        """Requests that were counted, [-]"""
        return self._counts["requests"]

    def summary(
        self, rejected: int = 0, found: bool = False, aside: Seconds = 0.0, left: int | None = None
    ) -> dict[str, float]:
        """All statistics by name.

        - `found`: True to report the share of prompt tokens found in the prefix cache.
        - `aside`: Time that passed beside the clock of the records.
        - `left`: Requests whose clients left before their first token; goodput is a share of them too.
        - Returns: Statistics; times in ms, as the names say.
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


# One flat record for each request, streamed to CSV or Parquet; what was written is kept when a run is interrupted.

#: Columns of a record: name in the file → name inside; times in seconds after the start.
COLUMNS = {
    "request": "number",
    "session": "session",
    "turn": "turn",
    "priority": "priority",
    "replica": "replica",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_tokens": "cached",
    "preemptions": "preemptions",
    "arrival_s": "arrival",
    "queue_wait_s": "",
    "prefill_start_s": "started",
    "first_token_s": "first",
    "finish_s": "finish",
}

#: Columns inside, whole numbers before times.
_WHOLE = (
    *("number", "session", "turn", "priority", "replica"),
    *("input_tokens", "output_tokens", "cached", "preemptions"),
)
_NAMES = (*_WHOLE, "arrival", "started", "first", "finish")


def request_columns(requests: list[Request]) -> dict[str, np.ndarray]:
    """Columns of finished requests.

    Returns: Columns by name; times in [s], lengths in [token].

    Examples
    --------
    >>> request_columns([Request(3, 0.5, 10, 2)])["arrival"].tolist()
    [0.5]
    """
    rows = RequestRows()
    rows.add(requests)
    return rows.take()


def record_columns(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of finished requests under the names that a file or a frame has.

    - `columns`: As `request_columns` makes them, [s] or [token].
    - Returns: Columns `COLUMNS`; the wait is what lies between arrival and prefill, [s] or [token].

    Examples
    --------
    >>> record_columns(request_columns([Request(3, 0.5, 10, 2)]))["request"].tolist()
    [3]
    """
    return {
        name: columns[inside] if inside else np.maximum(columns["started"] - columns["arrival"], 0.0)
        for name, inside in COLUMNS.items()
    }


class RequestRows:
    """Records of finished requests as flat rows of numbers.

    Examples
    --------
    >>> rows = RequestRows()
    >>> rows.add([Request(3, 0.5, 10, 2)])
    >>> len(rows), rows.take()["input_tokens"].tolist(), len(rows)
    (1, [10], 0)
    """

    def __init__(self) -> None:
        self._rows: list[float] = []

    def __len__(self) -> int:
        return len(self._rows) // len(_NAMES)

    def add(self, requests: Iterable[Request]) -> None:
        """Append records one by one; what was appended before an interrupt stays."""
        rows = self._rows
        for one in requests:  # in the order of `_NAMES`
            rows += (
                one.number, one.session, one.turn, one.priority, one.replica, one.input, one.output, one.cached,
                one.preemptions, one.arrival, one.started, one.first, one.finish,
            )  # fmt: skip

    def take(self) -> dict[str, np.ndarray]:
        """Hand the records out and begin anew.

        Returns: Columns by name; times in [s], lengths in [token].
        """
        columns = np.fromiter(self._rows, float, len(self._rows)).reshape(-1, len(_NAMES)).T.copy()
        self._rows = []
        return {
            name: column.astype(np.int64) if name in _WHOLE else column
            for name, column in zip(_NAMES, columns, strict=True)
        }


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended.

    So requests that are counted are written too. Threads other than the main one get no signals, and a handler
    of the caller stays.

    Examples
    --------
    >>> with interrupts_held():
    ...     pass
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


class RecordWriter:
    """A file of records that appears under its name when closed.

    So it does after an interrupt.

    - `path`: Ends in `.csv` or `.parquet`; the latter needs the extra `parquet`.

    Raises
    ------
    SpecError
        If the ending is not known, pyarrow is missing or the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "out.csv"
    >>> with RecordWriter(file) as writer:
    ...     writer.write(request_columns([Request(3, 0.5, 10, 2)]))
    >>> file.read_text().splitlines()[1]
    '3,-1,0,0,0,10,2,0,0,0.5,0,-1,-1,-1'
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._parquet: Any = None
        if self._path.suffix not in (".csv", ".parquet"):
            raise SpecError("must end in .csv or .parquet", field="--records", value=str(path))
        if self._path.suffix == ".parquet":
            check_extra("pyarrow", field="--records")
        try:
            handle, self._temporary = temporary_beside(self._path)
        except OSError as error:
            raise SpecError(f"cannot be written: {error.strerror}", file=path, field="--records") from None
        self._stream = os.fdopen(handle, "wb")
        if self._path.suffix == ".csv":
            self._stream.write((",".join(COLUMNS) + "\n").encode())

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, columns: dict[str, np.ndarray]) -> None:
        """Append records.

        `columns`: Columns as `request_columns` makes them, [s] or [token].
        """
        table = record_columns(columns)
        if self._path.suffix == ".csv":
            texts = [
                (f"{x:.9f}".rstrip("0").rstrip(".") for x in column.tolist())
                if column.dtype.kind == "f"
                else map(str, column.tolist())
                for column in table.values()
            ]
            self._stream.write("".join(",".join(row) + "\n" for row in zip(*texts, strict=True)).encode())
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrow = pa.table(table)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._stream, arrow.schema)
        self._parquet.write_table(arrow)

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._stream.closed:
            return
        if self._path.suffix == ".parquet":
            if self._parquet is None:
                self.write(request_columns([]))
            self._parquet.close()
        self._stream.close()
        os.replace(self._temporary, self._path)
