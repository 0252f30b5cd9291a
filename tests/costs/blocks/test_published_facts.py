"""The catalogue against published figures: parameters, cache, sizes of checkpoints.

Parameters and cache: computed from the configs named in the entries; the expected integers were computed apart from
glmplan, from the same configs, and checked against the publishers' totals and running servers.
"""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model, model_aliases, model_names
from glmplan.costs.blocks.kinds import mixer_of
from glmplan.costs.blocks.stack import (
    cache_layout,
    checkpoint_bytes,
    model_cache_bytes_per_token,
    model_parameters,
    model_state_bytes,
)
from glmplan.present.model_page import published_bytes, published_total

# name: language model alone, as transformers 5.23.0 counts it on an empty device from the same shapes (the bias of a
# router and the table of a hash are no parameters there)
TRANSFORMERS = {
    "deepseek-v4-flash": 284332230231,
    "deepseek-v4-pro": 1572997179491,
    "glm-5.3-flash": 313326799870,
    "hy3": 295033528320,
    "hy4-preview": 769907389085,
    "inkling": 947025547842,
    "mistral-large-4-1t-a52b": 1050118202880,
    "muse-glimmer-30b": 27854780928,
    "muse-spark-open-816b-a42b": 819990536192,
    "qwen3.8-flash-next": 176943899520,
}
# weights of a repository as Hugging Face counts them, towers and drafting layers included: the index that the wheel
# llmfit 1.1.17 carries; tables that a file holds twice and second embeddings of drafting layers count as often
COUNTED = {
    "deepseek-r1": 684489845504,
    "deepseek-r1-distill-qwen-14b": 14770033664,
    "deepseek-v3": 684531386000,
    "deepseek-v3.1": 684531386000,
    "deepseek-v3.2": 685355329792,
    "deepseek-v4-flash": 290944616402,
    "deepseek-v4-flash-0731": 304180418494,
    "deepseek-v4-pro": 1598839674782,
    "deepseek-v4-pro-0813": 1650497936906,
    "deepseek-v4.1-flash": 763205315794,
    "ernie-4.5-21b-a3b": 21948655808,
    "gemma-3-12b": 12187325040,
    "gemma-3-27b": 27432406640,
    "gemma-4-12b": 11959730224,
    "gemma-4-26b-a4b": 25805936206,
    "gemma-4-31b": 31273088876,
    "glm-4.5": 358337791296,
    "glm-4.5-air": 110468824832,
    "glm-4.6": 356785898816,
    "glm-4.7": 358337791296,
    "glm-4.7-flash": 31221488576,
    "glm-5": 753864139008,
    "glm-5.1": 753864139008,
    "glm-5.2": 753329940480,
    "glm-5.3": 753329940480,
    "glm-5.3-flash": 321323031390,
    "gpt-oss-120b": 116829156672,
    "gpt-oss-20b": 20914757184,
    "hy3": 298786155776,
    "hy4-preview": 779960992733,
    "inkling": 952377623626,
    "inkling-small": 265956439090,
    "k-exaone-2.0-750b-a37b": 749357484800,
    "kimi-k2": 1026408235864,
    "kimi-k2-thinking": 1026408240256,
    "kimi-k2.5": 1026879376368,
    "kimi-k2.6": 1026879376368,
    "kimi-k2.7-code": 1026879376368,
    "kimi-k3": 2779931837184,
    "kimi-linear-48b-a3b": 49122681728,
    "llama-2-7b": 6738417664,
    "llama-3.1-405b": 405853388800,
    "llama-3.1-8b": 8030261248,
    "llama-3.2-3b": 3212749824,
    "llama-3.3-nemotron-super-49b-v1": 49867145216,
    "llama-4-maverick": 401583781376,
    "llama-4-scout": 108641793536,
    "mimo-7b": 7833409536,
    "mimo-v2-flash": 309785318400,
    "mimo-v2.5": 310775040000,
    "mimo-v2.5-pro": 1023182841600,
    "mimo-v2.6-flash": 310756322688,
    "mimo-v2.6-pro": 1024216603392,
    "minimax-m2": 228689764864,
    "minimax-m2.1": 228689764864,
    "minimax-m2.5": 228703644928,
    "minimax-m2.7": 228689764864,
    "minimax-m3": 427040140160,
    "mistral-7b": 7241732096,
    "mixtral-8x22b": 140630071296,
    "mixtral-8x7b": 46702792704,
    "muse-glimmer-30b": 29776626688,
    "nemotron-3-nano-30b-a3b": 31577937344,
    "nemotron-3-super-120b-a12b": 123611012096,
    "nemotron-3-ultra-550b-a55b": 560524578816,
    "nemotron-h-56b": 56324350464,
    "nemotron-nano-9b-v2": 8888227328,
    "qwen2.5-14b": 14770033664,
    "qwen2.5-32b": 32763876352,
    "qwen2.5-72b": 72706203648,
    "qwen3-0.6b": 751632384,
    "qwen3-1.7b": 2031739904,
    "qwen3-14b": 14768307200,
    "qwen3-235b-a22b": 235093634560,
    "qwen3-235b-a22b-2507": 235093634560,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-30b-a3b-2507": 30532122624,
    "qwen3-32b": 32762123264,
    "qwen3-4b": 4022468096,
    "qwen3-4b-2507": 4022468096,
    "qwen3-8b": 8190735360,
    "qwen3-coder-480b-a35b": 480154875392,
    "qwen3-coder-next": 79674391296,
    "qwen3-next-80b-a3b": 81324862720,
    "qwen3-vl-235b-a22b": 235670022896,
    "qwen3-vl-2b": 2127532032,
    "qwen3-vl-30b-a3b": 31070754032,
    "qwen3-vl-32b": 33357390064,
    "qwen3-vl-4b": 4437815808,
    "qwen3-vl-8b": 8767123696,
    "qwen3.5-122b-a10b": 125086497008,
    "qwen3.5-27b": 27781427952,
    "qwen3.5-35b-a3b": 35951822704,
    "qwen3.5-397b-a17b": 403397928944,
    "qwen3.5-9b": 9653104368,
    "qwen3.6-27b": 27781427952,
    "qwen3.6-35b-a3b": 35951822704,
    "qwen3.8-2.4t-a95b": 2446182725504,
    "qwen3.8-flash-next": 179999981459,
    "step-3.7-flash": 201365316160,
}
# models whose total nobody is known to publish or to have counted
NOWHERE = ("nemotron-3.5-lightning-30b-a3b",)
# name: total, MTP layers, active (no embedding), KV bytes a token in BF16 without index keys
TABLE = {
    "glm-4.5": (352797829024, 3988069792, 32856319904, 376832),
    "glm-4.5-air": (106852251264, 2375059584, 12803372672, 188416),
    "glm-4.6": (352797829024, 3988069792, 32856319904, 376832),
    "glm-4.7": (352797829024, 3988069792, 32856319904, 376832),
    "glm-4.7-flash": (29943393920, 643706176, 3579571840, 54144),
    "glm-5": (743911218432, 9952920576, 40833146112, 89856),
    "glm-5.1": (743911218432, 9952920576, 40833146112, 89856),
    "glm-5.2": (743377019904, 9952920576, 40298947584, 89856),
    "deepseek-v3": (671026419200, 11610068224, 36625618432, 70272),
    "deepseek-r1": (671026419200, 11610068224, 36625618432, 70272),
    "deepseek-v3.2": (671877944064, 11624027648, 37477143296, 70272),
    "kimi-k2": (1026408232448, 0, 31687095808, 70272),
    "kimi-k2.5": (1026408232448, 0, 31687095808, 70272),
    "qwen3-235b-a22b": (235093634560, 0, 21568433664, 192512),
    "qwen3-30b-a3b": (30532122624, 0, 3041867776, 98304),
    "qwen3-coder-480b-a35b": (480154875392, 0, 34541270528, 253952),
    "gpt-oss-120b": (116829156672, 0, 5132849472, 73728),
    "gpt-oss-20b": (20914757184, 0, 3608307264, 49152),
    "minimax-m2.5": (228689764864, 0, 10415956480, 253952),
    "llama-3.1-70b": (70553706496, 0, 69503033344, 327680),
    "llama-3.1-405b": (405853388800, 0, 403752042496, 516096),
    "glm-5.1-reap-160": (472076075232, 6328452000, 40788902112, 89856),
    "glm-5.1-reap-192": (562687789632, 7536608192, 40803650112, 89856),
    "glm-5.1-reap-154": (455086378782, 6101922714, 40786136862, 89856),
}
# totals with MTP layers, their own embedding and head, as counted on disk
ON_DISK = {
    "glm-4.5": 358337791296,
    "glm-4.5-air": 110468824832,
    "glm-5.1": 755767304448,
    "deepseek-v3": 684489845504,
    "glm-4.7-flash": 31221488576,
}
# published sizes that computed ones miss by more than 0.5 %, with the reason
MISSES = {
    ("glm-5.1-reap-192", "w4a16"): "the card does not say which tensors are left in 16 bits",
    ("glm-5", "nvfp4-lukealonso"): "the page rounds: '~410 GB', which fits only as GiB",
    ("glm-5.1", "fp8"): "the figure is memory in use on eight cards, not the size of the files",
    ("glm-5.2", "w4afp8"): "the post does not say the unit nor the group size of the INT4",
    ("minimax-m2.7", "nvfp4"): "the files hold attention in 32 bits, which engines load in 16",
    ("nemotron-3-super-120b-a12b", "nvfp4"): "more than the published recipe gives; the entry widens its weights",
    ("qwen3.5-35b-a3b", "gptq-int4"): "the file holds the order of the groups of each matrix, which engines drop",
    ("qwen3.6-35b-a3b", "gptq-int4"): "the file holds the order of the groups of each matrix, which engines drop",
    ("qwen3.5-397b-a17b", "gptq-int4"): "the file holds the order of the groups of each matrix, which engines drop",
    ("mimo-v2.6-flash", "mxfp4"): "the folder holds a drafter and an audio tokenizer",
    ("mimo-v2.6-pro", "mxfp4"): "the folder holds a drafter and an audio tokenizer, 9.9 GB with the MTP layers",
}


