"""Texts are plain English: no banned openings, no metaphors, no persons in place of requests.

The rules are those of CONTRIBUTING.md ("Texts"). Hand-written pages follow them without exception, apart from pages
that are still to be rewritten (`PAGES_LEFT`). Docstrings, comments and printed strings of the package have a number for
each folder that may only fall (`LEFT`): lower it with the change that rewrites a text, never raise it.
`python tests/house/test_plain_english.py` prints the current numbers, with the name of a folder its findings.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: written by programs from texts that are checked where they stand
GENERATED = re.compile(r"reference/(?!fit-json)|accuracy|kernels\.md$|seed-systems")
HAND_WRITTEN = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "physics" in path.parts
    or path.name in ("traffic-accuracy.md", "calibration-log.md")
    or not GENERATED.search(path.relative_to(ROOT).as_posix())
)

#: clauses as subjects: the sentence has to name the thing that acts
OPENINGS = ("What", "Who", "Whoever", "Whose", "How far", "Whether", "Of", "By how much")
#: word: what to write instead
WORDS = {
    r"anybody|anyone|nobody|no one|somebody|someone|everybody|whoever|whom": "the noun: user, source, request",
    r"promis(?:e|es|ed|ing)": "SLO, target; guarantee in SECURITY.md",
    r"surely": "at 95 % confidence",
    r"(?<!at the )walls?(?! clock| time)": "limitation (the command is `walls`, wall power a term)",
    r"crests?|crowd(?:s|ed|ing)?|desks?|seats?|ladders?": "a term of the glossary",
    r"in view|out of view|unseen": "held-out",
    r"silicon": "GPU, compute capability",
    r"turned away": "rejected",
    r"thrown out": "evicted, preempted",
    r"reckoned": "estimated",
    r"rooms?|the house": "package; memory, capacity",
    r"learnt": "fitted",
    r"foretells?|foretold": "predicts",
    r"alike": "uniform, equal",
    r"wakes?|woken": "cold start",
    r"hangs? on": "depends on",
    r"as surely as": "at the same confidence",
    r"(?-i:figures?)": "metric, value, number (the class is `Figure`)",
    r"drafted tokens": "draft tokens",
    r"at hand": "available, known",
    r"told": "given, configured, reported",
}
BANNED = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
OPENING = re.compile(rf"(?:^|(?<=[.!?:] )|(?<=\*\* ))(?:{'|'.join(OPENINGS)})\b[^.?!]*(?:[.!]|$)", re.MULTILINE)

#: pages that still have findings, and how many; a page leaves the list with its last one
PAGES_LEFT: dict[str, int] = {}
#: findings in docstrings, comments and strings of several words, for each folder of the package
LEFT: dict[str, int] = {
    "calibrate": 7,
}


def findings(text: str) -> list[str]:
    """Return every banned opening and word of a text."""
    return [match[0][:80] for match in (*OPENING.finditer(text), *BANNED.finditer(text))]


def prose(page: str) -> str:
    """Return a Markdown page without code, addresses and comments; each list item and cell starts a line."""
    page = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"`[^`]*`", "X", page)
    page = re.sub(r"\]\([^)]*\)|https?://\S+", "]", page)
    page = re.sub(r"(?<=\w)\n(?=\w)|(?<=[,;]) *\n *(?=\S)", " ", page)
    return re.sub(r"^[ |#>*\-\d.]+|\| *", "\n", page, flags=re.MULTILINE)


def texts(source: str) -> list[str]:
    """Return docstrings, comments and strings of three words or more of a module."""
    strings = [
        inspect.cleandoc(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2
    ]
    comments, block, last = [], [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                comments.append(" ".join(block))
                block = []
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
    # names in code stay: commands, options, fields, examples, HTML, CSS
    code = re.compile(r"`[^`]*`|^ *(?:>>>|\.\.\.) .*$|^ *\w+ : .*$|<[^<>]*>|[^{}\n]*\{[^{}]*:[^{}]*\}", re.MULTILINE)
    return [code.sub("X", text) for text in (*strings, *comments, " ".join(block))]


def counted() -> dict[str, int]:
    """Return the number of findings in each folder of the package."""
    numbers: dict[str, int] = {}
    for path in sorted((ROOT / "glmplan").rglob("*.py")):
        parts = path.relative_to(ROOT / "glmplan").parts
        area = parts[0] if len(parts) > 1 else "top level"
        found = sum(len(findings(text)) for text in texts(path.read_text(encoding="utf-8")))
        numbers[area] = numbers.get(area, 0) + found
    return numbers


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_hand_written_page_is_plain_english(page):
    found = findings(prose(page.read_text(encoding="utf-8")))
    left = PAGES_LEFT.get(page.relative_to(ROOT).as_posix(), 0)
    assert len(found) <= left, "\n".join(["", *found])


def test_texts_of_the_package_become_plain_english():
    more = {area: f"{number} findings, {LEFT.get(area, 0)} allowed" for area, number in counted().items()
            if number > LEFT.get(area, 0)}  # fmt: skip
    assert not more, "rewrite the new text; `python tests/house/test_plain_english.py AREA` lists the findings"


def test_the_rules_find_clauses_as_subjects_and_metaphors():
    for text in ("Whether it fits.", "It runs. Of these, two wait.", "What it takes is little.", "Nobody waits."):
        assert findings(text)
    assert findings("the promise is kept") and findings("walls of the engine")
    assert not findings("What does it cost? A plan of two GPUs, whether or not it fits.")
    assert not findings(prose("`glmplan walls` lists limitations.\n```sh\nwho\n```\n| SLO | met |"))
    assert texts('"""One two three."""\nx = 1  # why it is one\n')[0] == "One two three."


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for file in sorted((ROOT / "glmplan" / sys.argv[1]).rglob("*.py")):
            for text in texts(file.read_text(encoding="utf-8")):
                for one in findings(text):
                    print(f"{file.relative_to(ROOT)}: {one}")
    else:
        print(counted())
        for path in HAND_WRITTEN:
            number = len(findings(prose(path.read_text(encoding="utf-8"))))
            if number:
                print(f"{path.relative_to(ROOT)}: {number}")
