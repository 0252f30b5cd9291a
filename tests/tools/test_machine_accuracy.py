"""The topology ledger against the model: goals met, and the page as committed."""

from pathlib import Path

import pytest
from machine_accuracy import GOAL, median_error, topology_backtest, topology_page
from same_text import same_to_rounding

from glmplan.calibrate.links.observations import read_transfers

PAGE = Path(__file__).parents[2] / "docs" / "topology-accuracy.md"


@pytest.mark.parametrize("group", ["p2p", "collapse", "all-reduce", "host-dma"])
def test_the_median_error_meets_the_goal(group):
    assert median_error(topology_backtest(), group) < GOAL


def test_all_rows_of_the_ledger_are_kept_with_their_source():
    rows = read_transfers("pcie-topologies.csv")
    assert len(rows) == 622
    assert all(row["source"].startswith("github.com/voipmonitor/rtx6kpro @29f3863") for row in rows)


def test_the_accuracy_page_is_fresh():
    # another processor may round the last digit the other way: docs/decisions/processors.md
    assert same_to_rounding(PAGE.read_text(encoding="utf-8"), topology_page()), "run tools/docs.py"