@pytest.mark.parametrize("name", TABLE)
def test_parameters_and_cache_of_a_model_are_those_of_its_config(name):
    total, mtp, active, kv = TABLE[name]
    model = load_model(name)
    count = model_parameters(model)
    assert count.total == pytest.approx(total, rel=1e-3)
    assert count.mtp == pytest.approx(mtp, rel=1e-3)
    assert count.active == pytest.approx(active, rel=1e-3)
    # llama.cpp keeps no index keys: the latent or the keys and values alone
    assert model_cache_bytes_per_token(model, "bf16", "llama.cpp") == kv
    assert model_cache_bytes_per_token(model, "int8", "llama.cpp") == kv / 2


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_weights_of_a_language_model_are_those_that_transformers_builds(name):
    assert model_parameters(load_model(name)).total == pytest.approx(TRANSFORMERS[name], rel=1e-5)


@pytest.mark.parametrize("name", COUNTED)
def test_weights_of_a_repository_are_as_many_as_are_counted_there_within_a_thousandth(name):
    model = load_model(name)
    count = model_parameters(model)
    language = (
        count.total,
        count.total + count.mtp,
        count.total + count.mtp + count.mtp_vocabulary,
        count.total + count.mtp + 2 * model.vocabulary * model.hidden * (model.mtp is not None),
        count.total + model.vocabulary * model.hidden * model.tied_embedding,
    )
    assert min(abs((one + model.extra_parameters) / COUNTED[name] - 1) for one in language) <= 1e-3


