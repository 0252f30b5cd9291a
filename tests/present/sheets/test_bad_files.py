"""Files that are broken, protected, huge or malicious: refused in words, or filled without harm; nothing is lost."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tracemalloc
import zipfile

import openpyxl
import pytest
import xlsxwriter

from glmplan.catalog.files import archive_of, part_pieces
from glmplan.errors import SpecError
from glmplan.present.sheets import workbook_parts
from glmplan.present.sheets.fill import Quoted, checked, filled, writable
from glmplan.present.sheets.quote_table import Mapped, find_table, machine_in
from glmplan.present.sheets.workbook_parts import Row
from tests.present.sheets.conftest import MODEL
from tests.present.sheets.quotes import CARD, LAYOUTS, plain, saved, sheet_of

LENGTHS = {"input": 1024, "output": 256}


@pytest.fixture(scope="module")
def quoted(money):
    return Quoted(MODEL, 8, money, Mapped(), LENGTHS)


def zipped(parts):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


def parts_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_sheet(change):
    parts = parts_of(plain()[0])
    parts["xl/worksheets/sheet1.xml"] = change(parts["xl/worksheets/sheet1.xml"])
    return zipped(parts)


ENTITIES = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
BROKEN = {
    "nothing": (b"", "cut off or damaged"),
    "words": (b"hello", "cut off or damaged"),
    "the first half": (plain()[0][: len(plain()[0]) // 2], "cut off or damaged"),
    "with a password": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "protected with a password"),
    "a zip of something else": (zipped({"a.txt": "a"}), "is no workbook"),
    "a sheet that ends early": (with_sheet(lambda xml: xml[:-40]), "damaged"),
    "a sheet of bytes": (with_sheet(lambda xml: bytes(range(1, 200))), "damaged"),
    "entities": (with_sheet(lambda xml: ENTITIES + xml), "entities"),
    "a sheet in UTF-16": (with_sheet(lambda xml: xml.decode().encode("utf-16")), "UTF-16"),
    "a row too far": (with_sheet(lambda xml: xml.replace(b'<row r="2"', b'<row r="1048577"')), "at most 1,048,576"),
    "an address that is none": (with_sheet(lambda xml: xml.replace(b'r="A2"', b'r="2A"')), "address of a cell"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_words_and_nothing_is_written(name, tmp_path, quoted):
    content, words = BROKEN[name]
    source = tmp_path / "quote.xlsx"
    source.write_bytes(content)
    with pytest.raises(SpecError, match=words):
        filled(source, tmp_path / "out.xlsx", quoted)
    assert [one.name for one in tmp_path.iterdir()] == ["quote.xlsx"] and source.read_bytes() == content


def swollen(change, million=64):
    """Write a sheet whose second row holds as many MiB as asked for, some hundred KB packed."""
    head, tail = change.split(b"AAA")
    at = parts_of(plain()[0])["xl/worksheets/sheet1.xml"]
    before, _, after = at.partition(b"</row>")
    return with_sheet(lambda xml: before + b"</row>" + head + b"A" * (million << 20) + tail + after)


BOMBS = {
    "a cell": (b'<row r="2"><c r="A2" t="inlineStr"><is><t>AAA</t></is></c></row>', "32,767 characters"),
    "a number": (b'<row r="2"><c r="A2"><v>AAA</v></c></row>', "32,767 characters"),
    "a tag": (b'<row r="2"><c r="A2" t="AAA"/></row>', "a tag of more than 1 MiB"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_much_is_refused_in_little_memory(name, tmp_path, quoted):
    xml, words = BOMBS[name]
    source = tmp_path / "quote.xlsx"
    source.write_bytes(swollen(xml))
    assert source.stat().st_size < 2**18
    tracemalloc.start()
    with pytest.raises(SpecError, match=words):
        checked(source, quoted)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * 2**20


SHEETS = b'<w xmlns:r="r"><sheets>', b"</sheets></w>"
#: part, what stands before and behind, what is repeated, words of the refusal
MANY = {
    "rows": ("worksheets/sheet1", b"<w>", b"</w>", b"<row/>", "holds more than 5 rows"),
    "one row again and again": ("worksheets/sheet1", b"<w>", b"</w>", b'<row r="1"/>', "followed by row 1"),
    "cells": ("worksheets/sheet1", b"<w><row>", b"</row></w>", b'<c s="1"/>', "at most 16,384"),
    "one cell again": ("worksheets/sheet1", b"<w><row>", b"</row></w>", b'<c r="A1"/>', "columns are in order"),
    "merged cells": ("worksheets/sheet1", b"<w><m>", b"</m></w>", b'<mergeCell ref="A1:B2"/>', "262,144 elements"),
    "marks in a cell": ("worksheets/sheet1", b"<w><row><c>", b"</c></row></w>", b"<t/>", "262,144 elements"),
    "levels": ("worksheets/sheet1", b"<w>", b"</w>", b"<a>", "deeper than 64"),
    "levels of styles": ("styles", b"<s>", b"</s>", b"<a>", "deeper than 64"),
    "formats": ("styles", b"<s><cellXfs>", b"</cellXfs></s>", b"<xf/>", "262,144 elements"),
    "sheets": ("workbook", *SHEETS, b'<sheet name="a" r:id="rId1"/>', "262,144 elements"),
    "strings": ("sharedStrings", b"<sst>", b"</sst>", b"<si/>", "more than 10 strings"),
    "marks in a string": ("sharedStrings", b"<sst><si>", b"</si></sst>", b"<r/>", "262,144 elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_a_small_file_of_many_small_elements_is_refused_soon(name, tmp_path, quoted, monkeypatch):
    part, before, behind, unit, words = MANY[name]
    if name in ("rows", "strings"):  # a million rows take seconds
        monkeypatch.setattr(workbook_parts, "_MOST_ROWS", 5)
        monkeypatch.setattr(workbook_parts, "_MOST_STRINGS", 10)
    parts = parts_of(plain()[0])
    parts[f"xl/{part}.xml"] = before + unit * 500_000 + behind
    (tmp_path / "quote.xlsx").write_bytes(zipped(parts))
    with pytest.raises(SpecError, match=words) as refused:
        checked(tmp_path / "quote.xlsx", quoted)
    assert "quote.xlsx" in str(refused.value)


def test_a_part_of_more_than_64_mib_is_read_where_the_file_is_as_large(tmp_path):
    source = tmp_path / "a.zip"
    noise = random.Random(1).randbytes(2**19)
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(65 << 20))
        archive.writestr("large", noise + bytes(65 << 20))
    with archive_of(source, "workbook") as archive:
        assert sum(map(len, part_pieces(archive, "large"))) == (65 << 20) + 2**19
        with pytest.raises(SpecError, match="unpacks to more than 64 MiB"):
            list(part_pieces(archive, "bomb"))


def test_shared_strings_of_many_megabytes_are_refused(tmp_path, quoted):
    parts = parts_of(plain()[0])
    letters = (random.Random(n).randbytes(200).hex().encode() for n in range(2200))
    strings = b"".join(b"<si><t>" + one + b"A" * 32_000 + b"</t></si>" for one in letters)
    parts["xl/sharedStrings.xml"] = b"<sst>" + strings + b"</sst>"
    (tmp_path / "quote.xlsx").write_bytes(zipped(parts))
    with pytest.raises(SpecError, match="more than 64 MiB of text"):
        checked(tmp_path / "quote.xlsx", quoted)


def test_a_damaged_part_is_found_by_its_checksum(tmp_path, quoted):
    content = bytearray(plain()[0])
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        at = archive.getinfo("xl/worksheets/sheet1.xml").header_offset + 80
    content[at] ^= 0xFF
    (tmp_path / "quote.xlsx").write_bytes(bytes(content))
    with pytest.raises(SpecError):
        checked(tmp_path / "quote.xlsx", quoted)


def test_a_formula_without_its_value_is_named_and_one_with_it_is_read(tmp_path, quoted):
    stream = io.BytesIO()
    book = xlsxwriter.Workbook(stream, {"in_memory": True})
    page = book.add_worksheet()
    page.write_row(0, 0, ["Item", "Qty", "Price USD"])
    page.write_row(1, 0, [CARD])
    page.write_formula(1, 1, "=1+1", value=2)
    page.write_row(2, 0, [CARD])
    page.write_formula(2, 1, "=1+1", value="")
    book.close()
    (tmp_path / "a.xlsx").write_bytes(stream.getvalue())
    report = checked(tmp_path / "a.xlsx", quoted)
    assert report.read == [(2, "1 × 2xl40s")]
    assert report.failed[0][0] == 3 and "B3 holds a formula without its value" in report.failed[0][1]


INJECTED = ["=cmd|'/c calc'!A1", "+1+1", "-2+3", "@A1", "\t=1", '=HYPERLINK("http://x","y")']


def test_no_cell_becomes_a_formula_because_a_name_begins_with_a_sign(tmp_path, quoted):
    book, page = sheet_of([["Item", "Qty", "Price USD"], *([None, 1, 10] for _ in INJECTED)])
    for row, text in enumerate(INJECTED, 2):
        cell = page.cell(row, 1)
        cell.value, cell.data_type = text, "s"
    (tmp_path / "a.xlsx").write_bytes(saved(book))
    report = filled(tmp_path / "a.xlsx", tmp_path / "b.xlsx", quoted)
    assert report.not_understood == len(INJECTED)
    for row in openpyxl.load_workbook(tmp_path / "b.xlsx").active.iter_rows():
        assert all(cell.data_type != "f" for cell in row)


def test_no_cell_of_a_table_of_text_begins_a_formula(tmp_path, quoted):
    rows = "".join(f'"{text}",1,10\n'.replace('"=HYPERLINK("http://x","y")"', "=x") for text in INJECTED)
    (tmp_path / "a.csv").write_text("Item,Qty,Price USD\n" + rows)
    filled(tmp_path / "a.csv", tmp_path / "b.csv", quoted)
    import csv

    for cells in csv.reader((tmp_path / "b.csv").read_text().splitlines()):
        assert not [one for one in cells[3:] if one[:1] in ("=", "+", "-", "@")]


def test_names_of_a_plan_stay_words(book):
    page = book["Options"]
    place = (5, 2)
    page.say(*place, "=1+1")
    written = openpyxl.load_workbook(io.BytesIO(book.content()))["Options"].cell(6, 3)
    page.say(*place, "1xh100-sxm")
    assert (written.value, written.data_type) == ("=1+1", "s")


def test_links_to_other_workbooks_stay_and_are_told(tmp_path, quoted):
    parts = parts_of(LAYOUTS["plain"]()[0])
    parts["xl/externalLinks/externalLink1.xml"] = b"<externalLink/>"
    (tmp_path / "a.xlsx").write_bytes(zipped(parts))
    report = filled(tmp_path / "a.xlsx", tmp_path / "b.xlsx", quoted)
    assert any("other workbooks" in one for one in report.remarks)
    assert parts_of((tmp_path / "b.xlsx").read_bytes())["xl/externalLinks/externalLink1.xml"] == b"<externalLink/>"


def test_what_is_there_is_not_written_over_unless_it_was_asked(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"mine")
    with pytest.raises(SpecError, match="--overwrite"):
        writable(tmp_path / "a.xlsx", (".xlsx",), overwrite=False)
    writable(tmp_path / "a.xlsx", (".xlsx",), overwrite=True)


def test_the_quote_itself_can_be_filled_where_that_was_asked(tmp_path, quoted):
    (tmp_path / "a.xlsx").write_bytes(plain()[0])
    report = filled(tmp_path / "a.xlsx", tmp_path / "a.xlsx", quoted)
    assert report.understood == 2
    assert openpyxl.load_workbook(tmp_path / "a.xlsx").active["E1"].value == "glmplan: read as"


BIG = """
import resource, sys
from datetime import date
from glmplan.present.sheets.fill import filled
from glmplan.present.sheets.fill import Quoted
from glmplan.present.sheets.quote_table import Mapped
from glmplan.purchase.money import money_of
quoted = Quoted("llama-3.1-8b", 8, money_of(today=date(2026, 11, 22)), Mapped(), {"input": 1024, "output": 256})
filled(sys.argv[1], sys.argv[3], quoted)
small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen = []
report = filled(sys.argv[2], sys.argv[4], quoted, lambda done, whole: seen.append(done))
print(report.understood, len(seen), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - small)
"""


def test_a_hundred_thousand_rows_pass_with_progress_and_little_memory(tmp_path):
    def write(path, count):
        book = xlsxwriter.Workbook(path, {"constant_memory": True})
        page = book.add_worksheet()
        page.write_row(0, 0, ["Item", "Qty", "Unit price USD", "Note"])
        for row in range(1, count + 1):
            page.write_row(row, 0, [CARD, 1 + row % 2, 7000 + row % 900, f"line {row}"])
        book.close()

    paths = [str(tmp_path / name) for name in ("small.xlsx", "big.xlsx", "a.xlsx", "b.xlsx")]
    write(paths[0], 100)
    write(paths[1], 100_000)
    done = subprocess.run([sys.executable, "-c", BIG, *paths], capture_output=True, text=True, check=True)
    understood, seen, more = map(int, done.stdout.split())
    assert understood == 100_000
    assert seen > 50
    kilobytes = 1 if sys.platform != "darwin" else 1024
    assert more / kilobytes < 100_000  # 100 MB; the sheet alone unpacks to 40 MB, as cells in memory it would take 600


@pytest.mark.parametrize("count", [float("inf"), float("nan"), 0.0, 1.5, -2.0])
def test_a_count_that_is_no_number_of_machines_is_refused(count):
    with pytest.raises(SpecError, match="no number of machines"):
        machine_in("NVIDIA L40S 48 GB", None, count, {})


@pytest.mark.parametrize(("price", "count"), [("285000 EUR", "1"), (285000.0, 1.0), ("€ 285.000,00", "2")])
def test_a_row_with_numbers_is_no_header(price, count):
    """Its words named hardware beside the price and the number of a header that does not, and the row was lost."""
    rows = [
        Row(1, {0: "Title", 1: "Net price EUR", 2: "Qty"}),
        Row(2, {0: "GPU server, 8x H200 SXM5", 1: price, 2: count}),
    ]
    assert find_table(rows, Mapped()) is None
    named = find_table([Row(1, {**rows[0].cells, 0: "Description"}), rows[1]], Mapped())
    assert named is not None and named.header == 1
