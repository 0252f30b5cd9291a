"""Number of replicas by the rules of Kubernetes and KEDA."""

from __future__ import annotations

import math
from collections import deque

from glmplan.simulation.fleets.spec import Autoscaler
from glmplan.units import Seconds

__all__ = ["Scaling"]


class Scaling:
    """The autoscaler of one group, called once in each interval.

    - `rules`: Metric, target, limits and windows.

    Examples
    --------
    >>> scaling = Scaling(Autoscaler(metric="concurrency", target=10, min=1, max=8))
    >>> scaling.desired(0.0, 2, 45.0), scaling.desired(15.0, 5, 12.0), scaling.desired(400.0, 5, 12.0)
    (5, 5, 2)
    """

    def __init__(self, rules: Autoscaler) -> None:
        self.rules = rules
        self._recommended: deque[tuple[float, int]] = deque()  # when, and how many
        self._changes: deque[tuple[float, int]] = deque()  # when, and replicas added or removed
        self._idle_since: float | None = None

    def desired(self, now: Seconds, current: int, total: float) -> int:
        """Return the number of replicas to have.

        - `current`: Replicas that serve or start.
        - `total`: Sum of the metric over them, and of what waits at the gateway.

        Notes
        -----
        The recommendation is the total over the target, rounded up; none within the tolerance. Scaling down takes the
        highest recommendation of its window, scaling up the lowest of its own. Both are limited by the policies.

        References
        ----------
        .. [1] Kubernetes API `autoscaling/v2`, HPAScalingRules (policies, selectPolicy Max,
           stabilizationWindowSeconds, tolerance).
        .. [2] KEDA, "ScaledObject specification" (cooldownPeriod, minReplicaCount).
        """
        rules = self.rules
        if total > 0:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if current == 0:
            return self._noted(now, current, max(1, rules.min) if total > 0 or rules.min else 0)
        ratio = total / (rules.target * current)
        wanted = current if abs(ratio - 1.0) <= rules.tolerance else math.ceil(total / rules.target)
        wanted = self._stabilized(now, current, min(max(wanted, 1, rules.min), rules.max))
        wanted = self._limited(now, current, wanted)
        if rules.min == 0 and current == wanted == 1 and self._idle_since is not None:
            wanted = 0 if now - self._idle_since >= rules.cooldown else 1
        return self._noted(now, current, wanted)

    def _stabilized(self, now: Seconds, current: int, wanted: int) -> int:
        rules, seen = self.rules, self._recommended
        if not seen:
            seen.append((now - rules.interval, current))  # the controller begins with what is there
        seen.append((now, wanted))
        longest = max(rules.stabilization_up, rules.stabilization_down)
        while seen[0][0] < now - longest:
            seen.popleft()
        lowest = min(number for at, number in seen if at >= now - rules.stabilization_up)
        highest = max(number for at, number in seen if at >= now - rules.stabilization_down)
        return min(max(current, lowest), highest)

    def _limited(self, now: Seconds, current: int, wanted: int) -> int:
        rules, changes = self.rules, self._changes
        while changes and changes[0][0] <= now - rules.policy_period:
            changes.popleft()
        added = sum(change for _, change in changes if change > 0)
        removed = -sum(change for _, change in changes if change < 0)
        start = current - added
        most = max(math.ceil(start * (1 + rules.up_percent / 100)), start + rules.up_replicas)
        least = math.ceil((current + removed) * (1 - rules.down_percent / 100))
        return max(min(wanted, max(most, current)), min(least, current), min(rules.min, current))

    def _noted(self, now: Seconds, current: int, wanted: int) -> int:
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted
