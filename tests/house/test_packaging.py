"""The wheel holds the facts and works where there is no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string

import pytest

from glmplan.simulation.compiled import PURE, compiled_folder


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    # compiling takes minutes: a wheel holds the compiled engine here only where `make compile` has made it
    environment = os.environ if compiled_folder(root / "glmplan").exists() else {**os.environ, PURE: "1"}
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_installed(folder, *words):
    code = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_wheel_holds_every_data_file_of_the_checkout(wheel, root):
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    files = [
        path.relative_to(root).as_posix()
        for name in ("hardware_db", "model_specs", "calibration")
        for path in (root / name).rglob("*")
        if path.is_file() and path.suffix in {".toml", ".csv"}
    ]
    assert len(files) > 100
    assert not [name for name in files if f"glmplan/_data/{name}" not in held]


def test_the_wheel_is_under_five_megabytes(wheel):
    assert wheel.stat().st_size < 5e6


def test_the_wheel_holds_nothing_of_tests_and_tools(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"glmplan"}


def test_an_installed_wheel_lists_its_models_from_its_own_data(installed):
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import glmplan.catalog.files as d; print(d.data_folder('model_specs'))"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(installed / "glmplan/_data/model_specs")
    listed = run_installed(installed, "models", "list")
    assert listed.returncode == 0, listed.stderr
    assert "glm-5.1" in listed.stdout


def test_an_installed_wheel_says_its_version(installed, root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (metadata,) = installed.glob("*.dist-info/METADATA")
    fields = message_from_string(metadata.read_text(encoding="utf-8"))
    assert fields["Version"] == project["version"]
    assert fields["License-Expression"] == "Apache-2.0"
    assert project["scripts"] == {"glmplan": "glmplan.cli:main"}


def test_an_installed_wheel_runs_the_compiled_engine_where_there_is_one(installed, wheel, root):
    there = compiled_folder(root / "glmplan").exists() and not os.environ.get(PURE)
    assert wheel.name.endswith("-py3-none-any.whl") is not there
    code = "import glmplan.simulation.engine.engine as engine; print(engine.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    loaded = subprocess.check_output([sys.executable, "-P", "-c", code], cwd=installed, env=environment, text=True)
    assert loaded.startswith(str(installed)) and loaded.strip().endswith(".py") is not there


def test_every_declared_python_is_tried_by_the_makefile(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = subprocess.run(
        [sys.executable, "-c", "import check_install; print(*check_install.pythons())"],
        cwd=root / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == ["python3.11", "python3.12", "python3.13", "python3.14"]
    assert project["requires-python"] == ">=3.11"


def test_every_dependency_has_a_page_that_says_why(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    page = (root / "docs/decisions/dependencies.md").read_text(encoding="utf-8")
    for requirement in wanted:
        name = requirement.split(";")[0].split("[")[0].split(">")[0].strip()
        assert f"`{name}`" in page or name == "glmplan", name


def test_every_dependency_has_a_lower_bound(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    unbounded = [one for one in wanted if not re.match(r"[\w.-]+(\[[\w,-]+\])?>=\d[\d.]*(;|$)", one.replace(" ", ""))]
    assert not [one for one in unbounded if not one.startswith("glmplan[")]


def test_every_dependency_is_used(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in (root / "glmplan").rglob("*.py"))
    for requirement in project["dependencies"]:
        name = re.split(r"[<>=\[;]", requirement)[0].strip()
        assert re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE), name