def test_deepseek_v4_1_multiplies_half_as_many_weights_with_a_prompt_as_with_an_answer():
    # "8B active per prompt token and 16B per output token" and "196.6B parameters" of tables:
    # vllm-project/recipes models/deepseek-ai/DeepSeek-V4.1-Flash.yaml
    count = model_parameters(load_model("deepseek-v4.1-flash"))
    head = 129280 * 5120
    assert count.active / 1e9 == pytest.approx(16.0, abs=0.5)
    assert (count.active_prompt - head) / 1e9 == pytest.approx(8.0, abs=0.5)
    assert count.looked_up / 1e9 == pytest.approx(196.6, abs=0.1)
    assert model_parameters(load_model("glm-5.3")).active_prompt == model_parameters(load_model("glm-5.3")).active


@pytest.mark.parametrize("name", ON_DISK)
def test_a_second_embedding_and_head_make_the_count_on_disk(name):
    model = load_model(name)
    count = model_parameters(model)
    second = 2 * model.vocabulary * model.hidden
    assert count.total + count.mtp + second == pytest.approx(ON_DISK[name], rel=1e-3)


@pytest.mark.parametrize("name", model_names())
def test_published_totals_agree_in_the_digits_printed_or_the_entry_says_why(name):
    found = published_total(load_model(name))
    if found is None:
        assert (name in COUNTED) != (name in NOWHERE)
    elif not found.agrees:
        assert found.why
        assert abs(found.computed / 1e9 / float(found.printed) - 1) < 0.03


@pytest.mark.parametrize(
    ("name", "checkpoint"), [(n, c.name) for n in model_names() for c in load_model(n).checkpoints if c.bytes_published]
)
def test_checkpoints_have_the_published_size_or_the_reason_is_known(name, checkpoint):
    model = load_model(name)
    one = model.checkpoint(checkpoint)
    size = published_bytes(one)
    error = abs(checkpoint_bytes(model, one) / size - 1)
    if (name, checkpoint) in MISSES:
        assert error > 0.005, f"{name} {checkpoint} agrees now; take it from the list"
        assert one.note
    else:
        assert error <= 0.005


