"""Compile the event engine with mypyc: `make compile` for a checkout, and a build hook for the wheel.

Without mypy or a C compiler nothing is compiled, and the engine runs as pure Python with the same answers.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `make compile` needs no hatchling
    BuildHookInterface = object

ROOT = Path(__file__).parent
ENGINE = runpy.run_path(str(ROOT / "glmplan/simulation/compiled.py"))


def missing() -> str:
    """Say what compiling lacks; empty if nothing."""
    if os.environ.get(ENGINE["PURE"]):
        return f"{ENGINE['PURE']} asks for pure Python"
    absent = [name for name in ("mypyc", "setuptools") if find_spec(name) is None]
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    absent += [compiler] if sys.platform != "win32" and shutil.which(compiler) is None else []
    return f"not installed: {', '.join(absent)}" if absent else ""


def compile_engine() -> Path:
    """Compile the modules, unless that was done; the folder that holds them.

    Folders of other sources are deleted. Two processes may compile at the same time: one of the results stays.
    """
    folder: Path = ENGINE["compiled_folder"](ROOT / "glmplan")
    if any(folder.glob(f"{ENGINE['GROUP']}__mypyc{EXTENSION_SUFFIXES[0]}")):
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
        made = Path(scratch, "made")
        _compile(made, Path(scratch, "objects"))
        if folder.exists():  # for another Python
            shutil.copytree(made, folder, dirs_exist_ok=True)
        else:
            made.rename(folder)
    for other in folder.parent.iterdir():
        if other != folder and not other.name.startswith("."):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _compile(target: Path, scratch: Path) -> None:
    """Run mypyc and the C compiler."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    sources = [name.replace(".", "/") + ".py" for name in ENGINE["MODULES"]]
    os.chdir(ROOT)
    extensions = mypycify(
        ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *sources],
        opt_level="2",
        debug_level="0",
        group_name=ENGINE["GROUP"],
        target_dir=str(scratch / "c"),
    )
    command = build_ext(Distribution({"name": "glmplan", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(target), str(scratch)
    command.ensure_finalized()
    command.run()


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Put the compiled engine into the wheel, where it can be compiled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before files are gathered.

        Parameters
        ----------
        version : str
            `standard`, or `editable`: a checkout is compiled by `make compile`.
        build_data : dict
            What the wheel is to hold; changed.
        """
        if version == "editable":
            return
        why_not = missing()
        if why_not:
            self.app.display_warning(f"the engine is not compiled: {why_not}")
            return
        folder = compile_engine()
        for file in folder.rglob(f"*{EXTENSION_SUFFIXES[0]}"):
            build_data["force_include"][str(file)] = file.relative_to(ROOT).as_posix()
        build_data["pure_python"], build_data["infer_tag"] = False, True


if __name__ == "__main__":
    reason = missing()
    found = f"the engine runs as pure Python: {reason}" if reason else f"compiled: {compile_engine()}"
    sys.stderr.write(f"{found}\n")
