"""Keys of GGUF metadata: those that llama.cpp writes pass, those that may count or widen something are refused."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from glmplan.costs.blocks.stack import model_parameters
from glmplan.errors import UnknownArchitecture
from glmplan.io.models.gguf import keys_read, read_gguf_model, unread_keys
from glmplan.io.models.hf_config import model_from_config
from tests.io.models.configs import GLM_5_1
from tests.io.models.test_weight_files import write_gguf

#: what every converter of text models writes (llama.cpp, conversion/base.py, TextModel.set_gguf_parameters)
EVERY = {
    "block_count": 48, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 12288,
    "attention.head_count": 32, "attention.head_count_kv": 8, "attention.causal": False,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32768,
    "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0, "rope.dimension_sections": [11, 11, 10, 0], "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4, "attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-5,
    "expert_count": 128, "expert_used_count": 8, "expert_group_count": 8, "expert_group_used_count": 4,
    "expert_gating_func": 2, "attention.key_length": 128, "attention.value_length": 128,
}  # fmt: skip
_SHARED = {"expert_feed_forward_length": 1536, "expert_shared_feed_forward_length": 512}
_LATENT = {
    "leading_dense_block_count": 3, "vocab_size": 129280, "attention.q_lora_rank": 1536, "attention.kv_lora_rank": 512,
    "attention.key_length_mla": 192, "attention.value_length_mla": 128, "expert_feed_forward_length": 2048,
    "expert_shared_count": 1, "expert_weights_scale": 3.0, "expert_weights_norm": True, "rope.dimension_count": 64,
    "rope.scaling.yarn_log_multiplier": 0.1,
}  # fmt: skip
#: what those of an architecture write beside it (llama.cpp, conversion/llama.py, qwen.py, deepseek.py, glm.py,
#: gpt_oss.py, minimax.py and gemma.py, read in November 2026)
WRITTEN = {
    "llama": {"vocab_size": 128256, "rope.dimension_count": 128, "tensor_data_layout": "Meta AI original pth"},
    "qwen2": {"pooling_type": 3},
    "qwen3": {"pooling_type": 3},
    "qwen3moe": _SHARED,
    "qwen3next": {
        **_SHARED, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096, "full_attention_interval": 4, "rope.dimension_count": 64,
    },
    "deepseek2": {**_LATENT, "nextn_predict_layers": 1},
    "glm4moe": {
        "rope.dimension_count": 64, "expert_feed_forward_length": 1536, "expert_shared_count": 1,
        "leading_dense_block_count": 3, "expert_weights_scale": 2.0, "expert_weights_norm": True,
        "nextn_predict_layers": 1,
    },
    "glm-dsa": {
        **_LATENT, "nextn_predict_layers": 1, "attention.indexer.head_count": 32,
        "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
        "attention.indexer.types": [True, True, True, False], "attention.indexer.top_k_frequency": 4,
        "attention.indexer.skip_top_k_offset": 3,
    },
    "gpt-oss": {"attention.sliding_window": 128, "expert_feed_forward_length": 2880},
    "minimax-m2": {"expert_feed_forward_length": 1536, "rope.dimension_count": 64},
    "gemma3": {"final_logit_softcapping": 30.0, "attention.sliding_window": 1024},
}  # fmt: skip


@pytest.mark.parametrize("architecture", WRITTEN)
def test_every_key_that_llama_cpp_writes_for_an_architecture_that_is_read_passes(architecture):
    keys = {f"{architecture}.{key}": value for key, value in (EVERY | WRITTEN[architecture]).items()}
    general = {"general.architecture": architecture, "general.file_type": 15, "tokenizer.ggml.tokens.length": 9}
    assert unread_keys(general | keys, architecture, keys_read(architecture), "a.gguf") == ()


def keys_of_the_package():
    """Every key of the gguf package that stands below an architecture."""
    from gguf.constants import Keys

    left, found = [Keys], set()
    while left:
        for value in vars(left.pop()).values():
            if inspect.isclass(value):
                left.append(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                found.add(value.removeprefix("{arch}."))
    return found


def test_of_the_keys_that_the_gguf_package_names_those_that_change_a_layer_are_refused():
    refused = set()
    for key in keys_of_the_package():
        try:
            unread_keys({f"llama.{key}": 4}, "llama", keys_read("llama"), "a.gguf")
        except UnknownArchitecture as error:
            assert f"llama.{key}" in str(error)
            refused.add(key)
    assert {
        "attention.shared_kv_layers", "attention.key_length_swa", "attention.value_length_swa", "kda.head_dim",
        "attention.sliding_window_pattern", "moe_latent_size", "expert_chunk_feed_forward_length", "wkv.head_size",
        "altup.num_inputs", "embedding_length_per_layer_input", "interleave_moe_layer_step", "shortconv.l_cache",
        "n_deepstack_layers", "ssm.inner_size", "full_attention_interval", "attention.key_length_mla",
    } <= refused  # fmt: skip
    assert refused.isdisjoint(EVERY)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_slots", 16),
        ("hyper_connection.count", 4),
        ("attention.sliding_window_pattern", 6),
        ("attention.value_length", 32),
    ],
)
def test_a_key_that_may_count_or_widen_something_is_refused_by_name(tmp_path, key, value):
    write_gguf(tmp_path / "odd.gguf", **{"attention.key_length": 16, key: value})
    with pytest.raises(UnknownArchitecture, match=rf"llama\.{key}"):
        read_gguf_model(tmp_path / "odd.gguf")


def test_a_list_of_switches_may_say_what_layers_are():
    given = {"llama.attention.sliding_window_pattern": [True, False], "llama.use_magic": True, "llama.mood": "calm"}
    with pytest.raises(UnknownArchitecture, match="sliding_window_pattern"):
        unread_keys(given, "llama", keys_read("llama"), "a.gguf")
    given.pop("llama.attention.sliding_window_pattern")
    assert unread_keys(given, "llama", keys_read("llama"), "a.gguf") == ("llama.use_magic", "llama.mood")


def test_a_switch_that_nobody_knows_is_named_and_the_rest_is_read(tmp_path):
    write_gguf(tmp_path / "plain.gguf")
    write_gguf(tmp_path / "switch.gguf", use_magic_routing=1)
    plain, switched = (read_gguf_model(tmp_path / name)[0] for name in ("plain.gguf", "switch.gguf"))
    assert plain.not_understood == () and switched.not_understood == ("llama.use_magic_routing",)
    assert switched.layers == plain.layers


def test_layers_without_tensors_of_an_indexer_take_the_choice_of_the_layer_before(tmp_path):
    from gguf import GGUFWriter

    small = {
        **GLM_5_1, "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "q_lora_rank": 64,
        "n_routed_experts": 8, "intermediate_size": 256, "moe_intermediate_size": 64, "index_n_heads": 4,
        "vocab_size": 512, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    shared = model_from_config({**small, "indexer_types": ["full", "full", "shared", "full"]}, name="shared")
    writer = GGUFWriter(tmp_path / "shared.gguf", "glm-dsa")
    numbers = {
        "block_count": 4, "context_length": small["max_position_embeddings"], "embedding_length": 256,
        "feed_forward_length": 256, "attention.head_count": 4, "attention.head_count_kv": 1, "vocab_size": 512,
        "attention.q_lora_rank": 64, "attention.kv_lora_rank": 512, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 256, "attention.value_length_mla": 256,
        "rope.dimension_count": 64, "leading_dense_block_count": 3, "expert_feed_forward_length": 64,
        "expert_count": 8, "expert_used_count": 8, "expert_shared_count": 1, "attention.indexer.head_count": 4,
        "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048,
    }  # fmt: skip
    for key, value in numbers.items():
        writer.add_uint32(f"glm-dsa.{key}", value)
    names = [f"blk.{layer}.indexer.attn_k.weight" for layer in (0, 1, 3)]
    for name in (*names, "output.weight"):
        writer.add_tensor(name, np.zeros(32, dtype=np.float16))
    rest = model_parameters(shared).total - 32 * 4
    writer.add_tensor("token_embd.weight", np.zeros(rest, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model, _ = read_gguf_model(tmp_path / "shared.gguf")
    assert model.layer_names == shared.layer_names
    assert model.layers == shared.layers != model_from_config(small, name="every layer its own").layers
