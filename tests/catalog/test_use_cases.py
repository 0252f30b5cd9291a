"""Named lengths are those of public traces, and a given length counts instead."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.use_cases import use_case, use_cases
from glmplan.errors import SpecError
from glmplan.planner.question import read_words
from glmplan.purchase.size_question import read_size
from glmplan.request.plan import PlanRequest


def lengths(**said):
    asked = read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", **said))
    return asked.input_tokens, asked.output_tokens


@pytest.mark.parametrize("name", use_cases())
def test_a_plan_and_a_purchase_take_the_lengths_of_a_use_case(name):
    case = use_case(name)
    assert lengths(use_case=name) == (case.input, case.output)
    traffic = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, use_case=name).traffic
    assert (traffic.input, traffic.output) == (case.input, case.output)


def test_a_given_length_counts_instead_of_that_of_the_use_case():
    assert lengths(use_case="rag", output="64") == (use_case("rag").input, 64)
    traffic = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, use_case="rag", input=100).traffic
    assert (traffic.input, traffic.output) == (100, use_case("rag").output)


@pytest.mark.parametrize("ask", [lengths, lambda **said: read_size("llama-3.1-8b", "ttft p95 < 1 s", users=1, **said)])
def test_an_unknown_use_case_is_refused(ask):
    with pytest.raises(SpecError) as caught:
        ask(use_case="poetry")
    assert caught.value.field == "--use-case" and "rag" in caught.value.choices
