"""Where the facts lie: inside the installed package, or in the checkout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import rtoml

from glmplan.errors import SpecError
from glmplan.facts.files import read_bytes

__all__ = ["aliases_in", "data_folder", "fits_folder", "fits_in", "names_in", "plain_name"]

# Aliases stand on one line each, so that names are found without parsing every file.
_ALIASES = re.compile(rb"^aliases = (\[.*\])$", re.MULTILINE)
_FOLDERS = ("calibration", "hardware_db", "model_specs")
_FITS: ContextVar[Path | None] = ContextVar("folder of the fits", default=None)


def data_folder(name: str) -> Path:
    """Return a data folder: `glmplan/_data/<name>` in an installed wheel, else `<checkout>/<name>`.

    Parameters
    ----------
    name : str
        `hardware_db`, `model_specs` or `calibration`.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    SpecError
        If there is no such folder, or the installation lost it.

    Examples
    --------
    >>> data_folder("hardware_db").name
    'hardware_db'
    """
    if name not in _FOLDERS:
        raise SpecError("is not a data folder", value=name, choices=_FOLDERS)
    return _folder(name)


@lru_cache(maxsize=len(_FOLDERS))
def _folder(name: str) -> Path:
    package = Path(__file__).parents[1]
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SpecError("is missing from this installation of glmplan; install it again", value=name)


def fits_folder() -> Path:
    """Return the folder of the fits that rest on measured runs: that of `fits_in`, else the shipped one.

    Returns
    -------
    Path
        The folder.

    Examples
    --------
    >>> fits_folder().name
    'fits'
    """
    return _FITS.get() or _shipped_fits()


@lru_cache(maxsize=1)
def _shipped_fits() -> Path:
    return data_folder("calibration") / "fits"


@contextmanager
def fits_in(folder: Path) -> Iterator[None]:
    """Read the fits in another folder, such as those that were made without the held-out groups.

    What was read before is remembered by its readers: `glmplan.calibrate.step.nested` forgets it.

    Parameters
    ----------
    folder : Path
        The folder.

    Yields
    ------
    None
        While it is read.
    """
    token = _FITS.set(folder)
    try:
        yield
    finally:
        _FITS.reset(token)


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Return a name as the catalogue compares it: lower case, words joined by `-`.

    Parameters
    ----------
    name : str
        Any spelling.

    Returns
    -------
    str
        The plain spelling.

    Examples
    --------
    >>> plain_name(" RTX_PRO_6000 WS ")
    'rtx-pro-6000-ws'
    """
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def names_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the TOML files of a folder, sorted.

    Parameters
    ----------
    folder : Path
        Folder with one file for each entry.

    Returns
    -------
    tuple of str
        The names.

    Examples
    --------
    >>> "hgx-b200-8" in names_in(data_folder("hardware_db") / "hosts")
    True
    """
    return tuple(sorted(file.stem for file in folder.glob("*.toml")))


def aliases_in(folder: Path) -> dict[str, str]:
    """Return other spellings of the names of a folder's entries.

    Parameters
    ----------
    folder : Path
        Folder with one TOML file for each entry.

    Returns
    -------
    dict
        Plain alias → name.

    Examples
    --------
    >>> aliases_in(data_folder("hardware_db") / "hosts")["dgx-h100"]
    'hgx-h100-8'
    """
    aliases: dict[str, str] = {}
    for name in names_in(folder):
        found = _ALIASES.search(read_bytes(folder / f"{name}.toml"))
        if found:
            line = f"aliases = {found[1].decode()}"
            aliases.update({plain_name(alias): name for alias in rtoml.loads(line)["aliases"]})
    return aliases
