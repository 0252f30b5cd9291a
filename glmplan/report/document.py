"""A document as a list of blocks, written as HTML or Markdown; text from outside is escaped here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glmplan.errors import printable
from glmplan.report.page import code, escape, figure, page, table

__all__ = ["Block", "Code", "Document", "Drawing", "Heading", "Points", "Table", "Text", "html_of", "markdown_of"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading below the title.

    Attributes
    ----------
    text : str
        What it says.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph.

    Attributes
    ----------
    text : str
        What it says.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list.

    Attributes
    ----------
    items : tuple of str
        Its points.
    """

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Something to be copied.

    Attributes
    ----------
    text : str
        Its lines.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes
    ----------
    caption : str
        What it shows.
    heads : tuple of str
        Names of the columns.
    rows : tuple of tuple of str
        Cells; the first of each names its row.
    left : tuple of int
        Numbers of the columns of text, [-]; others are figures.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, which Markdown leaves out: its figures stand in a table too.

    Attributes
    ----------
    caption : str
        What it shows.
    svgs : callable
        Draws its parts when asked; they stand side by side where there is room for them.
    """

    caption: str
    svgs: Callable[[], Sequence[str]]


Block = Heading | Text | Points | Code | Table | Drawing


@dataclass(frozen=True, slots=True)
class Document:
    """A document.

    Attributes
    ----------
    title : str
        Its title.
    blocks : tuple of Block
        What stands in it.
    """

    title: str
    blocks: tuple[Block, ...]


def html_of(document: Document) -> str:
    """Write a document as one HTML page that needs nothing else.

    Parameters
    ----------
    document : Document
        The document.

    Returns
    -------
    str
        The page.

    Examples
    --------
    >>> "<p>1 &lt; 2</p>" in html_of(Document("t", (Text("1 < 2"),)))
    True
    """
    body = [f"<h1>{escape(document.title)}</h1>"]
    for block, told in zip(document.blocks, map(_html, document.blocks), strict=True):
        # what stands on a sheet of its own takes its heading with it
        if isinstance(block, Drawing) and told.startswith("<figure class='wide'") and body[-1].startswith("<h2>"):
            told = f"<section class='wide'>{body.pop()}{told}</section>"
        body.append(told)
    return page(document.title, "\n".join(body))


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Points(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            return code(text)
        case Table(caption, heads, rows, left):
            return table(caption, heads, rows, left=left)
        case Drawing(caption, svgs):
            return figure(svgs(), caption)


def markdown_of(document: Document) -> str:
    """Write a document as Markdown.

    Parameters
    ----------
    document : Document
        The document.

    Returns
    -------
    str
        The page, without its pictures.

    Examples
    --------
    >>> print(markdown_of(Document("t", (Table("c", ("a", "b"), (("x|y", "1"),)),))))
    # t
    <BLANKLINE>
    **c**
    <BLANKLINE>
    | a | b |
    |:---|---:|
    | x\\|y | 1 |
    <BLANKLINE>
    """
    parts = [_markdown(block) for block in document.blocks if not isinstance(block, Drawing)]
    return "\n\n".join([f"# {_plain(document.title)}", *parts]) + "\n"


def _plain(text: str) -> str:
    """A text that Markdown takes for nothing else."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", printable(" ".join(text.split())))


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_plain(text)}"
        case Text(text):
            return _plain(text)
        case Points(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Code(text):
            return "\n".join(f"    {printable(line)}" for line in text.splitlines())
        case Table(caption, heads, rows, left):
            rule = "|" + "|".join(":---" if column in (0, *left) else "---:" for column in range(len(heads))) + "|"
            return "\n".join([f"**{_plain(caption)}**", "", _cells(heads), rule, *map(_cells, rows)])
    raise AssertionError(block)
