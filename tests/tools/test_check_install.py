"""The wheel that `make pythons` installs: a compiled one with the Python that built it only, a pure one with all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("check_install", ROOT / "tools" / "check_install.py")
assert spec is not None and spec.loader is not None
check_install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_install)

OWN = f"python3.{sys.version_info.minor}"
COMPILED = f"glmplan-1.0.0-cp3{sys.version_info.minor}-cp3{sys.version_info.minor}-linux_x86_64.whl"


@pytest.fixture
def tried(monkeypatch):
    """The interpreters that a wheel is installed with, by its name."""

    def of(wheel: str, *arguments: str) -> list[str]:
        with_it = []
        monkeypatch.setattr(check_install, "build", lambda folder: folder / wheel)
        monkeypatch.setattr(check_install, "find", lambda python: python)
        monkeypatch.setattr(check_install, "check", lambda python, *_: with_it.append(python) or "tried")
        assert check_install.main(list(arguments)) == 0
        return with_it

    return of


def test_a_compiled_wheel_is_tried_with_its_own_python(tried):
    assert tried(COMPILED, "--pythons") == [OWN]
    assert tried(COMPILED) == [sys.executable]


def test_a_pure_wheel_is_tried_with_all(tried):
    assert tried("glmplan-1.0.0-py3-none-any.whl", "--pythons") == check_install.pythons()
    assert OWN in check_install.pythons() and len(check_install.pythons()) > 2
