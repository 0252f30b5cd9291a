"""Which kernel multiplies a weight format: rules cite their source and change what a step costs."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.engines.kernels import (
    KERNEL_FORMATS,
    _entries,
    attention_rule,
    expert_path,
    kernel_rule,
    misnamed_tables,
    shared_beside,
)
from glmplan.catalog.files import data_folder
from glmplan.catalog.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.costs.kernels.counts import expert_work
from glmplan.costs.kernels.utilisation import find_kernel_fit, kernel_fits, kernel_seconds
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.work import step_work
from glmplan.errors import SpecError
from glmplan.io.runs.record import Run, read_speculation
from glmplan.prediction.from_row import question_of


def test_every_rule_has_a_source_and_names_a_kernel_that_was_measured():
    file = data_folder("hardware_db") / "kernels.toml"
    rules = tomllib.loads(file.read_text(encoding="utf-8"))["kernels"]
    assert rules
    parts = [fit for part in ("h200-sxm", "b200-sxm", "rtx-pro-6000-server") for fit in kernel_fits(part)]
    for rule in rules:
        measured = [fit for fit in parts if fit.kernel == rule.get("product", "experts")]
        assert rule["source"].startswith("https://")
        engine = rule.get("measured_with", rule["engine"])
        backend = rule.get("backend", "")
        like = [fit for fit in measured if fit.engine.split()[0] == engine and fit.precision == rule["runs_as"]]
        assert any(backend in fit.backend for fit in like)


def test_the_experts_of_a_row_choose_their_kernel():
    run = Run("a", "gpt-oss-120b", "rtx-pro-6000-server", engine="vllm", weights="mxfp4", tp=1, accelerator_count=1,
              phase="decode", concurrency=32.0)  # fmt: skip
    words = ("", "marlin", "flashinfer_cutlass mxfp4-mxfp8", "default")
    asked = [question_of(replace(run, moe_backend=word)).deployment.structure for word in words]
    assert [one.expert_kernels for one in asked] == ["", "marlin", "flashinfer_cutlass", ""]
    rules = [kernel_rule("vllm", "12", WEIGHT_FORMATS["mxfp4"], "experts", one.expert_kernels) for one in asked]
    assert [rule.form for rule in rules] == ["mxfp4", "mxfp4", "mxfp4-a8", "mxfp4"]
    points = StepPoints(*(np.full(1, value) for value in (32.0, 1024.0, 0.0, 0.0)))
    seconds = [step_work(one, layout=Layout(), points=points)["expert_bytes"][0] for one in asked]
    assert seconds[0] == seconds[3] and seconds[2] != seconds[1]


def test_a_format_runs_as_itself_unless_a_rule_says_otherwise():
    for name, form in WEIGHT_FORMATS.items():
        rule = kernel_rule("vllm", "9", form, "gemm")
        assert rule.engine == "vllm"
        if name in KERNEL_FORMATS:
            assert rule.form == name
    # a checkpoint's own mixture of bits is no format by name
    assert kernel_rule("llama.cpp", "", WeightFormat("q8_k_xl", 8.9, "bf16"), "gemm").form == "int4"
    assert kernel_rule("llama.cpp", "", WeightFormat("f16-mixture", 16.0, "bf16"), "gemm").form == "bf16"


def test_attention_rules_have_a_source_and_name_a_kernel_that_was_measured():
    file = data_folder("hardware_db") / "kernels.toml"
    fits = kernel_fits("rtx-pro-6000-server")
    for rule in tomllib.loads(file.read_text(encoding="utf-8"))["attention"]:
        assert rule["source"].startswith("https://")
        kernels = ("latent-decode", "latent-decode-block") if "mla" in rule["backend"] else ("decode-attention",)
        named = [fit for fit in fits if fit.kernel in kernels and rule["backend"] in fit.backend.lower()]
        assert any(fit.engine.startswith(rule["engine"]) for fit in named)
        if rule.get("latent_rows"):
            # stands in until somebody measures that kernel, and takes the rate of the engine's prompts
            assert not any(fit.kernel == "latent-decode" and rule["backend"] in fit.backend for fit in fits)
            assert any(fit.kernel == "prefill-attention" and rule["backend"] in fit.backend for fit in fits)
            continue
        # what a block costs is known of the kernel itself, or of the one like it in another engine's table
        blocks = [
            fit.params for fit in fits if fit.kernel == kernels[0] and rule["backend"].split("_")[0] in fit.backend
        ]
        assert rule.get("tile_rows") or all(one.block < 1e12 and 1e-10 < one.key < 1e-7 for one in blocks) and blocks
    assert attention_rule("sglang", "triton").verify_splits == 1
    assert attention_rule("sglang", "TRITON").splits == 8
    assert attention_rule("vllm", "FlashInfer FA2 MLA") == attention_rule("vllm", "flashinfer")


def test_collectives_of_another_table_have_a_source_and_were_measured():
    for rule in tomllib.loads((data_folder("hardware_db") / "kernels.toml").read_text(encoding="utf-8"))["collectives"]:
        assert rule["source"].startswith("https://")
        measured = [fit for fit in kernel_fits("b200-sxm") if fit.kernel == "all-reduce"]
        assert any(fit.engine.startswith(rule["measured_with"]) for fit in measured)
    ours, theirs = (_structure("llama-3.1-70b", "b200-sxm", engine, "fp8") for engine in ("vllm", "trtllm"))
    assert ours.collective() == theirs.collective()


def _decode_ms(backend, drafted, context, engine="sglang", kv="fp8", users=1.0):
    run = Run("one", "qwen3.5-397b-a17b", "rtx-pro-6000-ws", engine=engine, weights="nvfp4", kv_cache=kv, tp=4,
              accelerator_count=4, phase="decode", attention_backend=backend)  # fmt: skip
    structure = replace(question_of(run).deployment.structure, draft_tokens=drafted)
    one = np.ones(1)
    shared = one * context * (users > 1.0)
    points = StepPoints(one * users, one * context, one * 0, one * 0, decode_shared=shared)
    return float(step_work(structure, layout=Layout(tp=4), points=points)["cache"][0]) * 1e3


def test_triton_reads_a_long_context_as_slowly_as_was_measured():
    # SGLang 0.5.9 on four RTX PRO 6000: 74 tokens/s without context, 35 at 131,072 tokens, so 15 ms for reading it;
    # with drafting 130 and 29, at 2.5 to 4 tokens a step 70 to 110 ms (voipmonitor/rtx6kpro, vllm-vs-sglang.md)
    # the fit of single kernels, which knows nothing of these runs, is within a factor of two to three
    assert 7.5 < _decode_ms("triton", 0, 131072.0) - _decode_ms("triton", 0, 1.0) < 30.0
    assert 45.0 < _decode_ms("triton", 3, 131072.0) - _decode_ms("triton", 3, 1.0) < 250.0
    assert _decode_ms("flashinfer", 3, 131072.0) < 10.0


def test_blocks_that_compute_a_whole_tile_gain_no_more_from_cached_keys_than_their_product_keeps_up_with():
    # one block of 64 rows for each head walks through all keys: eight users of one prompt wait as long as one does
    # (47 and 49 ms a token for two and eight users at 83,361 tokens: voipmonitor/rtx6kpro inference-throughput)
    assert attention_rule("sglang", "triton", "12").tile_rows == 64
    assert attention_rule("sglang", "triton", "9").tile_rows == 0
    one, eight = (_decode_ms("triton", 5, 83361.0, users=users) for users in (1.0, 8.0))
    assert eight == pytest.approx(one, rel=0.25)
    assert _decode_ms("triton", 5, 83361.0, users=64.0) > one


def test_heads_and_drafts_of_one_latent_share_blocks_of_64_rows():
    # GLM-5 on eight RTX PRO 6000 by FlashInfer: reading 131,072 tokens takes 12.8 ms of a step without drafts (32.7 and
    # 19.8 ms) and 11.7 ms with six tokens verified (14.8 and 10.7 ms a token at 2.83 tokens a step; rtx6kpro wiki)
    def reading(drafted, tp=8, backend="flashinfer FA2 MLA (dense, DSA bypassed)"):
        run = Run("one", "glm-5", "rtx-pro-6000-ws", engine="sglang", weights="nvfp4", kv_cache="bf16", tp=tp,
                  accelerator_count=tp, phase="decode", attention_backend=backend)  # fmt: skip
        structure = replace(question_of(run).deployment.structure, draft_tokens=drafted, verify_only=True)
        points = StepPoints(np.ones(1), np.full(1, 131072.0), np.zeros(1), np.zeros(1))
        return float(step_work(structure, layout=Layout(tp=tp), points=points)["cache"][0])

    assert attention_rule("sglang", "flashinfer", "12").latent_rows == 64
    assert attention_rule("sglang", "flashinfer", "9").latent_rows == 0
    # 8 heads of six tokens are 48 rows; 16 heads of them 96, so two blocks
    assert reading(5) == pytest.approx(reading(0), rel=0.05)
    assert reading(5, tp=4) > 1.2 * reading(0, tp=4)
    assert reading(5, backend="triton") > 1.5 * reading(5)
    assert reading(0) == pytest.approx(12.8e-3, rel=0.5)


def test_a_library_takes_another_kernel_for_the_experts_from_so_many_pairs_on():
    file = data_folder("hardware_db") / "kernels.toml"
    assert all(
        one["source"].startswith("https://") for one in tomllib.loads(file.read_text(encoding="utf-8"))["experts"]
    )
    glm = Run("one", "glm-5", "rtx-pro-6000-ws", engine="sglang", weights="nvfp4", tp=8, accelerator_count=8,
              phase="decode", moe_backend="b12x (0.7.0)", measured_on="2026-03-30", concurrency=15.0)  # fmt: skip
    words = [question_of(replace(glm, **changes)).deployment.settings.moe_backend for changes in (
        {}, {"concurrency": 16.0}, {"concurrency": 64.0, "measured_on": "2026-04-07"}, {"concurrency": 81.0,
        "measured_on": "2026-04-07"}, {"moe_backend": "default"})]  # fmt: skip
    # 8 experts a token, so 128 pairs with 16 users; 640 since 0.7.2
    assert words == ["b12x", "b12x dynamic", "b12x", "b12x dynamic", ""]
    drafts = replace(glm, concurrency=3.0, speculation=read_speculation("mtp steps=4 draft=6", "", None, None))
    assert question_of(drafts).deployment.settings.moe_backend == "b12x dynamic"
    assert expert_path("vllm", "b12x", 1e6) == expert_path("sglang", "cutlass", 1e6) == ""


def test_flash_attention_2_verifies_drafts_with_one_core_for_each_head():
    # vLLM 0.17 on four RTX PRO 6000, INT4 with a BF16 cache and two drafted tokens: 17 ms a step without context, 65 at
    # 83,361 tokens, which their table calls 131,072; without drafting 0.9 ms more (voipmonitor/rtx6kpro)
    longer = [_decode_ms("", drafted, 83361.0, "vllm", "bf16") - _decode_ms("", drafted, 1.0, "vllm", "bf16")
              for drafted in (0, 2)]  # fmt: skip
    assert longer[0] < 2.0
    assert 40.0 < longer[1] < 56.0
    # an FP8 cache is read by FlashInfer, which splits it
    assert _decode_ms("", 2, 83361.0, "vllm", "fp8") < 5.0


def _structure(model, part, engine, weights):
    run = Run("one", model, part, engine=engine, weights=weights, accelerator_count=1, phase="decode")
    return question_of(run).deployment.structure


def test_parts_without_the_precision_multiply_in_bf16():
    structure = _structure("llama-3.1-8b", "a100-80gb-sxm", "vllm", "bf16")
    assert structure.runs_as(WEIGHT_FORMATS["nvfp4"], "gemm").compute == "bf16"


def test_products_and_experts_of_a_format_may_run_by_kernels_of_different_tables():
    nvfp4 = WEIGHT_FORMATS["nvfp4"]
    gemm, experts = (kernel_rule("trtllm", "10", nvfp4, product) for product in ("gemm", "experts"))
    assert (gemm.engine, gemm.backend) == ("sglang", "")
    assert (experts.engine, experts.backend) == ("sglang", "flashinfer_trtllm")
    assert kernel_rule("trtllm", "9", nvfp4, "gemm").engine == "trtllm"


def test_a_small_fp8_product_of_tensorrt_llm_does_not_pay_for_quantising_what_it_reads():
    # its table says 14.5 us for the smallest product on B200, vLLM's 6 (aiconfigurator-core 0.12.0)
    structure = _structure("llama-3.1-70b", "b200-sxm", "trtllm", "fp8")
    params = structure.kernel("gemm", structure.runs_as(WEIGHT_FORMATS["fp8"], "gemm"))
    assert 2e-6 < params.floor < 8e-6


def _expert_seconds(part, engine):
    one = np.array([64.0])
    points = StepPoints(one, one * 20, one * 0, one * 0)
    work = step_work(_structure("gpt-oss-120b", part, engine, "mxfp4"), layout=Layout(), points=points)
    return float(sum(work[name] for name in ("expert_fixed", "expert_bytes", "expert_flop"))[0])


def test_experts_of_gpt_oss_read_near_the_bandwidth_on_blackwell_with_tensorrt_llm():
    # 58 GiB of experts, 87 % of them visited by 64 users: 6.9 ms at the data sheet's 8 TB/s
    assert 6.0e-3 < _expert_seconds("b200-sxm", "trtllm") < 14e-3
    assert _expert_seconds("b200-sxm", "trtllm") < _expert_seconds("h200-sxm", "trtllm")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('weights = "mxfp5"\nsource = "https://example.org"', "is not a format"),
        ('weights = "mxfp4"\nruns_as = "mxfp4"\ncolour = "red"', "is not a field of kernels"),
        ('weights = "mxfp4"\nruns_as = "mxfp4"\nproduct = "head"\nsource = "https://example.org"', "is not a product"),
        ('weights = "mxfp4"\nruns_as = "mxfp4"', "has no source"),
    ],
)
def test_a_wrong_rule_names_file_and_field(tmp_path, monkeypatch, change, says):
    (tmp_path / "kernels.toml").write_text(
        f'[[kernels]]\nengine = "vllm"\nsilicon = ["9"]\n{change}\n', encoding="utf-8"
    )
    monkeypatch.setattr("glmplan.catalog.engines.kernels.data_folder", lambda name: tmp_path)
    _entries.cache_clear()
    try:
        with pytest.raises(SpecError, match=says) as caught:
            _entries()
        assert "kernels.toml" in str(caught.value)
    finally:
        _entries.cache_clear()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('engine = "x"\nbackend = "y"\nsplits = 8\nsource = "https://example.org"', "verify_splits"),
        ('engine = "x"\nbackend = "y"\nsplits = 0\nverify_splits = 1\nsource = "https://example.org"', "splits"),
        ('engine = "x"\nbackend = "y"\nsplits = 8\nverify_splits = 1', "has no source"),
    ],
)
def test_a_wrong_attention_rule_names_file_and_field(tmp_path, monkeypatch, entry, says):
    (tmp_path / "kernels.toml").write_text(f"[[attention]]\n{entry}\n", encoding="utf-8")
    monkeypatch.setattr("glmplan.catalog.engines.kernels.data_folder", lambda name: tmp_path)
    attention_rule.cache_clear()
    try:
        with pytest.raises(SpecError, match=says) as caught:
            attention_rule("x", "y")
        assert "kernels.toml" in str(caught.value)
    finally:
        attention_rule.cache_clear()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('engine = "vllm"\nbackend = "y"\nsource = "https://example.org"', "misnamed.note"),
        ('engine = "vllm"\nbackend = "y"\nnote = "z"', "has no source"),
        ('engine = "vllm"\nkernel = "y"\nnote = "z"\nsource = "https://example.org"', "is not a field of misnamed"),
    ],
)
def test_a_wrong_entry_of_a_misnamed_table_names_file_and_field(tmp_path, monkeypatch, entry, says):
    (tmp_path / "kernels.toml").write_text(f"[[misnamed]]\n{entry}\n", encoding="utf-8")
    monkeypatch.setattr("glmplan.catalog.engines.kernels.data_folder", lambda name: tmp_path)
    with pytest.raises(SpecError, match=says) as caught:
        misnamed_tables()
    assert "kernels.toml" in str(caught.value)


@pytest.mark.parametrize("said", ["", "  ", "default", "Default"])
def test_a_backend_that_says_nothing_prefers_no_kernel(said):
    assert attention_rule("vllm", said) == attention_rule("vllm", "")


def _r1_on_eight_b200(release, tokens=32.0):
    run = Run("one", "deepseek-r1", "b200-sxm", engine="vllm", engine_release=release, weights="fp8", tp=8,
              accelerator_count=8, phase="decode")  # fmt: skip
    points = StepPoints(np.full(1, tokens), np.full(1, 1500.0), np.zeros(1), np.zeros(1))
    return step_work(question_of(run).deployment.structure, layout=Layout(tp=8), points=points)


def test_shared_experts_beside_the_routed_ones_hide_what_their_products_take_whatever_their_size():
    rules = tomllib.loads((data_folder("hardware_db") / "kernels.toml").read_text(encoding="utf-8"))["beside"]
    assert all("https://" in rule["source"] for rule in rules)
    assert [shared_beside("vllm", "10", release) for release in ((0, 11, 0), (0, 11, 1), None)] == [0, 256, 256]
    assert shared_beside("vllm", "gfx942") == shared_beside("mlx", "9") == 0
    before, now = _r1_on_eight_b200((0, 11, 0)), _r1_on_eight_b200((0, 11, 1))
    hidden = float(before["gemm_fixed"][0] - now["gemm_fixed"][0]) * 1e3
    # 23.35 to 22.09 ms a token at 32 requests (vLLM pull request 26440); in the formula they wait for nothing
    assert hidden == pytest.approx(23.35 - 22.09, rel=0.3)
    assert all(before[slot][0] == now[slot][0] for slot in before if slot != "gemm_fixed")
    larger = [_r1_on_eight_b200(release, 257.0)["gemm_fixed"][0] for release in ((0, 11, 0), (0, 11, 1))]
    assert larger[0] == larger[1]


def test_projections_around_routed_experts_are_not_beside_them():
    both = [_structure("nemotron-3-super-120b-a12b", "h200-sxm", "vllm", "fp8")]
    both.append(replace(both[0], shared_beside=0.0))
    points = StepPoints(np.ones(1), np.full(1, 1500.0), np.zeros(1), np.zeros(1))
    beside, after = (step_work(one, layout=Layout(), points=points)["gemm_fixed"][0] for one in both)
    floor = both[0].kernel("gemm", both[0].runs_as(WEIGHT_FORMATS["bf16"], "gemm")).floor
    layers = both[0].stacks[0][1].moe
    # two products of the shared experts in each of these layers and not the one of the projections
    assert (after - beside) / (layers * floor) == pytest.approx(2.0, rel=0.6)


def test_experts_of_four_bits_run_as_marlin_in_every_release_of_vllm():
    for part, release in (("h200-sxm", (0, 16, 0)), ("b200-sxm", (0, 15, 1)), ("h200-sxm", (0, 24, 0))):
        found = find_kernel_fit(part, "experts", precision="int4", engine="vllm", release=release)
        assert "marlinexperts" in found.backend
        # a table that bears Marlin's name and is Triton's took 2.6 times as long as SGLang's Marlin
        other = find_kernel_fit(part.replace("b200", "h200"), "experts", precision="int4", engine="sglang")
        assert "marlin" in other.backend
        work = expert_work(tokens=64.0, experts=384.0, assignments=512.0, slots=512.0, touched=284.0, hidden=7168.0,
                           inner=256.0, weight_bytes=0.5625)  # fmt: skip
        rates = {"peak_flop": 989e12, "peak_bandwidth": 4.8e12}
        ratio = kernel_seconds(work, params=found.params, **rates) / kernel_seconds(work, params=other.params, **rates)
        assert 0.5 < ratio < 2.0


def test_experts_in_mxfp4_by_marlin_take_on_hopper_what_they_take_on_other_parts_and_in_int4():
    """Kimi-K3's, the only ones measured by Marlin there, take 40 us longer whatever their size."""
    rule = kernel_rule("vllm", "9", WEIGHT_FORMATS["mxfp4"], "experts", "marlin")
    assert (rule.form, rule.backend) == ("int4", "marlin")
    assert kernel_rule("vllm", "12", WEIGHT_FORMATS["mxfp4"], "experts", "marlin").form == "mxfp4"
    # a layer of gpt-oss-120b with four tokens on one of eight ranks
    work = expert_work(tokens=4.0, experts=128.0, assignments=16.0, slots=16.0, touched=16.0, hidden=2880.0,
                       inner=360.0, weight_bytes=0.53125)  # fmt: skip
    for part, bandwidth in (("h200-sxm", 4.8e12), ("h100-sxm", 3.35e12)):
        found = find_kernel_fit(part, "experts", precision=rule.form, engine=rule.engine, backend=rule.backend)
        seconds = kernel_seconds(work, params=found.params, peak_flop=989e12, peak_bandwidth=bandwidth)
        # 34 us on an RTX PRO 6000, which has half of the bandwidth and less (table of vLLM 0.24)
        assert float(seconds) == pytest.approx(36e-6, rel=0.15)
        far = find_kernel_fit(part, "experts", precision="mxfp4", engine="vllm", backend="marlin")
        assert kernel_seconds(work, params=far.params, peak_flop=989e12, peak_bandwidth=bandwidth) > 2.0 * seconds


