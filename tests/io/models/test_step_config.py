"""Step-3.7: heads of windowed layers, gates and drafting layers in the words of the published config.

The values are those that the tests of TensorRT-LLM find in the published files (`TestStep3p7Checkpoint`), and the
parameter counter of Hugging Face, as carried by the wheel llmfit 1.1.17, says what they add up to.
"""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import checkpoint_bytes, model_parameters
from glmplan.errors import SpecError
from glmplan.io.models.hf_config import model_from_config

KINDS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 12
NOT_CONVERTED = [
    "lm_head",
    *(f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(48) for name in "qkvog"),
    *(f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 1, 2, 45, 46, 47) for name in ("gate", "up", "down")),
    *(f"model.layers.{layer}.share_expert.{name}_proj" for layer in range(3, 45) for name in ("gate", "up", "down")),
    *(f"model.layers.{layer}.moe.gate" for layer in range(3, 45)),
    *(f"model.layers.{layer}.eh_proj" for layer in (45, 46, 47)),
    *(f"model.layers.{layer}.transformer.shared_head.output" for layer in (45, 46, 47)),
]
TEXT = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "max_seq_len": 262144,
    "max_position_embeddings": 262144,
    "vocab_size": 128896,
    "torch_dtype": "bfloat16",
    "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "use_moe": True,
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "norm_expert_weight": True,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "use_moe_router_bias": True,
    "need_fp32_gate": True,
    "att_impl_type": "GQA",
    "use_head_wise_attn_gate": True,
    "num_nextn_predict_layers": 3,
    "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0] * 12,
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072},
    "yarn_only_types": ["full_attention"],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12,
    "use_rope_layers": [True] * 48,
    "sliding_window": 512,
    "layer_types": KINDS,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 96,
        "num_attention_groups": 8,
        "head_dim": 128,
        "true_head_dim": 128,
    },
    "swiglu_limits": [0.0] * 43 + [7.0, 7.0] + [0.0] * 3,
    "swiglu_limits_shared": [0.0] * 43 + [16.0, 16.0] + [0.0] * 3,
    "tie_word_embeddings": False,
}
CONFIG = {
    "architectures": ["Step3p7ForConditionalGeneration"],
    "model_type": "step3p7",
    "text_config": TEXT,
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "modules_to_not_convert": NOT_CONVERTED,
    },
}


def test_the_published_config_gives_the_weights_that_hugging_face_counts_to_the_last_one():
    model = model_from_config(CONFIG, name="step")
    count = model_parameters(model)
    assert count.total + count.mtp + count.mtp_vocabulary == 199384301376
    assert model_parameters(load_model("step-3.7-flash")) == count
    assert [model.layers[name].mixer for name in ("full_sparse", "sliding_sparse")] == [
        load_model("step-3.7-flash").layers[name].mixer for name in ("full_sparse", "sliding_sparse")
    ]


def test_routed_experts_alone_are_fp8_as_large_as_the_files():
    model, known = model_from_config(CONFIG, name="step"), load_model("step-3.7-flash")
    tower = 2 * known.extra_parameters
    computed = checkpoint_bytes(model, model.checkpoints[0]) + tower
    assert computed == pytest.approx(checkpoint_bytes(known, known.checkpoint("fp8")), rel=1e-4)
    assert computed / 2**30 == pytest.approx(197.9, abs=0.05)


def test_a_config_that_names_no_heads_of_windowed_layers_says_that_those_of_full_ones_are_counted():
    text = {name: value for name, value in TEXT.items() if name != "attention_other_setting"}
    model = model_from_config({**CONFIG, "text_config": text}, name="step")
    assert "no heads of windowed layers" in (model.extra_note or "")


@pytest.mark.parametrize("share", [0, 1.5, True, "half"])
def test_a_share_that_is_none_is_refused(share):
    text = {**TEXT, "partial_rotary_factors": [share, 1.0, 1.0, 1.0] * 12}
    with pytest.raises(SpecError, match="partial_rotary_factors"):
        model_from_config({**CONFIG, "text_config": text}, name="step")


def test_layers_with_experts_may_be_a_list_and_nothing_else():
    text = {**TEXT, "moe_layers_enum": list(range(3, 45))}
    assert model_from_config({**CONFIG, "text_config": text}, name="step").stack == load_model("step-3.7-flash").stack
    with pytest.raises(SpecError, match="moe_layers_enum"):
        model_from_config({**CONFIG, "text_config": {**TEXT, "moe_layers_enum": "3 to 44"}}, name="step")
