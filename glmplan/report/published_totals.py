"""Published totals of parameters beside computed ones, at the precision with which they are printed.

A publisher's "671B" is no measurement to three digits: names are rounded, cut off, or rounded to tens. A computed total
agrees when one of these gives the printed digits; which layers the publisher counts is rarely said, so every sum that
may be meant is tried, the smallest first. What agrees with none needs a reason in the entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from glmplan.facts.schema.model import ModelSpec
from glmplan.physics.blocks.stack import model_parameters

__all__ = ["PublishedTotal", "published_total"]

#: billions
_BILLION = 1e9


@dataclass(frozen=True, slots=True)
class PublishedTotal:
    """A published total beside the computed one that comes nearest to what it may mean.

    Attributes
    ----------
    printed : str
        As printed, in billions.
    computed : int
        Weights, [-]
    counts : str
        What the computed total counts.
    agrees : str
        How it gives the printed digits: ``rounded``, ``cut off`` or ``rounded to 10``; empty if it does not.
    why : str
        Why it does not, as the entry says.
    """

    printed: str
    computed: int
    counts: str
    agrees: str
    why: str


def published_total(model: ModelSpec) -> PublishedTotal | None:
    """Hold the published total of a model against its shapes.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    PublishedTotal or None
        The sum that gives the printed digits, the closest way and the smallest sum first, else the nearest sum; None
        where no total is published.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> found = published_total(load_model("deepseek-v3"))
    >>> found.printed, found.counts, found.agrees
    ('671', 'language model', 'rounded')
    """
    if model.published is None or not model.published.total_b:
        return None
    total = model.published.total_b
    printed = f"{total:.10g}"
    sums = dict(_sums(model))
    for how, gives in _ways(printed):
        for counts, computed in sums.items():
            if gives(computed / _BILLION):
                return PublishedTotal(printed, computed, counts, how, "")
    counts = min(sums, key=lambda name: abs(sums[name] / _BILLION - total))
    return PublishedTotal(printed, sums[counts], counts, "", model.published.note or "")


def _sums(model: ModelSpec) -> Iterator[tuple[str, int]]:
    """What a publisher may count, the smallest first."""
    count = model_parameters(model)
    layers = [("language model", count.total)]
    if count.mtp:
        layers.append(("with MTP layers", count.total + count.mtp))
        if count.mtp_vocabulary:
            whole = count.total + count.mtp + count.mtp_vocabulary
            ends = "their heads" if model.mtp is not None and model.mtp.own_head else "their embedding and head"
            layers.append((f"with MTP layers, {ends}", whole))
    yield from layers
    if model.extra_parameters:
        for counts, computed in layers:
            yield f"{counts}{', ' if counts.startswith('with') else ' '}and tower", computed + model.extra_parameters


def _ways(printed: str) -> Iterator[tuple[str, Callable[[float], bool]]]:
    """Ways in which a total in billions may give the printed digits, the closest first."""
    value = float(printed)
    unit = 10.0 ** -len(printed.partition(".")[2])
    yield "rounded", lambda total: abs(total - value) <= unit / 2
    yield "cut off", lambda total: math.floor(total / unit) == round(value / unit)
    tens = 10.0 ** (len(printed) - len(printed.rstrip("0"))) if "." not in printed else 1.0
    if tens > 1:
        yield f"rounded to {tens:,.0f}", lambda total: abs(total - value) <= tens / 2
