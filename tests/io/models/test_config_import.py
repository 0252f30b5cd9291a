"""Importing `config.json`: what is read, and that what cannot be read is refused with the reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmplan.catalog.entries.models import load_model, load_model_file
from glmplan.catalog.files import write_atomically
from glmplan.catalog.formats import weight_format
from glmplan.catalog.schema.model import expand_stack
from glmplan.costs.blocks.stack import checkpoint_bytes, model_cache_bytes_per_token, model_parameters
from glmplan.errors import GlmplanError, SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import HARMLESS, STRUCTURAL, is_harmless, spell_stack
from glmplan.io.models.hf_config import READERS, model_from_config, read_hf_config
from glmplan.io.models.quantization import pattern_matches, read_rules
from glmplan.io.models.resolve import model_toml, resolve_model
from tests.io.models.configs import (
    DEEPSEEK_V4,
    DEEPSEEK_V4_1,
    GLM_5_1,
    GLM_5_1_NVFP4,
    GLM_5_2,
    GLM_NEXT,
    LLAMA,
)

SHARED = Path(__file__).parents[3].parent / "shared" / "facts"


def saved(folder, config, name="config.json"):
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_the_imported_config_of_glm_5_1_caches_100152_bytes_a_token(tmp_path):
    model = read_hf_config(saved(tmp_path, GLM_5_1))
    # four of seven tools read heads and head_dim and answer 1,277,952
    assert model_cache_bytes_per_token(model, "bf16", "sglang") == 100152
    assert model_parameters(model) == model_parameters(load_model("glm-5.1"))


def test_an_imported_model_is_routed_as_unevenly_as_the_catalogue_says(tmp_path):
    model = read_hf_config(saved(tmp_path, GLM_5_1))
    shares = [
        {ffn.busiest_fifth for kind in one.layers.values() for ffn in kind.ffn if ffn.kind == "experts"}
        for one in (model, load_model("glm-5.1"))
    ]
    assert shares == [{0.35}, {0.35}]


def test_the_imported_config_of_glm_5_2_caches_index_keys_in_21_layers_only(tmp_path):
    model = read_hf_config(saved(tmp_path, GLM_5_2))
    assert model_cache_bytes_per_token(model, "bf16", "sglang") == 92628
    assert model.stack == "dense*3 (sparse_shared_index*3 sparse)*18 sparse_shared_index*3"


def test_the_quantisation_beside_a_config_is_read_layer_by_layer(tmp_path):
    saved(tmp_path, GLM_5_1_NVFP4, "hf_quant_config.json")
    model = read_hf_config(saved(tmp_path, GLM_5_1))
    checkpoint = model.checkpoint("nvfp4")
    assert checkpoint.kv_default == "fp8"
    assert [one.layers for one in checkpoint.exceptions] == [(78,)]
    assert checkpoint_bytes(model, checkpoint) == pytest.approx(465863164416, rel=1e-3)


def test_a_pattern_without_a_dot_swallows_layers_10_to_19():
    config = {**GLM_5_1, "quantization_config": {**GLM_5_1_NVFP4["quantization"], "quant_method": "modelopt"}}
    config["quantization_config"]["exclude_modules"] = ["lm_head", "model.layers.1*"]
    careless = model_from_config(config, name="careless").checkpoint("nvfp4")
    named = {layer for one in careless.exceptions for layer in one.layers if "routed_experts" in one.formats}
    assert named == set(range(10, 20))
    config["quantization_config"]["exclude_modules"] = ["lm_head", "model.layers.1.*"]
    careful = model_from_config(config, name="careful").checkpoint("nvfp4")
    assert {layer for one in careful.exceptions for layer in one.layers} == {1}


@pytest.mark.parametrize(
    ("pattern", "name", "covers"),
    [
        ("model.layers.1.*", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1.*", "model.layers.17.mlp.up_proj", False),
        ("model.layers.0*", "model.layers.10.mlp.up_proj", False),
        ("re:.*self_attn.*", "language_model.layers.3.self_attn.q_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.3.mlp.experts.0.up_proj", False),
        ("lm_head", "lm_head", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", True),
    ],
)
def test_patterns_match_whole_names(pattern, name, covers):
    assert pattern_matches(name, pattern) is covers


def test_a_broken_pattern_is_named():
    with pytest.raises(SpecError, match="not a regular expression"):
        pattern_matches("a", "re:(")


@pytest.mark.parametrize("field", ["num_key_value_heads", "hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_missing_field_is_named_and_never_guessed(tmp_path, field):
    config = {key: value for key, value in LLAMA.items() if key != field}
    config[field + "_"] = 1
    with pytest.raises(SpecError, match=f"config.json: {field}: is missing; nearest field there: {field}_"):
        read_hf_config(saved(tmp_path, config))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-4", "0", "1.5", '"many"', "true", "[]", "1e30"])
def test_a_number_that_is_none_is_refused_with_file_field_and_value(tmp_path, value):
    text = json.dumps(LLAMA).replace('"hidden_size": 64', f'"hidden_size": {value}')
    with pytest.raises(SpecError, match="config.json: hidden_size"):
        read_hf_config(saved(tmp_path, text))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "\x00\x01", '{"model_type": "llama"' + "[" * 99])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    with pytest.raises(SpecError, match=r"config.json"):
        read_hf_config(saved(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere.json: cannot be read"):
        read_hf_config(tmp_path / "nowhere.json")


def test_an_unknown_architecture_is_named_with_the_nearest_known():
    with pytest.raises(UnknownArchitecture, match=r"'lama'.*LamaForCausalLM.*nearest: llama"):
        model_from_config({**LLAMA, "model_type": "lama", "architectures": ["LamaForCausalLM"]}, name="x")


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta", "modernbert"])
def test_an_embedding_model_is_refused_with_the_reason(model_type):
    with pytest.raises(UnknownArchitecture, match=f"'{model_type}' .*is refused: an embedding model") as caught:
        model_from_config({**LLAMA, "model_type": model_type}, name="x")
    assert "nearest" not in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"n_routed_experts": 64}, "n_routed_experts"),
        ({"compress_ratios": [4]}, "compress_ratios"),
        ({"sparse_attention_config": {"use_sparse_attention": True}}, "sparse_attention_config"),
    ],
)
def test_a_known_architecture_with_foreign_parts_is_not_read_as_plain_attention(extra, field):
    with pytest.raises(UnknownArchitecture, match=field):
        model_from_config({**LLAMA, **extra}, name="x")


@pytest.mark.parametrize(
    "extra",
    [
        {"num_memory_slots": 4096},
        {"router_groups": 2.0},
        {"memory_layers": [0, 3]},
        {"magic_config": {"use": True, "slots": [{"width": 512}]}},
    ],
)
def test_an_unknown_field_that_may_be_a_shape_is_refused_and_named_with_what_to_do(extra):
    (field,) = extra
    with pytest.raises(UnknownArchitecture, match=f"{field}.*take it out of the file"):
        model_from_config({**GLM_5_1, **extra}, name="x")
    wrapped = {"model_type": "kimi_k25", "text_config": LLAMA}
    with pytest.raises(UnknownArchitecture, match=field):
        model_from_config({**wrapped, **extra}, name="x")
    with pytest.raises(UnknownArchitecture, match=f"text_config.{field}"):
        model_from_config({**wrapped, "text_config": {**LLAMA, **extra}}, name="x")
    # the same fields at what they would be without effect
    assert not model_from_config({**GLM_5_1, field: None}, name="x").not_understood


def test_an_unknown_switch_is_named_and_the_rest_is_read(tmp_path):
    extra = {"use_magic_routing": True, "magic_kind": "wide", "magic_share": 0.25, "magic_eps": 1e-6, "other": False}
    model = model_from_config({**GLM_5_1, **extra}, name="x")
    assert model.not_understood == ("use_magic_routing", "magic_kind", "magic_share")
    assert model_parameters(model) == model_parameters(model_from_config(GLM_5_1, name="x"))
    write_atomically(tmp_path / "model.toml", model_toml(model))
    assert load_model_file(tmp_path / "model.toml") == model


def test_a_tower_that_is_not_counted_is_named():
    audio = {"model_type": "some_audio", "hidden_size": 1024}
    config = {"model_type": "kimi_k25", "text_config": LLAMA, "audio_config": audio, "audio_token_id": 7}
    assert model_from_config(config, name="x").not_understood == ("audio_config",)


def test_parts_of_a_config_are_looked_through_too():
    linear = {**GLM_NEXT["linear_attn_config"], "num_slots": 64}
    with pytest.raises(UnknownArchitecture, match="linear_attn_config.num_slots"):
        model_from_config({**GLM_NEXT, "linear_attn_config": linear}, name="x")


@pytest.mark.parametrize(
    "config", [GLM_5_1, GLM_5_2, LLAMA, GLM_NEXT, DEEPSEEK_V4, DEEPSEEK_V4_1], ids=lambda one: one["model_type"]
)
def test_every_field_of_a_known_architecture_is_understood(config):
    assert model_from_config(config, name="x").not_understood == ()


def test_a_field_is_harmless_for_one_reason_and_never_one_of_those_that_shape_a_layer():
    names = [name for found in HARMLESS.values() for name in found]
    assert len(names) == len(set(names))
    assert not any(is_harmless(name) for name in STRUCTURAL)


def test_other_attention_of_a_minimax_m2_is_refused():
    config = {**LLAMA, "model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert model_from_config({**config, "attn_type_list": [1, 1]}, name="x").stack == "sparse*2"
    with pytest.raises(SpecError, match="attn_type_list"):
        model_from_config({**config, "attn_type_list": [1, 0]}, name="x")


def test_compressed_layers_of_deepseek_v4_are_read_with_hash_routing_and_streams():
    model = model_from_config(DEEPSEEK_V4, name="v4")
    assert model.stack == "window_hash csa_hash (hca csa)*2"
    first, last = (model.layers[name] for name in (model.layer_names[0], model.layer_names[-1]))
    assert first.ffn[0].hash_vocabulary == 1000
    assert not first.ffn[0].router_bias
    assert last.ffn[0].hash_vocabulary == 0
    assert last.streams.streams == 4
    assert (last.mixer.ratio, last.mixer.overlapping, last.mixer.indexer.topk) == (4, True, 32)
    assert model.mtp.layers == 1
    assert model.layers[model.mtp.layer].mixer.ratio == 0
    assert model.checkpoints[0].formats["routed_experts"] == "mxfp4"
    assert model.checkpoints[0].default == "fp8-block"


def test_layers_of_deepseek_v4_1_share_entries_and_indices_and_end_prompts():
    model = model_from_config(DEEPSEEK_V4_1, name="v41")
    kinds = [model.layers[name] for name in model.layer_names]
    assert [kind.mixer.shared_kv for kind in kinds] == [False, False, True, False, True, True]
    assert [kind.mixer.indexer.reads_from_previous for kind in kinds[1:]] == [False, True, False, True, False]
    assert kinds[5].mixer.indexer.shared_keys
    assert kinds[5].mixer.indexer.candidates == 8 * 4
    assert [kind.decode_only for kind in kinds] == [False] * 4 + [True] * 2
    assert kinds[0].lookup.rows == 640
    assert kinds[0].lookup.reads == 3 * 2
    assert (model.mtp.block, model.mtp.layers, model.layers["draft"].ffn[0].experts) == (5, 3, 4)


def test_linear_layers_and_pooled_keys_of_the_heir_of_glm_5_1_are_read():
    model = model_from_config(GLM_NEXT, name="next")
    full = model.layers["full_sparse"].mixer
    assert (full.rope_dim, full.indexer.pool) == (0, 4)
    assert model.layers["linear_dense"].mixer.flavour == "kimi_delta"
    assert model.stack == "linear_dense linear_sparse*2 full_sparse"


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (DEEPSEEK_V4, "compress_ratios", [0, 4, 64, 4, 128, 4]),
        (DEEPSEEK_V4, "num_key_value_heads", 2),
        (DEEPSEEK_V4_1, "compress_ratios", [0, 2, 2, 4, 1, 1]),
        (GLM_NEXT, "layer_types", ["linear_attention", "linear_attention", "mamba", "deepseek_sparse_attention"]),
        (GLM_NEXT, "indexer_types", ["full", "shared", "full", "full"]),
    ],
)
def test_what_is_not_known_of_a_new_architecture_is_refused_with_its_field(config, field, value):
    with pytest.raises(SpecError, match=field):
        model_from_config({**config, field: value}, name="x")


def test_streams_of_an_architecture_that_is_not_known_to_have_them_are_refused():
    with pytest.raises(UnknownArchitecture, match="hc_mult"):
        model_from_config({**LLAMA, "hc_mult": 4}, name="x")


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(SpecError, match="num_key_value_heads"):
        model_from_config({**LLAMA, "num_key_value_heads": 3}, name="x")


def test_an_unknown_quantisation_method_is_refused():
    with pytest.raises(SpecError, match="quant_method"):
        model_from_config({**LLAMA, "quantization_config": {"quant_method": "magic"}}, name="x")


@pytest.mark.parametrize(
    ("stated", "scales"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "matrix"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "row"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "NVFP4"}}},
         "matrix"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
          {"num_bits": 8, "type": "float", "strategy": "channel"}}}}, "row"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
          {"num_bits": 8, "type": "float", "strategy": "tensor"}}}}, "matrix"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
          {"num_bits": 8, "type": "float", "strategy": "block"}}}}, None),
        ({"quant_method": "fp8"}, None),
    ],
)  # fmt: skip
def test_what_has_a_scale_in_fp8_is_read_where_the_config_says_it(stated, scales):
    assert read_rules({"quantization_config": stated}, None).fp8_scales == scales


@pytest.mark.parametrize(
    ("stated", "form"),
    [
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"},
                                  "input_activations": {"num_bits": 8, "type": "int"}}}}, "int8"),
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": None}}}, "bpw:8"),
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "group_size": 128}}}}, "bpw:8.125"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "bpw:8"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "bpw:8.1875"),
        ({"quant_method": "modelopt", "quant_algo": "W8A16"}, "bpw:8"),
        ({"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"}, "int8"),
    ],
)  # fmt: skip
def test_eight_bit_weights_compute_in_int8_only_with_activations_in_int8(stated, form):
    rules = read_rules({"quantization_config": {"quant_method": "compressed-tensors", **stated}}, None)
    assert rules.base == form
    assert weight_format(form).compute == ("int8" if form == "int8" else "bf16")


def test_the_language_part_of_a_multimodal_config_is_read_and_the_tower_noted():
    config = {
        "model_type": "kimi_k25",
        "text_config": {**LLAMA, "max_position_embeddings": 8192},
        "vision_config": {"vt_hidden_size": 1152},
    }
    model = model_from_config(config, name="x")
    assert model.max_context == 8192
    assert model.extra_parameters == 0
    assert "not counted" in model.extra_note


def test_a_list_too_short_for_the_layers_is_refused():
    with pytest.raises(SpecError, match="indexer_types.*78 layers"):
        model_from_config({**GLM_5_2, "indexer_types": ["full"]}, name="x")


def test_more_layers_than_any_model_has_are_refused_at_once():
    with pytest.raises(SpecError, match="num_hidden_layers.*is not between 1 and 10,000"):
        model_from_config({**LLAMA, "num_hidden_layers": 3_831_936}, name="x")


#: a hybrid of gated delta networks, as Qwen3.5 and Qwen3.8 have it
HYBRID = {
    "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "field", "value", "why"),
    [
        (HYBRID, "model_type", "qwen9", "is not an architecture that glmplan can compute"),
        (HYBRID, "hc_mult", 4, "glmplan does not know what it means"),
        (HYBRID, "layer_types", ["linear_attention"] * 3 + ["quantum_attention"], "is not a known kind of layer"),
        (HYBRID, "hidden_size", "big", "is not a whole number"),
        (HYBRID, "hidden_size", None, "is null"),
        (HYBRID, "num_hidden_layers", True, "is not a whole number"),
        (HYBRID, "num_hidden_layers", 10**12, "is not between 1 and 10,000"),
        (HYBRID, "moe_intermediate_size", [512, 512], "is not a whole number"),
        (HYBRID, "num_attention_heads", 16.5, "is not a whole number"),
        (HYBRID, "num_experts_per_tok", 5000, "topk 5000 is larger than experts 256"),
        (HYBRID, "num_experts_per_tok", "GONE", "is missing"),
        (DEEPSEEK_V4_1, "num_key_value_heads", -4, "is not between"),
        (DEEPSEEK_V4_1, "engram_layer_ids", [1, 2, 3], "has 3 layers, and engram_num_embeddings 1"),
        (DEEPSEEK_V4_1, "dspark_target_layer_ids", False, "is not a list of whole numbers"),
    ],
)
def test_a_config_broken_by_hand_is_refused_with_the_field(tmp_path, config, field, value, why):
    assert model_from_config(config, name="x").layers
    broken = {name: one for name, one in config.items() if name != field}
    broken |= {} if value == "GONE" else {field: value}
    with pytest.raises(SpecError) as found:
        read_hf_config(saved(tmp_path, broken))
    assert found.value.field == field and why in str(found.value) and "config.json" in str(found.value)


NONSENSE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from([GLM_5_2, LLAMA, HYBRID, GLM_NEXT, DEEPSEEK_V4_1]), st.data())
def test_nonsense_in_any_field_is_refused_or_read_but_never_crashes(config, data):
    field = data.draw(st.sampled_from(sorted(config)))
    try:
        model = model_from_config({**config, field: data.draw(NONSENSE)}, name="x")
    except GlmplanError:
        return
    assert model_parameters(model).total > 0


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=40))
def test_a_spelled_stack_expands_to_itself(names):
    assert expand_stack(spell_stack(names)) == names


@pytest.mark.parametrize(
    "name", ["glm-5.1", "kimi-k2.5", "gpt-oss-20b", "qwen3.5-397b-a17b", "gemma-4-26b-a4b", "kimi-k3"]
)
def test_a_model_written_as_toml_reads_back_equal(tmp_path, name):
    model = load_model(name)
    write_atomically(tmp_path / "model.toml", model_toml(model))
    assert load_model_file(tmp_path / "model.toml") == model


@pytest.mark.skipif(
    not SHARED.exists(), reason="compares with the real config files, which are not part of the project"
)
def test_every_real_config_imports_and_has_no_field_that_is_not_understood():
    refused = {}
    read = 0
    for path in sorted(SHARED.glob("configs*/*_config.json")):
        if path.name.endswith("hf_quant_config.json"):
            continue
        try:
            model = read_hf_config(path)
            assert checkpoint_bytes(model, model.checkpoints[0]) > 0
            assert model.not_understood == (), path.name
            read += 1
        except GlmplanError as error:
            refused[path.name] = str(error)
    assert read >= 86
    assert not refused


def test_readers_exist_for_the_families_of_the_catalogue():
    assert {"llama", "glm_moe_dsa", "deepseek_v3", "qwen3_5_moe_text", "gpt_oss", "gemma4_text", "nemotron_h"} <= set(
        READERS
    )


@pytest.mark.parametrize("field", ["rope_local_base_freq", "rope_ratio", "route_scale", "seed"])
def test_what_transformers_writes_of_positions_scales_and_seeds_passes(field):
    assert not model_from_config({**LLAMA, field: 10000.0}, name="x").not_understood


def test_a_file_is_read_once_until_it_changes(tmp_path):
    """A search for machines read it 207 times: 17 s of CPU for 4,000 layers."""
    path = saved(tmp_path, LLAMA)
    first = resolve_model(str(path))
    assert resolve_model(str(path)) is first
    saved(tmp_path, LLAMA | {"num_hidden_layers": LLAMA["num_hidden_layers"] + 2})
    os.utime(path, ns=(1, 1))
    assert len(resolve_model(str(path)).model.layer_names) == len(first.model.layer_names) + 2
