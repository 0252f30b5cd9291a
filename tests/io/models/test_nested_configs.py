"""Language models inside multimodal configs: what such a config leaves out, and where it stands."""

from __future__ import annotations

import pytest

from glmplan.costs.blocks.stack import model_parameters
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.hf_config import model_from_config
from tests.io.models.families import fields

#: weights of Gemma 3's tower without its projection to the language model, whatever its size: the counters of the
#: repositories of 4b, 12b and 27b (4,300,079,472, 12,187,325,040 and 27,432,406,640) less the language model and
#: 1152 x hidden size
_GEMMA_TOWER = 416867184
_WINDOWED = {"model_type": "gemma3_text", "sliding_window": 1024}
_SHAPES = fields("qwen2_5_vl_text", (8192, 80, 64, 8, 29568, 152064), tie_word_embeddings=False)


def parameters(config):
    return model_parameters(model_from_config(config, name="nested")).total


@pytest.mark.parametrize(
    ("shapes", "counter"),
    [
        ({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}, 4300079472),
        ({"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
          "num_key_value_heads": 8}, 12187325040),
        ({"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
          "num_key_value_heads": 16, "head_dim": 128}, 27432406640),
    ],
)  # fmt: skip
def test_shapes_that_gemma_3_leaves_out_are_those_of_its_library(shapes, counter):
    config = {"model_type": "gemma3", "text_config": _WINDOWED | shapes}
    assert parameters(config) + 1152 * shapes["hidden_size"] + _GEMMA_TOWER == counter


def test_what_was_left_out_is_said():
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    model = model_from_config({"model_type": "llava", "text_config": text}, name="llava")
    # Llama-2-7B with 64 more words
    assert model_parameters(model).total == 6738415616 + 2 * 64 * 4096
    assert "no num_hidden_layers: 32 as the library takes it" in model.extra_note


def test_a_window_that_is_null_is_no_window():
    text = fields("mistral", (5120, 40, 32, 8, 14336, 131072), head_dim=128, sliding_window=None)
    del text["num_attention_heads"]
    model = model_from_config({"model_type": "llava", "text_config": text}, name="pixtral")
    assert model.layers["layer"].mixer.window is None
    assert model_parameters(model).total == 12247782400  # Mistral-Nemo-12B


def test_a_config_at_the_top_states_its_shapes():
    with pytest.raises(SpecError, match="num_hidden_layers: is missing"):
        model_from_config({"model_type": "llama", "hidden_size": 4096, "vocab_size": 32000}, name="llama")


def test_a_misspelled_field_of_a_nested_config_is_no_absent_one():
    text = _WINDOWED | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layer": 34}
    with pytest.raises(SpecError, match="num_hidden_layers: is missing"):
        model_from_config({"model_type": "gemma3", "text_config": text}, name="gemma")


@pytest.mark.parametrize(
    "config",
    [
        _SHAPES | {"model_type": "qwen2_5_vl", "vision_start_token_id": 1, "tokens_per_second": 2},
        {"model_type": "qwen2_5_vl", "text_config": _SHAPES},
        {"model_type": "internvl_chat", "llm_config": _SHAPES | {"model_type": "qwen2"}},
        {"model_type": "a_wrapper", "language_config": _SHAPES | {"model_type": "qwen2_vl_text"}},
        {
            "model_type": "qwen2_5_omni",
            "talker_config": {"hidden_size": 896},
            "thinker_config": {"text_config": _SHAPES},
        },
    ],
)
def test_the_language_model_is_found_where_each_library_writes_it(config):
    assert parameters(config) == 72706203648  # Qwen2.5-72B


@pytest.mark.parametrize(
    ("config", "total"),
    [
        # GLM-4.5-Air, whose language model GLM-4.5V has
        (fields("glm4v_moe_text", (4096, 46, 96, 8, 10944, 151552), head_dim=128, attention_bias=True,
                moe_intermediate_size=1408, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8,
                first_k_dense_replace=1, tie_word_embeddings=False), 106852251264),
        # microsoft/phi-2 has 2,779,683,840 with biases of its head and of 33 norms
        (fields("phi", (2560, 32, 32, 32, 10240, 51200), partial_rotary_factor=0.4, tie_word_embeddings=False),
         2779683840 - 51200 - 33 * 2560),
        # bigcode/starcoder2-15b has 15,957,889,024 with biases of 81 norms
        (fields("starcoder2", (6144, 40, 48, 4, 24576, 49152), use_bias=True, sliding_window=4096,
                tie_word_embeddings=False), 15957889024 - 81 * 6144),
    ],
)  # fmt: skip
def test_more_families_have_the_parameters_of_their_repositories(config, total):
    assert parameters(config) == total


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        # upstage/Solar-Open-100B: 102 B
        (fields("solar_open", (4096, 48, 64, 8, 10240, 196608), head_dim=128, moe_intermediate_size=1280,
                n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8, tie_word_embeddings=False), 102.6),
        # the shapes of transformers' Mistral4Config: 119 B
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral4"}}, 119.0),
        # facebook/cwm: 32 B
        (fields("cwm", (6144, 64, 48, 8, 21504, 128256), head_dim=128, sliding_window=8192,
                tie_word_embeddings=False), 32.6),
        # tencent/Youtu-LLM-2B: 1.96 B
        (fields("youtu", (2048, 32, 16, 16, 6144, 128256), kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128,
                qk_rope_head_dim=64, v_head_dim=128, tie_word_embeddings=True), 1.96),
    ],
)  # fmt: skip
def test_families_of_2026_have_the_size_of_their_names(config, billions):
    assert parameters(config) / 1e9 == pytest.approx(billions, abs=0.3)


def test_a_refused_architecture_says_what_can_be_given_instead():
    with pytest.raises(UnknownArchitecture, match="models show NAME --format toml"):
        model_from_config({"model_type": "persimmon"}, name="persimmon")
    with pytest.raises(UnknownArchitecture, match="phi-4-mini"):
        model_from_config({"model_type": "phi4mm"}, name="phi")
