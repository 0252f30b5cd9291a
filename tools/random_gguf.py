"""Write a small GGUF with random weights that a real llama.cpp server loads and generates from.

Kinds: dense (llama), moe (qwen3moe) and mla (deepseek2). The vocabulary holds the bytes and some English words, each
one token with the space before it; end and byte tokens have zero logits, so that greedy output is always words.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

WORDS = (  # noqa: SIM905
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up what about can"
).split()


@dataclass(frozen=True)
class Shape:
    """Sizes of a random model; names as in GGUF."""

    kind: str = "dense"
    embed: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 704
    experts: int = 8
    experts_used: int = 2
    expert_feed_forward: int = 192
    latent: int = 64
    query_latent: int = 96
    rope: int = 16
    context: int = 8192


def vocabulary() -> tuple[list[str], list[str]]:
    """Return tokens and merges of a byte-level BPE in which each word with its space is one token."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in names)
    names |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    tokens, merges = [names[byte] for byte in range(256)], []
    for word in WORDS:
        text = names[32] + word
        for end in range(2, len(text) + 1):
            if text[:end] not in tokens:
                tokens.append(text[:end])
                merges.append(f"{text[: end - 1]} {text[end - 1]}")
    return [*tokens, "<|end|>"], merges


def write(path: Path, shape: Shape, *, quantization: str = "F16", seed: int = 0) -> None:
    """Write the file."""
    arch = {"dense": "llama", "moe": "qwen3moe", "mla": "deepseek2"}[shape.kind]
    writer = gguf.GGUFWriter(path, arch)
    tokens, merges = vocabulary()
    end = len(tokens) - 1
    head = shape.embed // shape.heads
    writer.add_name(f"random {shape.kind}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embed)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(1 if shape.kind == "mla" else shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type({"F16": 1, "Q8_0": 7, "Q4_0": 2}[quantization])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.NORMAL] * end + [gguf.TokenType.CONTROL])
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)
    chance = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[quantization]

    def matrix(name: str, *size: int, zero_rows: list[int] | None = None) -> None:
        values = chance.standard_normal(size, dtype=np.float32) / np.sqrt(size[-1])
        if zero_rows:
            values[zero_rows] = 0.0
        if quantization == "F16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    matrix("token_embd.weight", len(tokens), shape.embed)
    ones("output_norm.weight", shape.embed)
    whole = {i for i, text in enumerate(tokens) if text[1:] in WORDS and len(text) > 1}
    matrix("output.weight", len(tokens), shape.embed, zero_rows=[i for i in range(len(tokens)) if i not in whole])
    if shape.kind == "moe":
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.expert_feed_forward)
        writer.add_key_length(head)
        writer.add_value_length(head)
    if shape.kind == "mla":
        writer.add_q_lora_rank(shape.query_latent)
        writer.add_kv_lora_rank(shape.latent)
        writer.add_key_length(shape.latent + shape.rope)
        writer.add_value_length(shape.latent)
        writer.add_key_length_mla(head + shape.rope)
        writer.add_value_length_mla(head)
        writer.add_rope_dimension_count(shape.rope)
        writer.add_leading_dense_block_count(shape.layers)
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.expert_feed_forward)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.0)
        writer.add_expert_weights_norm(True)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        writer.add_rope_dimension_count(head)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm.weight", shape.embed)
        ones(at + "ffn_norm.weight", shape.embed)
        if shape.kind == "mla":
            matrix(at + "attn_q_a.weight", shape.query_latent, shape.embed)
            ones(at + "attn_q_a_norm.weight", shape.query_latent)
            matrix(at + "attn_q_b.weight", shape.heads * (head + shape.rope), shape.query_latent)
            matrix(at + "attn_kv_a_mqa.weight", shape.latent + shape.rope, shape.embed)
            ones(at + "attn_kv_a_norm.weight", shape.latent)
            matrix(at + "attn_k_b.weight", shape.heads, shape.latent, head)
            matrix(at + "attn_v_b.weight", shape.heads, head, shape.latent)
        else:
            matrix(at + "attn_q.weight", shape.heads * head, shape.embed)
            matrix(at + "attn_k.weight", shape.kv_heads * head, shape.embed)
            matrix(at + "attn_v.weight", shape.kv_heads * head, shape.embed)
        matrix(at + "attn_output.weight", shape.embed, shape.heads * head)
        if shape.kind == "moe":
            ones(at + "attn_q_norm.weight", head)
            ones(at + "attn_k_norm.weight", head)
            router = chance.standard_normal((shape.experts, shape.embed), dtype=np.float32)
            writer.add_tensor(at + "ffn_gate_inp.weight", router)
            matrix(at + "ffn_gate_exps.weight", shape.experts, shape.expert_feed_forward, shape.embed)
            matrix(at + "ffn_up_exps.weight", shape.experts, shape.expert_feed_forward, shape.embed)
            matrix(at + "ffn_down_exps.weight", shape.experts, shape.embed, shape.expert_feed_forward)
        else:
            matrix(at + "ffn_gate.weight", shape.feed_forward, shape.embed)
            matrix(at + "ffn_up.weight", shape.feed_forward, shape.embed)
            matrix(at + "ffn_down.weight", shape.embed, shape.feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--kind", default="dense", choices=["dense", "moe", "mla"])
    parser.add_argument("--quantization", default="F16", choices=["F16", "Q8_0", "Q4_0"])
    chosen = parser.parse_args()
    write(chosen.path, Shape(kind=chosen.kind), quantization=chosen.quantization)
