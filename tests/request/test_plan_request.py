"""The request reads each given value as its option says, once, and names the option in an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmplan.errors import SpecError
from glmplan.request.option import options_of
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec


def test_text_and_numbers_make_the_same_request():
    typed = PlanRequest("llama-3.1-8b", "1xh100-sxm", tp="2", users="8,1", power_limit="450W", host_bandwidth="50 GB/s")
    given = PlanRequest("llama-3.1-8b", "1xh100-sxm", tp=2, users=[1, 8], power_limit=450.0, host_bandwidth=50e9)
    assert typed == given and (typed.tp, typed.users, typed.host_bandwidth) == (2, (1, 8), 5e10)
    assert typed.but() == typed and typed.but(tp=None).tp is None
    assert PlanRequest("a", "b", calibration=Path("site.toml")).calibration == "site.toml"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tp": 0}, "--tp"),
        ({"mtp": -1}, "--mtp"),
        ({"replicas": 10_001}, "--replicas"),
        ({"users": "1,x"}, "--users"),
        ({"users": 4097}, "--users"),
        ({"eager": 1}, "--eager"),
        ({"eager": None}, "--eager"),
        ({"kv": 8}, "--kv"),
        ({"calibration": " "}, "--calibration"),
        ({"host_bandwidth": 0}, "--host-bandwidth"),
        ({"tpp": 2}, "argument"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_with_its_option(given, field):
    with pytest.raises(SpecError) as caught:
        PlanRequest("llama-3.1-8b", "1xh100-sxm", **given)
    assert caught.value.field == field


def test_a_model_is_needed():
    with pytest.raises(SpecError) as caught:
        PlanRequest(None, "1xh100-sxm")
    assert caught.value.field == "model"


@pytest.mark.parametrize("record", [PlanRequest, TrafficSpec])
def test_every_field_is_an_option_with_a_sentence_of_help(record):
    options = options_of(record)
    assert set(options) == set(record.model_fields)
    assert all(one.help.endswith(".") for one in options.values())
