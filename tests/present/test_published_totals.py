"""Published totals are held against computed ones in the digits that are printed, no finer and no coarser."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.catalog.schema.model import Published
from glmplan.io.models.resolve import resolve_model
from glmplan.present.model_page import disagreements_of, published_total


def printed(total, name="llama-3.1-8b"):
    # 8,030,261,248 weights
    model = load_model(name)
    return published_total(model.model_copy(update={"published": Published(total_b=total, source="a card")}))


@pytest.mark.parametrize(
    ("total", "agrees"),
    [
        (8.0, "rounded"),
        (8.03, "rounded"),
        (8.030, "rounded"),
        (8.031, ""),
        (8.1, ""),
        (7.9, ""),
        (7.0, ""),
        (9.0, ""),
        (10.0, "rounded to 10"),
        (20.0, ""),
    ],
)
def test_a_total_agrees_in_its_own_digits_only(total, agrees):
    assert printed(total).agrees == agrees


@pytest.mark.parametrize(("total", "agrees"), [(405.0, "cut off"), (406.0, "rounded"), (404.0, ""), (407.0, "")])
def test_a_name_that_is_cut_off_agrees_as_such(total, agrees):
    # 405,853,388,800 weights
    assert printed(total, "llama-3.1-405b").agrees == agrees


def test_layers_that_a_publisher_may_count_are_tried_and_named():
    # 743.91 of the layers, 753.86 with the MTP layer: 754 is no total of the language model alone
    found = printed(754.0, "glm-5.1")
    assert (found.counts, found.agrees) == ("with MTP layers", "rounded")
    assert printed(744.0, "glm-5.1").counts == "language model"


def test_a_shape_that_is_wrong_by_a_hundredth_is_seen():
    model = load_model("glm-5.1")
    assert published_total(model).agrees
    assert not published_total(model.model_copy(update={"vocabulary": model.vocabulary * 2})).agrees


def test_a_total_that_no_sum_gives_is_told_with_its_reason():
    told = next(line for line in disagreements_of(resolve_model("glm-4.5")) if "published total" in line)
    assert "355 B, computed 356.79 B (with MTP layers)" in told and "358,337,791,296" in told
    assert not any("published total" in line for line in disagreements_of(resolve_model("deepseek-v3")))
