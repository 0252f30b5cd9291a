"""Families of models: configs give the number of parameters that the reference counts, and the cache of layers."""

from __future__ import annotations

import pytest

from glmplan.costs.blocks.kinds import mixer_of
from glmplan.costs.blocks.stack import model_cache_bytes_per_token, model_parameters, model_state_bytes
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.hf_config import READERS, model_from_config
from glmplan.io.models.plain_architectures import PLAIN_FAMILIES
from tests.io.models.families import _UNTIED, FAMILIES, experts, fields, layers, vocabulary
from tests.io.models.published import PUBLISHED


def read(name):
    return model_from_config(FAMILIES[name].config, name=name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_gives_the_number_of_parameters_of_the_reference(name):
    model, counted = read(name), FAMILIES[name]
    total = model_parameters(model).total + model.extra_parameters
    assert total == pytest.approx(counted.total, rel=counted.within or 1e-12)
    assert model.not_understood == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_gives_the_published_number_of_parameters(name):
    model, counted = model_from_config(PUBLISHED[name].config, name=name), PUBLISHED[name]
    parameters = model_parameters(model)
    total = parameters.total + parameters.mtp + model.extra_parameters
    assert total == pytest.approx(counted.total, rel=counted.within or 1e-12)
    assert model.not_understood == ()


@pytest.mark.parametrize(
    ("name", "cached"),
    [
        # 4 of 40 layers attend: 2 x 8 heads x 128 in BF16
        ("granitemoehybrid 40x4096", 4 * 4096),
        # 4 of 32
        ("jamba 32x4096", 4 * 4096),
        # each of 44 layers: 2 x 2 heads x 128
        ("falcon_h1 44x3072", 44 * 1024),
        # 6 of 16 layers: 2 x 8 heads x 64
        ("lfm2 16x2048", 6 * 2048),
        # 10 of 80
        ("minimax_text_01 80x6144", 10 * 4096),
        # 2 latents of 512 + 64 in each of 28 layers
        ("longcat_flash 28x6144", 28 * 2 * 576 * 2),
    ],
)
def test_only_layers_with_attention_cache_tokens(name, cached):
    assert model_cache_bytes_per_token(read(name), "bf16", "vllm") == cached


@pytest.mark.parametrize(
    ("name", "layer", "state", "window"),
    [
        # 8192 channels of 16 values in FP32, and 3 tokens of them
        ("jamba 32x4096", "mamba_dense", 8192 * 16, 3 * 8192),
        # 64 heads of 128 x 128, no convolution
        ("minimax_text_01 80x6144", "linear", 64 * 128 * 128, 0),
        # `conv_L_cache` 3: two tokens of 2048 channels and no other state
        ("lfm2 16x2048", "conv", 0, 2 * 2048),
    ],
)
def test_recurrent_layers_hold_their_state(name, layer, state, window):
    model = read(name)
    mixer = mixer_of(model.layers[layer])
    assert (mixer.state_values, mixer.conv_values) == (state, window)
    assert model_state_bytes(model) > 0


@pytest.mark.parametrize(
    ("name", "cached"),
    [
        # 32 layers of one KV head of 64 values, in BF16
        ("tiiuae/falcon-7b", 32 * 2 * 64 * 2),
        # 60 layers of 8
        ("tiiuae/falcon-40b", 60 * 8 * 2 * 64 * 2),
        ("bigcode/starcoder", 40 * 2 * 128 * 2),
        # 3 of 32 layers attend
        ("ibm-ai-platform/Bamba-9B-v1", 3 * 8 * 2 * 128 * 2),
        # a latent of 512 + 64 values in 10 of 80 layers
        ("inclusionAI/Ring-2.5-1T", 10 * 576 * 2),
    ],
)
def test_old_and_hybrid_families_cache_what_their_attention_holds(name, cached):
    model = model_from_config(PUBLISHED[name].config, name=name)
    assert model_cache_bytes_per_token(model, "bf16", "vllm") == cached


def test_the_least_of_the_stated_contexts_counts():
    config = {**PUBLISHED["Qwen/Qwen-7B"].config, "max_position_embeddings": 32768, "seq_length": 8192}
    assert model_from_config(config, name="qwen").max_context == 8192


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gl198976/mpt-7b-instruct", "no_bias", False),
        ("MayaPH/FinOPT-Washington (opt-125m)", "do_layer_norm_before", False),
        # opt-350m projects its embedding
        ("MayaPH/FinOPT-Washington (opt-125m)", "word_embed_proj_dim", 512),
        ("poolside/Laguna-XS.2", "gating", "per-token"),
        ("inclusionAI/Ling-3.0-tiny", "no_kda_lora", False),
    ],
)
def test_a_form_of_a_family_that_is_not_modelled_is_refused_by_its_field(name, field, value):
    with pytest.raises(UnknownArchitecture, match=field):
        model_from_config({**PUBLISHED[name].config, field: value}, name="other")


