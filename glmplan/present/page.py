"""Write self-contained HTML and Markdown documents without scripts.

Foreign text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from glmplan.errors import printable

__all__ = [
    "COLOURS",
    "FULL",
    "SERIES",
    "Block",
    "Code",
    "Document",
    "Drawing",
    "Heading",
    "Points",
    "Table",
    "Text",
    "code",
    "css_variables",
    "dark_rules",
    "escape",
    "figure",
    "html_of",
    "light",
    "markdown_of",
    "page",
    "table",
]


# Colours of all drawings and pages, each for light and dark mode.

#: name → light and dark shade; light shades are distinct, since they identify the dark one
COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#0f141a"),
    "ink": ("#1b1f24", "#e6edf3"),
    "faint": ("#57606a", "#9aa7b4"),
    "line": ("#d0d7de", "#30363d"),
    "blue": ("#2166ac", "#6cb2ff"),
    "orange": ("#b35806", "#f0a055"),
    "green": ("#2c7a3f", "#6fcf79"),
    "purple": ("#7b4ba6", "#c39be8"),
    "red": ("#b2182b", "#ff8078"),
    "teal": ("#11777b", "#5fd0cf"),
    "brown": ("#7a5a38", "#cfa67f"),
    "grey": ("#66707b", "#a3adb8"),
    "socket": ("#dfe6ee", "#26313f"),
    "root": ("#eaf1e0", "#25331f"),
    "switch": ("#f6ead7", "#3a2e1b"),
    "display": ("#f8dcdc", "#43201f"),
    "part": ("#f1f2f4", "#222a33"),
    "idle": ("#8c959f", "#6e7681"),
    "used": ("#b98900", "#e3b341"),
    "busy": ("#cc5a00", "#f0883e"),
    "full": ("#c11226", "#ff5c5c"),
}
#: colours of series in their order
SERIES: tuple[str, ...] = ("blue", "orange", "green", "purple", "red", "teal", "brown", "grey")
#: load of a link or a memory from which a colour applies [-]
FULL: tuple[tuple[float, str], ...] = ((0.0, "idle"), (0.001, "used"), (0.5, "busy"), (0.9, "full"))


def light(name: str) -> str:
    """Return the light shade of a colour.

    Examples
    --------
    >>> light("ink")
    '#1b1f24'
    """
    return COLOURS[name][0]


def dark_rules() -> str:
    """Return CSS rules that recolour a drawing for dark screens.

    The rules override the attributes `fill` and `stroke`. Print stays on white paper.

    Examples
    --------
    >>> dark_rules().splitlines()[1]
    '[fill="#ffffff"]{fill:#0f141a}[stroke="#ffffff"]{stroke:#0f141a}'
    """
    rules = [f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in COLOURS.values()]
    return "\n".join(["@media screen and (prefers-color-scheme:dark){", *rules, "}"])


def css_variables() -> str:
    """Return CSS custom properties of all colours, for light and dark screens.

    Examples
    --------
    >>> "--ink:#e6edf3" in css_variables()
    True
    """
    sides = [";".join(f"--{name}:{pair[side]}" for name, pair in COLOURS.items()) for side in (0, 1)]
    return f":root{{{sides[0]}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{sides[1]}}}}}"


#: letters in a line of a table on a screen of 390 px, and letters of the narrowest column with its padding (`_STYLE`)
_LINE, _COLUMN = 47, 8
#: width from which a drawing may exceed the screen of a phone and scrolls [px]
_NARROW = 460.0
#: width from which a drawing is printed on a landscape page [px]
_WIDE = 960.0
#: longest word that a text column does not break, and longest such option of a command [-]
_WHOLE, _OPTION = 16, 40
#: a cell that is a number alone
_NUMBER = re.compile(r"[\d.,]+")
#: headings from which a document has contents; most letters of a table that is printed on one page
_SEVERAL, _FEW = 4, 1000
#: a unit, which is not broken; an interval after its value, which moves below it in narrow columns
_UNIT, _KEPT = re.compile(r"\[[^\]]*\]"), r"<span class='u'>\g<0></span>"
_SPAN, _APART = re.compile(r"(?<=\S )\([^()]*\)$"), r"<span class='i'>\g<0></span>"
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,"Liberation Sans","DejaVu Sans",sans-serif;margin:2rem auto;max-width:64rem;
padding:0 1rem;color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem} h1,h2{overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2rem 0 .5rem;padding-bottom:.2rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
a{color:var(--blue);overflow-wrap:anywhere} .faint{color:var(--faint)}
figure{margin:1rem 0;overflow-x:auto} figure svg{max-width:100%;height:auto}
@media screen{figure svg{min-width:calc(var(--drawn,0px)*.9)}}
figcaption{color:var(--faint);font-size:.9em}
.scroll{overflow-x:auto} .contents ol{columns:2;column-gap:2.5rem;margin:.5rem 0 1rem;padding-left:1.8rem}
table{border-collapse:collapse;margin:1rem 0;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.3rem 0;color:var(--ink)}
th,td{padding:.25rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--line)}
td{white-space:nowrap} td.t{white-space:normal;overflow-wrap:anywhere;min-width:4rem}
td.k,th{overflow-wrap:normal} .u{white-space:nowrap}
thead th{border-bottom:2px solid var(--faint);vertical-align:bottom} tbody th{font-weight:normal}
td.t,th.t{text-align:left}
pre,code{font:13px/1.45 ui-monospace,"Liberation Mono","DejaVu Sans Mono",monospace}
pre{background:var(--part);padding:.7rem 1rem;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere}
.plots>figure{margin:0;max-width:100%}
@media screen{.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;
align-items:start} .plots svg{width:100%;max-width:34rem} .plots>figure:only-child svg{max-width:40rem}}
.good{color:var(--green)} .bad{color:var(--red)} .middling{color:var(--orange)}
@media screen and (max-width:40rem){body{margin:1rem auto} table{font-size:.85em}
td{white-space:normal;min-width:3.5rem} th,td{padding:.25rem .3rem} .i{display:inline-block}
.words :is(table,tbody,tr,th,td,caption){display:block;text-align:left} .words table{font-size:1em}
.words thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.words :is(td,tbody th){border:0;padding:.1rem 0} .words tr{border-bottom:1px solid var(--line);padding:.5rem 0}
.words tbody th{font-weight:600}
.words th[data-head]::before{content:attr(data-head) " "}
.words td[data-head]:not(:empty)::before{content:attr(data-head) ": ";color:var(--faint)}}
@page{size:A4;margin:16mm 15mm 18mm;@bottom-right{content:counter(page) " / " counter(pages);font:8pt sans-serif}}
@page wide{size:A4 landscape}
@media print{.wide{page:wide} body{margin:0;padding:0;max-width:none;font-size:9.5pt} h2,h3,caption{break-after:avoid}
table{font-size:8pt} th,td{padding:.15rem .35rem} pre,code{font-size:8pt}
.contents a{color:inherit;text-decoration:none}
.contents a::after{content:leader('.') target-counter(attr(href),page);color:var(--faint)}
.whole,tr{break-inside:avoid} tbody tr:first-child:not(:last-child){break-after:avoid}
tbody tr:last-child:not(:first-child){break-before:avoid}
.plots{display:block} .plots>*{display:inline-block;width:48%;vertical-align:top}
thead{break-after:avoid} figure,li{break-inside:avoid} p+pre,li:last-child{break-before:avoid}
pre{border:1px solid var(--line)}}
"""


