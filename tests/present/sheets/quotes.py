"""Quotes as vendors write them: ten layouts, each with what its rows should be read as."""

from __future__ import annotations

import io

import openpyxl
import xlsxwriter
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.formatting.rule import CellIsRule
from openpyxl.styles import Font, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation

CARD = "NVIDIA L40S 48GB PCIe"
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
GAMING = "GeForce RTX 5090 32GB"


def saved(book):
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def sheet_of(rows, *, name="Quote", start=1):
    book = openpyxl.Workbook()
    page = book.active
    page.title = name
    for number, row in enumerate(rows, start):
        for column, value in enumerate(row, 1):
            if value is not None:
                page.cell(number, column, value)
    return book, page


def plain():
    book, _ = sheet_of([
        ["Item", "Qty", "Unit price (USD)", "Lead time"],
        [CARD, 2, 7900, "3 weeks"],
        [GAMING, 1, 2400, "in stock"],
        ["Rack rails", 2, 90, "in stock"],
    ])  # fmt: skip
    return saved(book), ["1 × 2xl40s", "1 × 1xrtx-5090", None]


def german_prices_as_text():
    book, _ = sheet_of([
        ["Angebot 2026-1187"], [],
        ["Pos.", "Bezeichnung", "Menge (Stk.)", "Einzelpreis (EUR)", "Gesamtpreis (EUR)", "Lieferzeit"],
        [1, CARD, "2", "8.199,00 €", "16.398,00 €", "4 Wochen"],
        [2, WORKSTATION, "1", "9.450,50 €", "9.450,50 €", "sofort"],
        [None, "Zwischensumme", None, None, "25.848,50 €"],
        [None, "zzgl. MwSt. 19 %", None, None, "4.911,22 €"],
    ])  # fmt: skip
    return saved(book), ["1 × 2xl40s", "1 × 1xrtx-pro-6000-ws"]


def merged_header_over_two_rows():
    book, page = sheet_of([
        ["Product", "Quantity", "Price [USD]", None, "Delivery"],
        [None, None, "Unit", "Total", None],
        [CARD, 1, 8000, 8000, "2 weeks"],
        [WORKSTATION, 2, 9000, 18000, "6 weeks"],
    ], start=4)  # fmt: skip
    page["A1"] = "ACME Compute: quotation"
    page["A1"].font = Font(bold=True, size=16)
    page.merge_cells("A1:E1")
    page.merge_cells("C4:D4")
    for column in "ABE":
        page.merge_cells(f"{column}4:{column}5")
    return saved(book), ["1 × 1xl40s", "1 × 2xrtx-pro-6000-ws"]


def totals_between():
    book, _ = sheet_of([
        ["Description", "Quantity", "Amount USD"],
        [WORKSTATION, 1, "9,100.00"],
        ["Subtotal workstations", None, "9,100.00"],
        [None, None, None],
        [CARD, 2, "$15,800"],
        ["Subtotal servers", None, "$15,800"],
        ["Grand total", None, "$24,900"],
    ])  # fmt: skip
    return saved(book), ["1 × 1xrtx-pro-6000-ws", "1 × 2xl40s"]


def part_numbers():
    book, _ = sheet_of([
        ["P/N", "Description", "Qty", "Net price USD"],
        ["900-2G133-0080-000", "GPU, passive, bulk", 1, 7750],
        ["900-5G144-2200-000", "GPU, active, retail box", 1, 8990],
        ["SYS-000", "Chassis 4U", 1, 3100],
    ])  # fmt: skip
    return saved(book), ["1 × 1xl40s", "1 × 1xrtx-pro-6000-ws", None]


def french():
    book, _ = sheet_of([
        ["Délai de livraison", "Prix unitaire (€)", "Qté", "Désignation", "Réf."],
        ["3 semaines", "8 290,00", 2, CARD, "A-1"],
        ["sur stock", "2 390,00", 1, GAMING, "A-2"],
    ])  # fmt: skip
    return saved(book), ["1 × 2xl40s", "1 × 1xrtx-5090"]


