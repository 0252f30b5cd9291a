"""Import optional packages of extras, or report the missing extra."""

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
    "ironcalc": "sheets",
    "mcp": "mcp",
    "openpyxl": "sheets",
    "pyarrow": "parquet",
    "pynvml": "gpu",
    "uvicorn": "serve",
    "vl_convert": "png",
    "weasyprint": "pdf",
    "xlsxwriter": "sheets",
    "yaml": "yaml",
}


def at_hand(module: str) -> bool:
    """Return True if a module of `EXTRAS` is installed; nothing is imported."""
    return importlib.util.find_spec(module) is not None


def check_extra(module: str, *, field: str | None = None) -> None:
    """Raise `SpecError` if a package is missing, before anything is computed.

    `field`: the option or command that needs it.

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
    """Return a package of an extra; raise `SpecError` if it is missing.

    A missing system library of the package is reported too.

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
