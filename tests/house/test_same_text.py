"""Generated text is compared as two processors write it: words and integers exactly, decimals to their last digit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_text import same_to_rounding


@given(st.floats(1e-3, 1e6), st.integers(1, 4))
def test_what_lies_between_two_numbers_may_be_written_as_either(value, digits):
    value = round(value, digits)  # what is halfway, as 0.95 and 1.05, is written two units apart
    text, other = (f"takes {value + shift:.{digits}f} ms" for shift in (0.0, 10.0**-digits))
    assert same_to_rounding(text, other)
    assert not same_to_rounding(text, f"takes {value + 3 * 10.0**-digits:.{digits}f} ms")


@pytest.mark.parametrize(
    ("written", "fresh"),
    [
        ("launch 7.90 us", "launch 7.90 ms"),
        ("launch 7.90 us", "hop 7.90 us"),
        ("103 rows, 1.00 s", "104 rows, 1.00 s"),
        ("SGLang 0.5.10", "SGLang 0.5.11"),
        ("glm-5.1 in 0.1 s", "glm-5.2 in 0.1 s"),
        ("1.0 and 2.0", "1.0"),
        ("-0.3", "0.3"),
        ("2.5e-7", "2.5e-6"),
        ("7.884 us", "7.901 us"),
    ],
)
def test_another_word_integer_version_sign_or_size_is_another_text(written, fresh):
    assert same_to_rounding(written, written)
    assert not same_to_rounding(written, fresh)
    assert not same_to_rounding(fresh, written)


def test_small_numbers_are_compared_by_their_own_last_digit():
    assert same_to_rounding("2.51e-07", "2.52e-07")
    assert not same_to_rounding("2.51e-07", "2.53e-07")
