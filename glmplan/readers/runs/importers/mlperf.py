"""MLPerf Inference `summary_results.json`: one audited result for each entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.record import BadRecord, Fields, Imported, Problem, Source, by_keys
from glmplan.readers.runs.importers.serving_columns import notes

__all__ = ["KIND", "read", "recognise"]

KIND = "mlperf summary"
recognise = by_keys("Performance_Result", "Performance_Units")


def read(source: Source) -> Imported:
    """Read the token results of a summary; entries in other units (samples, queries) are not of language models.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        Runs and problems.
    """
    return source.collect(_rows)


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
    units = fields.text("Performance_Units") or ""
    if "token" not in units.lower():
        return
    cards, doubt = _cards(fields)
    name = fields.text("Accelerator") or ""
    if not name:
        raise BadRecord(Problem(fields.line, "Accelerator", "expected a name, the field is missing or empty"))
    yield {
        "model": (fields.text("Model") or "").removesuffix("-99.9").removesuffix("-99") or None,
        "checkpoint": fields.text("Model"),
        "weights": fields.text("weight_data_types"),
        "accelerator": re.sub(r"\s*\(x\d+\)\s*$", "", name),
        "accelerator_count": cards,
        "nodes": fields.number("Nodes"),
        "engine": fields.text("Software"),
        "phase": "serving",
        "scenario": f"mlperf-{(fields.text('Scenario') or '').lower()}",
        "output_tokens_per_s": fields.require("Performance_Result"),
        "trust": "A",
        "notes": notes(
            "MLPerf",
            fields.text("ID"),
            fields.text("Submitter"),
            fields.text("System"),
            fields.text("Availability"),
            doubt,
        ),
    }


def _cards(fields: Fields) -> tuple[float | None, str]:
    """Return the accelerators of the whole system and a doubt where the entry contradicts itself."""
    stated = fields.number("Total Accelerators")
    each, nodes = fields.number("a#"), fields.number("Nodes") or 1
    total = stated if stated is not None else (each * nodes if each is not None else None)
    written = re.search(r"\(x(\d+)\)", fields.text("Accelerator") or "")
    if written and total is not None and float(written[1]) != total:
        return float(written[1]), f"the name says x{written[1]}, nodes times cards is {total:g}: do not divide by it"
    return total, ""
