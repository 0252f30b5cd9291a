"""Where the facts lie: inside the installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

from glmplan.errors import SpecError

__all__ = ["data_folder"]

_FOLDERS = ("calibration", "hardware_db", "model_specs")


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
    package = Path(__file__).parent
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SpecError("is missing from this installation of glmplan; install it again", value=name)
