"""Low-rank adapters: what their two factors hold by hand, and how tensor parallelism splits them."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.auxiliary import adapter_factors
from glmplan.costs.blocks.stack import segments


def factors(name: str, tp: float, ep: float = 1.0):
    model = load_model(name)
    [part] = segments(model, model.checkpoint("bf16"))
    degree = np.array([tp])
    return part, adapter_factors(part.tensors, tp=degree, ep=np.array([ep]), expert_ranks=degree)


def test_an_adapter_of_llama_has_the_published_number_of_values():
    """PEFT prints 41,943,040 trainable parameters for rank 16 on all seven matrices of Llama 3.1 8B."""
    part, found = factors("llama-3.1-8b", 1.0)
    assert part.count * 16 * float(found.values[0]) == 41_943_040
    assert found.matrices == 7


def test_the_factor_beside_the_cut_is_split_and_the_other_is_whole_on_every_rank():
    # q, k, v: whole at 4096 inputs; o: split there; gate and up whole at the input; down split there
    _, found = factors("llama-3.1-8b", 4.0)
    whole = 3 * 4096 + 4096 + 2 * 4096 + 4096
    split = (4096 + 1024 + 1024) + 4096 + 2 * 14336 + 14336
    assert float(found.values[0]) == whole + split / 4


def test_each_expert_has_an_adapter_of_its_own():
    # 2048 wide, 128 experts of 768: gate and up from 2048 to 768, down back
    part, found = factors("qwen3-30b-a3b", 2.0)
    assert float(found.experts[0]) == 128
    assert float(found.expert[0]) == 2 * (2048 + 384) + 384 + 2048
    _, dealt = factors("qwen3-30b-a3b", 2.0, ep=2.0)
    assert float(dealt.experts[0]) == 64
    assert float(dealt.expert[0]) == pytest.approx(3 * (2048 + 768))
