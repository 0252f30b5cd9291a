"""Walls stand where their source says, in the versions it says, and nowhere else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.engines.defaults import _holds, engine_default
from glmplan.catalog.engines.limitations import (
    OPTIONS,
    engine_names,
    judge,
    load_engine,
    possible_walls,
    walls_for,
)
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.schema.engine import Conditions, Engine, Wall, number_test, version_key
from glmplan.catalog.schema.validation import validated
from glmplan.errors import SpecError, UnknownFact, UnknownName
from glmplan.io.runs.ledger import load_measurements

ENGINES = ("any", *engine_names())
WALLS = [(engine, wall) for engine in ENGINES for wall in load_engine(engine).walls]

GLM = frozenset({"mla", "dsa", "moe", "mtp"})
SIX_CARDS = dict(
    model="glm-5.1",
    features=GLM,
    weights="nvfp4",
    kv="bf16",
    accelerator="rtx-pro-6000-ws",
    compute_capability="12.0",
    count=6,
    tp=2,
    pp=3,
    dp=1,
    ep=1,
    dcp=1,
    link="pcie",
    graphs=True,
    mtp=0,
    context=131072,
    users=8,
)


def _ids(walls):
    return {wall.id for wall in walls}


def test_all_fifty_six_walls_of_the_ledger_are_there():
    # The list that voipmonitor/rtx6kpro gives up to 2026-05-04 has 56 rows.
    assert {wall.ledger for _, wall in WALLS} - {None} == set(range(1, 57))


def test_ids_are_unique_over_all_engines_and_name_their_engine():
    ids = [wall.id for _, wall in WALLS]
    assert len(ids) == len(set(ids))
    for engine, wall in WALLS:
        if engine in ("vllm", "sglang"):
            assert wall.id.startswith(f"{engine}-")


@pytest.mark.parametrize(("engine", "wall"), WALLS, ids=[wall.id for _, wall in WALLS])
def test_each_wall_says_what_happens_what_to_do_and_where_it_is_from(engine, wall):
    assert wall.effect and wall.do and wall.source
    assert set(wall.when.options) | set(wall.when.unless) <= OPTIONS.keys()
    assert set(wall.engines) <= set(engine_names())
    for measured in wall.measured:
        for text in filter(None, (measured.behind_wall, measured.free)):
            assert re.search(r"\d", text), f"{text!r} holds no figure"
            assert re.search(r"%|tok|\b(B|GB|GiB|s|ms|us|tokens|of|TOP/s|\d+k)\b|\d+$|\d\.\d", text)
    if wall.severity == "fallback":
        assert wall.fallback or wall.instead.model_dump(exclude_none=True) or wall.do


def test_every_option_decides_over_some_wall():
    used = {option for _, wall in WALLS for option in (*wall.when.options, *wall.when.unless)}
    assert used == set(OPTIONS)


def test_sparse_mla_on_sm120_with_stock_vllm_is_an_error_with_the_way_out():
    walls = walls_for(Conditions(engine="vllm", engine_version="0.19.0", **SIX_CARDS))
    first = next(wall for wall in walls if wall.id == "vllm-no-sparse-mla-on-sm120")
    assert first.severity == "error"
    assert first.instead.attention == "dense"
    assert "39594" in first.do
    assert "vllm-glm-moe-dsa-unknown-to-transformers" in _ids(walls)


def test_the_patch_turns_the_error_into_a_fallback():
    patched = Conditions(engine="vllm", engine_version="0.19.0", options=frozenset({"sm120-dense-patch"}), **SIX_CARDS)
    ids = _ids(walls_for(patched))
    assert "vllm-no-sparse-mla-on-sm120" not in ids
    assert "vllm-patched-dense-mla-on-sm120" in ids


def test_dense_fallbacks_say_whether_the_indexer_stays():
    def dense(engine, version, *options):
        walls = walls_for(Conditions(engine=engine, engine_version=version, options=frozenset(options), **SIX_CARDS))
        return {wall.instead.indexer for wall in walls if wall.instead.attention == "dense"}

    assert dense("vllm", "0.19.0") == dense("vllm", "0.19.0", "sm120-dense-patch") == {"dropped"}
    assert dense("sglang", "0.5.10", "flashinfer-attention-backend") == {None}, "its key cache is still allocated"
    assert dense("sglang", "0.5.10", "flashmla-sm120") == {"dropped"}, (
        "the model is taken off the list of sparse models"
    )


def test_stock_sglang_falls_back_to_dense():
    walls = walls_for(Conditions(engine="sglang", engine_version="0.5.10.post1", **SIX_CARDS))
    wall = next(wall for wall in walls if wall.id == "sglang-dense-instead-of-sparse-on-sm120")
    assert (wall.severity, wall.instead.attention) == ("fallback", "dense")


def test_the_same_model_on_hopper_and_datacenter_blackwell_meets_none_of_them():
    for name in ("h200-sxm", "b200-sxm"):
        part = load_accelerator(name)
        given = SIX_CARDS | {
            "accelerator": name,
            "compute_capability": part.compute_capability,
            "link": part.link_kind,
            "weights": "fp8",
            "pp": 1,
            "tp": 8,
        }
        walls = walls_for(Conditions(engine="sglang", engine_version="0.5.10", **given))
        assert walls == ()


@pytest.mark.parametrize(
    ("change", "engine", "wall"),
    [
        ({"mtp": 3}, "vllm", "pipeline-with-mtp"),
        ({"pp": 1, "tp": 6, "ep": 6}, "vllm", "vllm-expert-parallel-on-pcie"),
        ({"pp": 1, "tp": 6, "ep": 6}, "sglang", "sglang-expert-parallel-on-pcie"),
        ({"kv": "fp8", "engine_version": "0.5.10"}, "sglang", "sglang-fp8-kv-garbled-on-dense-path"),
        ({"context": 150000}, "sglang", "kv-splits-at-long-context"),
        ({}, "vllm", "cutlass-grouped-gemm-tactics-sm120"),
        ({"mtp": 1, "pp": 1}, "vllm", "vllm-triton-mla-graphs"),
        ({"dcp": 2, "kv": "fp8"}, "vllm", "vllm-mla-dcp-fp8-kv"),
        ({"pp": 1, "tp": 3}, "vllm", "vllm-custom-allreduce-group-sizes"),
    ],
)
def test_walls_stand_where_they_should_and_go_when_their_cause_goes(change, engine, wall):
    assert wall in _ids(walls_for(Conditions(engine=engine, **(SIX_CARDS | change))))
    harmless = SIX_CARDS | {"compute_capability": "10.0", "accelerator": "b200-sxm", "link": "nvlink"}
    harmless |= {"mtp": 0, "dcp": 1, "pp": 1, "tp": 2}
    assert wall not in _ids(walls_for(Conditions(engine=engine, **harmless)))


def test_what_was_not_said_makes_a_wall_possible_and_not_certain():
    given = Conditions(engine="vllm", model="glm-5.1", features=GLM, compute_capability="12.0")
    assert "pipeline-with-mtp" not in _ids(walls_for(given))
    assert "pipeline-with-mtp" in _ids(possible_walls(given))


def test_a_version_newer_than_the_last_sighting_makes_a_wall_possible():
    old = Conditions(engine="vllm", engine_version="0.19.0", **SIX_CARDS)
    new = Conditions(engine="vllm", engine_version="0.21.0", **SIX_CARDS)
    assert "vllm-019-moe-tp-regression" in _ids(walls_for(old))
    assert "vllm-019-moe-tp-regression" in _ids(possible_walls(new))
    older = Conditions(engine="vllm", engine_version="0.18.0", **SIX_CARDS)
    assert "vllm-019-moe-tp-regression" not in _ids((*walls_for(older), *possible_walls(older)))


def test_a_wall_ends_with_the_version_that_fixed_it():
    given = SIX_CARDS | {"kv": "fp8"}

    def stands(version):
        return "sglang-fp8-kv-tcgen05" in _ids(walls_for(Conditions(engine="sglang", engine_version=version, **given)))

    assert stands("0.5.10") and stands("0.5.9")
    assert not stands("0.5.10.post1") and not stands("0.6.0")
    rc = Conditions(engine="sglang", engine_version="0.5.10rc0", **given)
    assert "sglang-rc0-flashmla" in _ids(walls_for(rc))


def test_the_hardest_walls_come_first():
    severities = [wall.severity for wall in walls_for(Conditions(engine="vllm", **SIX_CARDS))]
    order = ["error", "unknown", "fallback", "quality", "memory", "slow"]
    assert severities == sorted(severities, key=order.index)


VERSIONS = [
    "0.5.9",
    "0.5.10rc0",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.19.0",
    "0.20.2rc1.dev249+local",
    "0.20.2",
    "1.2.0rc6.post2",
]


def test_versions_are_ordered_as_they_were_released():
    assert sorted(VERSIONS, key=version_key) == VERSIONS
    assert version_key("v0.19.0") == version_key("0.19") == version_key("0.19.0")
    assert version_key("b6918") < version_key("b9187")
    with pytest.raises(SpecError, match="is not a version"):
        version_key("nightly")


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_conditions_on_numbers_mean_what_they_say(number, bound):
    assert number_test(f">{bound}", number) == (number > bound)
    assert number_test(f"<={bound}", number) == (number <= bound)
    assert number_test(f"={bound}", number) == (number == bound)
    assert number_test(f"not in {bound},7", number) == (number not in (bound, 7))


@given(st.sampled_from(WALLS), st.integers(1, 16), st.integers(1, 8), st.integers(0, 6), st.booleans())
def test_saying_more_never_turns_an_absent_wall_into_a_standing_one(entry, tp, pp, mtp, graphs):
    engine, wall = entry
    name = "vllm" if engine == "any" else engine
    vague = Conditions(engine=name)
    exact = Conditions(engine=name, tp=tp, pp=pp, mtp=mtp, graphs=graphs)
    if judge(wall, vague) == "absent":
        assert judge(wall, exact) == "absent"
    if judge(wall, vague) == "stands" and not wall.until:
        assert judge(wall, exact) == "stands"


def test_unknown_engines_and_options_are_refused():
    with pytest.raises(UnknownName, match="nearest: vllm"):
        walls_for(Conditions(engine="vlm"))
    with pytest.raises(SpecError, match="nearest: force-p2p"):
        walls_for(Conditions(engine="vllm", options=frozenset({"force-p2"})))


def test_a_wall_without_any_condition_or_with_a_wrong_one_is_refused():
    wall = {
        "id": "x",
        "title": "x",
        "severity": "slow",
        "effect": "x",
        "do": "x",
        "source": "x",
    }
    with pytest.raises(SpecError, match="at least one condition"):
        validated(Wall, wall | {"when": {}})
    with pytest.raises(SpecError, match="not a condition on a number"):
        validated(Wall, wall | {"when": {"tp": "many"}})
    with pytest.raises(SpecError, match="before `until`"):
        validated(Wall, wall | {"when": {"tp": ">1"}, "since": "2.0", "until": "1.9"})
    entry = wall | {"when": {"tp": ">1"}}
    with pytest.raises(SpecError, match="appears twice"):
        validated(Engine, {"name": "x", "full_name": "x", "walls": [entry, entry]})


def test_defaults_follow_version_part_and_tp():
    # vllm-project/vllm pull request 38284; vllm/engine/arg_utils.py; sglang/srt/server_args.py
    assert engine_default("vllm", "gpu_memory_utilization", version="0.19.0") == 0.9
    assert engine_default("vllm", "gpu_memory_utilization", version="0.22.0") == 0.92
    assert engine_default("vllm", "gpu_memory_utilization") == 0.92
    # vllm/envs.py in the packages of 0.19.0 and 0.20.2
    assert engine_default("vllm", "profile_cuda_graph_memory", version="0.19.0") is False
    assert engine_default("vllm", "profile_cuda_graph_memory", version="0.20.2") is True
    card = {"memory": 80 * 2**30}
    assert engine_default("vllm", "max_num_batched_tokens", accelerator="h100-sxm", **card) == 8192
    assert engine_default("vllm", "max_num_batched_tokens", accelerator="a100-80gb-sxm", **card) == 2048
    assert engine_default("sglang", "cuda_graph_max_bs", tp=2, **card) == 256
    assert engine_default("sglang", "cuda_graph_max_bs", tp=8, **card) == 512
    assert engine_default("sglang", "chunked_prefill_size", memory=24 * 2**30) == 2048
    assert engine_default("trtllm", "free_gpu_memory_fraction") == 0.9
    with pytest.raises(UnknownFact, match="no source says"):
        engine_default("mlx", "max_num_seqs")


def test_every_part_with_memory_has_exactly_one_default_for_each_setting():
    for name in accelerator_names():
        memory = load_accelerator(name).memory
        if memory is None:
            continue
        for engine in engine_names():
            defaults = load_engine(engine).defaults
            for setting in {entry.setting for entry in defaults}:
                ours = [one for one in defaults if one.setting == setting and _holds(one, None, memory, name, 4)]
                assert len(ours) == 1, (name, engine, setting)


def test_no_measured_run_contradicts_the_releases_that_know_its_model():
    engines = {name for name in engine_names() if load_engine(name).families}
    stated = {
        (run.engine, run.engine_version, run.model)
        for run in load_measurements()
        # a release candidate may have what the wheels of releases show
        if run.engine in engines and run.engine_version and "rc" not in run.engine_version and not run.unusable
    }
    assert len(stated) > 100
    for engine, version, model in stated:
        walls = walls_for(Conditions(engine=engine, engine_version=version, model=model))
        assert [wall.id for wall in walls if wall.unknown_model] == []
