"""Quotes get figures in new columns, and nothing else of them changes."""

from __future__ import annotations

import csv
import io
import re
import zipfile

import openpyxl
import pytest

import glmplan
from glmplan.errors import SpecError
from glmplan.present.sheets.fill import Quoted, checked, columns_for, filled
from glmplan.present.sheets.quote_table import Mapped, read_mapping
from glmplan.purchase.money import watts_of
from tests.present.sheets.conftest import MODEL
from tests.present.sheets.quotes import CARD, LAYOUTS, saved, sheet_of

USERS = 8
LENGTHS = {"input": 1024, "output": 256}


@pytest.fixture(scope="session")
def quoted(money):
    return Quoted(MODEL, USERS, money, Mapped(rates={"EUR": 1.1}), LENGTHS)


@pytest.fixture(scope="session")
def quotes(quoted, tmp_path_factory):
    """Each layout before and after: content, content, report, expected."""
    folder = tmp_path_factory.mktemp("quotes")
    found = {}
    for name, make in LAYOUTS.items():
        content, expected = make()
        source, target = folder / f"{name}.xlsx", folder / f"{name}-filled.xlsx"
        source.write_bytes(content)
        report = filled(source, target, quoted)
        assert source.read_bytes() == content
        found[name] = (content, target.read_bytes(), report, expected)
    return found


def new_columns(content, report, money):
    """Rows below the header → header of a new column → value."""
    page = openpyxl.load_workbook(io.BytesIO(content))[report.sheet]
    titles = {cell.value: cell.column for cell in page[report.header] if str(cell.value).startswith("glmplan: ")}
    assert list(titles) == list(columns_for(money))
    rows = {row: {title: page.cell(row, column).value for title, column in titles.items()}
            for row in range(report.header + 1, page.max_row + 1)}  # fmt: skip
    return {row: cells for row, cells in rows.items() if any(cells.values())}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_as_what_it_offers(name, quotes, money):
    _, content, report, expected = quotes[name]
    rows = new_columns(content, report, money)
    assert [one["glmplan: read as"] for one in rows.values()] == expected
    for cells in rows.values():
        if cells["glmplan: read as"] is None:
            assert cells["glmplan: remark"].startswith("not read: ")
        else:
            assert cells["glmplan: fits"] in ("fits", "tight")
            assert (
                cells["glmplan: tokens/s (90 % from)"]
                < cells["glmplan: tokens/s"]
                < cells["glmplan: tokens/s (90 % to)"]
            )


NEW_CELL = re.compile(rb'<c r="([A-Z]+)\d+"(?: s="\d+")?(?: t="inlineStr"><is>.*?</is>|><v>[^<]*</v>)</c>', re.DOTALL)


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_else_of_the_file_is_as_it_was_part_by_part(name, quotes):
    before, after, report, _ = quotes[name]
    one, two = (zipfile.ZipFile(io.BytesIO(content)) for content in (before, after))
    assert one.namelist() == two.namelist()
    changed = [part for part in one.namelist() if one.read(part) != two.read(part)]
    assert len(changed) == 1 and changed[0].startswith("xl/worksheets/sheet")
    old, new = one.read(changed[0]), two.read(changed[0])
    first = min(openpyxl.utils.column_index_from_string(cell.column_letter)
                for cell in openpyxl.load_workbook(io.BytesIO(after))[report.sheet][report.header]
                if str(cell.value).startswith("glmplan: "))  # fmt: skip

    def without(match):
        column = openpyxl.utils.column_index_from_string(match[1].decode())
        return b"" if column >= first else match[0]

    spans = re.compile(rb' spans="[^"]*"')
    assert spans.sub(b"", NEW_CELL.sub(without, new)) == spans.sub(b"", old)


def test_the_figures_are_those_of_the_library(quotes, money):
    _, content, report, _ = quotes["plain"]
    cells = new_columns(content, report, money)[2]
    answer = glmplan.fit(MODEL, on="2xl40s", users=(USERS,), **LENGTHS)
    rate = glmplan.predict(answer, users=USERS).figures["output_rate"]
    assert cells["glmplan: tokens/s"] == pytest.approx(rate.value, rel=1e-3)
    assert cells["glmplan: tokens/s (90 % to)"] == pytest.approx(rate.high, rel=1e-3)
    assert cells["glmplan: safe users"] == answer.safe.users
    at = dict(answer.safe.at)
    assert {share: cells[f"glmplan: users at {100 * share:.0f} %"] for share in (0.95, 0.8, 0.5)} == at
    assert cells["glmplan: probability"] == pytest.approx(answer.safe.chance_of(USERS), rel=1e-3)
    watts, _ = watts_of(answer.asked.machine, money)
    assert cells["glmplan: kW at the wall"] == pytest.approx(watts / 1000, rel=1e-3)
    # 15,800 USD for both, by hand: annuity, power, support, staff, over the tokens of a month
    terms = money.terms
    monthly = 1.06 ** (1 / 12) - 1
    shrunk = (1 + monthly) ** -terms.horizon_months
    month = 15_800 * (1 - terms.residual_share * shrunk) * monthly / (1 - shrunk)
    month += watts / 1000 * terms.pue * 730 * terms.electricity + 15_800 * 0.08 / 12 + 300
    tokens = rate.value * (1 + 1024 / 256) * terms.utilisation * 730 * 3600 / 1e6
    assert cells["glmplan: USD per million tokens"] == pytest.approx(month / tokens, rel=2e-3)
    outputs = month / tokens * (1 + answer.asked.input_tokens / answer.asked.output_tokens)
    assert cells["glmplan: USD per million output tokens"] == pytest.approx(outputs, rel=2e-3)


