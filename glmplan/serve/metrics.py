"""Counts of the service in the text form of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

__all__ = ["Metrics", "resident_bytes"]

#: ends of the classes of times [s]
_ENDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAGE = 4096


def resident_bytes(pid: int | str = "self") -> int:
    """Memory that a process holds.

    Parameters
    ----------
    pid : int or str, optional
        Which; this one by default, [-]

    Returns
    -------
    int
        [B]; 0 where the system does not say
    """
    from glmplan.facts.files import read_text

    with suppress(Exception):
        return int(read_text(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


class Metrics:
    """Counts since the start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._classes: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self.running = 0
        self.kept = 0

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request.

        Parameters
        ----------
        method, route : str
            What was asked; the route as it is declared, never as it was typed.
        status : int
            Status of HTTP, [-]
        seconds : float
            Time it took, [s]
        """
        self._counts[method, route, status] += 1
        classes = self._classes.setdefault(route, [0] * (len(_ENDS) + 1))
        classes[next((place for place, end in enumerate(_ENDS) if seconds <= end), len(_ENDS))] += 1
        self._sums[route] = self._sums.get(route, 0.0) + seconds

    def text(self, gauges: Mapping[str, tuple[str, Iterable[tuple[str, float]]]]) -> str:
        """Write everything.

        Parameters
        ----------
        gauges : mapping
            Name → (help, pairs of labels and value) of what is counted elsewhere.

        Returns
        -------
        str
            Text in the exposition format 0.0.4.

        Examples
        --------
        >>> metrics = Metrics()
        >>> metrics.add("POST", "/v1/fit", 200, 0.03)
        >>> 'glmplan_requests_total{method="POST",route="/v1/fit",status="200"} 1' in metrics.text({})
        True
        """
        lines = ["# HELP glmplan_requests_total Requests answered.", "# TYPE glmplan_requests_total counter"]
        for (method, route, status), count in sorted(self._counts.items()):
            lines.append(f'glmplan_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        lines += ["# HELP glmplan_request_seconds Time of a request.", "# TYPE glmplan_request_seconds histogram"]
        for route, classes in sorted(self._classes.items()):
            below = 0
            for end, count in zip((*map(str, _ENDS), "+Inf"), classes, strict=True):
                below += count
                lines.append(f'glmplan_request_seconds_bucket{{route="{route}",le="{end}"}} {below}')
            lines.append(f'glmplan_request_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}')
            lines.append(f'glmplan_request_seconds_count{{route="{route}"}} {below}')
        own = {
            "glmplan_requests_running": ("Requests under way.", [("", float(self.running))]),
            "glmplan_answers_given_again": ("Answers that were kept and given again.", [("", float(self.kept))]),
        }
        for name, (words, pairs) in {**own, **gauges}.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
            lines += [f"{name}{labels} {value:g}" for labels, value in pairs]
        return "\n".join(lines) + "\n"
