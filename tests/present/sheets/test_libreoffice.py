"""The foreign witness: LibreOffice computes the same, and prints what a buyer takes along on two pages."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import pytest
import xlsxwriter

from glmplan.present.sheets.input_pages import FIRST, columns_of
from tests.present.sheets.cases import CASES, changes, compare, inputs_of

OFFICE = shutil.which("soffice")
pytestmark = pytest.mark.skipif(OFFICE is None, reason="LibreOffice is not installed: the second witness is not heard")

#: sheets that a case has for itself; all share the predicted surface
OWN = ("Options", "Assumptions", "Results", "Memory per card", "Calculation")
#: cases in one file [-]
TOGETHER = 20
#: without it LibreOffice shows the values that stand in the file
ALWAYS = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse">
<value>0</value></prop></item></oor:items>"""


@pytest.fixture(scope="session")
def office(tmp_path_factory):
    home = tmp_path_factory.mktemp("office")
    (home / "user").mkdir()
    (home / "user/registrymodifications.xcu").write_text(ALWAYS)

    def convert(form, *paths):
        words = [OFFICE, "--headless", f"-env:UserInstallation=file://{home}", "--convert-to", form, "--outdir",
                 str(paths[0].parent), *map(str, paths)]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True, timeout=280)

    return convert


def renamed(formula, number, names):
    """A formula of a case: its own sheets and names."""
    for name in OWN:
        quoted = f"'{name}'!" if " " in name else f"{name}!"
        formula = formula.replace(quoted, f"'{name} {number}'!")
    return re.sub(r"(?<![\w'!$])(" + "|".join(names) + r")(?![\w(!])", rf"\1_{number}", formula)


def write_cases(path, book, options, cases):
    file = xlsxwriter.Workbook(path, {"strings_to_formulas": False})

    def write(page, sheet, change, said):
        for place, value in (sheet.cells | said).items():
            if isinstance(value, str) and value.startswith("="):
                page.write_formula(*place, change(value))
            elif value is not None:
                page.write(*place, value)

    every = file.add_worksheet("All")
    write(file.add_worksheet("Surface"), book["Surface"], str, {})
    for line, number in enumerate(cases):
        said = {name: {} for name in book.sheets}
        for (sheet, row, column), value in inputs_of(book, options, number):
            said[list(book.sheets)[sheet]][row - 1, column - 1] = value
        for name in OWN:
            page = file.add_worksheet(f"{name} {number}")
            write(page, book[name], lambda text, number=number: renamed(text, number, book.names), said[name])
        for name, (sheet, row, column) in book.names.items():
            cell = xlsxwriter.utility.xl_rowcol_to_cell(row, column, True, True)
            file.define_name(f"{name}_{number}", f"='{sheet} {number}'!{cell}")
        chosen = changes(number)[2]
        for column in range(len(columns_of("Results"))):
            cell = xlsxwriter.utility.xl_rowcol_to_cell(FIRST + chosen, column)
            every.write_formula(line, column, f"='Results {number}'!{cell}")
    file.close()


def read(text):
    try:
        return float(text)
    except ValueError:
        return text


def test_libreoffice_computes_two_hundred_changed_inputs_as_the_library_does(book, options, expected, office, tmp_path):
    # many sheets in one file cost more than as many in several
    paths = []
    for first in range(0, CASES, TOGETHER):
        paths.append(tmp_path / f"cases-{first:03}.xlsx")
        write_cases(str(paths[-1]), book, options, range(first, first + TOGETHER))
    # semicolons between cells, UTF-8, values as they are and not as they are shown, the first sheet
    office("csv:Text - txt - csv (StarCalc):59,34,76,1,,0,false,false,false,false,false,1", *paths)
    rows = []
    for out in sorted(tmp_path.glob("*.csv")):
        with out.open(encoding="utf-8", newline="") as stream:
            rows += csv.reader(stream, delimiter=";")
    names = columns_of("Results")
    assert len(rows) == CASES and not [one for row in rows for one in row if one.startswith(("#", "Err:"))]
    found = {}
    for number, row in enumerate(rows):
        sheet = {name: read(text) for name, text in zip(names, row, strict=True)}
        if wrong := compare(sheet, expected[number]):
            found[number] = wrong
    assert found == {}


def test_the_decision_prints_on_two_pages(content, office, tmp_path):
    reader = shutil.which("pdftotext")
    if reader is None:
        pytest.skip("pdftotext is not installed: pages are not counted")
    (tmp_path / "plan.xlsx").write_bytes(content)
    office("pdf", tmp_path / "plan.xlsx")
    text = subprocess.run(
        [reader, "-layout", str(tmp_path / "plan.pdf"), "-"], check=True, capture_output=True, text=True
    )
    pages = [page for page in text.stdout.split("\f") if re.search(r"plan\.xlsx\s+Summary\s+page", page)]
    assert len(pages) == 2
    assert "Tokens/s" in pages[0] and "Assumptions and evidence" in pages[1]


def test_every_sheet_prints_at_a_readable_size(content):
    """A4 across less its margins is 1045 pixels wide; a column has 7 for each digit and 5 beside them."""
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    for page in openpyxl.load_workbook(io.BytesIO(content)):
        left, _, right, _ = openpyxl.utils.cell.range_boundaries(page.print_area.rpartition("!")[2])
        letters = [openpyxl.utils.get_column_letter(column) for column in range(left, right + 1)]
        own = page.column_dimensions
        wide = sum(7 * (own[letter].width if letter in own else 8.43) + 5 for letter in letters)
        size = 1045 / wide if page.sheet_properties.pageSetUpPr.fitToPage else page.page_setup.scale / 100
        assert page.page_setup.orientation == "landscape" and size >= 0.59, (page.title, size)