@pytest.mark.parametrize("model_type", ["t5", "bart", "llada", "rwkv7", "zamba2"])
def test_models_without_a_plain_decoder_are_refused_with_the_reason(model_type):
    with pytest.raises(UnknownArchitecture, match="is refused: "):
        model_from_config({"model_type": model_type, "architectures": ["Other"]}, name="other")


def test_windows_of_a_family_follow_its_period():
    command = read("cohere2 64x12288")
    assert command.stack == "(sliding*3 full)*16"
    # full layers have no rotary positions
    assert [command.layers[name].mixer.rotary_dim for name in ("sliding", "full")] == [None, 0]
    assert read("gemma2 42x3584").stack == "(sliding full)*21"
    assert read("exaone4 30x2048").stack == "layer*30"


def test_a_window_as_long_as_the_context_is_none():
    phi = fields("phi3", (3072, 32, 32, 32, 8192, 32064), sliding_window=262144)
    assert model_from_config(phi, name="phi").layers["layer"].mixer.window is None


def test_absent_kv_heads_are_those_of_the_library_and_said():
    llama = model_from_config(fields("llama", (4096, 32, 32, None, 11008, 32000)), name="llama")
    assert llama.layers["layer"].mixer.kv_heads == 32
    assert llama.extra_note == "the config states no num_key_value_heads: 32 as the library takes it"
    mistral = model_from_config(fields("mistral", (4096, 32, 32, None, 14336, 32000)), name="mistral")
    assert mistral.layers["layer"].mixer.kv_heads == 8


def test_a_misspelled_field_is_no_absent_one():
    with pytest.raises(SpecError, match="num_key_value_heads: is missing"):
        model_from_config(fields("llama", (4096, 32, 32, None, 11008, 32000), n_key_value_heads=8), name="llama")


def test_kv_heads_of_a_family_without_a_default_are_still_asked_for():
    with pytest.raises(SpecError, match="num_key_value_heads: is missing"):
        model_from_config(fields("qwen2", (4096, 32, 28, None, 11008, 32000)), name="qwen")


def test_other_attention_of_a_family_is_refused_by_its_field():
    config = {**FAMILIES["hunyuan_v1_moe 32x4096"].config, "use_mla": True}
    with pytest.raises(UnknownArchitecture, match="use_mla"):
        model_from_config(config, name="hunyuan")


def test_experts_that_compute_nothing_are_not_read():
    # 12 of 768 are chosen, 256 of which are the identity
    assert read("longcat_flash 28x6144").layers["sparse"].ffn[1].topk == 8


def test_a_family_is_one_row_of_the_table():
    assert set(PLAIN_FAMILIES) <= set(READERS)


def parameters(config):
    model = model_from_config(config, name="family")
    assert model.not_understood == ()
    return model_parameters(model).total


def test_grok_2_has_a_dense_block_beside_its_experts():
    # xai-org/grok-2: 270 B
    config = fields("git", (8192, 64, 64, 8, 32768, 131072), moe_intermediate_size=16384, num_local_experts=8,
                    num_experts_per_tok=2, residual_moe=True, sliding_window_size=-1, attn_temperature_len=1024,
                    global_attn_every_n=1, router_logit_softcapping=30.0, output_multiplier_scale=0.5,
                    head_dim=128, **_UNTIED)  # fmt: skip
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    layer = attention + 3 * 8192 * 32768 + experts(8192, 8, 16384) + 4 * 8192
    assert parameters(config) == 64 * layer + vocabulary(131072, 8192, 2)


def test_kinds_of_layers_may_be_written_where_all_are_alike():
    smol = FAMILIES["smollm3 36x2048"].config
    assert parameters({**smol, "layer_types": ["full_attention"] * 36}) == FAMILIES["smollm3 36x2048"].total
    glm = FAMILIES["chatglm 40x4096"].config
    assert parameters({**glm, "num_hidden_layers": glm["num_layers"]}) == FAMILIES["chatglm 40x4096"].total


def test_shapes_of_layers_that_a_model_does_not_have_are_read_over():
    # ibm-granite/granite-4.0-micro: 3.40 B, with attention in every layer
    config = fields("granitemoehybrid", (2560, 40, 40, 8, 8192, 100352), shared_intermediate_size=8192,
                    num_local_experts=0, num_experts_per_tok=0, mamba_d_state=256, mamba_n_heads=128,
                    mamba_d_head="auto", position_embedding_type="rope", tie_word_embeddings=True,
                    layer_types=["attention"] * 40)  # fmt: skip
    assert parameters(config) == layers(40, 2560, heads=(40, 8, 64), ffn=3 * 2560 * 8192) + vocabulary(100352, 2560, 1)


def test_ling_2_keeps_the_type_of_ling_1_5():
    config = FAMILIES["bailing_moe_v2 20x2048"].config
    old = {**config, "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]}
    assert parameters(old) == FAMILIES["bailing_moe_v2 20x2048"].total