def everything_a_sheet_can_hold():
    book, page = sheet_of([
        ["Hardware", "Count", "Unit price", "Total", "Delivery"],
        [CARD, 1, 8000, "=B2*C2", "2 weeks"],
        [GAMING, 1, 2350, "=B3*C3", "stock"],
        ["Total", None, None, "=SUM(D2:D3)"],
    ])  # fmt: skip
    for row in (2, 3, 4):
        page.cell(row, 3).number_format = page.cell(row, 4).number_format = '#,##0.00 "€"'
    page["A2"].comment = Comment("ask for a rebate", "buyer")
    page["A1"].fill = PatternFill("solid", fgColor="FFDDEEFF")
    page.column_dimensions["A"].width = 44.5
    page.auto_filter.ref = "A1:E3"
    page.freeze_panes = "A2"
    rule = DataValidation(type="list", formula1='"1,2,4,8"')
    page.add_data_validation(rule)
    rule.add("B2:B3")
    page.conditional_formatting.add("C2:C3", CellIsRule(operator="greaterThan", formula=["5000"], font=Font(bold=True)))
    chart = BarChart()
    chart.add_data(Reference(page, min_col=4, min_row=1, max_row=3), titles_from_data=True)
    page.add_chart(chart, "H12")
    other = book.create_sheet("Terms & conditions")
    other["A1"] = "Incoterms DAP"
    other["B7"] = "=Quote!D4*0.19"
    return saved(book), ["1 × 1xl40s", "1 × 1xrtx-5090"]


def header_far_down_on_the_second_sheet():
    stream = io.BytesIO()
    book = xlsxwriter.Workbook(stream, {"in_memory": True})
    cover = book.add_worksheet("Cover")
    cover.write("B2", "To whom it may concern")
    page = book.add_worksheet("Offer")
    for row, words in enumerate(("Example Systems GmbH", "Street 1", "12345 Town", "", "Offer no. 77, valid 30 days")):
        page.write(row, 0, words)
    page.write_row(13, 1, ["Configuration", "Units", "Price per unit", "Currency", "Availability"],
                   book.add_format({"bold": True, "bottom": 2}))  # fmt: skip
    page.write_row(14, 1, ["2U server, 2x L40S 48GB, 1 TB RAM", 2, "21,500", "USD", "5 weeks"])
    page.write_row(15, 1, ["Tower, 1 x RTX PRO 6000 Blackwell Workstation Edition", 1, "14,900", "USD", "1 week"])
    page.set_column(1, 1, 60)
    book.close()
    return stream.getvalue(), ["2 × 2xl40s", "1 × 1xrtx-pro-6000-ws"]


def spanish_with_thousands():
    book, _ = sheet_of([
        ["Cantidad", "Descripción", "Precio unitario USD", "Plazo de entrega"],
        ["1", CARD, "7.900", "3 semanas"],
        ["2", GAMING, "2.410", "inmediata"],
    ])  # fmt: skip
    return saved(book), ["1 × 1xl40s", "1 × 2xrtx-5090"]


def dutch_without_prices_for_some():
    book, _ = sheet_of([
        ["Artikelnr.", "Omschrijving", "Aantal", "Stuksprijs (€)", "Levertijd"],
        ["77-1", CARD, 1, "op aanvraag", "8 weken"],
        ["77-2", "NVIDIA H100 80GB", 1, "31.000,-", "12 weken"],
        ["77-3", GAMING, "een", "2.400,-", "2 weken"],
    ])  # fmt: skip
    return saved(book), ["1 × 1xl40s", None, None]


LAYOUTS = {
    one.__name__: one
    for one in (
        plain, german_prices_as_text, merged_header_over_two_rows, totals_between, part_numbers, french,
        everything_a_sheet_can_hold, header_far_down_on_the_second_sheet, spanish_with_thousands,
        dutch_without_prices_for_some,
    )
}  # fmt: skip
