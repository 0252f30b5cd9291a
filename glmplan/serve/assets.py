"""The files of the page: plain HTML, styles, scripts and pictures that lie beside this module."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from glmplan.facts.files import read_bytes

__all__ = ["Asset", "page_assets"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page.

    Attributes
    ----------
    content : bytes
        What it holds.
    kind : str
        Its media type.
    """

    content: bytes
    kind: str


@cache
def page_assets() -> dict[str, Asset]:
    """All files of the page.

    Returns
    -------
    dict of str to Asset
        By name; nothing else is ever sent from the disk.

    Examples
    --------
    >>> "index.html" in page_assets()
    True
    """
    folder = Path(__file__).parent / "page"
    return {
        path.name: Asset(read_bytes(path), _KINDS[path.suffix])
        for path in sorted(folder.iterdir())
        if path.suffix in _KINDS
    }