def escape(text: object) -> str:
    """Return a foreign text escaped for an element or an attribute.

    Control characters, also those of text direction, are written as escapes.

    Examples
    --------
    >>> escape("<b>")
    '&lt;b&gt;'
    """
    return html.escape(printable(text))


def code(text: str) -> str:
    """Return a command as HTML that breaks between words, not in options.

    Examples
    --------
    >>> code("a --set b")
    "<pre><code>a <span class='u'>--set</span> b</code></pre>"
    """
    words = (
        f"<span class='u'>{escape(word)}</span>" if "-" in word and len(word) <= _OPTION else escape(word)
        for word in re.split(r"(\s+)", text)
    )
    return f"<pre><code>{''.join(words)}</code></pre>"


def figure(svgs: Sequence[str], caption: str = "") -> str:
    """Return drawings as HTML, side by side if the width allows.

    A drawing wider than the screen keeps a readable size and scrolls, also by keyboard.

    Examples
    --------
    >>> print(figure(['<svg width="900"></svg>'], "a < b"))
    <figure tabindex='0'><svg style='--drawn:900px' width="900"></svg><figcaption>a &lt; b</figcaption></figure>
    """
    wide = [float(found[1]) if (found := re.match(r'<svg [^>]*?\bwidth="([\d.]+)', svg)) else 0.0 for svg in svgs]
    drawn = [
        svg.replace("<svg ", f"<svg style='--drawn:{width:.0f}px' ", 1) if width > _NARROW else svg
        for svg, width in zip(svgs, wide, strict=True)
    ]
    inside = f"<div class='plots'>{''.join(drawn)}</div>" if len(drawn) > 1 else "".join(drawn)
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    reached = " tabindex='0'" if max(wide, default=0.0) > _NARROW else ""  # by the keyboard too
    kind = " class='wide'" if max(wide, default=0.0) > _WIDE else ""
    return f"<figure{kind}{reached}>{inside}{told}</figure>"


