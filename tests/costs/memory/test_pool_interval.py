"""What is not known of a launch makes its pool uncertain, each term as the engine's rule lets it in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.memory import MemorySettings, PartMemory, kv_pool, rank_memory
from glmplan.costs.memory.settings import MemoryFit, Spread
from glmplan.costs.points import Layout

GIB = 2.0**30
CARD = PartMemory(94 * GIB, 94 * GIB, 0.0, "pcie")
#: standard normal quantile of a 90 % interval [-]
Z = 1.644854


def pool(engine: str, *, context=(0.0, 0.0), remainder=0.0, part=CARD):
    """Pools of one card and of two; only what is given varies [GiB]."""
    known = Spread(GIB, 0.0, 1)
    single, pcie = (Spread(GIB, sd * GIB, 1) for sd in context)
    fit = MemoryFit(
        known, {"single": single, "pcie": pcie, "nvlink": known}, Spread(0.0, 0.0, 1),
        {"pooled": Spread(GIB, remainder * GIB, 1)},
    )  # fmt: skip
    model = load_model("llama-3.1-8b")
    settings = MemorySettings(engine=engine, fraction=0.9)
    memory = rank_memory(model, model.checkpoint("bf16"), layout=Layout(tp=np.array([1, 2])), kv="bf16",
                         settings=settings)  # fmt: skip
    return kv_pool(memory, part, fit=fit)


def test_a_pool_is_as_uncertain_as_the_context_that_the_launch_takes():
    # vLLM subtracts the context from its share; SGLang and TensorRT-LLM take a share of what it leaves
    for engine, passes in (("vllm", 1.0), ("sglang", 0.9), ("trtllm", 0.9), ("llama.cpp", 1.0)):
        found = pool(engine, context=(0.5, 2.0))
        np.testing.assert_allclose(found.sd / GIB, [0.5 * passes, 2.0 * passes], err_msg=engine)
    assert (pool("vllm").sd == 0.0).all()


def test_independent_uncertainties_add_as_squares():
    np.testing.assert_allclose(pool("vllm", context=(3.0, 3.0), remainder=4.0).sd / GIB, 5.0)


def test_the_interval_of_tokens_is_that_of_bytes_over_those_of_a_token():
    found = pool("vllm", context=(0.5, 2.0))
    # Llama-3.1-8B: 32 layers of 8 heads of 128, keys and values in BF16; two ranks hold half of the heads each
    each = 32 * 8 * 128 * 2 * 2 / np.array([1.0, 2.0])
    wide = 2 * Z * np.array([0.5, 2.0]) * GIB / each
    np.testing.assert_allclose(found.tokens_high - found.tokens_low, wide, atol=32)


def test_a_free_memory_that_was_measured_leaves_nothing_uncertain_of_it():
    measured = replace(CARD, free_before_load=93 * GIB)
    assert pool("sglang", context=(0.5, 2.0), part=measured).sd == pytest.approx(0.0)
