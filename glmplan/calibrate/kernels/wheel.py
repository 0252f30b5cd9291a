"""Kernel tables in a wheel that is not installed, and what a new fit of them changed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glmplan.calibrate.kernels.tables import parts_in, readable
from glmplan.errors import SpecError
from glmplan.facts.archives import archive_of, part_pieces, written_whole
from glmplan.physics.kernels.fits import KernelFit

if TYPE_CHECKING:
    from glmplan.calibrate.kernels.all_parts import KernelCalibration

__all__ = ["kernel_changes", "tables_of_wheel"]

#: part/family/engine/version/kernel_perf.parquet below the folder of tables; no name begins with a dot
_TABLE = re.compile(r"[^/]+/systems/data/((?:\w[\w.+-]*/){4}\w[\w.+-]*_perf\.parquet)")
_SHOWN = 6
#: a median error that moves by less is the same fit [-]
_SAME = 0.005


@contextmanager
def tables_of_wheel(wheel: str | Path) -> Iterator[tuple[Path, str]]:
    """Unpack the kernel tables of a wheel for a while; nothing of it is installed or run.

    Parameters
    ----------
    wheel : path
        The file, as `pip download --no-deps` fetches it.

    Yields
    ------
    Path
        Folder of the tables, as `package_root` returns it.
    str
        Name and version of the package.

    Raises
    ------
    SpecError
        If it is no wheel, holds no kernel tables, or `pyarrow` is not installed.
    """
    readable()
    name, _, rest = Path(wheel).name.partition("-")
    package = f"{name} {rest.partition('-')[0]}"
    with archive_of(wheel, "wheel") as archive, tempfile.TemporaryDirectory() as folder:
        found = [match for match in map(_TABLE.fullmatch, archive.namelist()) if match]
        if not found:
            raise SpecError("holds no kernel tables (*/systems/data/**_perf.parquet)", file=wheel)
        for match in found:
            with written_whole(Path(folder) / match[1]) as stream:
                stream.writelines(part_pieces(archive, match[0]))
        yield Path(folder), package


def _key(fit: KernelFit) -> tuple[str, str, str, str]:
    return fit.kernel, fit.engine, fit.precision, fit.backend


def _some(what: str, keys: Sequence[tuple[str, ...]]) -> list[str]:
    """A line that names the first of a list."""
    if not keys:
        return []
    shown = "; ".join(" ".join(word for word in key if word) for key in keys[:_SHOWN])
    return [f"  {what}: {shown}" + f"; and {len(keys) - _SHOWN} more" * (len(keys) > _SHOWN)]


def _error(fits: Sequence[KernelFit]) -> str:
    return f"{100 * float(np.median([fit.median for fit in fits])):.1f} %" if fits else "none"


def kernel_changes(before: Mapping[str, Sequence[KernelFit]], found: KernelCalibration, root: Path) -> list[str]:
    """What a fit of kernel tables changed against the fits that stood before, for people.

    Parameters
    ----------
    before : mapping
        Part → its fits before.
    found : KernelCalibration
        The new fits.
    root : Path
        Folder of the tables.

    Returns
    -------
    list of str
        For each part how many fits came, went and changed, with the median error before and now; then the tables of
        parts that the catalogue does not have, and the parts whose fits stay because there are no tables of them.
    """
    lines = []
    for part, fits in found.parts.items():
        old, new = ({_key(fit): fit for fit in some} for some in (before.get(part, ()), fits))
        came, gone = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        moved = sorted(key for key in old.keys() & new.keys() if abs(old[key].median - new[key].median) > _SAME)
        error = (
            _error(fits)
            if _error(fits) == _error(list(old.values()))
            else f"{_error(list(old.values()))} → {_error(fits)}"
        )
        counts = f"{len(came)} new, {len(gone)} gone, {len(moved)} with another error"
        lines.append(f"{part}: {len(fits)} fits, {counts}; median error {error}")
        lines += [*_some("new", came), *_some("gone", gone), *_some("another error", moved)]
    folders = parts_in(root)
    unknown = sorted(folder for folder, name in folders.items() if name is None)
    if unknown:
        lines.append(f"no part of the catalogue, left out: {', '.join(unknown)} (give the part an alias of that name)")
    kept = sorted(before.keys() - set(folders.values()))
    if kept:
        lines.append(f"no tables, fits left as they are: {', '.join(kept)}")
    return lines
