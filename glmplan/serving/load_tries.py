"""What services did under the loads that were tried, each once, and where one of them breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from glmplan.serving.load_edge import EdgeSearch
from glmplan.serving.load_trial import OPEN, SETTLED, UNFINISHED, Trial, capacity, enough, places, try_load
from glmplan.serving.service import Service
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic

__all__ = ["BORDER", "DRAWS", "LoadTries", "Tries"]

#: services of different speed that are drawn from what is not known [-]
DRAWS = 20
#: stands for the service that 5 of 100 are slower than
BORDER = DRAWS
#: requests that are judged where it is only looked for where to begin, and how near to the end that is [-]
_ROUGH, _NEAR_ROUGH = 300, 0.1


@dataclass
class Tries:
    """What was tried of the same services, traffic, promise and seed by other searches; what is tried is added.

    Attributes
    ----------
    trials : dict
        (service, draw of the arrivals, load) → what the simulation of it did.
    start : float or None
        Users who are known to be safe where all requests are alike, to begin with where no pool decides, [-]
    copied : bool
        Whether a copy of this process may try every other draw of the arrivals.
    """

    trials: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    start: float | None = None
    copied: bool = False


@dataclass(slots=True)
class LoadTries:
    """Services under loads; remembers what was tried.

    Parameters
    ----------
    variants : list of Service
        What the service may be, slowest first.
    traffic : Traffic
        What arrives.
    targets : tuple of Target
        The promise.
    limit : float
        Largest load to look at, [-] or [1/s]
    seed : int
        Seed, [-]
    late : tuple of float, optional
        Of each service, how much later its first tokens come than its steps say, [-]
    served : float, optional
        What the service as predicted can serve, [1/s]
    known : Tries, optional
        What other searches tried.
    border : Service, optional
        The service that 5 of 100 are slower than, where the services are parts of a spread of speeds.
    border_late : float, optional
        How much later its first tokens come than its steps say, [-]
    """

    variants: list[Service]
    traffic: Traffic
    targets: tuple[Target, ...]
    limit: float
    seed: int
    late: tuple[float, ...] = ()
    served: float = math.inf
    why_limited: str = ""
    tried: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    known: Tries = field(default_factory=Tries)
    border: Service | None = None
    border_late: float = 1.0
    #: requests of an open stream that are judged
    settled: int = SETTLED

    def __post_init__(self) -> None:
        if self._whole:
            # a part of a user is never tried, and would never be reached
            self.limit = float(max(math.floor(self.limit), 1))

    @property
    def _whole(self) -> bool:
        """Whether loads are numbers of users."""
        return self.traffic.users is not None

    def _bound(self, service: Service) -> None:
        """Find loads beyond which nothing is left to be seen: what is served at most, or the places in the engine."""
        rates = self.traffic.kind in OPEN or (self.traffic.kind == "sessions" and not self._whole)
        if rates:
            self.served = capacity(service, self.traffic)
            self.settled = enough(self.traffic, self.served)
        waits = any(target.metric in ("ttft", "e2e", "queue") for target in self.targets)
        room = places(service)
        if self._whole and not waits and room < self.limit and not self.traffic.think:
            at_work = 1.0 if self.traffic.kind == "closed" else 4.0  # agents wait for their tools between turns
            self.limit = min(self.limit, math.ceil(at_work * room))
            self.why_limited = f": further ones wait for one of {room} places (max_num_seqs), which is not promised"

    def _start(self, service: Service) -> float:
        """A first load to try."""
        if self._whole or self.traffic.kind == "trace":
            return 1.0
        return min(self.limit, self.served / 2) if self.served > 0 else 1.0

    def _at(self, which: int, load: float, draw: int = 0, *, verdict: bool = False) -> Trial:
        """Try a load on one of the services, once."""
        key = (which, draw, load)
        found = self.known.trials.get(key)
        if found is None:
            found = self._try(which, load, draw, verdict=verdict)
            if found.margin == UNFINISHED:
                return found
            self.known.trials[key] = found
        self.tried[key] = found
        return found

    def _try(
        self, which: int, load: float, draw: int = 0, *, verdict: bool = False, settled: int | None = None
    ) -> Trial:
        late = self.border_late if which == BORDER else self.late[which] if self.late else 1.0
        # all times scale with the factor of the service, and what it serves at most with its inverse
        most = self.served / self._speed(which)
        return try_load(
            self._service(which), self.traffic, self.targets, load, self._seed(which, draw),
            most=most, late=late, verdict=verdict, settled=settled or self.settled,
        )  # fmt: skip

    def _seed(self, which: int, draw: int) -> int:
        """The seed of one draw of the arrivals at one service."""
        return self.seed * 1000 + which + DRAWS * draw

    def _service(self, which: int) -> Service:
        return self.border if which == BORDER and self.border is not None else self.variants[which]

    def _speed(self, which: int) -> float:
        middle = self.variants[len(self.variants) // 2].table
        row, column = middle.max_requests // 2 or 1, len(middle.context) // 2
        return float(self._service(which).table.decode[row, column] / middle.decode[row, column])

    def _edge(self, which: int, guess: float) -> float:
        """The load at which one service breaks, between the last that is kept and the first that is not; 0 if none."""
        return self._follow(which).find(guess)

    def _follow(self, which: int, draw: int = 0, *, rough: bool = False) -> EdgeSearch:
        """A search for the load at which one service breaks under one draw of the arrivals."""
        full = math.inf if self._whole else self.served / self._speed(which)
        if rough:
            judged = _ROUGH * self.settled // SETTLED
            few = EdgeSearch(lambda load: self._try(which, load, draw, settled=judged), self.limit, self._whole, full)
            few.near = few.close = _NEAR_ROUGH
            return few
        return EdgeSearch(lambda load: self._at(which, load, draw), self.limit, self._whole, full)

    @property
    def alike(self) -> bool:
        """Whether nothing is left to chance but what is not known of the service."""
        drawn = self.traffic.lengths or self.traffic.jitter or self.traffic.input_cv or self.traffic.output_cv
        return self.traffic.kind == "closed" and not drawn

    def roomy(self, load: float) -> bool:
        """Whether the smallest pool holds a whole request of every user, so that no pool decides anything.

        Parameters
        ----------
        load : float
            Users, [-]

        Returns
        -------
        bool
            Of requests that are alike; one user more is counted for each replica, because their shares may differ.
        """
        service, traffic = self.variants[0], self.traffic
        replicas = service.settings.replicas - service.settings.prefill_replicas
        pool = min(one.pool.tokens for one in self.variants)
        length = traffic.input + traffic.output + service.pool.block_size
        return (math.ceil(load / replicas) + 1) * length <= pool
