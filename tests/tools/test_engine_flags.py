"""Options are read out of a wheel by the texts and the fields that become options, and nothing of it is run."""

from __future__ import annotations

import importlib.util
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
    assert tool.read_wheel("vllm", wheel) == (
        "9.1.0", ["vllm/engine/arg_utils.py"], ["--kv-cache-dtype", "--tool-call-parser"],
    )  # fmt: skip


def test_a_wheel_without_options_is_an_error_that_says_where_they_were_looked_for(tool, tmp_path):
    wheel = tmp_path / "vllm-9.1.0-cp38-abi3-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("vllm/moved.py", SOURCE)
    with pytest.raises(SystemExit, match="arg_utils"):
        tool.read_wheel("vllm", wheel)
