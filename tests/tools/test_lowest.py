"""The lowest versions that `make lowest` installs, and the commands it calls failed."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("lowest", ROOT / "tools" / "lowest.py")
assert spec is not None and spec.loader is not None
lowest = importlib.util.module_from_spec(spec)
sys.modules["lowest"] = lowest
spec.loader.exec_module(lowest)


def test_the_pins_are_the_lower_bounds_of_the_core_and_of_each_extra_for_users():
    project = {
        "dependencies": ["numpy>=2.0", "typer>=0.18"],
        "optional-dependencies": {
            "cluster": ["dask[distributed]>=2025.1"],
            "gpu": ["nvidia-ml-py>=12.1; os_name == 'x'"],
            "all": ["glmplan[cluster,gpu]"],
            "dev": ["pytest"],
        },
    }
    pins = {"numpy": "2.0", "typer": "0.18", "dask": "2025.1", "nvidia-ml-py": "12.1"}
    assert lowest.lowest(project) == pins


@pytest.mark.parametrize("requirement", ["rich", "rich<14", "rich==13.7", "rich>=13,<14"])
def test_a_dependency_without_a_plain_lower_bound_is_refused(requirement):
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest.lowest({"dependencies": [requirement], "optional-dependencies": {}})


def test_two_bounds_of_one_dependency_are_refused():
    with pytest.raises(ValueError, match="two lower bounds: pyarrow"):
        lowest.lowest({"dependencies": [], "optional-dependencies": {"a": ["pyarrow>=17"], "b": ["pyarrow>=18"]}})


def test_the_bounds_of_the_project_are_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"numpy", "typer", "pandas", "fastapi", "weasyprint"} <= set(lowest.lowest(project))


def test_a_command_that_fails_is_said_with_its_last_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "glmplan"
    command.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'RuntimeError: broken' >&2\nexit 1\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setattr(lowest, "install", lambda venv, pins: None)
    assert lowest.main(["--venv", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all("FAILS" in line and "RuntimeError: broken" in line for line in lines[:-1])
    assert lines[-1] == f"lowest versions: {len(lines) - 1} commands fail"
