"""Tokens that vLLM prints where layers of different kinds share pages, against the start-up logs of `calibration`."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.models import load_model
from glmplan.costs.memory import MemorySettings, PartMemory, RankMemory, kv_pool, rank_memory
from glmplan.costs.memory.ranks import CachedLayers, PagedLaunch, printed_tokens
from glmplan.costs.memory.settings import MemoryFit, Spread
from glmplan.costs.points import Layout

GIB = 2.0**30
ONE = np.ones(1)


def ranks(name: str, tp: int, *, kv: str, mtp: bool = False, **settings: object) -> RankMemory:
    """Memory of a catalogue model in its first checkpoint."""
    model = load_model(name)
    return rank_memory(
        model, model.checkpoints[0], layout=Layout(tp=tp), kv=kv, settings=MemorySettings(**settings), mtp=mtp
    )


def printed(memory: RankMemory, pool: float, longest: float, budget: float) -> float:
    """Tokens that a pool [GiB] is printed as."""
    paging = memory.settings.rule.paging_of(memory.settings.version)
    launch = PagedLaunch(16.0, longest * ONE, budget * ONE, memory.settings.drafted(memory.draft))
    return float(printed_tokens(pool * GIB * ONE, memory.stages[0].kinds, paging, launch)[0])


@pytest.mark.parametrize(
    ("name", "tp", "kv", "version", "mtp", "pool", "longest", "budget", "logged"),
    [
        # windows of 128 in every other layer
        ("gpt-oss-120b", 2, "bf16", "0.22.1", False, 88.77, 2068, 8192, 2_560_976),
        ("gpt-oss-120b", 8, "bf16", "0.22.1", False, 114.85, 2068, 8192, 13_252_813),
        # five windows of 1,024 to one full layer with pages half as wide
        ("gemma-4-26b-a4b", 1, "bf16", "0.25.1", False, 83.89, 262144, 2496, 3_875_400),
        # three recurrent layers to one of attention, of which the blocks grow to the size of a state
        ("qwen3.6-35b-a3b", 1, "fp8", "0.24.0", False, 6.01, 131072, 8192, 569_878),
        # before 0.21.0: the blocks that one group would get
        ("qwen3.6-35b-a3b", 1, "bf16", "0.19.2rc1.dev134", False, 47.55, 131072, 8192, 623_040),
        ("qwen3.5-27b", 4, "bf16", "0.19.0", False, 7.56, 50000, 2048, 123_088),
        # 40 states, 8 layers of attention and one that drafts: six groups of nine
        ("nemotron-3-super-120b-a12b", 1, "fp8", "0.19.2rc1.dev134", True, 36.25, 131072, 8192, 1_399_712),
    ],
)
def test_the_tokens_of_a_logged_pool_are_the_logged_ones(name, tp, kv, version, mtp, pool, longest, budget, logged):
    memory = ranks(name, tp, kv=kv, version=version, mtp=mtp)
    assert printed(memory, pool, longest, budget) == pytest.approx(logged, rel=3e-3)


def test_windows_hold_the_tokens_of_two_steps_from_026_on():
    pools = [ranks("gemma-4-26b-a4b", 1, kv="bf16", version=one) for one in ("0.25.1", "0.26.0")]
    one, two = (printed(memory, 40.0, 32768, 2496) for memory in pools)
    # 1,023 + 2,496 tokens are 220 blocks and one more, 1,023 + 4,992 are 376 and one more; five groups of windows
    # and 1,024 blocks of 32 for the full layers
    assert two / one == pytest.approx((1024 + 5 * 221) / (1024 + 5 * 377), rel=1e-3)


def test_a_model_of_one_kind_of_layer_prints_what_it_holds():
    memory = ranks("llama-3.1-8b", 1, kv="bf16", version="0.22.1")
    pool = kv_pool(memory, PartMemory(80 * GIB, 79 * GIB, 0.0, "pcie"), context=8192.0)
    assert pool.printed == pool.tokens and pool.printed_low == pool.tokens_low


def test_the_usable_figure_stands_beside_the_printed_one():
    memory = ranks("gpt-oss-120b", 2, kv="bf16", version="0.22.1")
    none = Spread(0.0, 0.0, 1)
    sure = MemoryFit(none, dict.fromkeys(("single", "pcie", "nvlink"), none), none, {"pooled": none})
    pool = kv_pool(memory, PartMemory(140 * GIB, 139 * GIB, 0.0, "nvlink"), context=2068.0, fit=sure)
    # a window layer keeps 128 tokens of a request, the printed figure counts the 2,068 of a whole step
    assert pool.tokens[0] / pool.printed[0] == pytest.approx(2 * 2068 / (2068 + 128), rel=0.01)
    longer = MemorySettings(version="0.22.1", longest=131072.0)
    model = load_model("gpt-oss-120b")
    told = rank_memory(model, model.checkpoints[0], layout=Layout(tp=2), kv="bf16", settings=longer)
    assert kv_pool(told, PartMemory(140 * GIB, 139 * GIB, 0.0, "nvlink"), context=2068.0, fit=sure).printed > (
        1.5 * pool.printed
    )


def test_kinds_of_nearly_as_many_layers_make_one_group_each():
    rule = load_memory_rule("vllm").paging_of("0.19.0")
    # 12 and 13 layers: two groups of 13, not three of 12 with two of them nearly empty
    kinds = tuple(
        CachedLayers(count * ONE, 1024.0 * ONE, window, 0.0 * ONE) for count, window in ((12, 128), (13, None))
    )
    found = printed_tokens(13 * 16 * 1024 * 100.0 * ONE, kinds, rule, PagedLaunch(16.0, 4096 * ONE, 2048 * ONE))
    assert found[0] == 100 // 2 * 16


def test_a_layout_whose_stage_holds_none_of_the_layers_divides_by_nothing():
    # several layouts at once: the second has no such stage, so that all counts are zero there
    rule, two = load_memory_rule("vllm").paging_of("0.22.1"), np.ones(2)
    held = np.array([12.0, 0.0])
    kinds = tuple(CachedLayers(held, 1024.0 * two, window, 0.0 * two) for window in (128, None))
    found = printed_tokens(1e9 * two, kinds, rule, PagedLaunch(16.0, 4096 * two, 2048 * two))
    assert found[0] > 0 and np.isfinite(found).all()


def test_an_empty_pool_prints_nothing():
    memory = ranks("gpt-oss-20b", 1, kv="bf16", version="0.22.1")
    assert printed(memory, 0.0, 2068, 8192) == 0.0
