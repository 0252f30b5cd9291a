"""Files of the page, with one field of its form for each option of a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from glmplan.catalog.files import read_bytes
from glmplan.request.option import Option, options_of
from glmplan.request.plan import PlanRequest

__all__ = ["Asset", "form_fields", "page_assets", "with_fields"]

#: kind of an option → attributes of its field
_INPUTS = {
    "whole": 'type="number" min="{least}" inputmode="numeric"',
    "number": 'type="number" min="0" step="any" inputmode="decimal"',
    "flag": 'type="checkbox"',
}


def form_fields(heading: str) -> dict[str, str]:
    """Return the fields under a heading of the form by option.

    Examples
    --------
    >>> form_fields("Hardware")["engine"]
    '<label>Engine <select id="engine" name="engine" data-option="name"></select></label>'
    """
    options = options_of(PlanRequest).items()
    return {name: _field(name, one) for name, one in options if one.form == heading and one.over_http}


def _field(name: str, one: Option) -> str:
    title = escape(one.label or name.replace("_", " ").capitalize())
    common = f'id="{name}" name="{name}" data-option="{one.kind}"'
    if one.listed:
        return f"<label>{title} <select {common}></select></label>"
    kind = _INPUTS.get(one.kind, 'type="text"').format(least=one.least)
    vacant = f' placeholder="{escape(one.vacant)}"' if one.vacant else ""
    return f'<label title="{escape(one.help)}">{title} <input {common} {kind}{vacant}></label>'


def with_fields(page: str) -> str:
    """Return the page with fields in the place of comments.

    A comment names the heading of its fields.
    """
    return re.sub(r"<!-- ([A-Z][a-z ]+) -->", lambda heading: "\n".join(form_fields(heading[1]).values()), page)


#: media types of the files of the page
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes  # content of the file
    kind: str  # media type


@cache
def page_assets() -> dict[str, Asset]:
    """Return the files of the page by name.

    No other file is sent.

    Examples
    --------
    >>> "index.html" in page_assets()
    True
    """
    folder = Path(__file__).parent / "page"
    files = {path.name: read_bytes(path) for path in sorted(folder.iterdir()) if path.suffix in _KINDS}
    files["index.html"] = with_fields(files["index.html"].decode()).encode()
    return {name: Asset(content, _KINDS[Path(name).suffix]) for name, content in files.items()}
