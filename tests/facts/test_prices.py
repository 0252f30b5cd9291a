"""Prices have a date, a known part, a kind and a source."""

import csv
import re
from pathlib import Path

from glmplan.facts.catalogue.accelerators import accelerator_names
from glmplan.facts.folders import data_folder


def _rows():
    with (data_folder("hardware_db") / "prices.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_price_is_complete_and_for_a_known_part():
    rows = _rows()
    assert list(rows[0]) == ["date", "part", "usd", "kind", "source"]
    for row in rows:
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", row["date"])
        assert row["part"] in accelerator_names()
        assert float(row["usd"]) > 0
        assert row["kind"] in ("buy", "hour", "kWh")
        assert row["source"].startswith("https://")


def test_the_list_price_of_the_workstation_card_is_known():
    # newgearhub.com, April 2026
    assert ("8565", "buy") in {(row["usd"], row["kind"]) for row in _rows() if row["part"] == "rtx-pro-6000-ws"}


def test_data_folders_are_found_beside_the_package():
    assert (data_folder("hardware_db") / "accelerators").is_dir()
    assert isinstance(data_folder("model_specs"), Path)