def test_vllms_experts_in_mxfp4_and_mxfp8_are_of_the_table_that_holds_their_shape():
    rule = kernel_rule("vllm", "10", WEIGHT_FORMATS["mxfp4"], "experts", "flashinfer-mxfp8")
    assert (rule.form, rule.engine, rule.backend) == ("mxfp4-a8", "sglang", "flashinfer_trtllm")
    found = find_kernel_fit("b200-sxm", "experts", precision=rule.form, engine=rule.engine, backend=rule.backend)
    work = expert_work(tokens=4.0, experts=128.0, assignments=16.0, slots=16.0, touched=16.0, hidden=2880.0,
                       inner=2880.0, weight_bytes=0.53125, activation_bytes=1.03125)  # fmt: skip
    seconds = kernel_seconds(work, params=found.params, peak_flop=4.5e15, peak_bandwidth=7.7e12)
    # 53 us in SGLang's table
    assert float(seconds) == pytest.approx(53e-6, rel=0.2)


def test_experts_in_fp8_on_hopper_are_those_of_a_server_that_tunes_them():
    rule = kernel_rule("vllm", "9", WEIGHT_FORMATS["fp8"], "experts")
    tuned = find_kernel_fit("h200-sxm", "experts", precision="fp8", engine=rule.engine, backend=rule.backend)
    untuned = find_kernel_fit("h200-sxm", "experts", precision="fp8", engine="vllm", backend="flashinfer_cutlass")
    assert tuned is not None and untuned is not None
    work = expert_work(tokens=64.0, experts=128.0, assignments=512.0, slots=512.0, touched=126.0, hidden=4096.0,
                       inner=192.0, weight_bytes=1.0, activation_bytes=1.0)  # fmt: skip
    rates = {"peak_flop": 1978e12, "peak_bandwidth": 4.8e12}
    slow, fast = (kernel_seconds(work, params=one.params, **rates) for one in (untuned, tuned))
    # 684 and 121 us of the tables, as they stand
    assert slow == pytest.approx(684e-6, rel=0.3)
    assert fast == pytest.approx(121e-6, rel=0.3)


def test_experts_in_fp8_are_no_slower_than_in_bf16_where_the_part_computes_in_fp8():
    points = StepPoints(np.full(1, 32.0), np.full(1, 2300.0), np.zeros(1), np.zeros(1))
    for part in ("h100-sxm", "h200-sxm", "b200-sxm"):
        for engine in ("vllm", "sglang", "trtllm"):
            fp8, bf16 = (
                step_work(_structure("glm-4.7", part, engine, weights), layout=Layout(), points=points)
                for weights in ("fp8", "bf16")
            )
            assert fp8["expert_bytes"][0] < bf16["expert_bytes"][0], (part, engine)
