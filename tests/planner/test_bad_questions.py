"""Every bad input ends in one clear message that names the field, the value and what would be right."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from glmplan.errors import SpecError, UnknownArchitecture, UnknownName
from glmplan.planner import fit_answer, read_words
from glmplan.request.plan import PlanRequest
from tests.io.models.configs import GLM_5_1

SIX = "6xrtx-pro-6000-ws"
GLM = "glm-5.1-nvfp4"


def refused(model=GLM, on=SIX, **words):
    with pytest.raises(SpecError) as caught:
        fit_answer(PlanRequest(model, on, **words))
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"model": "glm-6"}, ["'glm-6'", "glm-5"]),
        ({"model": "glm-5.1-nvfp5"}, ["'nvfp5'", "nvfp4"]),
        ({"model": ""}, ["model", "empty"]),
        ({"on": "6xh20-sxm"}, ["--on", "'h20-sxm'", "h200-sxm"]),
        ({"on": "0xb200-sxm"}, ["--on", "no accelerator"]),
        ({"on": " "}, ["--on", "empty"]),
        ({"engine": "vlllm"}, ["--engine", "'vlllm'", "vllm"]),
        ({"engine_version": "newest"}, ["--engine-version", "'newest'"]),
        (
            {"engine": "ktransformers", "on": "2xepyc-9004"},
            ["--engine", "'ktransformers'", "beside accelerators", "--on"],
        ),
        ({"engine": "ktransformers", "on": "m3-ultra"}, ["--engine", "'ktransformers'", "llama.cpp"]),
        ({"kv": "fp9"}, ["--kv", "'fp9'", "fp8"]),
        ({"weights": "fp99"}, ["'fp99'", "fp8"]),
        ({"tp": "3"}, ["--tp", "64 attention heads", "2, 4"]),
        ({"tp": "0"}, ["--tp", "at least 1"]),
        ({"tp": "2.5"}, ["--tp", "'2.5'", "whole number"]),
        ({"tp": "nan"}, ["--tp", "'nan'"]),
        ({"tp": "4", "pp": "2"}, ["tp 4 × pp 2", "8 accelerators", "6"]),
        ({"tp": "4", "pp": "1", "dp": "1"}, ["4 of the 6"]),
        ({"tp": "2", "pp": "1", "dp": "1", "replicas": "2"}, ["4 of the 6", "× 2 replicas"]),
        ({"replicas": "7"}, ["7 accelerators", "6"]),
        ({"pp": "100"}, ["--pp", "100", "78 layers"]),
        ({"context": "0"}, ["--context", "at least 1"]),
        ({"context": "-4096"}, ["--context", "-4096", "at least 1"]),
        ({"context": "NaN"}, ["--context", "'NaN'"]),
        ({"context": "300000"}, ["--context", "300000", "202,752"]),
        ({"input": "202000", "output": "5000"}, ["--input", "207,000", "202,752"]),
        ({"context": "4000", "input": "4000", "output": "5"}, ["4,005", "--context"]),
        ({"output": "0"}, ["--output", "at least 1"]),
        ({"users": "1,x"}, ["--users", "'x'"]),
        ({"users": "0"}, ["--users", "at least 1"]),
        ({"users": ""}, ["--users", "empty"]),
        ({"users": "1,,4"}, ["--users", "whole number"]),
        ({"users": "100000"}, ["--users", "4,096"]),
        ({"memory_fraction": "nan"}, ["--memory-fraction", "finite"]),
        ({"memory_fraction": "1.2"}, ["--memory-fraction", "at most 1"]),
        ({"memory_fraction": "0"}, ["--memory-fraction", "above 0"]),
        ({"acceptance": "0.7"}, ["--acceptance", "--mtp"]),
        ({"mtp": "3", "acceptance": "9"}, ["--acceptance", "up to 4"]),
        ({"mtp": "3", "acceptance": "inf"}, ["--acceptance", "finite"]),
        ({"mtp": "-1"}, ["--mtp", "at least 0"]),
        ({"mtp": "99"}, ["--mtp", "16"]),
        ({"ep": "7"}, ["--ep", "within 6 accelerators"]),
        ({"tp": "2", "ep": "3"}, ["--tp 2 --ep 3", "ep must be tp × dp"]),
        ({"tp": "2", "dcp": "3"}, ["--dcp", "divide"]),
    ],
    ids=lambda one: " ".join(f"{k}={v}" for k, v in one.items()) if isinstance(one, dict) else "",
)
def test_bad_words_are_refused_with_field_value_and_what_is_right(words, says):
    message = refused(**words)
    assert "\n" not in message
    for part in says:
        assert part in message, message


def test_heads_of_grouped_queries_bound_tp_as_well():
    """GLM-4.5 has 96 query heads but 8 KV heads: TP 3 divides the first and not the second."""
    assert "KV heads" in refused("glm-4.5", "8xb200-sxm", tp="3")


def test_what_a_model_has_not_cannot_be_asked_for():
    assert "does not have" in refused("llama-3.1-8b", "1xh100-sxm", mtp="2")
    assert "does not have" in refused("llama-3.1-8b", "8xh100-sxm", ep="8")


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": [')
    (tmp_path / "machine.toml").write_text("cards = [")
    (tmp_path / "weights.gguf").write_bytes(b"junk")
    assert "config.json" in refused(str(tmp_path / "config.json"), SIX)
    assert "machine.toml" in refused(GLM, str(tmp_path / "machine.toml"))
    assert "weights.gguf" in refused(str(tmp_path / "weights.gguf"), SIX)


def test_an_unknown_architecture_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["FooForCausalLM"], "model_type": "foo"}')
    with pytest.raises(UnknownArchitecture, match="foo"):
        read_words(PlanRequest(str(path), SIX))


def test_unknown_names_are_errors_of_their_own():
    with pytest.raises(UnknownName):
        read_words(PlanRequest("glm-6", SIX))
    with pytest.raises(UnknownName):
        read_words(PlanRequest(GLM, "8xb400"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["glm-5.1-nvfp4", "--on", "4xrtx-pro-6000-ws", "--format", "csv"], 0),
        (["glm-5.1-int4", "--on", "nizwo-a1"], 0),
        (["glm-6", "--on", "4xrtx-pro-6000-ws"], 2),
        (["glm-5.1-nvfp4", "--on", "4xrtx-pro-6000-ws", "--context", "-1"], 2),
        (["glm-5.1-nvfp4", "--on", "4xrtx-pro-6000-ws", "--format", "xml"], 2),
        (["glm-5.1-nvfp4"], 2),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_answers_exit_with_0_and_bad_input_with_2_and_without_a_traceback(words, code):
    run = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", run, "fit", *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stdout if code == 0 else done.stderr).strip()


@pytest.mark.parametrize("on", ["16xh200-sxm", "1xl4"])
def test_a_switch_of_a_config_that_nobody_knows_is_a_warning_of_the_answer(tmp_path, on):
    plain, odd = tmp_path / "plain.json", tmp_path / "odd.json"
    plain.write_text(json.dumps(GLM_5_1))
    odd.write_text(json.dumps({**GLM_5_1, "use_magic_routing": True}))
    found = [one for one in fit_answer(PlanRequest(str(odd), on), changes=False).warnings if one.kind == "model"]
    assert [one.severity for one in found] == ["warning"] and "use_magic_routing" in found[0].title
    assert not any(one.kind == "model" for one in fit_answer(PlanRequest(str(plain), on), changes=False).warnings)
