"""A draft head published apart: what it weighs, and what a step with it costs."""

import numpy as np
import pytest
from pydantic import ValidationError

from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.schema.model import DraftHead, ModelSpec
from glmplan.costs.blocks.stack import checkpoint_bytes, mtp_tensors, segments
from glmplan.costs.memory import rank_memory
from glmplan.costs.network.links import links_of_layout
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Part, StepWork
from glmplan.costs.step.work import step_work
from glmplan.io.models.resolve import resolve_model
from glmplan.present.model_page import model_text

KIMI = load_model("kimi-k2.5")
PLAIN = KIMI.model_copy(update={"draft_head": None})
BANDWIDTH = 1.792e12
CARD = Part("rtx-pro-6000-ws", bandwidth=BANDWIDTH, peaks={"bf16": 503.8e12, "fp8": 1007.6e12}, family="sm120")


def head_bytes(checkpoint: str) -> float:
    stored = KIMI.checkpoint(checkpoint)
    assert stored is not None
    return sum(part.bytes for part in segments(KIMI, stored, mtp=True) if part.name == "mtp")


def test_the_layer_reads_embedding_and_state_side_by_side():
    shapes = {one.name.rsplit(".", 1)[-1]: (one.rows, one.columns) for one in mtp_tensors(KIMI)}
    assert shapes["q_a_proj"] == (1536, 2 * 7168)
    assert shapes["kv_a_proj_with_mqa"] == (512 + 64, 2 * 7168)
    assert shapes["q_b_proj"] == (64 * 192, 1536)
    assert shapes["fc"] == (7168, 3 * 7168)


def test_a_head_is_bf16_whatever_the_model_is_stored_in_and_not_in_its_files():
    assert head_bytes("int4") == head_bytes("nvfp4") == 2 * sum(one.parameters for one in mtp_tensors(KIMI))
    for stored in KIMI.checkpoints:
        assert checkpoint_bytes(KIMI, stored) == checkpoint_bytes(PLAIN, stored)


def test_every_rank_holds_its_share_of_the_layer_and_of_the_head_of_its_own():
    stored = KIMI.checkpoint("int4")
    assert stored is not None
    one = Layout(tp=np.array([1]))
    with_head, without = (rank_memory(KIMI, stored, layout=one, kv="fp8", mtp=flag) for flag in (True, False))
    grown = float((with_head.weights - without.weights)[0])
    absorbed = 2 * 64 * (128 + 128) * 512  # the copy that latent attention keeps of its up-projection
    # PyTorch's allocator rounds tensors of more than 10 MiB
    assert grown == pytest.approx(head_bytes("int4") + absorbed + 2 * 163840 * 7168, rel=0.001)
    assert float(with_head.per_token[0] / without.per_token[0]) == pytest.approx(62 / 61)
    assert float(rank_memory(PLAIN, stored, layout=one, kv="fp8", mtp=True).weights[0]) == float(without.weights[0])


def test_each_pass_reads_the_layer_and_the_vocabulary_and_the_projection_runs_once():
    stored = KIMI.checkpoint("int4")
    assert stored is not None
    points = StepPoints(*(np.array([one]) for one in (1.0, 1000.0, 0.0, 0.0)))

    def read(drafts: int, *, verify_only: bool = False) -> float:
        link = links_of_layout(load_machine("8xrtx-pro-6000-ws"), tp=8)
        what = StepWork(KIMI, stored, CARD, link, engine="vllm", draft_tokens=drafts, verify_only=verify_only)
        return float(step_work(what, layout=Layout(tp=np.array([8])), points=points)["gemm_bytes"][0])

    once, (one, two, three) = 2 * 3 * 7168 * 7168, (read(n) - read(n, verify_only=True) for n in (1, 2, 3))
    assert two - one == pytest.approx(three - two, rel=1e-3)  # the projection has a row for each drafted token
    # what a pass reads at least: replicated down-projections, an eighth of the rest of the layer and of the vocabulary
    down = 2 * (1536 + 576) * 2 * 7168
    least = down + (head_bytes("int4") - down - once + 2 * 163840 * 7168) / 8
    assert least < (two - one) * BANDWIDTH < 2 * least
    assert once < (2 * one - two) * BANDWIDTH < 2 * once


def test_the_page_of_the_model_names_the_head():
    text = model_text(resolve_model("kimi-k2.5"))
    assert "a draft head of 1.84 B is published apart: lightseekorg/kimi-k2.5-eagle3-mla" in text


def test_a_head_names_a_described_layer_of_a_model_without_mtp():
    words = KIMI.model_dump(by_alias=True)
    for wrong, said in (
        (
            {"draft_head": DraftHead(repository="a/b", layer="none", source="s").model_dump()},
            r"draft_head\.layer 'none' is not a described layer kind: dense, sparse",
        ),
        ({"mtp": {"layers": 1, "layer": "dense"}}, "draft_head stands beside mtp"),
    ):
        with pytest.raises(ValidationError, match=said):
            ModelSpec.model_validate(words | wrong)
