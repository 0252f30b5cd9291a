"""What an architecture reader finds: one kind for each layer, and a short spelling of the whole stack."""

from __future__ import annotations

from dataclasses import dataclass, field

from glmplan.facts.schema.model import LayerKind, MtpSpec

__all__ = ["Anatomy", "spell_stack"]


@dataclass(slots=True)
class Anatomy:
    """The layers of a model as read from a config.

    Attributes
    ----------
    family : str
        Family of the architecture.
    layers : list of (str, LayerKind)
        Name and kind of each layer, in order.
    extra : dict of str to LayerKind
        Kinds that only the MTP layers use.
    mtp : MtpSpec or None
        MTP layers of the checkpoint.
    notes : list of str
        What the reader has to say about it.
    """

    family: str
    layers: list[tuple[str, LayerKind]]
    extra: dict[str, LayerKind] = field(default_factory=dict)
    mtp: MtpSpec | None = None
    notes: list[str] = field(default_factory=list)


def spell_stack(names: list[str]) -> str:
    """Spell a list of layer names shortly, the inverse of `expand_stack`.

    Parameters
    ----------
    names : list of str
        One name for each layer.

    Returns
    -------
    str
        Stack.

    Examples
    --------
    >>> spell_stack(["dense"] * 3 + ["sparse"] * 75)
    'dense*3 sparse*75'
    >>> spell_stack((["linear"] * 3 + ["full"]) * 15)
    '(linear*3 full)*15'
    """
    parts = []
    start = 0
    while start < len(names):
        period, repeats = _best_repeat(names, start)
        unit = names[start : start + period]
        if period == 1:
            parts.append(unit[0] + (f"*{repeats}" if repeats > 1 else ""))
        elif repeats > 1:
            parts.append(f"({spell_stack(unit)})*{repeats}")
        start += period * repeats
    return " ".join(parts)


def _best_repeat(names: list[str], start: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(16, (len(names) - start) // 2) + 1):
        unit = names[start : start + period]
        repeats = 1
        while names[start + period * repeats : start + period * (repeats + 1)] == unit:
            repeats += 1
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best
