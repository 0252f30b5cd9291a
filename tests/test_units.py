"""Quantities are read exactly and strictly, and what is written reads back as the same number."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from glmplan.errors import SpecError
from glmplan.units import DIMENSIONS, Bytes, Seconds, Watts, format_quantity, parse_quantity


@given(st.sampled_from(sorted(DIMENSIONS)), st.floats(min_value=0, max_value=1e30, allow_subnormal=False))
def test_what_is_written_reads_back_as_the_same_number(dimension, value):
    assert parse_quantity(format_quantity(value, dimension), dimension) == value


@given(st.sampled_from(sorted(DIMENSIONS)), st.floats(min_value=1e-12, max_value=1e18), st.integers(3, 8))
def test_rounded_text_is_within_its_digits(dimension, value, digits):
    read = parse_quantity(format_quantity(value, dimension, digits), dimension)
    assert read == pytest.approx(value, rel=10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("1 GB", "bytes", 1e9),
        ("1 GiB", "bytes", 2**30),
        ("97887 MiB", "bytes", 97887 * 2**20),
        ("102_641_958_912 B", "bytes", 102641958912),
        ("1.792 TB/s", "bytes per second", 1.792e12),
        ("400 Gbit/s", "bytes per second", 50e9),
        ("500 TFLOP/s", "FLOP per second", 5e14),
        ("838 TOP/s", "FLOP per second", 8.38e14),
        ("12 us", "seconds", 12e-6),
        ("12 µs", "seconds", 12e-6),
        ("1.5 h", "seconds", 5400),
        ("0.6 kW", "watts", 600),
        ("1999 USD", "USD", 1999),
        ("3.6 USD/h", "USD per second", 0.001),
        ("1e3 ms", "seconds", 1),
    ],
)
def test_units_mean_what_they_say(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "words"),
    [
        ("96", "bytes", "has no unit"),
        ("96 gib", "bytes", "nearest: GiB"),
        ("96 gb", "bytes", "nearest: GB"),
        ("1.8 TB", "bytes per second", "nearest: TB/s"),
        ("nan GiB", "bytes", "not a finite number"),
        ("inf W", "watts", "not a finite number"),
        ("-1 W", "watts", "must not be negative"),
        ("lots", "watts", "not a number with a unit"),
        ("1,792 GB/s", "bytes per second", "not a number with a unit"),
        ("1e400 B", "bytes", "too large"),
        (96, "bytes", "must be text with its unit"),
        (None, "bytes", "must be text with its unit"),
        (True, "bytes", "must be text with its unit"),
    ],
)
def test_what_is_not_a_quantity_is_refused_with_the_reason(text, dimension, words):
    with pytest.raises(SpecError, match=words):
        parse_quantity(text, dimension)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_a_spec_error(text):
    with contextlib.suppress(SpecError):
        assert parse_quantity(text, "bytes") >= 0


def test_a_field_keeps_base_units_and_is_written_back_with_its_unit():
    class Part(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        memory: Bytes
        power: Watts | None = None

    part = Part.model_validate({"memory": "96 GiB", "power": "600 W"})
    assert (part.memory, part.power) == (96 * 2**30, 600.0)
    assert part.model_dump(mode="json") == {"memory": "96 GiB", "power": "600 W"}
    assert Part.model_validate_json(part.model_dump_json()) == part
    assert Part.model_json_schema()["properties"]["memory"]["type"] == "string"
    with pytest.raises(ValidationError, match="must be text with its unit"):
        Part.model_validate({"memory": 1.0})
    with pytest.raises(ValidationError, match="more than zero"):
        Part.model_validate({"memory": "0 B"})


def test_a_latency_may_be_zero():
    assert TypeAdapter(Seconds).validate_python("0 s") == 0


def test_units_are_imported_without_pydantic():
    code = "import sys, glmplan.units; sys.exit('pydantic' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
