"""All replicas of one service: a fleet of one group."""

from __future__ import annotations

from glmplan.simulation.engine.fleet import Fleet, ReplicaGroup
from glmplan.simulation.engine.router import Engine
from glmplan.simulation.engine.settings import EngineSettings, GatewayRules, KvPool
from glmplan.simulation.engine.step_table import StepTable

__all__ = ["Cluster"]


class Cluster(Fleet):
    """All replicas of a service under one router.

    Parameters
    ----------
    table : StepTable
        Time of a step on each replica.
    pool : KvPool
        KV pool of each replica.
    settings : EngineSettings
        Scheduler, limits, replicas and routing.
    engine : type, optional
        `SteppingEngine` for the reference; the skipping form that follows the settings by default.

    Examples
    --------
    >>> from glmplan.simulation.traffic.request import Request
    >>> table = StepTable.affine(base=0.01)
    >>> done = Cluster(table, KvPool(10_000), EngineSettings()).run([Request(0, 1.0, 100, 3)])
    >>> round(next(done).finish, 9)
    1.03
    """

    def __init__(
        self,
        table: StepTable,
        pool: KvPool,
        settings: EngineSettings,
        engine: type[Engine] | None = None,
    ) -> None:
        super().__init__([ReplicaGroup(table, pool, settings)], GatewayRules(settings.routing), engine)
