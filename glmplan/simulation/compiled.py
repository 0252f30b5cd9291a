"""The event engine as machine code, if it was compiled from these sources.

Otherwise it runs as pure Python.

`hatch_build.py` compiles `MODULES` with mypyc into a folder that is named after a digest of the sources. A folder of
other sources is never used, so an edited module runs as it reads. Both forms give the same answers to the last digit.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

__all__ = ["GROUP", "MODULES", "PURE", "compiled_folder", "prefer_compiled"]

#: modules that are compiled together, so that they call each other without the interpreter
MODULES = (
    "glmplan.simulation.closed_schedule",
    *(
        f"glmplan.simulation.engine.{name}"
        for name in (
            "admission",
            "cluster",
            "engine",
            "fleet",
            "in_order",
            "lockstep",
            "prefix_cache",
            "reference",
            "router",
        )
    ),
    "glmplan.simulation.engine.step_clock",
    "glmplan.simulation.traffic.request",
)
#: modules whose types the compiled modules use
_RELIED_ON = (
    "glmplan.simulation.closed_run",
    "glmplan.simulation.engine.settings",
    "glmplan.simulation.engine.step_table",
    "glmplan.simulation.traffic.drafting",
    "glmplan.units",
)
#: name of the library that holds the code of all of them
GROUP = "glmplan_engine"
#: environment variable that asks for pure Python
PURE = "GLMPLAN_PURE"


def compiled_folder(package: Path) -> Path:
    """Return the folder of the compiled form of the sources; it may be absent.

    Its name changes with every change of the sources.
    """
    digest = hashlib.sha256()
    for name in (*MODULES, *_RELIED_ON):
        source = package.joinpath(*name.split(".")[1:]).with_suffix(".py")
        digest.update(source.read_bytes())
    return package / "_compiled" / digest.hexdigest()[:16]


class _CompiledFirst(MetaPathFinder):
    """Finds the compiled modules before the finder of the sources does."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return spec_from_file_location(fullname, file) if file is not None else None


def prefer_compiled() -> None:
    """Let imports find the compiled form of the engine, if there is one.

    The environment variable `PURE` asks for pure Python.
    """
    if os.environ.get(PURE):
        return
    try:
        folder = compiled_folder(Path(__file__).parents[1])
    except OSError:
        return
    suffix = EXTENSION_SUFFIXES[0]
    files = {name: folder.joinpath(*name.split(".")) for name in (*MODULES, f"{GROUP}__mypyc")}
    files = {name: file.with_name(file.name + suffix) for name, file in files.items()}
    if all(os.path.exists(file) for file in files.values()):
        sys.meta_path.insert(0, _CompiledFirst(files))
