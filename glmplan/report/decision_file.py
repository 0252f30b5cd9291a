"""Write a report to a file: HTML, PDF or Markdown by its ending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.extras import check_extra, wanted
from glmplan.facts.files import write_atomically
from glmplan.report.document import Document, html_of, markdown_of

__all__ = ["FORMS", "check_report", "write_report"]

#: endings of files that a report is written to
FORMS: tuple[str, ...] = (".html", ".md", ".pdf")


def check_report(path: str | Path) -> None:
    """Refuse a file that no report can be written to, before anything is computed.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    SpecError
        If its ending is none of `FORMS`, or an extra that it needs is not installed.

    Examples
    --------
    >>> check_report("a.docx")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --out: '.docx' is no kind of report; nearest: .md
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise SpecError("is no kind of report", field="--out", value=path.suffix or path.name, choices=FORMS)
    if path.suffix == ".pdf":
        check_extra("weasyprint", field=f"--out {path.name}")
    if path.suffix != ".md":
        check_extra("vl_convert", field=f"--out {path.name}")


def write_report(document: Document, path: str | Path) -> None:
    """Write a report.

    Parameters
    ----------
    document : Document
        The report.
    path : path
        An HTML, PDF or Markdown file.

    Raises
    ------
    SpecError
        As `check_report`, or if the file cannot be written.
    """
    path = Path(path)
    check_report(path)
    if path.suffix == ".md":
        write_atomically(path, markdown_of(document))
    elif path.suffix == ".html":
        write_atomically(path, html_of(document))
    else:
        write_atomically(path, _pdf(html_of(document)))


def _pdf(html: str) -> bytes:
    """The page on paper; nothing is fetched, whatever it names."""
    weasyprint = wanted("weasyprint", field="--out")

    def nothing(address: str, *_: Any, **__: Any) -> Any:
        raise ValueError(f"a report needs nothing from outside: {address}")

    return bytes(weasyprint.HTML(string=html, url_fetcher=nothing).write_pdf(pdf_tags=True))
