"""Drafters with files of their own, or none: shapes, memory, steps, and what the answer says of them."""

import json

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import segments, uniform_checkpoint
from glmplan.errors import SpecError
from glmplan.io.models.drafters import with_drafter
from glmplan.planner.ask import fit_answer
from glmplan.planner.question import read_words
from glmplan.request.plan import PlanRequest

QWEN = load_model("qwen3-32b")
WHOLE = uniform_checkpoint("bf16")
DFLASH = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "block_size": 16, "tie_word_embeddings": False, "max_position_embeddings": 40960,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 16, 31, 46, 61]},
}  # fmt: skip
EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 5120,
    "intermediate_size": 25600, "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "draft_vocab_size": 32000, "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}  # fmt: skip


def folder(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def drafter_values(drafter):
    model = with_drafter(QWEN, drafter, [])
    parts = [part for part in segments(model, WHOLE, mtp=True) if part.name == "mtp"]
    return sum(part.bytes * part.count for part in parts) / 2


def test_a_draft_model_weighs_what_it_weighs_alone():
    small = load_model("qwen3-0.6b")
    alone = sum(part.bytes * part.count for part in segments(small, WHOLE)) / 2 + small.vocabulary * small.hidden
    assert drafter_values("qwen3-0.6b") == pytest.approx(alone, rel=1e-6)


def test_a_dflash_head_drafts_a_block_from_joined_states(tmp_path):
    model = with_drafter(QWEN, folder(tmp_path, DFLASH), [])
    assert (model.draft_block, model.draft_head.layers, model.draft_head.joined) == (15, 5, 5)
    layer = 5120 * 128 * (32 + 2 * 8 + 32) + 3 * 5120 * 17408
    assert drafter_values(str(tmp_path)) == pytest.approx(5 * layer + 5 * 5120 * 5120, rel=1e-3)


def test_an_eagle_head_reads_out_its_own_vocabulary(tmp_path):
    layer = 2 * 5120 * 128 * (64 + 2 * 8) + 64 * 128 * 5120 + 3 * 5120 * 25600
    expected = layer + 3 * 5120 * 5120 + 32000 * 5120
    assert drafter_values(folder(tmp_path, EAGLE)) == pytest.approx(expected, rel=1e-3)


def test_heads_of_the_speculators_library_are_those_of_plain_configs(tmp_path):
    """RedHatAI/Qwen3-32B-speculator.eagle3 nests the layers; so do its DFlash heads."""
    layers = {name: value for name, value in EAGLE.items() if name not in ("architectures", "draft_vocab_size")}
    nested = {"speculators_model_type": "eagle3", "draft_vocab_size": 32000, "transformer_layer_config": layers}
    assert drafter_values(folder(tmp_path, nested)) == drafter_values(folder(tmp_path, EAGLE))
    block = {"speculators_model_type": "dflash", "block_size": 16, "aux_hidden_state_layer_ids": [1, 16, 31, 46, 61]}
    inner = {name: value for name, value in DFLASH.items() if name not in ("dflash_config", "block_size")}
    found = with_drafter(QWEN, folder(tmp_path, block | {"transformer_layer_config": inner}), [])
    assert (found.draft_head.method, found.draft_block, found.draft_head.joined) == ("dflash", 15, 5)


def test_a_head_without_a_vocabulary_or_joined_states_is_of_eagle_1(tmp_path):
    """yuhuili/EAGLE-LLaMA3-Instruct-8B has the config of a model of one layer, and fc of two states."""
    plain = {name: value for name, value in EAGLE.items() if name != "draft_vocab_size"}
    layer = 5120 * 128 * (64 + 2 * 8) + 64 * 128 * 5120 + 3 * 5120 * 25600
    drafter = folder(tmp_path, plain | {"architectures": ["LlamaForCausalLM"]})
    assert drafter_values(drafter) == pytest.approx(layer + 2 * 5120 * 5120, rel=1e-3)
    head = with_drafter(QWEN, drafter, []).draft_head
    assert (head.method, head.joined, head.vocabulary) == ("eagle", 1, None)
    assert with_drafter(QWEN, folder(tmp_path, plain), []).draft_head.method == "eagle3"  # by its architecture
    asked = {
        "on": "1xh100-sxm",
        "mtp": "3",
        "acceptance": 2.0,
        "drafter": folder(tmp_path, plain | {"architectures": []}),
    }
    answers = [
        fit_answer(PlanRequest("qwen3-32b", engine=name, **asked), changes=False) for name in ("sglang", "trtllm")
    ]
    assert "--speculative-algorithm EAGLE " in " ".join(answers[0].command)
    assert [one.holding.terms.mtp for one in answers] == [3, 0]


def test_a_draft_model_of_several_kinds_of_attention_weighs_what_it_weighs_alone(tmp_path):
    large, small = load_model("gpt-oss-120b"), load_model("gpt-oss-20b")
    parts = [part for part in segments(with_drafter(large, "gpt-oss-20b", []), WHOLE, mtp=True) if part.name == "mtp"]
    alone = sum(part.bytes * part.count for part in segments(small, WHOLE))
    ends = 2 * 2 * small.vocabulary * small.hidden
    assert sum(part.bytes * part.count for part in parts) == pytest.approx(alone + ends, rel=1e-6)
    assert len({part.kind for part in parts}) == len(small.runs and set(small.layer_names)) == 2


def test_a_config_of_many_layers_is_a_draft_model(tmp_path):
    small = EAGLE | {"hidden_size": 1024, "num_hidden_layers": 8, "architectures": ["Qwen3ForCausalLM"]}
    small = {name: value for name, value in small.items() if name != "draft_vocab_size"} | {"model_type": "qwen3"}
    head = with_drafter(QWEN, folder(tmp_path, small), []).draft_head
    assert (head.method, head.layers, head.hidden) == ("draft_model", 8, 1024)


def test_a_draft_model_with_states_is_refused_with_the_next_step():
    with pytest.raises(SpecError, match="has recurrent layers .*; take --drafter mtp"):
        with_drafter(load_model("qwen3.5-27b"), "qwen3.5-0.8b", [])


def test_names_of_engines_are_those_of_drafters():
    asked = read_words(PlanRequest("glm-5.1-nvfp4", "8xb200-sxm", mtp="1", drafter="NEXTN"))
    assert asked.request.drafter == "mtp"


def test_lookups_hold_nothing_and_need_an_acceptance():
    assert drafter_values("ngram") == 0.0
    with pytest.raises(SpecError, match="needs --acceptance"):
        fit_answer(PlanRequest("qwen3-32b", "2xh100-sxm", mtp="4", drafter="suffix"), changes=False)


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        ("llama-3.2-3b", "a draft model needs the same"),
        ("eagle3", "is no part of qwen3-32b"),
        ("mtp", "is no part of qwen3-32b"),
        ("medusa", "is not planned; --drafter takes"),
        ("a-drafter", "is neither mtp, ngram, suffix"),
        ("qwen3.5-0.8b", "vocabulary"),
    ],
)
def test_a_drafter_that_does_not_fit_the_model_is_refused(drafter, message):
    with pytest.raises(SpecError, match=message):
        with_drafter(QWEN, drafter, [])


