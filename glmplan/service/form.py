"""Write the form of the page: one field for each option of a plan."""

from __future__ import annotations

import re
from html import escape

from glmplan.request.option import Option, options_of
from glmplan.request.plan import PlanRequest

__all__ = ["form_fields", "with_fields"]

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
    >>> form_fields("Hardware")
    {'engine': '<label>Engine <select id="engine" name="engine" data-option="name"></select></label>'}
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
