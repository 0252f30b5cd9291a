"""A workbook that the tests share, and the two programs that compute it again."""

from __future__ import annotations

from datetime import date

import pytest

pytest.importorskip("xlsxwriter", reason="workbooks need the extra `sheets`")

from glmplan.present.sheets.option import options_of, read_wanted
from glmplan.present.sheets.plan_book import load_of_words, workbook_of
from glmplan.purchase.money import money_of
from tests.present.sheets.cases import CASES, MACHINES, MODEL, library

TODAY = date(2026, 11, 22)
USERS, INPUT, OUTPUT = 16, 2048, 512


@pytest.fixture(scope="session")
def money():
    # a rent and a purchase, each with ends; an API that sells the model
    said = ["llama-3.1-8b:input=0.05", "llama-3.1-8b:output=0.08", "llama-3.1-8b:cached=0.02", "h100-sxm=27000",
            "1xh100-sxm=41000"]  # fmt: skip
    return money_of(said, ["capital_rate=0.06", "support_share=0.08", "staff_per_month=300"], today=TODAY)


@pytest.fixture(scope="session")
def options(money):
    wanted = read_wanted(MACHINES[1], MACHINES[0], MODEL)
    return options_of(MODEL, wanted, money, load=(USERS, INPUT, OUTPUT), said={})


@pytest.fixture(scope="session")
def load():
    return load_of_words(USERS, INPUT, OUTPUT, None, reuse=0.25, growth=0.03)


@pytest.fixture(scope="session")
def book(options, money, load):
    return workbook_of(options, load, money)


@pytest.fixture(scope="session")
def content(book):
    return book.content()


@pytest.fixture(scope="session")
def expected(options, money):
    """What the library says of every case."""
    return [library(options, money, number) for number in range(CASES)]
