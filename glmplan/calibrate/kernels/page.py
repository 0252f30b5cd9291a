"""The page `docs/kernels.md`: how far the fitted forms are from the measured kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from glmplan.physics.kernels.fits import KernelFit
from glmplan.physics.kernels.utilisation import CollectiveParams, KernelParams

if TYPE_CHECKING:
    from glmplan.calibrate.kernels.all_parts import KernelCalibration

__all__ = ["kernels_page"]

_INTRO = """\
# Kernels: fits and their errors

Written by `glmplan calibrate kernels`; do not edit. The forms are explained in
[physics/kernels.md](physics/kernels.md).

Source: the kernel tables of {package} (Apache-2.0; <https://github.com/ai-dynamo/aiconfigurator>), read
in place and not copied. Of each table at most 1,600 rows, scattered evenly, are used: every second one is fitted, the
others give the errors below (absolute relative error of the time, % median / 90th percentile; a cell is the median
over its fits). All-reduce tables are short and are fitted whole. A prior is fitted to all parts at once; its *carried*
error is the spread of the median error when a part is left out of the fit and then predicted.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _percent(fits: Sequence[KernelFit]) -> str:
    median, p90 = (float(np.median([getattr(fit, name) for fit in fits])) * 100 for name in ("median", "p90"))
    return f"{median:.1f} / {p90:.0f}"


def _by(
    fits: Sequence[tuple[str, KernelFit]], column: Callable[[str, KernelFit], str]
) -> dict[str, dict[str, list[KernelFit]]]:
    cells: dict[str, dict[str, list[KernelFit]]] = defaultdict(lambda: defaultdict(list))
    for part, fit in fits:
        cells[fit.kernel][column(part, fit)].append(fit)
    return cells


def _summary(title: str, fits: Sequence[tuple[str, KernelFit]], column: Callable[[str, KernelFit], str]) -> str:
    cells = _by(fits, column)
    names = sorted({name for row in cells.values() for name in row})
    rows = [
        [kernel, *(_percent(row[name]) if name in row else "" for name in names), _percent(sum(row.values(), []))]
        for kernel, row in sorted(cells.items())
    ]
    return f"## {title}\n\n{_table(['class', *names, 'all'], rows)}\n"


def _parameters(fit: KernelFit) -> str:
    p = fit.params
    if isinstance(p, CollectiveParams):
        return (
            f"{p.latency * 1e6:.1f} µs + {p.hop * 1e6:.2f} µs a rank; one shot {p.one_shot:.0%}, "
            f"two shots {p.two_shot:.0%} + {p.two_shot_setup * 1e6:.1f} µs; crowding {p.crowding:.2f}"
        )
    assert isinstance(p, KernelParams)
    words = [f"{p.floor * 1e6:.1f} µs", f"B {p.bandwidth:.0%}", f"F {p.flop:.0%}"]
    named = {"rows": p.rows_half, "tiles": p.tiles_half, "streams": p.streams_half}
    words += [f"{name} {value:.3g}" for name, value in named.items() if value > 0.05]
    words += [f"side {p.side:.0%}"] * (p.side != 1.0) + [f"s {p.sharpness:.1f}"]
    return ", ".join(words + [f"{p.group * 1e9:.0f} ns a group"] * (p.group > 1e-9))


def _primary(fits: Iterable[KernelFit]) -> list[KernelFit]:
    """The fullest backend of each engine, without the prefill blocks: what a page can show."""
    first: dict[tuple[str, str, str], KernelFit] = {}
    for fit in fits:
        if not fit.kernel.endswith("prefill-block"):
            first.setdefault((fit.kernel, fit.engine, fit.precision), fit)
    return list(first.values())


def kernels_page(found: KernelCalibration) -> str:
    """Return the page.

    Parameters
    ----------
    found : KernelCalibration
        A run over all parts.

    Returns
    -------
    str
        Markdown.
    """
    fits = [(part, fit) for part, own in found.parts.items() for fit in own]
    text = [_INTRO.format(package=found.package)]
    points = sum(fit.points for _, fit in fits)
    text.append(f"{len(fits)} fits of {points:,} measured kernels on {len(found.parts)} parts.\n")
    text.append(_summary("By part", fits, lambda part, _: part))
    text.append(_summary("By engine", fits, lambda _, fit: fit.engine.split()[0]))
    text.append(_summary("By format", fits, lambda _, fit: fit.precision.split("+")[0]))
    rows = [
        [f.kernel, f.precision, f"{f.median:.0%} / {f.p90:.0%}"]
        + [f"{f.log_sd:.2f}", f"{f.part_log_sd:.2f}", _parameters(f)]
        for f in found.priors
        if f.engine == "*"
    ]
    head = ["class", "format", "error", "spread of shapes", "carried", "parameters"]
    text.append(f"## Priors for parts that nobody measured\n\nSpreads are of the logarithm.\n\n{_table(head, rows)}\n")
    worst = sorted(fits, key=lambda pair: -pair[1].median)[:20]
    rows = [[p, f.kernel, f.engine, f.precision, f.backend, f"{f.median:.0%} / {f.p90:.0%}"] for p, f in worst]
    text.append(
        "## The worst\n\nOne form cannot follow a library that changes its kernel with the shape; what is known stands "
        f"in [physics/kernels.md](physics/kernels.md).\n\n"
        f"{_table(['part', 'class', 'engine', 'format', 'backend', 'error'], rows)}\n"
    )
    for part, own in found.parts.items():
        rows = [
            [f.kernel, f.engine, f.precision, f.backend, f"{f.rows_low:g}-{f.rows_high:g}", _parameters(f)]
            + [f"{f.median:.1%} / {f.p90:.0%}", f"{f.points:,}"]
            for f in _primary(own)
        ]
        head = ["class", "engine", "format", "backend", "rows", "parameters", "error", "points"]
        text.append(f"## {part}\n\n{_table(head, rows)}\n")
    if found.left_out:
        text.append("## Left out\n\n" + "\n".join(f"- {reason}." for reason in found.left_out) + "\n")
    return "\n".join(text)
