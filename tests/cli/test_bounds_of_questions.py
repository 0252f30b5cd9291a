"""Questions beyond any machine, and shells without a language: an answer or one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glmplan.cli import main
from glmplan.errors import SpecError
from glmplan.io.machines import this_machine
from glmplan.simulation.engine.settings import EngineSettings
from glmplan.simulation.safe_load import safe_load
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

ON = "glm-5.1-nvfp4", "--on", "8xb200-sxm"


def asked(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


@pytest.mark.parametrize("form", ["text", "json", "csv", "md"])
def test_answers_of_one_token_have_no_later_ones_and_are_planned(capsys, form):
    code, said, _ = asked(capsys, "fit", *ON, "--output", "1", "--users", "1,16", "--format", form)
    assert code == 0 and said


@pytest.mark.parametrize("traffic", ["closed:4", "poisson:2/s"])
def test_answers_of_one_token_are_simulated(capsys, traffic):
    code, said, _ = asked(capsys, "simulate", *ON, "--traffic", traffic, "--requests", "20", "--output", "1")
    assert code == 0 and "ttft" in said


def test_a_promise_of_later_tokens_is_refused_for_answers_of_one(capsys):
    code, _, why = asked(capsys, "safe", *ON, "--output", "1", "--slo", "tpot < 0.1 s")
    assert code == 2 and "answers of one token" in why


@pytest.mark.parametrize(
    ("words", "bound"),
    [
        (["--seed", "-1"], "at least 0"),
        (["--input", "1" + "0" * 30], "at most 2,147,483,648"),
        (["--output-cv", "1e308"], "less than or equal to 100"),
        (["--input-cv", "inf"], "--input-cv"),
        (["--replicas", "1000000"], "at most 10,000"),
        (["--think", "1e308"], "less than or equal to"),
        (["--turns", "1" + "0" * 20], "at most"),
        (["--requests", "1" + "0" * 30], "at most"),
        (["--replications", "100000000"], "at most 10,000"),
        (["--max-num-batched-tokens", "1"], "at least"),
        (["--users", "\u0661\u0662"], "0 to 9"),
        (["--input", "\u0661\u0662"], "0 to 9"),
    ],
)
def test_what_no_machine_can_be_asked_is_refused_with_the_bound(capsys, words, bound):
    code, _, why = asked(capsys, "simulate", *ON, "--traffic", "closed:4", "--requests", "20", *words)
    assert code == 2 and bound in " ".join(why.split())


@pytest.mark.parametrize(
    "spec", ["closed:-1", "closed:1e30", "poisson:inf/s", "poisson:-1/s", "poisson:1e300/s", "closed:\u0668"]
)
def test_loads_that_cannot_be_are_refused(spec):
    with pytest.raises(SpecError):
        parse_traffic(spec)


def test_copies_are_bounded_for_programs_too():
    with pytest.raises(SpecError, match="at most 10,000"):
        EngineSettings(replicas=1_000_000)


def test_the_longest_spread_gives_lengths_that_are_numbers():
    from glmplan.simulation.engine.settings import KvPool
    from glmplan.simulation.engine.step_table import StepTable

    service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    found = simulate(service, parse_traffic("closed:2", input=64, output=64, output_cv=100.0), requests=50)
    assert found.summary["requests"] >= 0
    with pytest.raises(SpecError, match="answers of one token"):
        safe_load(service, parse_traffic("closed:2", output=1), parse_slo("itl < 1 s"))


@pytest.mark.parametrize(
    "words",
    [
        ("fit", *ON),
        ("hardware", "show", "b200-sxm"),
        ("models", "show", "glm-5.1"),
        ("compare", "llama-3.1-8b@1xh100-sxm", "llama-3.1-8b@1xh200-sxm"),
    ],
)
def test_a_shell_without_a_language_shows_every_answer(words):
    shell = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIOENCODING"))
    }
    command = [sys.executable, "-c", "from glmplan.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, check=False, env=own | shell, timeout=300)
    assert done.returncode == 0 and done.stdout.isascii() and b"Traceback" not in done.stderr, done.stderr


def test_a_tool_that_hangs_or_floods_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(this_machine, "_PATIENCE", 1.0)
    for name, body in {
        "hangs": "sleep 1000 & sleep 1000",
        "floods": "cat /dev/zero",
        "fails": "echo x; exit 3",
        "says goodbye and stays": "echo x; exec >&-; sleep 1000",
        "leaves a child that holds its output": "setsid sleep 30 & echo x; exit 0",
    }.items():
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
        assert this_machine._said_by(str(tool)) == ""
    assert this_machine._said_by(str(tmp_path / "absent")) == ""
    (tmp_path / "fails").write_text("#!/bin/sh\necho x\n")
    assert this_machine._said_by(str(tmp_path / "fails")) == "x\n"


def test_text_of_a_file_is_no_escape_sequence(capsys, tmp_path):
    file = tmp_path / "part.toml"
    file.write_text('full_name = "\\u001b[31mred\\u001b[0m"\nkind = "nonsense \\u001b]0;owned\\u0007"\n')
    code, said, why = asked(capsys, "hardware", "check", str(file))
    assert code == 2 and "\x1b" not in said + why and "\x07" not in said + why
