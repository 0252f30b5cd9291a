"""Draw the pictures of docs/guide/spreadsheets.md: real files, shown by LibreOffice, page by page."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import openpyxl
from openpyxl.styles import Alignment, Font, PatternFill

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/guide/images"
QUOTE = ROOT / "docs/guide/examples/quote.csv"
#: sheet of the plan → name of its picture
PAGES = {"Summary": "summary", "Assumptions": "assumptions", "Sensitivity": "sensitivity"}
NEW = ("--model", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws", "--options", "8xh200-sxm,8xb200-sxm", "--users", "4")
#: the upper part of a page, larger
STRIP = ("-r", "160", "-x", "90", "-y", "140", "-W", "1700", "-H", "360")
FILL = ("--model", "llama-3.1-70b-fp8", "--users", "16", "--rate", "EUR=1.09")


def glmplan(*words: str) -> None:
    """Run a command as a user does."""
    code = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, check=True)


def pictures(path: Path, home: Path, *crop: str) -> list[tuple[str, Path]]:
    """Pages of a workbook: the words on each, and its picture or a part of it."""
    words = ["soffice", "--headless", f"-env:UserInstallation=file://{home}/office", "--convert-to", "pdf", "--outdir"]
    subprocess.run([*words, str(home), str(path)], check=True, capture_output=True)
    pdf = home / f"{path.stem}.pdf"
    subprocess.run(["pdftoppm", *(crop or ("-r", "100")), "-png", str(pdf), str(home / path.stem)], check=True)
    text = subprocess.run(["pdftotext", "-layout", str(pdf), "-"], check=True, capture_output=True, text=True).stdout
    found = sorted(home.glob(f"{path.stem}-*.png"))
    return list(zip(text.split("\f"), found, strict=False))


def quote(path: Path) -> None:
    """The quote of the guide as a vendor would send it: formatted, with merged cells."""
    book = openpyxl.Workbook()
    page = book.active
    page.title = "Angebot"
    for line in QUOTE.read_text(encoding="utf-8").splitlines():
        page.append([cell or None for cell in line.split(";")])
    page["A1"].font = Font(bold=True, size=14)
    page.merge_cells("A1:F1")
    for cell in page[3]:
        cell.font, cell.fill = Font(bold=True), PatternFill("solid", fgColor="FFD9E1F2")
        cell.alignment = Alignment(wrap_text=True, vertical="center")
    for column, width in zip("ABCDEF", (6, 50, 8, 14, 14, 11), strict=True):
        page.column_dimensions[column].width = width
    book.save(path)


def wide(path: Path) -> None:
    """Print a filled quote on one page across, for its picture only."""
    book = openpyxl.load_workbook(path)
    page = book.active
    page.page_setup.orientation, page.page_setup.fitToHeight = "landscape", 0
    page.sheet_properties.pageSetUpPr = openpyxl.worksheet.properties.PageSetupProperties(fitToPage=True)
    page.column_dimensions["F"].hidden = True
    widths = {"Pos.": 6, "Bezeichnung": 30, "read as": 19, "hazards": 32, "evidence": 32, "remark": 36}
    for cell in page[3]:
        width = next((size for word, size in widths.items() if str(cell.value).endswith(word)), 12)
        page.column_dimensions[cell.column_letter].width = width
    for row in page.iter_rows(min_row=3):
        page.row_dimensions[row[0].row].height = 70 if row[0].row == 3 else 42 if row[0].value else 15
        for cell in row:
            cell.alignment = Alignment(wrap_text=True, vertical="top")
    book.save(path)


def main() -> None:
    """Write all pictures."""
    missing = [name for name in ("soffice", "pdftoppm", "pdftotext") if shutil.which(name) is None]
    if missing:
        sys.exit(f"needs {', '.join(missing)}: libreoffice-calc-nogui and poppler-utils of Debian")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        plan, source, filled = home / "plan.xlsx", home / "quote.xlsx", home / "quote-filled.xlsx"
        glmplan("sheet", "new", str(plan), *NEW)
        quote(source)
        glmplan("sheet", "fill", str(source), *FILL, "--out", str(filled))
        done = set()
        for text, image in pictures(plan, home):
            for sheet, name in PAGES.items():
                if name not in done and f" {sheet} " in (text.strip().splitlines() or [""])[-1]:
                    done.add(name)
                    shutil.copy(image, IMAGES / f"sheet-{name}.png")
        wide(filled)
        shutil.copy(pictures(filled, home, *STRIP)[0][1], IMAGES / "sheet-filled.png")


if __name__ == "__main__":
    main()
