"""Every option of a launch command is in the published list of the release that the command is for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from glmplan.catalog.engines.recipes import known_flags, option_name
from glmplan.catalog.entries.models import load_model
from glmplan.errors import SpecError
from glmplan.planner import fit_answer, read_words
from glmplan.planner.capacity import Obstacles
from glmplan.planner.launch import launch_command
from glmplan.prediction.deployment import context_problem
from glmplan.request.plan import PlanRequest

#: words of a plan that bring options of their own
CASES = (
    ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {}),
    ("glm-5.1-fp8", "8xh200-sxm", {"tp": "8", "mtp": "3", "memory_fraction": "0.9", "max_num_seqs": 64}),
    ("glm-5.1-fp8", "8xb200-sxm", {"tp": "8", "dcp": "2", "kv": "fp8"}),
    ("deepseek-v3", "8xh200-sxm", {"tp": "1", "dp": "8", "ep": "8"}),
    ("deepseek-v4-flash", "4xb200-sxm", {}),
    ("gpt-oss-120b", "1xh100-sxm", {}),
    ("qwen3.8-flash-next", "8xh200-sxm", {}),
    ("inkling", "8xb300-sxm", {}),
    ("llama-3.1-70b", "4xl40s", {"context": "32768", "users": "8", "eager": True}),
)


def options_in(command):
    """Names of options outside of quoted values."""
    text = re.sub(r"python -m |'[^']*'|\"[^\"]*\"|\{[^}]*\}", "VALUE", " ".join(command))
    return {option_name(word) for word in text.split() if re.match("--?[a-z]", word)}


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.24.0"),
        ("vllm", "0.33.0"),
        ("sglang", "0.5.10"),
        ("sglang", "0.5.23"),
        ("trtllm", "1.2.1"),
        ("trtllm", "1.3.0rc20"),
    ],
)
@pytest.mark.parametrize(("model", "on", "words"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_a_release_knows_every_option_of_its_command(engine, version, model, on, words):
    request = PlanRequest(model, on, engine=engine, engine_version=version, **words)
    if "dcp" in words and context_problem(load_model("glm-5.1"), 8, 2, engine, version):
        with pytest.raises(SpecError):
            fit_answer(request)
        return
    answer = fit_answer(request)
    if not answer.command:
        assert answer.verdict == "does_not_fit"
        return
    if any(one.name.startswith(f"{engine}-{model}") and one.name.endswith("-since") for one in answer.warnings):
        return  # the release does not know the model, and the answer says so
    release, names = known_flags(engine, version)
    assert release == {"1.2.1": "1.2.0", "1.3.0rc20": "1.3.0rc7"}.get(version, version)
    found = options_in(answer.command)
    assert found, answer.command
    unknown = {one for one in found if not {one, one.partition(".")[0], one.replace("--no-", "--", 1)} & names}
    assert not unknown, f"{' '.join(answer.command)}: {engine} {version} knows no {unknown}"


#: files that llama-server reads, and words that bring options of their own
FILES = (
    ("llama-3.1-8b-q4_k_m", "1xrtx-4090", {"users": "4", "context": "8192"}),
    ("glm-5.3-flash-q3_k_xl", "2xrtx-pro-6000-ws", {"max_num_batched_tokens": 512}),
    ("llama-3.1-70b-q4_k_m", "4xl40s", {"kv": "q8_0", "users": "8", "context": "32768"}),
    ("llama-3.1-70b-q4_k_m", "4xrtx-3090", {"tp": "4", "pp": "1"}),
    ("qwen3-30b-a3b", "mac-studio-m3-ultra", {}),
)


@pytest.mark.parametrize(("version", "read"), [("b9193", "b9113"), ("b10776", "b10773"), ("latest", "b11434")])
@pytest.mark.parametrize(("model", "on", "words"), FILES, ids=[f"{case[0]} {case[1]}" for case in FILES])
def test_a_build_of_llama_server_knows_every_option_of_its_command(version, read, model, on, words):
    answer = fit_answer(PlanRequest(model, on, engine="llama.cpp", engine_version=version, **words))
    if model.startswith("glm-5.3-flash") and version != "latest":
        assert answer.verdict == "does_not_fit" and answer.headline.endswith("does not support this model")
        return
    release, names = known_flags("llama.cpp", answer.asked.runs_as)
    assert release == read
    found = options_in(answer.command)
    assert {"-c", "--parallel"} <= found <= names, f"{' '.join(answer.command)}: {found - names}"


@pytest.mark.parametrize("words", [{}, {"kv": "q8_0"}, {"tp": "2"}, {"max_num_seqs": 8, "mtp": 3}])
def test_the_server_of_exllamav3_knows_every_option_of_its_command(words):
    answer = fit_answer(PlanRequest("qwen3.8-27b-exl3-3.50bpw", "2xrtx-3090", users="4", **words), changes=False)
    release, names = known_flags("exllamav3", answer.asked.runs_as)
    assert release == "1.4.1" and {"--model-name", "--cache-size"} <= options_in(answer.command) <= names
    assert "--cpu-moe-offload-layers" in names


@pytest.mark.parametrize("version", ["0.16.0", "0.18.0"])
@pytest.mark.parametrize(
    ("engine", "model", "words"),
    [
        ("lmdeploy-pytorch", "glm-5.1-fp8", {"mtp": 3}),
        ("lmdeploy-pytorch", "deepseek-v3", {"dp": 8, "ep": 8}),
        ("lmdeploy-pytorch", "hy3-bf16", {"mtp": 1}),
        ("lmdeploy", "qwen3-32b", {"kv": "int8-head", "tp": 2, "memory_fraction": 0.7, "max_num_seqs": 8}),
    ],
)
def test_lmdeploy_knows_every_option_of_its_engines(engine, version, model, words):
    answer = fit_answer(PlanRequest(model, "8xh200-sxm", engine=engine, engine_version=version, **words), changes=False)
    release, names = known_flags("lmdeploy", version)
    assert release == version and {"--backend"} < options_in(answer.command) <= names
    assert ("--speculative-num-draft-tokens" in options_in(answer.command)) == ("mtp" in words)


def test_the_list_of_llama_server_is_the_one_that_the_project_generates_of_its_options():
    """tools/server/README.md beside the sources of b10773 lists 417 names, of b11434 412.

    In the last, ``--spec-draft-sampling`` is in the sources and not yet on the page.
    """
    for version, names in (("b10773", 417), ("b11434", 412 + 1)):
        assert len(known_flags("llama.cpp", version)[1]) == names
    newest = known_flags("llama.cpp", None)[1]
    assert {"-ngl", "--n-gpu-layers", "-ot", "--override-tensor", "--no-kv-offload", "--spec-draft-sampling"} <= newest
    assert not {"--mlock", "--no-mmap", "--print-token-count"} & newest


def test_the_recipe_of_the_model_brings_its_parsers():
    command = " ".join(fit_answer(PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine="vllm")).command)
    assert "--tool-call-parser glm47" in command and "--reasoning-parser glm45" in command


def test_the_cache_of_sparse_cards_is_told_by_the_name_that_the_engine_has_for_it():
    answer = fit_answer(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version="0.33.0"))
    assert "--kv-cache-dtype fp8_ds_mla" in " ".join(answer.command)


def test_what_a_recipe_says_in_a_file_is_said_of_the_file():
    answer = fit_answer(PlanRequest("deepseek-r1-fp8", "8xh200-sxm", engine="trtllm"))
    command = " ".join(answer.command)
    assert "--tp_size 8" in command and "--tensor_parallel_size" not in command
    told = next(note for note in answer.command_notes if note.startswith("options.yaml of that recipe"))
    assert "cuda_graph_config.enable_padding: true" in told


@pytest.mark.parametrize(("version", "read"), [("0.4.0", "0.5.3"), ("0.7.2", "0.7.2")])
@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("glm-5.1-fp8", "FP8"),
        ("deepseek-v3-fp8", "FP8"),
        ("glm-5.1-nvfp4", "NVFP4"),
        ("kimi-k2.5-int4", "RAWINT4"),
        ("qwen3-30b-a3b", "BF16"),
        ("glm-4.7-fp8", "FP8_PERCHANNEL"),
        ("glm-5.1-q4_k_m", "LLAMAFILE"),
    ],
)
def test_ktransformers_is_told_to_compute_the_experts_as_they_are_stored(version, read, model, method):
    asked = PlanRequest(model, "genoa-2s-direct-8", engine="ktransformers", engine_version=version)
    answer = fit_answer(asked, changes=False)
    release, names = known_flags("ktransformers", version)
    assert release == read
    found = options_in(answer.command)
    assert found <= names, f"{' '.join(answer.command)}: {found - names}"
    # the bytes in host memory are those of the files: converted experts (AMXINT4, the default) would be others
    assert f"--kt-method {method} " in " ".join(answer.command)


@pytest.mark.parametrize(
    ("model", "stored", "wall"),
    [
        ("hy3-fp8", "fp8-matrix", "ktransformers-reads-no-such-experts"),
        ("glm-5.2-w4afp8", "w4afp8", "ktransformers-reads-no-such-experts"),
        ("glm-4.7-awq-int4", "awq-int4", "ktransformers-reads-no-such-experts"),
        ("qwen3-30b-a3b-int8", "int8", "ktransformers-reads-no-such-experts"),
    ],
)
def test_experts_that_no_method_of_ktransformers_reads_have_no_command_and_do_not_run(model, stored, wall):
    answer = fit_answer(PlanRequest(model, "genoa-2s-direct-8", engine="ktransformers"), changes=False)
    assert answer.holding.terms.blocked.id == wall and answer.verdict != "fits"
    assert answer.command == () and not any("METHOD" in note for note in answer.command_notes)
    asked = PlanRequest(model, "genoa-2s-direct-8", engine="ktransformers")
    words, notes = launch_command(read_words(asked), answer.holding, 4096)
    assert words == () and stored in notes[0]


def test_fp8_experts_whose_scales_nobody_names_are_said_to_be_unknown():
    asked = read_words(PlanRequest("hy3-fp8", "genoa-2s-direct-8", engine="ktransformers"))
    asked = replace(asked, checkpoint=asked.checkpoint.model_copy(update={"fp8_scales": None}))
    standing = {wall.id: wall.severity for wall in Obstacles(asked).kinds[0][1].always}
    assert standing["ktransformers-unknown-fp8-scales"] == "unknown"
    assert "ktransformers-reads-no-such-experts" not in standing


TWO_MACS = """
title = "two Mac Studio and a cable"
source = "a drawing"
unified_memory = true
nodes = 2
cards = [{ accelerator = "m3-ultra" }]
fabric = { kind = "ethernet", bandwidth = "10 Gbit/s", source = "a drawing" }
"""


def test_a_server_of_mlx_knows_every_option_of_its_command():
    release, names = known_flags("mlx", None)
    assert release == "0.32.2"
    alone = fit_answer(PlanRequest("glm-4.7-flash-mlx-4bit", "mac-studio-m3-ultra", engine="mlx"), changes=False)
    assert {"--model"} <= options_in(alone.command) <= names


@pytest.mark.parametrize(("tp", "pp"), [("2", "1"), ("1", "2")])
def test_two_machines_of_mlx_are_named_in_a_file_and_divide_the_model_as_planned(tmp_path, tp, pp):
    file = tmp_path / "macs.toml"
    file.write_text(TWO_MACS)
    asked = PlanRequest("glm-5.1-mlx-4.538bpw", str(file), engine="mlx", tp=tp, pp=pp)
    launcher, _, server = " ".join(fit_answer(asked, changes=False).command).partition(" -- ")
    # mlx/_distributed_utils/launch.py of mlx 0.32.4: --hosts takes names, and -n starts each of them as often
    assert launcher == "mlx.launch --hostfile hosts.json"
    assert options_in([server]) <= known_flags("mlx", None)[1]
    assert ("--pipeline" in server) == (pp == "2")


@pytest.mark.parametrize("model", ["kimi-k2.6", "qwen3.5-397b-a17b"])
def test_an_image_tower_is_started_as_memory_counts_it(model):
    # recipes put a whole tower on every rank, which is more than the plan has room for
    answer = fit_answer(PlanRequest(model, "8xh200-sxm"), changes=False)
    assert "--mm-encoder-tp-mode" not in " ".join(answer.command) and answer.command


@pytest.mark.parametrize("model", ["glm-5.1-q4_k_m", "qwen3-30b-a3b-q8_0"])
def test_experts_of_a_gguf_file_stand_beside_the_safetensors_of_the_model(model):
    answer = fit_answer(PlanRequest(model, "genoa-2s-direct-8", engine="ktransformers"), changes=False)
    words = " ".join(answer.command).split()
    assert words[words.index("--kt-method") + 1] == "LLAMAFILE"
    assert words[words.index("--model-path") + 1] == answer.asked.model.hugging_face


def test_a_model_without_experts_has_no_options_for_them():
    answer = fit_answer(PlanRequest("qwen3-8b", "genoa-2s-direct-8", engine="ktransformers"), changes=False)
    assert "--kt-" not in " ".join(answer.command) and answer.command