def page(title: str, body: str, *, style: str = "") -> str:
    """Return an HTML page.

    `body` is HTML; its texts must be escaped by the caller.

    Examples
    --------
    >>> "<title>a &lt; b</title>" in page("a < b", "<p>c</p>")
    True
    """
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title>\n<style>{css_variables()}\n{dark_rules()}{_STYLE}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,)) -> str:
    """Return an HTML table with caption, column heads and row heads.

    The first cell of a row is its head. `left` holds the numbers of text columns; others are numeric.

    Examples
    --------
    >>> table("t", ["a", "b"], [["1 < 2", "3"]]).count("scope=")
    3
    """
    begins, rows = set(left), list(rows)
    longest = [max((len(word) for row in rows for word in row[at].split()), default=0) for at in range(len(heads))]
    widths = [
        max(_COLUMN, 1 + max(longest[at], *map(len, heads[at].split() or [""])))
        if at not in begins or longest[at] <= _WHOLE
        else _COLUMN
        for at in range(len(heads))
    ]
    # on a narrow screen a row of texts becomes a list of cells with heads; for screen readers it stays a table
    words = (len(begins) > 1 and len(heads) > 2) or sum(widths) > _LINE
    role = {one: f" role='{one}'" if words else "" for one in ("table", "row", "columnheader", "rowheader", "cell")}
    style = [f" class='{'t k' if longest[at] <= _WHOLE else 't'}'" if at in begins else "" for at in range(len(heads))]
    head_of = [f" data-head='{escape(name)}'" if words and name else "" for name in heads]
    # a number needs its head
    named = head_of[0] if 0 not in begins or all(_NUMBER.fullmatch(row[0]) for row in rows) else ""
    head = "".join(
        f"<th scope='col'{role['columnheader']}{look}>{_UNIT.sub(_KEPT, escape(name))}</th>"
        for name, look in zip(heads, style, strict=True)
    )
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f"<td{role['cell']}{style[at]}{head_of[at]}>"
            f"{escape(cell) if at in begins else _SPAN.sub(_APART, escape(cell))}</td>"
            for at, cell in enumerate(rest, 1)
        )
        lines.append(
            f"<tr{role['row']}><th scope='row'{role['rowheader']}{style[0]}{named}>{escape(first)}</th>{cells}</tr>"
        )
    top = f"<caption>{escape(caption)}</caption><thead><tr{role['row']}>{head}</tr></thead>"
    # many columns may exceed the screen of a phone: they scroll, also by keyboard
    reached = f" tabindex='0' role='region' aria-label='{escape(caption)}'" if len(heads) > 3 and not words else ""
    kind = f"scroll{' words' * words}{' whole' * (sum(len(cell) for row in rows for cell in row) <= _FEW)}"
    return f"<div class='{kind}'{reached}><table{role['table']}>{top}<tbody>{''.join(lines)}</tbody></table></div>"


# Documents as lists of blocks, written as HTML or Markdown; foreign text is escaped here only.


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading below the title."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """Bulleted list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted lines, such as a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Table; the first cell of a row is its head.

    `left` holds the numbers of text columns; others are numeric.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Drawing of one or several parts; its numbers are also in a table.

    Markdown omits it. `svgs` is called once, when HTML is written.
    """

    caption: str
    svgs: Callable[[], Sequence[str]]


Block = Heading | Text | Points | Code | Table | Drawing


@dataclass(frozen=True, slots=True)
class Document:
    """Title and blocks of a document."""

    title: str
    blocks: tuple[Block, ...]


def html_of(document: Document) -> str:
    """Return a document as one self-contained HTML page.

    Examples
    --------
    >>> "<p>1 &lt; 2</p>" in html_of(Document("t", (Text("1 < 2"),)))
    True
    """
    body = [f"<h1>{escape(document.title)}</h1>"]
    heads = [block.text for block in document.blocks if isinstance(block, Heading)]
    if len(heads) >= _SEVERAL:
        links = (f"<li><a href='#part-{place}'>{escape(text)}</a></li>" for place, text in enumerate(heads, 1))
        body.append(f"<nav class='contents' aria-label='Contents'><ol>{''.join(links)}</ol></nav>")
    part = 0
    for block, told in zip(document.blocks, map(_html, document.blocks), strict=True):
        if isinstance(block, Heading):
            part += 1
            told = told.replace("<h2>", f"<h2 id='part-{part}'>", 1)
        # a drawing on a page of its own keeps its heading
        if isinstance(block, Drawing) and told.startswith("<figure class='wide'") and body[-1].startswith("<h2"):
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
    """Return a document as Markdown.

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
    """Return a text with all Markdown characters escaped."""
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
