"""What the commands of the Makefile install: the demo what glmplan needs, everything else also what develops it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

DEVELOPMENT = "'.[all,dev]'"


@pytest.fixture
def planned(root, tmp_path):
    """What make would run for a target in a folder with nothing but the project's declaration."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)

    def dry(target: str) -> str:
        # the variables by which a make that runs these tests speaks to a make below it
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--dry-run", target]
        return subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True).stdout

    return dry


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def test_the_demo_installs_no_tools_for_development(planned):
    assert "pip install --quiet --editable .\n" in planned("demo")
    assert DEVELOPMENT not in planned("demo")


@pytest.mark.parametrize(
    "target", ["setup", "test", "check", "docs", "wheel", "pythons", "bench", "validate-demo", "validate-vllm"]
)
def test_everything_else_installs_them_too(planned, target):
    assert DEVELOPMENT in planned(target)


def test_the_site_installs_what_builds_it(planned):
    assert "'.[docs]'" in planned("site") and "'.[docs]'" in planned("docs")
    assert DEVELOPMENT not in planned("site")


def test_an_environment_of_the_demo_is_completed_and_a_changed_declaration_installs_again(planned, tmp_path):
    (tmp_path / ".venv").mkdir()
    core, development = tmp_path / ".venv/.ready-core", tmp_path / ".venv/.ready-dev"
    declared = (tmp_path / "pyproject.toml").stat().st_mtime

    def stamp(file, after):
        file.touch()
        os.utime(file, (declared + after, declared + after))

    stamp(core, 10)
    assert "pip install" not in planned("demo")
    assert DEVELOPMENT in planned("test") and "pip install --quiet --editable .\n" not in planned("test")
    stamp(development, 20)
    assert "pip install" not in planned("test")
    os.utime(tmp_path / "pyproject.toml", (declared + 30, declared + 30))
    assert "pip install --quiet --editable .\n" in planned("demo") and DEVELOPMENT in planned("test")


def test_help_has_a_line_for_every_command(root):
    text = (root / "Makefile").read_text(encoding="utf-8")
    (phony,) = (line for line in text.splitlines() if line.startswith(".PHONY:"))
    for target in phony.split()[1:]:
        assert f"\n{target}:" in text and "  ## " in text.split(f"\n{target}:")[1].splitlines()[0], target


def test_ci_runs_check_and_test_and_limits_the_time_of_mutations(root):
    lines = (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    run = {line.split()[1]: line for line in lines if line.startswith("make ")}
    assert {"check", "test", "lowest", "site", "pythons"} <= set(run)
    assert "--changed --minutes" in run["check"]