def test_euros_cost_what_the_rate_makes_of_them(quotes, money):
    rows = {name: new_columns(quotes[name][1], quotes[name][2], money) for name in ("plain", "french")}
    one = rows["plain"][2]["glmplan: USD per million tokens"]
    other = rows["french"][2]["glmplan: USD per million tokens"]
    assert one < other  # 2 x 8,290 EUR at 1.1 against 2 x 7,900 USD


def test_euros_without_a_rate_are_not_taken_for_dollars(tmp_path, money, quoted):
    (tmp_path / "a.xlsx").write_bytes(LAYOUTS["french"]()[0])
    alone = Quoted(MODEL, USERS, money, Mapped(), LENGTHS)
    alone._known = quoted._known
    report = filled(tmp_path / "a.xlsx", tmp_path / "b.xlsx", alone)
    cells = new_columns((tmp_path / "b.xlsx").read_bytes(), report, money)[2]
    assert cells["glmplan: USD per million tokens"] is None
    assert "--rate EUR=" in cells["glmplan: remark"]


@pytest.mark.parametrize(("ending", "sign"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_a_table_of_text_keeps_its_lines_and_gets_columns(ending, sign, tmp_path, quoted):
    lines = [f"Item{sign}Qty{sign}Price USD", f'"{CARD}, new"{sign}2{sign}"15,800"', f"Total{sign}{sign}15800", ""]
    source, target = tmp_path / f"q.{ending}", tmp_path / f"f.{ending}"
    source.write_bytes("\r\n".join(lines).encode())
    report = filled(source, target, quoted)
    out = target.read_bytes().decode().split("\r\n")
    assert [one.startswith(line) for one, line in zip(out, lines, strict=True)] == [True] * 4
    assert len(next(csv.reader([out[0]], delimiter=sign))) == 3 + len(columns_for(quoted.money))
    assert "1 × 2xl40s" in out[1] and out[2] == lines[2]
    cells = next(csv.reader([out[1]], delimiter=sign))
    assert ("," in cells[9]) == (sign == ";") and float(cells[9].replace(",", ".")) > 0
    assert (report.understood, report.not_understood) == (1, 0)


def test_what_would_be_done_is_what_is_done(tmp_path, quoted, quotes):
    content, _, done, _ = quotes["dutch_without_prices_for_some"]
    (tmp_path / "a.xlsx").write_bytes(content)
    report = checked(tmp_path / "a.xlsx", quoted)
    assert (report.read, report.failed, report.titles) == (done.read, done.failed, done.titles)
    assert "h100-pcie" in report.failed[0][1] and "“een”" in report.failed[1][1]
    assert [one.name for one in tmp_path.iterdir()] == ["a.xlsx"]


def test_a_mapping_says_what_no_header_says(tmp_path, quoted, money):
    book, _ = sheet_of([["alpha", "beta", "gamma"], ["our small box", 2, 9000], ["thing", 1, 1]])
    (tmp_path / "a.xlsx").write_bytes(saved(book))
    with pytest.raises(SpecError, match="no header"):
        checked(tmp_path / "a.xlsx", quoted)
    (tmp_path / "map.toml").write_text(
        'header_row = 1\ncurrency = "USD"\n[columns]\nhardware = "alpha"\ncount = "B"\nunit_price = "gamma"\n'
        '[hardware]\n"Our small box" = "2xl40s"\n'
    )
    mine = Quoted(MODEL, USERS, money, read_mapping(str(tmp_path / "map.toml")), LENGTHS)
    report = checked(tmp_path / "a.xlsx", mine)
    assert report.read == [(2, "2 × 2xl40s")] and report.not_understood == 1


def test_a_mapping_with_a_wrong_field_is_refused(tmp_path):
    (tmp_path / "map.toml").write_text('[columns]\nprise = "C"\n')
    with pytest.raises(SpecError, match="unit_price"):
        read_mapping(str(tmp_path / "map.toml"))
