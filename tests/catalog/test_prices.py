"""Prices have a date, a source, a currency and a region; contradictions stay; what is missing is asked for."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.hosts import host_names
from glmplan.catalog.entries.models import model_names
from glmplan.catalog.entries.prices import given_prices, load_prices, load_terms, prices_with, quotation
from glmplan.catalog.files import data_folder
from glmplan.catalog.schema.price import KINDS, Price, first_day
from glmplan.errors import SpecError, UnknownFact

TODAY = date(2026, 11, 22)


def test_every_price_is_of_a_part_a_host_or_a_model_of_the_catalogue_or_says_that_it_is_not():
    known = {"accelerator": accelerator_names(), "host": host_names(), "model": model_names()}
    assert len(load_prices()) > 340
    for one in load_prices():
        if one.of in known:
            assert one.part in known[one.of], one
        elif one.of == "other":
            assert one.part not in accelerator_names(), one


def test_every_kind_of_price_is_there_and_none_is_said_twice():
    rows = load_prices()
    assert {one.kind for one in rows} == set(KINDS)
    assert len(rows) == len({one.model_dump_json() for one in rows})


def test_the_list_price_of_the_workstation_card_is_known():
    # newgearhub.com, April 2026
    found = {(one.price, one.date) for one in load_prices() if one.part == "rtx-pro-6000-ws"}
    assert (8565.0, "2026-04-06") in found


def test_contradicting_prices_stand_side_by_side_and_the_quotation_spans_them():
    # street prices of February (3,500 to 4,000) and of May (2,300 to 2,800) 2026; the list price of 1,999 has no month
    found = quotation(load_prices(), "buy", "rtx-5090", terms=("new",), today=date(2026, 5, 15))
    assert [one.price for one in found.entries] == [3500, 4000, 2300, 2800, 1999]
    assert (found.low, found.value, found.high) == (1999, 2800, 4000)


def test_prices_older_than_180_days_are_called_stale_and_give_way_to_newer_ones():
    early, late = date(2026, 6, 30), date(2026, 11, 22)
    rows = load_prices()
    assert not quotation(rows, "buy", "b200-sxm", terms=("new",), today=early).stale
    newer = quotation(rows, "buy", "b200-sxm", terms=("new",), today=late)
    assert [one.date for one in newer.entries] == ["2026-06"] and not newer.stale
    assert quotation(rows, "buy", "rtx-pro-6000-ws", today=late).stale


def test_a_price_whose_day_is_not_known_counts_as_old_rather_than_as_new():
    assert first_day("2026") == date(2026, 1, 1)
    assert first_day("undated") is None


def test_a_superchip_counts_for_its_two_accelerators():
    found = quotation(load_prices(), "rent", "gb200", terms=("on demand",), today=date(2026, 4, 1))
    assert found.value == pytest.approx(4.54)  # 9.08 USD for the superchip, spheron.network, March 2026


def test_a_price_that_is_given_takes_the_place_of_all_published_ones_for_the_same_thing():
    prices = prices_with(["rtx-pro-6000=8500", "electricity=0.25"], today=TODAY)
    found = quotation(prices, "buy", "rtx-pro-6000-ws", terms=("new",), today=TODAY)
    assert (found.value, found.low, found.high, found.stale, found.given) == (8500, 8500, 8500, False, True)
    assert quotation(prices, "power", "electricity", today=TODAY).value == 0.25
    assert not quotation(prices, "rent", "rtx-5090", today=TODAY).given


def test_a_file_of_prices_is_read_with_the_columns_of_the_shipped_ones(tmp_path):
    file = tmp_path / "quotes.csv"
    file.write_text(
        "part,of,price,currency,per,accelerators,contains,term,region,date,source\n"
        "rtx-5090,accelerator,2100,USD,piece,1,accelerator alone,new,DE,2026-11-20,quotation 17\n"
    )
    [one] = given_prices([str(file)], TODAY)
    assert (one.kind, one.price, one.region, one.given) == ("buy", 2100, "DE", True)


def test_a_price_beyond_all_money_is_refused_with_the_bound():
    for price in ("1e308", "10000000000000"):
        with pytest.raises(SpecError, match="less than or equal to 1000000000000"):
            given_prices([f"h100-sxm={price}"], TODAY)


def test_a_missing_price_is_asked_for_and_not_invented():
    with pytest.raises(UnknownFact, match="--price l20=NUMBER"):
        quotation(load_prices(), "buy", "l20", today=TODAY)


def test_currencies_are_never_mixed():
    prices = prices_with(["rtx-5090=2000 EUR", "rtx-5090=2100"], today=TODAY)
    with pytest.raises(SpecError, match="EUR, USD"):
        quotation(prices, "buy", "rtx-5090", today=TODAY)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rtx-5090", "not a price"),
        ("rtx-5090=cheap", "not a number"),
        ("rtx-5090=-3", "greater than 0"),
        ("rtx-5090=nan", "finite|greater"),
        ("rtx-5090:lease=3", "nearest|choices"),
        ("rtx-5090=3 dollars", "currency"),
        ("=3", "not a price"),
        ("nowhere.csv", "cannot be read"),
    ],
)
def test_a_price_that_cannot_be_read_is_named(word, said):
    with pytest.raises(SpecError, match=said):
        given_prices([word], TODAY)


@pytest.mark.parametrize("word", ["rtx-pro-6000-wx=8500", "8xh200-sxn=310000", "glm-5.11:output=3"])
def test_a_price_of_something_that_is_not_known_is_refused_and_does_not_leave_the_published_one_in_its_place(word):
    with pytest.raises(SpecError, match="neither a part.*nearest"):
        prices_with([word], today=TODAY)


def test_a_line_of_a_file_that_is_wrong_is_named_with_its_number(tmp_path):
    file = tmp_path / "quotes.csv"
    file.write_text("part,of,price,currency,per,region,date,source\nx,other,1,USD,piece,DE,yesterday,me\n")
    with pytest.raises(SpecError, match=r"quotes\.csv:2: date"):
        given_prices([str(file)], TODAY)


def test_every_term_with_a_value_has_a_source_and_a_date_and_one_without_says_why():
    terms = load_terms()
    assert {"horizon_months", "residual_share", "pue", "power_share", "capital_rate"} <= set(terms)
    for one in terms.values():
        assert (one.source and one.date) if one.value is not None else one.note


def test_the_shipped_draw_of_accelerators_is_that_of_the_measured_runs():
    import csv
    import statistics

    from glmplan.catalog.entries.accelerators import load_accelerator

    with (data_folder("calibration") / "measurements/ml-energy.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["gpu_power_total_w"]]
    shares = sorted(
        float(row["gpu_power_total_w"]) / int(row["accelerator_count"]) / load_accelerator(row["accelerator"]).tdp
        for row in rows
    )
    term = load_terms()["power_share"]
    assert term.value == pytest.approx(statistics.median(shares), abs=0.005)
    assert term.low == pytest.approx(shares[len(shares) // 20], abs=0.005)
    assert term.high == pytest.approx(shares[-1 - len(shares) // 20], abs=0.005)


def test_a_price_to_buy_says_what_it_contains():
    with pytest.raises(ValueError, match="contains"):
        Price(kind="buy", part="x", of="other", price=1, currency="USD", per="piece", term="new", region="US",
              date="2026", source="s")  # fmt: skip


def test_a_price_of_a_later_day_is_not_known_yet():
    november, june = (prices_with(today=date(2026, month, 1)) for month in (11, 6))
    assert len(june) < len(november) <= len(load_prices())
    assert all(one.date <= "2026-11-01" for one in november if len(one.date) == len("2026-11-01"))
    # what the buyer gives is of the day of the question
    assert any(one.given for one in prices_with(["electricity=0.25"], today=date(2025, 1, 1)))
    with pytest.raises(SpecError, match=r"--today: '2019-01-01' is before the first published price, of 20"):
        prices_with(today=date(2019, 1, 1))


@pytest.mark.parametrize(
    ("word", "price", "currency"),
    [("rtx-5090=2000EUR", 2000.0, "EUR"), ("rtx-5090=2,500", 2500.0, "USD"), ("h100-sxm:rent=1.995", 1.995, "USD")],
)
def test_amounts_are_read_with_groups_and_with_a_currency_behind_them(word, price, currency):
    [found] = given_prices([word], TODAY)
    assert (found.price, found.currency) == (price, currency)


@pytest.mark.parametrize("word", ["electricity=0,25", "rtx-5090=2.500 EUR", "rtx-5090=2,5"])
def test_a_decimal_comma_and_a_point_before_three_digits_are_refused(word):
    with pytest.raises(SpecError, match=r"--price: '[\d.,]+' (has a comma|may be)"):
        given_prices([word], TODAY)
