"""Records out of CSV and out of the tables with bars that tools print and people paste."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice

from glmplan.readers.runs.importers.json_records import Document, Problem

__all__ = ["bar_table", "csv_table"]


def _record(header: list[str], cells: list[str], line: int) -> Document | Problem:
    if len(cells) != len(header):
        return Problem(line, "", f"expected {len(header)} cells, got {len(cells)}")
    # of columns with one name the first counts
    return Document(dict(zip(reversed(header), reversed(cells), strict=True)), line)


def csv_table(text: str, *, headers: int = 1) -> Iterator[Document | Problem]:
    """Read the records of a CSV.

    Parameters
    ----------
    text : str
        Content of the file.
    headers : int, optional
        Lines of the header; the names of a column in them are joined by bars, [-]

    Yields
    ------
    Document or Problem
        A record, or what is wrong with its line.

    Examples
    --------
    >>> [record.value for record in csv_table("a,a\\nb,\\n1,2", headers=2)]
    [{'a': '2', 'a|b': '1'}]
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    head = list(islice(reader, headers))
    if len(head) < headers:
        yield Problem(len(head), "", f"expected {headers} header rows, the file ends")
        return
    names = ["|".join(part for part in cell if part) for cell in zip(*head, strict=False)]
    for cells in reader:
        if any(cells):
            yield _record(names, cells, reader.line_num)


def bar_table(text: str, header: str, *, ends: bool = True) -> Iterator[Document | Problem]:
    """Read the records of every table of a text whose cells stand between bars.

    Parameters
    ----------
    text : str
        The text.
    header : str
        Regular expression that a header line matches from its begin.
    ends : bool, optional
        Whether a line without bars ends a table; else lines of a log may stand in it.

    Yields
    ------
    Document or Problem
        A record, or what is wrong with its line.

    Examples
    --------
    >>> [record.value for record in bar_table("| a | b |\\n|---|---|\\n| 1 | 2 |", r"\\| a")]
    [{'b': '2', 'a': '1'}]
    """
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        cells = [cell.strip() for cell in bare.strip("|").split("|")] if bare.startswith("|") else []
        if re.match(header, line):
            names = cells
        elif not cells:
            names = [] if ends else names
        elif names and set("".join(cells)) - set("-: "):
            yield _record(names, cells, number)
