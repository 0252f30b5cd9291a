"""`glmplan walls` lists walls in every form, and refuses what it does not know."""

import csv
import io
import json

import pytest
import typer
from typer.testing import CliRunner

from glmplan.catalog.engines.limitations import conditions_of, host_options
from glmplan.catalog.entries.hosts import load_machine
from glmplan.cli import COMMANDS
from glmplan.cli.walls import command
from glmplan.errors import SpecError, UnknownName
from glmplan.io.json_names import upgrade

SIX = ["glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws", "--engine", "vllm", "--engine-version", "0.19.0"]


def _run(*words):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(words))


def test_the_command_is_registered():
    assert COMMANDS["walls"][0] == "glmplan.cli.walls"


def test_text_fits_a_hundred_columns_and_names_the_wall_the_way_out_and_the_source():
    result = _run(*SIX, "--tp", "2", "--pp", "3", "--mtp", "3")
    assert result.exit_code == 0
    assert max(len(line) for line in result.output.splitlines()) <= 100
    stands, possible = result.output.split("Possible:")
    assert "stock vLLM has no sparse MLA backend for SM120" in stands
    assert "speculative decoding does not work over pipeline stages" in stands
    assert "pull request 39594" in stands
    assert "b12x" in possible


def test_json_holds_the_same_walls_as_csv_and_markdown():
    walls = json.loads(_run(*SIX, "--format", "json").output)["limitations"]
    table = list(csv.DictReader(io.StringIO(_run(*SIX, "--format", "csv").output)))
    lines = _run(*SIX, "--format", "md").output.splitlines()
    assert [wall["id"] for wall in walls] == [row["id"] for row in table]
    assert len(lines) == len(walls) + 2
    assert {wall["verdict"] for wall in walls} == {"stands", "possible"}


def test_json_with_the_old_names_is_read_with_the_new_ones():
    record = json.loads(_run(*SIX, "--format", "json").output)
    old = {"schema": "glmplan.walls/1", "plan": record["plan"], "walls": record["limitations"]}
    assert upgrade(old) == record and record["schema"] == "glmplan.walls/2" and record["limitations"]
    assert upgrade(record) is record
    assert upgrade({"schema": [1]}) == {"schema": [1]}


def test_a_patch_that_is_said_lifts_the_wall():
    before = json.loads(_run(*SIX, "--certain", "--format", "json").output)["limitations"]
    after = json.loads(_run(*SIX, "--certain", "--with", "sm120-sparse-mla", "--format", "json").output)["limitations"]
    wall = "vllm-no-sparse-mla-on-sm120"
    assert wall in {row["id"] for row in before}
    assert wall not in {row["id"] for row in after}


def test_nothing_known_is_said_plainly():
    result = _run("qwen3-8b", "--on", "1xh100-sxm", "--engine", "mlx", "--certain")
    assert result.exit_code == 0
    assert "Nothing known stands in the way." in result.output


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["glm-6-nvfp4", "--on", "6xrtx-pro-6000-ws"], UnknownName, "glm-6"),
        (["glm-5.1", "--on", "6xrtx-pro-6001"], UnknownName, "nearest"),
        (["glm-5.1", "--on", "8xb200-sxm", "--engine", "vlm"], UnknownName, "nearest: vllm"),
        (["glm-5.1", "--on", "8xb200-sxm", "--engine-version", "newest"], SpecError, "not a version"),
        (["glm-5.1", "--on", "8xb200-sxm", "--with", "force-p2"], SpecError, "nearest: force-p2p"),
    ],
)
def test_what_is_unknown_is_refused_with_the_nearest_choice(words, error, message):
    result = _run(*words)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_a_negative_context_is_refused():
    refused = _run("glm-5.1", "--on", "8xb200-sxm", "--context", "-1").exception
    assert isinstance(refused, SpecError) and refused.field == "--context"


def test_the_machine_says_what_it_implies():
    host = load_machine("wrx90-2-switches-8")
    assert "pcie-switch" in host_options(host, 8)
    assert "dual-socket" not in host_options(host, 8)
    turin = load_machine("turin-2s-direct-8-tuned")
    assert "dual-socket" in host_options(turin, 8)
    assert "dual-socket" not in host_options(turin, 4)
    assert conditions_of(load_machine("hgx-b200-8"), engine="vllm", features=None).link == "nvlink"
