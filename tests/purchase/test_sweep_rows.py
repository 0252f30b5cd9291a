"""Rows of a sweep as CSV are those that pandas writes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from glmplan.purchase import sweep as sweep_rows
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.sweep import Shared, csv_parts, rows_of, swept, taken

ODD = pd.DataFrame({
    "text": ["x,1", 'q"u', None, "", "line\nbreak", "5%"],
    "number": [1.5, np.nan, np.inf, 1e-30, -0.0, 123456789.0],
    "whole": [1, 2, 3, 4, 5, 6],
    "some": np.array([1, None, 3, 1, 1, 2], dtype=object),
    "shares": np.array([0.9, None, 450.0, 1e-7, 0.9, 450.0], dtype=object),
    "yes": [True, False] * 3,
    "nothing": [np.nan] * 6,
    "a, b": ["a"] * 6,
})  # fmt: skip


def csv_text(columns):
    return b"".join(csv_parts(columns)).decode()


def pandas_text(frame):
    return frame.to_csv(index=False, float_format="%.6g")


def test_odd_texts_and_missing_numbers_are_written_as_pandas_does():
    assert csv_text(ODD) == pandas_text(ODD)
    assert csv_text(ODD[:0]) == pandas_text(ODD[:0])


def test_numbers_of_every_size_and_near_the_middle_between_two_are_written_as_python_does():
    rng, powers = np.random.default_rng(7), 10.0 ** np.arange(-12, 18)
    some = [10.0 ** rng.uniform(-9, 14, 4000), rng.integers(1, 10**7, 4000) / 10.0 ** rng.integers(0, 9, 4000)]
    edges = [powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf), 999999.5 * powers, 123456.5 * powers]
    rest = [[0.0, -0.0, np.nan, np.inf, -np.inf, -2.5, 5e-324, 1.7e308]]
    frame = pd.DataFrame({"a": np.concatenate([*some, *edges, *rest]), "b": "x"})
    written = csv_text(frame).splitlines()[1:]
    said = ["" if np.isnan(one) else f"{one:.6g}" for one in frame["a"].tolist()]
    assert written == [f"{one},x" for one in said]


def test_a_table_is_the_same_in_several_parts(monkeypatch):
    whole = csv_text(ODD)
    monkeypatch.setattr(sweep_rows, "_ROWS", 2)
    assert csv_text(ODD) == whole


def test_a_sweep_with_reasons_costs_and_rows_that_do_not_work_is_written_as_pandas_does():
    said = {"model": "llama-3.1-8b", "on": "1xl40s,1xh100-sxm", "weights": "bf16,nvfp4", "users": "1,4,64",
            "input": "1000,60000"}  # fmt: skip
    found = swept(read_sweep(said))
    frame = found.to_frame()
    assert {"fits", "does_not_fit"} <= set(frame["verdict"])
    assert csv_text(frame) == pandas_text(frame)
    # columns whose rows share values are written side by side, without a frame
    assert csv_text(found.columns()) == pandas_text(frame)
    assert found.possible.tolist() == frame["verdict"].isin(("fits", "tight")).tolist()


def test_columns_that_share_their_values_with_the_same_rows_are_written_beside_others():
    one, other = np.array([1, 0, 2, 1]), np.array([0, 0, 1, 1])
    columns = {
        "a": Shared(["x", 'q"u', None], one), "b": Shared(np.array([3, 1, 2]), one), "c": Shared([1.5, "y,z"], other),
        "d": np.array([0.1, np.nan, 2e9, 1 / 3]), "e": Shared(np.array([0.25, 1 / 3]), other),
        "f": Shared([True, False, None], one),
    }  # fmt: skip
    frame = pd.DataFrame({name: rows_of(column) for name, column in columns.items()})
    assert csv_text(columns) == pandas_text(frame)
    some = np.array([False, True, True, False])
    assert all(pd.Series(rows_of(column, some)).equals(frame[name][some].reset_index(drop=True))
               for name, column in columns.items())  # fmt: skip


def test_a_column_of_shared_values_has_the_dtype_that_a_frame_gives_them():
    for values in (["a", None], ["a", "b"], [1, None], [1.5, 2], [True, False]):
        each = np.array(values, dtype=object)
        places = np.array([1, 0, 1])
        expected = pd.DataFrame({"x": each[places]})
        assert pd.DataFrame({"x": taken(values, places)}).equals(expected)
