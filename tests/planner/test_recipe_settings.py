"""`fit --recipe`: a plan with the settings that a campaign or recipe launched its servers with."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.io.runs.record import Run
from glmplan.planner.question import read_words
from glmplan.prediction.from_row import question_of
from glmplan.request.plan import PlanRequest

#: SemiAnalysisAI/InferenceX launches vLLM for gpt-oss on B200 with an FP8 cache and MXFP4 x MXFP8 kernels of experts
GPT = PlanRequest("gpt-oss-120b", "1xb200-sxm", engine="vllm", input=1024, output=1024, users=64, recipe="inferencex")


def test_a_plan_takes_what_the_recipe_sets_as_a_row_of_the_campaign_does():
    asked = read_words(GPT)
    row = question_of(Run("a", "gpt-oss-120b", "b200-sxm", weights="mxfp4", engine="vllm", accelerator_count=1, tp=1,
                          recipe="inferencex", protocol="closed-loop", concurrency=64.0, input_tokens=1024.0,
                          output_tokens=1024.0)).deployment  # fmt: skip
    assert asked.kv == row.kv == "fp8"
    for name in ("memory_fraction", "max_num_seqs", "max_num_batched_tokens", "expert_kernels", "graphs"):
        assert getattr(asked.settings, name) == getattr(row.settings, name)
    assert any(line.startswith("recipe inferencex: ") and "InferenceX" in line for line in asked.assumed)


def test_what_the_question_says_goes_before_the_recipe():
    asked = read_words(GPT.model_copy(update={"kv": "auto", "memory_fraction": 0.5, "max_num_seqs": 3}))
    assert asked.settings.memory_fraction == 0.5
    assert asked.settings.max_num_seqs == 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"recipe": "nobodys"}, "is no campaign or recipe"),
        ({"on": "1xl40s"}, "has no launch of gpt-oss-120b in mxfp4"),
    ],
)
def test_a_recipe_without_such_a_launch_is_refused_in_words(changes, match):
    with pytest.raises(SpecError, match=match) as found:
        read_words(GPT.model_copy(update=changes))
    assert found.value.field in ("recipe", "--recipe")
