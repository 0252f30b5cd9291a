"""Refuse options without effect: what they modify is absent.

A field of traffic that its kind does not use is refused where traffic is read (`Traffic.unused`), and a setting that
needs another one in `EngineSettings`. Here are conditions between traffic and settings, and given settings that the
simulated scheduler does not read.
"""

from __future__ import annotations

from collections.abc import Collection

from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import EngineSettings
from glmplan.simulation.traffic.spec import Traffic

__all__ = ["check_used"]


def check_used(settings: EngineSettings, traffic: Traffic, given: Collection[str] = ()) -> None:
    """Raise SpecError for an option of traffic or settings without effect.

    `given`: Fields of the settings that were given.

    Examples
    --------
    >>> check_used(EngineSettings(), Traffic(kind="closed", users=2, urgent=0.2))
    Traceback (most recent call last):
    glmplan.errors.SpecError: --urgent: 0.2 has no effect without --order priority
    """
    if traffic.images and not settings.image_seconds:
        raise SpecError("is needed with --images, as in '60 ms'", field="--image-time")
    if settings.image_seconds and not traffic.images:
        raise SpecError("has no effect without --images", field="--image-time", value=f"{settings.image_seconds:g} s")
    if traffic.urgent and settings.order != "priority":
        raise SpecError("has no effect without --order priority", field="--urgent", value=traffic.urgent)
    if settings.order == "priority" and not traffic.urgent:
        raise SpecError("has no effect without --urgent, as in 0.2", field="--order", value=settings.order)
    if settings.host_link is not None and not settings.host_tokens:
        raise SpecError("needs --host-tokens: without copies none come back", field="--host-bandwidth")
    if settings.link is not None and not settings.prefill_replicas:
        raise SpecError("needs --prefill-replicas: without them nothing is transferred", field="--transfer")
    if (foreign := settings.foreign(given)) is not None:
        name, engine = foreign
        message = f"is an option of {engine}: {settings.scheduler} has none"
        raise SpecError(message, field="--" + name.replace("_", "-"), value=getattr(settings, name))
    if settings.order == "lpm" and not settings.prefix_caching:
        raise SpecError("needs prefix caching, which is off", field="--order", value="lpm")
    prompts = settings.prefill_replicas
    if "routing" not in given:
        return
    if max(prompts, settings.replicas - prompts) < 2:
        message = "has no effect on one replica: give --replicas or --dp"
        raise SpecError(message, field="--routing", value=settings.routing)
    if settings.routing == "prefix-aware" and not settings.prefix_caching:
        raise SpecError("needs prefix caching, which is off", field="--routing", value=settings.routing)
