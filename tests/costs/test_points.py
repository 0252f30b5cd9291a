"""Layouts and points of steps."""

from __future__ import annotations

from glmplan.costs.points import Layout


def test_layouts_of_the_same_degrees_are_one_key():
    # what ranks hold is kept by layout: two thousand rows ask for forty of them
    assert {Layout(tp=2, pp=3): "held"}[Layout(tp=2, pp=3)] == "held"
    assert Layout(tp=2) != Layout(tp=4)