#: files whose format has a fixed number of bits, and it [bit]: blocks of 32 with one scale, groups of 64 with two
FIXED = {"q8_0": 8.5, "mlx-8bit": 8.5, "mlx-6bit": 6.5, "mlx-5bit": 5.5, "mlx-4bit": 4.5, "bf16-gguf": 16.0}
#: files under such a name that keep what their model stores in FP4
STAY_FP4 = {("deepseek-v4-flash", "mlx-4bit"), ("deepseek-v4-pro", "mlx-4bit")}


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [(n, c.name) for n in model_names() for c in load_model(n).checkpoints if c.name in FIXED and c.bytes_published],
)
def test_a_published_file_of_a_format_of_fixed_width_has_that_width_over_the_counted_weights(name, checkpoint):
    bits = load_model(name).checkpoint(checkpoint).file_bits_per_weight
    same = bits == pytest.approx(FIXED[checkpoint], rel=0.007)
    assert same != ((name, checkpoint) in STAY_FP4)


def test_glm_5_1_caches_what_running_servers_print():
    glm = load_model("glm-5.1")
    # "29.32 GB -> 314,304 tokens" (SGLang, BF16), "19.12 GiB -> 329,792 tokens" (vLLM, FP8, with the MTP layer):
    # https://github.com/voipmonitor/rtx6kpro models/glm5.md and glm51-sglang-vllm-cc32-state
    assert model_cache_bytes_per_token(glm, "bf16", "sglang") == 100152
    assert model_cache_bytes_per_token(glm, "bf16", "sglang") == pytest.approx(29.32 * 2**30 / 314304, rel=1e-3)
    assert model_cache_bytes_per_token(glm, "fp8", "vllm", mtp=True) == 62252
    assert model_cache_bytes_per_token(glm, "fp8", "vllm", mtp=True) == pytest.approx(19.12 * 2**30 / 329792, rel=1e-3)
    # NVIDIA-NeMo/RL issue 3502: 21 of the 78 layers of GLM-5.2 run an indexer
    assert model_cache_bytes_per_token(load_model("glm-5.2"), "bf16", "sglang") == 92628


def test_caches_of_compressed_and_pooled_models_are_those_that_their_makers_state():
    # "890 bytes per token" (model card): four layers keep 288 + 68 B an entry, three of them one for two tokens; the
    # window of each of the 40 layers takes 528 B a token
    v41 = load_model("deepseek-v4.1-flash")
    layout = cache_layout("vllm")
    held = [mixer_of(v41.layers[name]).cache("nvfp4", layout) for name in v41.layer_names]
    assert sum(one.per_token for one in held) == 890
    assert {one.in_window for one in held} == {528}
    # 656 B of packed latent although there are no rotary values, and a key of 132 B for four tokens, in 11 layers
    # (vllm-project/vllm issue 53906); BF16 latents alone take 11 x 1,024 B
    glm = load_model("glm-5.3-flash")
    assert model_cache_bytes_per_token(glm, "fp8", "vllm") == 11 * (656 + 33)
    assert model_cache_bytes_per_token(glm, "bf16", "llama.cpp") == 11 * 1024
    # nvfp4_ds_mla: 256 B of values, 64 of rotary key, 32 of scales (vLLM 0.33.0, flashmla_sparse.py); 21 indexers
    assert model_cache_bytes_per_token(load_model("glm-5.2"), "nvfp4", "vllm") == 78 * 352 + 21 * 132
    assert model_state_bytes(glm, conv_bytes=0) == 34 * 64 * 128 * 128 * 4


def test_nvfp4_of_glm_5_and_glm_5_1_keep_different_classes_in_bf16():
    old, new = load_model("glm-5").checkpoint("nvfp4"), load_model("glm-5.1").checkpoint("nvfp4")
    assert old.formats["dense"] == old.formats["shared_experts"] == "nvfp4"
    assert new.formats["dense"] == new.formats["shared_experts"] == "bf16"
    assert old.formats["routed_experts"] == new.formats["routed_experts"] == "nvfp4"
    assert checkpoint_bytes(load_model("glm-5"), old) == pytest.approx(460816630272, rel=1e-3)
    assert checkpoint_bytes(load_model("glm-5.1"), new) == pytest.approx(465863164416, rel=1e-3)


@pytest.mark.parametrize("name", ["glm-5", "glm-5.1", "glm-5.1-reap-160", "glm-5.1-reap-192", "glm-5.1-reap-154"])
def test_entries_say_where_texts_disagree_with_the_config(name):
    text = " ".join(load_model(name).disagreements)
    assert ("7168" in text) if name in ("glm-5", "glm-5.1") else ("0xSero" in text)


def test_no_alias_stands_for_two_models():
    aliases = model_aliases()
    assert not set(aliases) & set(model_names())
    claimed = [alias.lower() for name in model_names() for alias in load_model(name).aliases]
    assert len(claimed) == len(set(claimed))


@pytest.mark.parametrize("name", model_names())
def test_every_entry_and_checkpoint_has_a_source_and_loads(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    for one in model.checkpoints:
        assert one.source
        assert checkpoint_bytes(model, one) > 0
    assert model.default_checkpoint in {one.name for one in model.checkpoints}
