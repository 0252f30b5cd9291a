"""Extras: each package that is not always there is named, with its extra, by whoever lacks it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from glmplan.errors import SpecError
from glmplan.extras import EXTRAS, at_hand, check_extra, wanted

#: modules of packages whose names differ
MODULES = {"nvidia-ml-py": "pynvml", "vl-convert-python": "vl_convert", "dask": "distributed", "PyYAML": "yaml"}

#: modules that a command imports after it has asked for their extra; annotations of routes must stand in the module
LAZY = {"service.application", "service.assistant", "service.server"}


@pytest.fixture(scope="module")
def extras(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def packages(requirements):
    return [re.split(r"[<>=\[;~! ]", requirement)[0] for requirement in requirements]


def test_every_extra_of_the_project_has_a_module_that_is_asked_for(extras):
    told = set(EXTRAS.values())
    # the kernel tables are installed in two steps with a message of their own; contributors use `dev` and `docs`
    assert told == set(extras) - {"all", "dev", "docs", "kernels"}


def test_a_module_comes_with_the_extra_that_is_named_for_it(extras):
    for module, extra in EXTRAS.items():
        modules = [MODULES.get(name, name.replace("-", "_").lower()) for name in packages(extras[extra])]
        assert module in modules, f"{module} does not come with {extra}: {modules}"


def test_the_extra_all_brings_every_extra_for_users(extras):
    (one,) = extras["all"]
    named = re.fullmatch(r"glmplan\[([\w,]+)\]", one)
    assert named and set(named[1].split(",")) == set(extras) - {"all", "dev", "docs"}


def test_only_one_module_writes_how_to_install_an_extra(sources):
    written = [source.name for source in sources if source.name and "pip install 'glmplan[" in source.path.read_text()]
    # the kernel tables come in two steps and have words of their own
    assert sorted(written) == ["calibrate.kernels.tables", "extras"]


def test_nothing_of_an_extra_is_imported_outside_of_a_function(sources):
    guilty = [
        f"{source.name}: {ast.unparse(node)}"
        for source in sources
        if source.name and source.name not in LAZY
        for node in source.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        if name.split(".")[0] in EXTRAS
    ]
    assert not guilty


@pytest.mark.parametrize("module", sorted(EXTRAS))
def test_a_missing_extra_is_named_in_one_line(module, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not at_hand(module)
    for ask in (check_extra, wanted):
        with pytest.raises(SpecError) as found:
            ask(module, field="--out")
        assert str(found.value) == f"--out: needs the extra {EXTRAS[module]}: pip install 'glmplan[{EXTRAS[module]}]'"


def test_a_package_whose_library_is_missing_is_named_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("raise OSError('cannot load libhalf.so\\nSee the manual')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EXTRAS, "half_there", "png")
    with pytest.raises(
        SpecError, match=r"^--out: half_there of the extra png cannot be loaded: cannot load libhalf.so$"
    ):
        wanted("half_there", field="--out")


def test_a_plan_needs_none_of_the_extras():
    block = (
        "import sys\n"
        "class None_(__import__('importlib.abc').abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {sorted(EXTRAS)!r}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, None_())\n"
        "from glmplan.cli import main\n"
        "main(['fit', 'llama-3.1-8b', '--on', '1xh100-sxm', '--format', 'json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"verdict": "fits"' in done.stdout
