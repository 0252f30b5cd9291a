"""A fleet from a TOML file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from glmplan.catalog.files import read_toml
from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import GatewayRules
from glmplan.units import Seconds, parse_quantity

__all__ = [
    "Autoscaler",
    "ColdStart",
    "Fault",
    "FleetSpec",
    "GroupSpec",
    "RouterSpec",
    "TenantSpec",
    "fleet_of",
    "read_fleet",
]


def _duration(value: Any) -> Any:
    return parse_quantity(value, "seconds") if isinstance(value, str) else value


def _size(value: Any) -> Any:
    return parse_quantity(value, "bytes") if isinstance(value, str) else value


def _rate(value: Any) -> Any:
    return parse_quantity(value, "bytes per second") if isinstance(value, str) else value


_Time = Annotated[float, BeforeValidator(_duration), Field(ge=0, le=1e9, allow_inf_nan=False)]
_Bytes = Annotated[float, BeforeValidator(_size), Field(ge=0, allow_inf_nan=False)]
_Rate = Annotated[float, BeforeValidator(_rate), Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10_000)]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_kebab, populate_by_name=True)


class ColdStart(_Part):
    """Time from the decision to start a replica to its first request.

    Examples
    --------
    >>> ColdStart(weights=60e9, weights_rate=2e9, compile=40.0).seconds()
    70.0
    """

    provision: _Time = 0.0  # until the machine runs and has the container image; not needed after a crash, [s]
    weights: _Bytes = 0.0  # bytes of the checkpoint that one replica reads, [B]
    weights_rate: _Rate | None = None  # rate at which they come from disk, object store or network, [B/s]
    compile: _Time = 0.0  # `torch.compile` and kernel autotuning, [s]
    graph_capture: _Time = 0.0  # capture of CUDA graphs, profiling and warm-up, [s]

    @model_validator(mode="after")
    def _both(self) -> ColdStart:
        if (self.weights > 0) != (self.weights_rate is not None):
            raise ValueError("weights-rate: weights and weights-rate are given together")
        return self

    def seconds(self, *, provisioned: bool = False) -> Seconds:
        """Return the whole time, or that of a restart on a machine that is there."""
        load = self.weights / self.weights_rate if self.weights_rate else 0.0
        return (0.0 if provisioned else self.provision) + load + self.compile + self.graph_capture


class Autoscaler(_Part):
    """Horizontal autoscaling of one group, as Kubernetes does it.

    References
    ----------
    .. [1] Kubernetes API `autoscaling/v2`, HPAScalingRules and HorizontalPodAutoscalerBehavior: doubling or 4 pods
       within 15 s up, all within 15 s down, no window up and 300 s down, tolerance 0.1.
    .. [2] KEDA, "ScaledObject specification": pollingInterval 30 s, cooldownPeriod 300 s.
    """

    #: `concurrency` (requests at the replicas and at the gateway), `queue-depth` (those of them that wait) or
    #: `kv-share` (share of the KV pool in use)
    metric: Literal["concurrency", "queue-depth", "kv-share"]
    target: float = Field(gt=0, allow_inf_nan=False)  # value of the metric for each replica, [-]
    #: `min`, `max`: fewest and most replicas; with 0 the last one goes after `cooldown` without a request, [-]
    min: _Count = 1
    max: _Count = Field(ge=1)
    #: time between two decisions, [s]
    interval: Annotated[float, BeforeValidator(_duration), Field(gt=0, le=1e6)] = 15.0
    #: relative deviation from the target below which nothing changes, [-]
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    #: `stabilization_up`, `stabilization_down`: window over which the lowest or the highest recommendation counts, [s]
    stabilization_up: _Time = 0.0
    stabilization_down: _Time = 300.0
    #: `up_percent`, `up_replicas`, `down_percent`: most replicas added (the larger of both) or removed within
    #: `policy_period`, [-]
    up_percent: int = Field(default=100, ge=0)
    up_replicas: int = Field(default=4, ge=0)
    down_percent: int = Field(default=100, ge=0, le=100)
    policy_period: Annotated[float, BeforeValidator(_duration), Field(gt=0, le=1e6)] = 15.0  # see there, [s]
    cooldown: _Time = 300.0  # KEDA: time without load after which the last replica goes, [s]

    @model_validator(mode="after")
    def _ordered(self) -> Autoscaler:
        if self.min > self.max:
            raise ValueError("min: must not be above max")
        if not (self.up_percent or self.up_replicas):
            raise ValueError("up-percent: without it and up-replicas no replica would ever be added")
        return self


class GroupSpec(_Part):
    """Equal replicas."""

    name: str  # name in the result
    model: str = ""  # name that tenants ask for: a catalogue name, or any with `step_time`
    on: str | None = None  # machine of one replica
    replicas: _Count = 1  # replicas at the start, [-]
    #: share of requests of each replica under `weighted` routing, [-]
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    usd_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # cost of one replica, [USD/h]
    #: longest time that a replica may take to finish its requests before it stops; no limit by default, [s]
    drain_timeout: _Time | None = None
    #: `cold_start`, `autoscaler`: tables of their own
    cold_start: ColdStart = ColdStart()
    autoscaler: Autoscaler | None = None
    #: options of `glmplan simulate` for the deployment, such as `engine`, `tp` or `kv-tokens`
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _some(self) -> GroupSpec:
        scaler = self.autoscaler
        if scaler is None and self.replicas < 1:
            raise ValueError("replicas: a group without an autoscaler needs at least one")
        if scaler is not None and scaler.min and "cooldown" in scaler.model_fields_set:
            raise ValueError("autoscaler: cooldown has no effect with min above 0, which keeps the last replica")
        if scaler is not None and not scaler.min <= self.replicas <= scaler.max:
            raise ValueError("replicas: must lie between min and max of the autoscaler")
        return self

    @property
    def most(self) -> int:
        """Replicas that there may be, [-]"""
        return self.autoscaler.max if self.autoscaler is not None else self.replicas


class TenantSpec(_Part):
    """Requests of one tenant."""

    name: str  # name in the result
    model: str = ""  # model that it asks for; may be left out if all groups serve one
    traffic: str  # as `--traffic`
    slo: str = ""  # its SLO; that of the fleet by default
    #: of waiting requests at the gateway, and in engines with `order = "priority"`, the lowest goes first, [-]
    priority: int = Field(default=0, ge=0, le=1000)
    #: further fields of the traffic, such as `input`, `output` and `patience`
    shape: dict[str, Any] = Field(default_factory=dict)


#: kinds of faults that use a field, where others have no use for it
_OF_FAULTS = {
    "replicas": ("crash", "preemption", "rolling-upgrade", "slow"),
    "notice": ("preemption",),
    "factor": ("slow",),
    "lasts": ("slow",),
    "restart": ("crash", "preemption", "mtbf"),
}


class Fault(_Part):
    """A disturbance of one group."""

    #: `crash` (replicas die and restart on their machine), `preemption` (the machine goes after a notice, another one
    #: is provisioned), `rolling-upgrade` (all replicas restart, some at a time), `slow` (steps last longer for some
    #: time) or `mtbf` (each replica crashes at random)
    kind: Literal["crash", "preemption", "rolling-upgrade", "slow", "mtbf"]
    group: str
    at: _Time = 0.0  # when, [s]
    replicas: int = Field(default=1, ge=1)  # how many; of a rolling upgrade how many at a time (maxUnavailable), [-]
    #: time between the notice and the end of a preempted machine, in which it takes no new requests, [s]
    notice: _Time = 0.0
    factor: float = Field(default=2.0, gt=0, allow_inf_nan=False)  # of the duration of steps of a slow replica, [-]
    lasts: _Time | None = None  # how long a replica is slow; to the end by default, [s]
    #: mean time between failures of a replica, [s]
    mean: Annotated[float, BeforeValidator(_duration), Field(gt=0)] | None = None
    restart: bool = True  # False if nothing replaces what is lost

    @model_validator(mode="after")
    def _complete(self) -> Fault:
        if (self.kind == "mtbf") != (self.mean is not None):
            raise ValueError("mean: the mean time between failures belongs to faults of kind mtbf")
        for name in sorted(self.model_fields_set & _OF_FAULTS.keys()):
            if self.kind not in _OF_FAULTS[name]:
                kinds = ", ".join(_OF_FAULTS[name])
                raise ValueError(f"{name}: has no effect on faults of kind {self.kind}, only on {kinds}")
        return self


#: what users of llm-d, Envoy and SGLang call a policy → its name in the engine
_ALIASES = {
    "least-requests": "least-loaded",
    "least-request": "least-loaded",
    "session-affinity": "affinity",
    "session": "affinity",
    "cache-aware": "prefix-aware",
}


class RouterSpec(_Part):
    """The gateway: `GatewayRules` as a table."""

    routing: str = "round-robin"
    max_outstanding: int = Field(default=0, ge=0)
    queue_size: int | None = Field(default=None, ge=0)
    queue_timeout: _Time | None = None
    metrics_interval: _Time = 0.0
    retries: int = Field(default=0, ge=0, le=100)
    retry_backoff: _Time = 0.0

    @model_validator(mode="after")
    def _used(self) -> RouterSpec:
        self.rules(0)
        if self.metrics_interval and self.routing != "least-kv":
            raise ValueError("metrics-interval: has no effect without routing = 'least-kv'")
        if self.retry_backoff and not self.retries:
            raise ValueError("retry-backoff: has no effect without retries")
        return self

    def rules(self, seed: int) -> GatewayRules:
        """Return the rules of the simulated gateway."""
        return GatewayRules(
            routing=_ALIASES.get(self.routing, self.routing),
            max_outstanding=self.max_outstanding,
            queue_size=1 << 60 if self.queue_size is None else self.queue_size,
            queue_timeout=math.inf if self.queue_timeout is None else self.queue_timeout,
            metrics_interval=self.metrics_interval,
            seed=seed,
        )


class FleetSpec(_Part):
    """A fleet and its traffic."""

    group: tuple[GroupSpec, ...] = Field(min_length=1)  # groups of replicas
    tenant: tuple[TenantSpec, ...] = Field(min_length=1)  # who sends requests
    router: RouterSpec = RouterSpec()  # the gateway
    fault: tuple[Fault, ...] = ()  # disturbances
    slo: str = ""  # SLO of tenants without their own
    duration: _Time | None = None  # time during which requests come; instead of a number of requests, [s]

    @model_validator(mode="after")
    def _consistent(self) -> FleetSpec:
        for what, names in (("group", [g.name for g in self.group]), ("tenant", [t.name for t in self.tenant])):
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: two have the same name")
        served = {group.model for group in self.group}
        for tenant in self.tenant:
            if tenant.model not in served and (tenant.model or len(served) > 1):
                raise ValueError(f"tenant: no group serves the model {tenant.model!r} of {tenant.name}")
        sizes = {group.name: group.most for group in self.group}
        for fault in self.fault:
            if fault.group not in sizes:
                raise ValueError(f"fault: {fault.group!r} is not a group")
            if fault.replicas > sizes[fault.group]:
                raise ValueError(
                    f"fault: {fault.group} has at most {sizes[fault.group]} replicas, not {fault.replicas}"
                )
            if self.duration is not None and fault.at >= self.duration:
                raise ValueError(f"fault: at {fault.at:g} s is not before the end of the duration, {self.duration:g} s")
        weighed = [group.name for group in self.group if "weight" in group.model_fields_set]
        if weighed and self.router.routing != "weighted":
            raise ValueError(f"group: weight of {weighed[0]} has no effect without routing = 'weighted'")
        if sum(group.most for group in self.group) > 10_000:
            raise ValueError("group: at most 10,000 replicas in all")
        return self

    def models(self) -> tuple[list[int], list[int]]:
        """Return the number of the model of each group, and of each tenant."""
        names = list(dict.fromkeys(group.model for group in self.group))
        of_tenants = [names.index(tenant.model) if tenant.model in names else 0 for tenant in self.tenant]
        return [names.index(group.model) for group in self.group], of_tenants

    def fixed_at(self, replicas: dict[str, int]) -> FleetSpec:
        """Return the fleet with fixed sizes instead of autoscalers."""
        groups = [
            group.model_copy(update={"autoscaler": None, "replicas": replicas[group.name]})
            if group.name in replicas
            else group
            for group in self.group
        ]
        return self.model_copy(update={"group": tuple(groups)})


#: table of a fleet file → record of its keys; groups and tenants have further ones
_TABLES: dict[str, type[BaseModel]] = {
    "": FleetSpec, "router": RouterSpec, "fault": Fault, "autoscaler": Autoscaler, "cold-start": ColdStart,
    "group": GroupSpec, "tenant": TenantSpec,
}  # fmt: skip
#: keys of a group that are its own; all others are options of the deployment
_OWN = {name.replace("_", "-") for name in GroupSpec.model_fields} - {"options"}
_OWN_OF_TENANT = set(TenantSpec.model_fields) - {"shape"}


def read_fleet(path: str | Path) -> FleetSpec:
    """Read a fleet file; an error names the field that is wrong."""
    content = read_toml(str(path))
    try:
        return fleet_of(content)
    except ValidationError as error:
        errors = error.errors()
        # a key that is misspelt is missing too
        first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
        where = ".".join(_kebab(str(part)) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            inside, _, name = where.rpartition(".")
            table = next((part for part in reversed(inside.split(".")) if not part.isdigit()), "")
            keys = [_kebab(key) for key in _TABLES[table].model_fields] if table in _TABLES else ()
            raise SpecError("is not a key", file=str(path), field=inside or None, value=name, choices=keys) from None
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
        value = first["input"] if first["type"] == "literal_error" else None
        message = message[0].lower() + message[1:]
        raise SpecError(message, file=str(path), field=where or None, value=value) from None


def fleet_of(content: dict[str, Any]) -> FleetSpec:
    """Return the fleet of a table as a file has it.

    Examples
    --------
    >>> found = fleet_of({"group": [{"name": "a", "engine": "vllm"}], "tenant": [{"name": "t", "traffic": "closed:1"}]})
    >>> found.group[0].options, found.tenant[0].shape
    ({'engine': 'vllm'}, {})
    """
    content = dict(content)
    for table, own, rest in (("group", _OWN, "options"), ("tenant", _OWN_OF_TENANT, "shape")):
        rows = content.get(table)
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            content[table] = [
                {key: value for key, value in row.items() if key in own}
                | {rest: {key.replace("-", "_"): value for key, value in row.items() if key not in own}}
                for row in rows
            ]
    return FleetSpec.model_validate(content)
