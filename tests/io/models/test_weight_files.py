"""Exact bytes out of safetensors and GGUF files, and resolving what somebody types."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import checkpoint_bytes, model_parameters, uniform_checkpoint
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import SpecError, UnknownArchitecture, UnknownName
from glmplan.io.models.checkpoints import of_size
from glmplan.io.models.gguf import read_gguf_model
from glmplan.io.models.hf_config import model_from_config
from glmplan.io.models.resolve import resolve_model, with_size
from glmplan.io.models.safetensors_header import bytes_by_class, class_of, read_safetensors
from tests.io.models.configs import LLAMA


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [data, data + size]}
        data += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


def llama_tensors(kv=32):
    hidden, inner = 64, 128
    found = {
        "model.embed_tokens.weight": (320, hidden),
        "lm_head.weight": (320, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(2):
        base = f"model.layers.{layer}."
        found |= {
            base + "self_attn.q_proj.weight": (hidden, hidden),
            base + "self_attn.k_proj.weight": (kv, hidden),
            base + "self_attn.v_proj.weight": (kv, hidden),
            base + "self_attn.o_proj.weight": (hidden, hidden),
            base + "mlp.gate_proj.weight": (inner, hidden),
            base + "mlp.up_proj.weight": (inner, hidden),
            base + "mlp.down_proj.weight": (hidden, inner),
            base + "input_layernorm.weight": (hidden,),
            base + "post_attention_layernorm.weight": (hidden,),
        }
    return found


def write_model(folder, parts=2):
    (folder / "config.json").write_text(json.dumps(LLAMA))
    tensors = list(llama_tensors().items())
    shards = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        held = dict(tensors[part::parts])
        write_safetensors(folder / name, held)
        shards |= dict.fromkeys(held, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_a_folder_gives_exact_bytes_that_equal_the_computed_ones(tmp_path):
    write_model(tmp_path)
    choice = resolve_model(str(tmp_path))
    total = sum(choice.exact_bytes.values())
    assert total == checkpoint_bytes(choice.model, choice.checkpoint) == 2 * model_parameters(choice.model).total
    assert choice.exact_bytes["embedding"] == choice.exact_bytes["head"] == 320 * 64 * 2
    assert choice.exact_bytes["dense"] == 2 * 3 * 128 * 64 * 2
    assert choice.checkpoint.bytes_published == f"{total} B" and not choice.checkpoint.larger
    assert resolve_model(str(tmp_path / "model-00001-of-00002.safetensors")) == choice


def test_a_missing_shard_is_named(tmp_path):
    write_model(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SpecError, match=r"missing: model-00002-of-00002.safetensors"):
        read_safetensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(SpecError, match=r"missing: model-00002-of-00002.safetensors"):
        read_safetensors(tmp_path)


def test_a_shard_cut_short_is_refused(tmp_path):
    write_model(tmp_path, parts=1)
    file = tmp_path / "model-00001-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SpecError, match="incomplete"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 64, struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"]
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(SpecError, match="not a safetensors file"):
        read_safetensors(file)


@pytest.mark.parametrize(
    "index", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../b.safetensors"}}', "nope"]
)
def test_what_is_no_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(SpecError, match=r"index.json"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model.layers.3.mlp.experts.17.gate_proj.weight_scale_2", "routed_experts"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "shared_experts"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "norm"),
        ("model.layers.3.self_attn.indexer.wq_b.weight", "indexer"),
        ("model.layers.78.eh_proj.weight", "mtp_projection"),
        ("model.language_model.layers.3.linear_attn.in_proj_qkv.weight", "recurrent"),
        ("model.visual.blocks.3.attn.qkv.weight", "other"),
        ("blk.3.ffn_gate_exps.weight", "routed_experts"),
    ],
)
def test_tensors_are_told_apart_by_name(name, found):
    assert class_of(name) == found


def test_bytes_of_classes_add_up(tmp_path):
    write_model(tmp_path)
    rows = read_safetensors(tmp_path)
    assert sum(bytes_by_class(rows).values()) == sum(row.bytes for row in rows)


def write_gguf(path, **changes):
    from gguf import GGUFWriter

    writer, kv = GGUFWriter(path, changes.pop("architecture", "llama")), changes.pop("kv", 32)
    numbers = {
        "block_count": 2, "context_length": 4096, "embedding_length": 64, "feed_forward_length": 128,
        "attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 320,
    } | changes  # fmt: skip
    for key, value in numbers.items():
        if value is not None:
            writer.add_uint32(f"llama.{key}", value)
    names = {
        "model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
        "model.norm.weight": "output_norm.weight",
    }  # fmt: skip
    for name, shape in llama_tensors(kv).items():
        writer.add_tensor(names.get(name, name), np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_the_model_and_its_exact_bytes(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    choice = resolve_model(str(tmp_path / "tiny.gguf"))
    assert model_parameters(choice.model) == model_parameters(model_from_config(LLAMA, name="x"))
    assert checkpoint_bytes(choice.model, choice.checkpoint) == pytest.approx(sum(choice.exact_bytes.values()))
    assert choice.checkpoint.file_bits_per_weight == pytest.approx(16)


def test_what_llama_cpp_writes_of_rotary_positions_is_no_field_that_nobody_knows(tmp_path):
    write_gguf(tmp_path / "turned.gguf", **{"rope.dimension_count": 16})
    write_gguf(tmp_path / "tiny.gguf")
    turned, plain = (read_gguf_model(tmp_path / name)[0] for name in ("turned.gguf", "tiny.gguf"))
    assert turned.not_understood == () and turned.layers == plain.layers


def test_a_gguf_file_whose_tensors_do_not_fit_its_metadata_is_refused(tmp_path):
    write_gguf(tmp_path / "wrong.gguf", feed_forward_length=256)
    with pytest.raises(UnknownArchitecture, match="holds .* weights"):
        read_gguf_model(tmp_path / "wrong.gguf")


def test_a_gguf_file_without_kv_heads_has_one_for_each_query_head(tmp_path):
    # llama.cpp, src/llama-model.cpp: "n_head_kv is optional, if not specified defaults to n_head"
    write_gguf(tmp_path / "old.gguf", kv=64, **{"attention.head_count_kv": None})
    assert read_gguf_model(tmp_path / "old.gguf")[0].layers["layer"].mixer.kv_heads == 4
    # tensors of two KV heads contradict that
    write_gguf(tmp_path / "wrong.gguf", **{"attention.head_count_kv": None})
    with pytest.raises(UnknownArchitecture, match="holds .* weights"):
        read_gguf_model(tmp_path / "wrong.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 40, b"not a model" * 9])
def test_a_damaged_gguf_file_is_refused(tmp_path, content):
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=r"broken.gguf"):
        read_gguf_model(file)


def test_missing_parts_of_a_gguf_file_are_named(tmp_path):
    write_gguf(tmp_path / "big-00001-of-00002.gguf")
    with pytest.raises(SpecError, match="big-00002-of-00002"):
        read_gguf_model(tmp_path / "big-00001-of-00002.gguf")


@pytest.mark.parametrize(
    ("text", "model", "checkpoint"),
    [
        ("glm-5.1", "glm-5.1", "bf16"),
        ("GLM-5.1-NVFP4", "glm-5.1", "nvfp4"),
        ("zai-org/GLM-5.1-FP8", "glm-5.1", "fp8"),
        ("glm-5.1-q4_k_m", "glm-5.1", "q4_k_m"),
        ("glm-5.1-reap-160-nvfp4", "glm-5.1-reap-160", "nvfp4"),
        ("qwen3-235b", "qwen3-235b-a22b", "bf16"),
        ("gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
        ("llama-3.1-8b-q4_k_m", "llama-3.1-8b", "q4_k_m"),
        ("deepseek-r1", "deepseek-r1", "fp8"),
        ("deepseek-r1-nvfp4", "deepseek-r1", "nvfp4"),
        ("qwen3.6-27b-ud-q4_k_xl", "qwen3.6-27b", "q4_k_xl"),
    ],
)
def test_names_resolve_to_model_and_checkpoint(text, model, checkpoint):
    choice = resolve_model(text)
    assert (choice.model.name, choice.checkpoint.name) == (model, checkpoint)


@pytest.mark.parametrize("text", ["glm-6", "glm-5.4-nvfp4", "glm-5.1-nvfp5", "qwen3-236b", "inklings", "gpt-oss"])
def test_unknown_names_are_refused_and_nothing_is_substituted(text):
    with pytest.raises(UnknownName):
        resolve_model(text)


def test_an_empty_name_and_an_empty_folder_are_refused(tmp_path):
    for text in ("", "  ", str(tmp_path), str(tmp_path / "nowhere.json")):
        with pytest.raises(SpecError):
            resolve_model(text)


def test_a_file_of_something_else_is_named_itself_and_not_what_might_lie_beside_it(tmp_path):
    other = tmp_path / "quote.csv"
    other.write_text("a;b\n")
    with pytest.raises(SpecError, match="is no file of a model") as found:
        resolve_model(str(other))
    assert str(other) in str(found.value)


def write_index(folder, total, config=LLAMA):
    (folder / "config.json").write_text(json.dumps(config))
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": {"a": "model-00001-of-00002.safetensors"}})
    )
    return index


@pytest.mark.parametrize(("share", "smaller", "larger"), [(1.002, 0, 0), (1.08, 0, 0.08), (0.97, 0.03, 0)])
def test_an_index_without_its_shards_states_the_size_of_the_weights(tmp_path, share, smaller, larger):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plain = resolve_model(str(tmp_path))
    total = round(share * checkpoint_bytes(plain.model, plain.checkpoint))
    index = write_index(tmp_path, total)
    for path in (index, tmp_path):
        found = resolve_model(str(path))
        assert found.checkpoint.bytes_published == f"{total} B" and found.model.checkpoints == (found.checkpoint,)
        assert found.checkpoint.smaller == pytest.approx(smaller, abs=1e-3)
        assert found.checkpoint.larger == pytest.approx(larger, abs=1e-3)
        assert bool(found.notes) == (abs(share - 1) > 0.005)
    assert with_size(plain, total).checkpoint == found.checkpoint


@pytest.mark.parametrize("total", [0, "much", None, 1e15])
def test_a_size_that_cannot_be_that_of_the_files_is_refused(tmp_path, total):
    with pytest.raises(SpecError, match="size"):
        resolve_model(str(write_index(tmp_path, total)))


def test_files_without_draft_layers_are_known_by_their_size():
    glm = load_model("glm-5.1")
    whole = glm.checkpoint("bf16")
    less = whole.model_copy(update={"includes_mtp": False})
    found = of_size(glm, whole, checkpoint_bytes(glm, less))
    assert whole.includes_mtp and not found.includes_mtp and found.smaller == found.larger == 0


def test_weights_of_a_stated_size_lie_inside_the_interval_of_the_memory():
    """Muse-Glimmer NVFP4: files 8 % larger than its formats make gave 2.2 times the pool without a word."""
    model = load_model("qwen3-32b")
    computed = uniform_checkpoint("nvfp4")
    found = of_size(model, computed, 1.08 * checkpoint_bytes(model, computed))
    memory = rank_memory(model, found, layout=Layout(tp=1), kv="bf16", settings=MemorySettings())
    assert memory.larger == pytest.approx(0.08, abs=1e-3) and memory.smaller < 0.01
