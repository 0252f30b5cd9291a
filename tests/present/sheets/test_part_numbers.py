"""Part numbers of quotes name cards and nodes."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.names import part_numbers
from glmplan.catalog.files import data_folder, read_toml
from glmplan.io.machines.resolve import resolve_machine
from glmplan.present.sheets.quote_table import Named, machine_in

ENTRIES = read_toml(data_folder("hardware_db") / "quotes" / "skus.toml")["skus"]


def test_no_number_stands_twice():
    assert len(part_numbers()) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["number"])
def test_every_number_names_something_that_can_be_planned(entry):
    named = machine_in("server, see data sheet", entry["number"], 1, {})
    resolve_machine(named.on)
    if "accelerator" in entry:
        assert named == Named(f"1x{load_accelerator(entry['accelerator']).name}", 1)


@pytest.mark.parametrize(
    ("text", "number", "count", "named"),
    [
        ("GPU server 10U", "SYS-A22GA-NBRT", 2, Named("8xb200-sxm", 2)),
        ("AS -8126GS-NB3RT, 2x EPYC 9575F", "AS-8126GS-NB3RT", 1, Named("8xb300-sxm", 1)),
        ("4x node (SYS-822GS-NB3RT)", None, 4, Named("8xb300-sxm", 4)),  # the 4 counts nodes, not cards in one
        ("GPU, passive", "900-2g153-0000-000", 16, Named("8xrtx-pro-6000-server", 2)),
        ("8x GPU 900-2G133-0080-000", None, 1, Named("8xl40s", 1)),
        ("XE9680 8 GPU OAM MI325X 256GB", None, 2, Named("8xmi325x", 2)),
        ("AMD Instinct MI355X 288GB 8er System", None, 1, Named("8xmi355x", 1)),
        ("RTX 4090 24 GB GPU", None, 3, Named("3xrtx-4090", 1)),
    ],
)
def test_a_node_is_one_machine_and_cards_fill_machines(text, number, count, named):
    assert machine_in(text, number, count, {}) == named
