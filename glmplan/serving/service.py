"""What is simulated: the step times, the room and the settings of a server."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from glmplan.errors import SpecError
from glmplan.serving.engine.first_tokens import AS_STEPS_SAY, FirstTokens
from glmplan.serving.engine.settings import EngineSettings, KvPool
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.traffic.spec import Traffic

__all__ = ["FewRanks", "Service"]


@dataclass(frozen=True, slots=True, eq=False)
class FewRanks:
    """Step times of a server some of whose data-parallel ranks have no requests.

    Parameters
    ----------
    ranks : int
        Data-parallel ranks of a server, [-]
    table : callable
        Takes how many of them have requests and returns the time of a step of one of these.
    """

    ranks: int
    table: Callable[[float], StepTable]


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What is simulated: step times, room for keys and values, and the engine's settings.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Scheduler, limits, replicas.
    front_end : float, optional
        Time between the arrival of a request and its arrival at the engine; see `glmplan.serving.front_end.travel`, [s]
    wake : float, optional
        What a request waits longer for that finds nobody there; the engine's clock does not, [s]
    first : FirstTokens, optional
        How much later first tokens come than their steps say.
    few : FewRanks, optional
        Step times where users are fewer than data-parallel ranks.
    whole : callable, optional
        Returns the time of a step with as many requests as the settings allow, where `table` holds fewer; it is asked
        for where more users come than `table` holds requests, or it is not known how many.
    """

    table: StepTable
    pool: KvPool
    settings: EngineSettings
    front_end: float = 0.0
    wake: float = 0.0
    first: FirstTokens = AS_STEPS_SAY
    few: FewRanks | None = None
    whole: Callable[[], StepTable] | None = None

    def __post_init__(self) -> None:
        at_once = -(-self.settings.max_num_seqs // self.settings.pipeline_stages)
        if at_once > self.table.max_requests and self.whole is None:
            raise SpecError(
                f"exceeds the {self.table.max_requests} requests of the step table",
                field="max_num_seqs",
                value=self.settings.max_num_seqs,
            )

    def scaled(self, factor: float) -> Service:
        """The same service with every step slower or faster.

        Parameters
        ----------
        factor : float
            What each step time is multiplied by, [-]

        Returns
        -------
        Service
            The scaled service.
        """
        few = self.few
        if few is not None:
            few = FewRanks(few.ranks, lambda busy, of=few.table: of(busy).scaled(factor))  # type: ignore[misc]
        whole = self.whole
        if whole is not None:
            whole = cache(lambda of=whole: of().scaled(factor))
        return replace(self, table=self.table.scaled(factor), few=few, whole=whole)

    def with_room(self, room: float, traffic: Traffic, *, least: float = 0.0) -> Service:
        """The same service with more or less room for keys and values.

        Parameters
        ----------
        room : float
            What the pool is multiplied by, [-]
        traffic : Traffic
            What arrives.
        least : float, optional
            Tokens that it holds at least; a block in any case, [token]

        Returns
        -------
        Service
            With the other pool. Slots of equal context are told so that they hold a request: where there is less room
            they are fewer, not shorter.
        """
        pool, settings = self.pool, self.settings
        found = replace(pool, tokens=max(int(pool.tokens * room), int(least), pool.block_size))
        if settings.admission == "slot" and found.tokens < pool.tokens:
            each = pool.tokens // settings.max_num_seqs
            if traffic.plain and not (traffic.lengths or traffic.input_cv or traffic.output_cv):
                # in whole blocks: what a slot holds is padded to them
                blocks = math.ceil((traffic.input + traffic.output) / pool.block_size)
                each = min(each, blocks * pool.block_size)
            slots = max(min(settings.max_num_seqs, found.tokens // max(each, 1)), 1)
            settings = replace(settings, max_num_seqs=slots)
        return replace(self, pool=found, settings=settings)

    def under(self, traffic: Traffic) -> Service:
        """The service as traffic finds it.

        Parameters
        ----------
        traffic : Traffic
            What arrives.

        Returns
        -------
        Service
            With the step times of as many data-parallel ranks as there are users, where these are fewer, and of as many
            requests as may run at once.

        Notes
        -----
        Every step is that of ranks with as much to do each: of arrivals without a bound all ranks are taken as busy.
        """
        users = traffic.users
        if self.few is not None and users is not None:
            busy = users / min(self.settings.replicas / self.few.ranks, users)
            if busy < self.few.ranks:
                return replace(self, table=self.few.table(busy), few=None, whole=None)
        if self.whole is None or (users is not None and users <= self.table.max_requests):
            return self
        return replace(self, table=self.whole(), whole=None)
