"""SLO: targets such as `ttft p95 < 2 s, tpot p95 < 50 ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glmplan.errors import SpecError
from glmplan.units import given_text, parse_quantity

__all__ = ["METRICS", "STATISTICS", "Target", "parse_slo"]

#: Times that a target may bound.
METRICS = ("ttft", "tpot", "itl", "e2e", "queue")

#: Statistics of their distribution.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

_TARGET = re.compile(r"\s*(\w+)(?:\s+(\w+))?\s*(<=|<|≤)\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Target:
    """One bound of a service level objective.

    Examples
    --------
    >>> Target("ttft", "p95", 2.0).name
    'ttft_p95_ms'
    """

    metric: str  # one of `METRICS`
    statistic: str  # one of `STATISTICS`
    bound: float  # largest value that still meets it, [s]

    @property
    def name(self) -> str:
        """Name of the statistic in a summary."""
        return f"{self.metric}_{self.statistic}_ms"

    def __str__(self) -> str:
        return f"{self.metric} {self.statistic} < {self.bound * 1000:g} ms"


def parse_slo(text: str) -> tuple[Target, ...]:
    """Read targets.

    `text`: Targets separated by commas: metric, statistic (p95 if left out), `<`, time with unit.

    Examples
    --------
    >>> [str(target) for target in parse_slo("ttft p95 < 2 s, tpot < 50 ms")]
    ['ttft p95 < 2000 ms', 'tpot p95 < 50 ms']
    """
    targets: list[Target] = []
    for part in given_text(text, "--slo").split(","):
        match = _TARGET.match(part)
        if match is None:
            raise SpecError("is not a target such as 'ttft p95 < 2 s'", field="--slo", value=part.strip())
        metric, statistic, _, bound = match.groups()
        statistic = statistic or "p95"
        if metric not in METRICS:
            raise SpecError("is not a metric", field="--slo", value=metric, choices=METRICS)
        if statistic not in STATISTICS:
            raise SpecError("is not a statistic", field="--slo", value=statistic, choices=STATISTICS)
        try:
            seconds = parse_quantity(bound, "seconds")
        except SpecError as error:
            raise SpecError(error.message, field="--slo", value=error.value, choices=error.choices) from None
        if not seconds > 0:
            raise SpecError("must be above zero", field="--slo", value=bound)
        if any((one.metric, one.statistic) == (metric, statistic) and one.bound != seconds for one in targets):
            raise SpecError(f"has two bounds of {metric} {statistic}: give one", field="--slo", value=text)
        targets.append(Target(metric, statistic, seconds))
    return tuple(targets)