def test_a_head_of_another_width_is_refused(tmp_path):
    with pytest.raises(SpecError, match="the head is one of another model"):
        with_drafter(QWEN, folder(tmp_path, EAGLE | {"hidden_size": 4096}), [])


@pytest.mark.parametrize(
    ("engine", "drafter", "words"),
    [
        ("vllm", "ngram", '{"method":"ngram","num_speculative_tokens":4}'),
        ("vllm", "qwen3-0.6b", '{"method":"draft_model","model":"Qwen/Qwen3-0.6B","num_speculative_tokens":4}'),
        ("sglang", "ngram", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5"),
        ("sglang", "qwen3-0.6b", "--speculative-algorithm STANDALONE --speculative-draft-model-path Qwen/Qwen3-0.6B"),
        ("llama.cpp", "ngram", "--spec-type ngram-simple --spec-draft-n-max 4"),
    ],
)
def test_the_command_drafts_as_asked(engine, drafter, words):
    weights = {"weights": "q4_k_m"} if engine == "llama.cpp" else {}
    asked = PlanRequest("qwen3-32b", "1xh100-sxm", engine=engine, mtp="4", drafter=drafter, acceptance="1.5", **weights)
    assert words in " ".join(fit_answer(asked, changes=False).command)


def test_drafting_loses_at_a_load_that_fills_the_steps():
    """Each verified token visits experts of its own (vllm#47277 saw MiMo-V2.6-Flash slower with a drafted token)."""
    machine = {"tp": "2", "mtp": "1", "drafter": "ngram", "acceptance": 1.3, "users": "1,8"}
    answer = fit_answer(PlanRequest("mimo-v2.6-flash", "2xdgx-spark", **machine))
    plain = next(one for one in answer.changes if one.ask.startswith("--mtp 0"))
    assert plain.total_rate > 1.05 * answer.users[-1].total_rate.value


def test_the_question_for_an_acceptance_lists_what_was_published():
    asked = {"on": "1xh100-sxm", "drafter": "ngram", "mtp": 5}
    with pytest.raises(SpecError, match="edits of code 2.96 with 5 drafted"):
        fit_answer(PlanRequest("llama-3.1-8b", **asked))
    # of vLLM pull 24344: the log has 4.59, which is of the 993 steps with a draft alone
    assert pytest.approx(2.96, abs=0.01) == 5376 / (993 + 821) and pytest.approx(4.59, abs=0.01) == 1 + 3562 / 993
