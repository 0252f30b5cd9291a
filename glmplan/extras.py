"""Packages that come with an extra: each is named in one line, with its extra, by the command that lacks it."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from glmplan.errors import SpecError

__all__ = ["EXTRAS", "at_hand", "check_extra", "wanted"]

#: module of a package → the extra of `pyproject.toml` that brings it; `tests/house/test_extras.py` compares the two
EXTRAS: dict[str, str] = {
    "distributed": "cluster",
    "fastapi": "serve",
    "openpyxl": "sheets",
    "pyarrow": "parquet",
    "pynvml": "gpu",
    "uvicorn": "serve",
    "vl_convert": "png",
    "weasyprint": "pdf",
    "xlsxwriter": "sheets",
}


def at_hand(module: str) -> bool:
    """Whether a package of an extra is installed; nothing is imported.

    Parameters
    ----------
    module : str
        Its module; a key of `EXTRAS`.

    Returns
    -------
    bool
        True where it can be found.

    Examples
    --------
    >>> at_hand("a_module_that_nobody_wrote")
    False
    """
    return importlib.util.find_spec(module) is not None


def check_extra(module: str, *, field: str | None = None) -> None:
    """Refuse a question whose answer needs a package that is not installed, before anything is computed.

    Parameters
    ----------
    module : str
        Its module; a key of `EXTRAS`.
    field : str, optional
        The option or command that needs it.

    Raises
    ------
    SpecError
        If it is missing; one line with the extra and what to type.

    Examples
    --------
    >>> EXTRAS["nobody_wrote_it"] = "png"
    >>> check_extra("nobody_wrote_it", field="--plot")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --plot: needs the extra png: pip install 'glmplan[png]'
    >>> del EXTRAS["nobody_wrote_it"]
    """
    extra = EXTRAS[module]
    if not at_hand(module):
        raise SpecError(f"needs the extra {extra}: pip install 'glmplan[{extra}]'", field=field)


def wanted(module: str, *, field: str | None = None) -> ModuleType:
    """Import a package that comes with an extra.

    Parameters
    ----------
    module : str
        Its module; a key of `EXTRAS`.
    field : str, optional
        The option or command that needs it.

    Returns
    -------
    module
        The package.

    Raises
    ------
    SpecError
        If it is missing, or is there and a library of the system that it loads is not; one line.

    Examples
    --------
    >>> wanted("pyarrow", field="--out").__name__
    'pyarrow'
    """
    check_extra(module, field=field)
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        first = str(error).strip().split("\n")[0]
        raise SpecError(f"{module} of the extra {EXTRAS[module]} cannot be loaded: {first}", field=field) from None
