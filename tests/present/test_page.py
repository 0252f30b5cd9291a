"""Tables of pages: which of them become lists on the screen of a phone."""

from __future__ import annotations

import pytest

from glmplan.present.page import table

SPEED = ("concurrency", "mean TTFT [s]", "per user [token/s]", "total [token/s]", "longest context each [token]")


@pytest.mark.parametrize(
    ("heads", "row", "listed"),
    [
        (SPEED, ("1", "0.0604 (0.03 to 0.23)", "147 (80.7 to 219)", "145 (79.5 to 216)", "131,072"), True),
        (SPEED[:4], ("1", "0.0604 (0.03 to 0.23)", "147 (80.7 to 219)", "145 (79.5 to 216)"), False),
        (("users", "a", "b", "c", "d"), ("1", "2", "3", "4", "5"), False),  # five columns of 8 letters fit
        (("users", "a", "b", "c", "d", "e"), ("1", "2", "3", "4", "5", "6"), True),
        (("plan", "metric"), ("a-name-of-more-than-sixteen-letters", "1"), False),  # such a name is broken
    ],
)
def test_a_table_wider_than_a_phone_becomes_a_list(heads, row, listed):
    made = table("t", heads, [row])
    assert ("scroll words" in made, f"data-head='{heads[0]}'" in made) == (listed, listed)
