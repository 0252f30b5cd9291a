"""Write the fitted constants of links to `calibration/fits/links.toml`, with errors, domain and what they rest on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

from glmplan.calibrate.links.errors import HeldOut, held_out_errors, machine_of
from glmplan.calibrate.links.fit import ProtocolFit, fit_links
from glmplan.calibrate.links.shares import ShareFit, fit_shares
from glmplan.facts.files import write_atomically
from glmplan.facts.folders import data_folder
from glmplan.units import format_quantity

__all__ = ["link_record", "write_link_fits"]

_HEAD = """\
# Constants of links, fitted to calibration/measurements/pcie-topologies.csv and collectives.csv.
# Written by `glmplan.calibrate.links.record.write_link_fits`; do not edit.
# Time of a collective = launch + hops x hop + bytes moved / (line rate x efficiency), see glmplan/physics/network.
# With a bulk_hop the ring has two speeds: short hops and twice the bytes (NCCL's LL), or long hops (Simple).
# left_out_error is the median relative error on machines left out; without it one machine decides.
"""


def _seconds(value: float) -> str:
    return format_quantity(value, "seconds", 4, unit="us")


def _protocol(fit: ProtocolFit, held_out: list[HeldOut]) -> str:
    kind, algorithm, condition = fit.key
    lines = [
        "[[protocol]]",
        f"kind = {json.dumps(kind)}",
        f"algorithm = {json.dumps(algorithm)}",
        f"condition = {json.dumps(condition)}",
        f"launch = {json.dumps(_seconds(fit.protocol.launch))}",
        f"hop = {json.dumps(_seconds(fit.protocol.hop))}",
    ]
    if fit.protocol.bulk_hop is not None:
        lines.append(f"bulk_hop = {json.dumps(_seconds(fit.protocol.bulk_hop))}")
    lines.append(f"efficiency = {fit.protocol.efficiency:.4f}")
    for name, error in fit.errors.items():
        lines.append(f"{name}_error = {f'{error:.4f}' if name == 'efficiency' else json.dumps(_seconds(error))}")
    if math.isfinite(fit.median_error):
        lines.append(f"median_relative_error = {fit.median_error:.3f}")
    if fit.rows:
        mine = {row.row for row in fit.rows}
        errors = [abs(one.error) for one in held_out if one.row in mine and one.error is not None]
        # a protocol whose rows are mostly those of one machine has not been tried on another
        if len(errors) > len(mine) / 2:
            lines.append(f"left_out_error = {median(errors):.3f}")
        lines.append(f"machines = {json.dumps(sorted({machine_of(row.host) for row in fit.rows}))}")
        sizes = [row.message for row in fit.rows]
        lines.append(f"ranks = {sorted({row.ranks for row in fit.rows})}")
        lines.append(f"messages = {json.dumps([format_quantity(size, 'bytes') for size in (min(sizes), max(sizes))])}")
        lines.append(f"rows = {json.dumps([row.row for row in fit.rows])}")
        lines.append(f"sources = {json.dumps(sorted({row.source for row in fit.rows}))}")
    if fit.note:
        lines.append(f"note = {json.dumps(fit.note)}")
    return "\n".join(lines) + "\n"


def _share(fit: ShareFit) -> str:
    return "\n".join(
        [
            "[[scalar]]",
            f"name = {json.dumps(fit.name)}",
            f"means = {json.dumps(fit.means)}",
            f"value = {fit.value:.4f}",
            f"range = [{fit.low:.4f}, {fit.high:.4f}]",
            f"rows = {json.dumps(list(fit.rows))}",
            f"sources = {json.dumps(list(fit.sources))}",
            "",
        ]
    )


def link_record() -> str:
    """Fit all constants of links and return the record.

    Returns
    -------
    str
        TOML text; the same ledgers give the same text.

    Examples
    --------
    >>> link_record().count("[[scalar]]")
    11
    """
    held_out = held_out_errors("machine")
    protocols = (_protocol(fit, held_out) for fit in fit_links())
    return "\n".join([_HEAD, *protocols, *map(_share, fit_shares())])


def write_link_fits(file: str | Path | None = None) -> Path:
    """Fit all constants of links and write them.

    Parameters
    ----------
    file : path, optional
        Where to; by default `calibration/fits/links.toml`.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    SpecError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> write_link_fits(Path(tempfile.mkdtemp()) / "links.toml").name
    'links.toml'
    """
    path = Path(file) if file else data_folder("calibration") / "fits" / "links.toml"
    write_atomically(path, link_record())
    return path
