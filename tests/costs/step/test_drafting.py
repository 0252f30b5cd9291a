"""What a step pays for its draft passes besides the tokens it verifies."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import step_work

H100 = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12, "fp8": 1978e12}, family="9")
NVLINK = links_of_layout(load_machine("hgx-h100-8"), tp=8)


def drafted(tokens: int, *, requests: float = 4.0, prompt: float = 0.0):
    what = StepWork(load_model("deepseek-v3"), uniform_checkpoint("fp8-block"), H100, NVLINK,
                    draft_tokens=tokens)  # fmt: skip
    points = StepPoints(*(np.array([one]) for one in (requests, 1000.0, prompt, prompt / 2)))
    return {name: float(column[0]) for name, column in step_work(what, layout=Layout(tp=8), points=points).items()}


def test_a_draft_pass_costs_the_host_a_quarter_of_a_step():
    # the scheduler runs once a step; a pass launches the MTP layer and the head, whose layers are counted by themselves
    assert [drafted(tokens)["host"] for tokens in (0, 1, 2, 4)] == [1.0, 1.25, 1.5, 2.0]


def test_each_draft_pass_launches_the_layers_that_draft():
    # DeepSeek-V3: 61 layers, 58 of them with experts; one MTP layer, which has experts as well
    for name, plain in (("layer", 61.0), ("moe_layer", 58.0), ("state_layer", 61.0)):
        assert [drafted(tokens)[name] for tokens in (0, 1, 3)] == [plain, plain + 1.0, plain + 3.0]


def test_nothing_is_drafted_while_nobody_decodes():
    with_drafts, without = (drafted(tokens, requests=0.0, prompt=512.0) for tokens in (3, 0))
    assert with_drafts == pytest.approx(without)
