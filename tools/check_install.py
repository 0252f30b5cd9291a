"""Install the wheel in a clean environment and plan with it: `make wheel`, `make pythons`.

python tools/check_install.py            builds sdist and wheel, installs the wheel with the running Python
python tools/check_install.py --pythons  the same with every supported Python of PATH and pyenv

The wheel is built from the sdist, so that both are complete. `pip` resolves the dependencies as for any user. A wheel
with the compiled engine is tried with the Python that built it only; GLMPLAN_PURE=1 builds one for all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: a question that reads every kind of data file and needs no extra
QUESTION = ("fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--format", "json")


def build(folder: Path) -> Path:
    """Build the sdist from the checkout and the wheel from the sdist; return the wheel."""
    _hatchling(ROOT, "sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    _hatchling(source, "wheel", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _hatchling(source: Path, target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def check(python: str, wheel: Path, folder: Path) -> str:
    """Install the wheel with this interpreter and return the version and the verdict that the command prints."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True)
    glmplan = str(programs / "glmplan")
    version = _output([glmplan, "--version"], folder).strip()
    answer = json.loads(_output([glmplan, *QUESTION], folder))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if project["version"] not in version or answer["verdict"] != "fits":
        raise SystemExit(f"{python}: version {version}, verdict {answer['verdict']}")
    return f"{version}, verdict {answer['verdict']}"


def _output(command: list[str], folder: Path) -> str:
    """Return the output of a command that runs outside the checkout and without its modules."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=folder, env=clean, check=True, stdout=subprocess.PIPE, text=True).stdout


def pythons() -> list[str]:
    """Return the names of the supported interpreters: one for each classifier of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith("Programming Language")]
    return [f"python{version}" for version in versions if "." in version]


def find(python: str) -> str | None:
    """Return the path of an interpreter that runs, from PATH or from pyenv, whose shims may point at nothing."""
    if python == f"python{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in (shutil.which(python), *sorted(map(str, pyenv.glob(f"versions/*/bin/{python}")))):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def installs(wheel: Path, python: str) -> bool:
    """Return whether an interpreter takes the wheel: a compiled one is for the Python that built it."""
    own = (f"python{sys.version_info.major}.{sys.version_info.minor}", sys.executable)
    return wheel.name.endswith("-none-any.whl") or python in own


def main(arguments: list[str]) -> int:
    """Check the running Python, or every supported one that is installed."""
    wanted = pythons() if "--pythons" in arguments else [sys.executable]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build(folder)
        print(f"built: {wheel.name}, from the sdist")
        for python in wanted:
            name = Path(python).name
            if not installs(wheel, python):
                print(f"{name}: the wheel is compiled for another Python")
                continue
            found = find(python)
            print(f"{name}: {check(found, wheel, folder / name) if found else 'not installed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
